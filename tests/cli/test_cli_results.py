"""What the verbs print and write."""

import gzip
import hashlib
import json

import pytest

PLAN_KEYS = [
    "outcome",
    "ops",
    "buffers",
    "resident_bytes",
    "program_peak_bytes",
    "peak_bytes",
    "lower_bound_bytes",
    "gap",
    "arena_bytes",
    "budget_bytes",
    "recomputed_ops",
    "recompute_ns",
    "swapped_bytes",
    "step_ns",
    "program_step_ns",
    "step_bound_ns",
    "seconds",
]


def test_plan_prints_the_documented_keys(cli, graph, tmp_path):
    result = cli.json("plan", graph, "-o", tmp_path / "p.json")
    assert list(result) == PLAN_KEYS
    assert list(result["seconds"]) == ["load", "budget", "order", "layout", "verify", "total"]
    assert result["outcome"] in ("optimal", "feasible")
    assert (result["ops"], result["buffers"], result["resident_bytes"]) == (10, 14, 768)
    assert result["budget_bytes"] is None
    assert (
        result["lower_bound_bytes"] <= result["peak_bytes"] <= min(result["arena_bytes"], result["program_peak_bytes"])
    )
    assert result["program_step_ns"] == result["step_ns"] == 9800


def test_plan_is_valid_and_names_its_graph(cli, graph, plan):
    written = json.loads(plan.read_text())
    assert written["graph_sha256"] == hashlib.sha256(graph.read_bytes()).hexdigest()
    report = cli.json("check", graph, plan)
    assert report["valid"] is True and report["rule"] is None and report["message"] == ""
    assert report["arena_bytes"] == written["arena_bytes"] >= report["peak_bytes"] > 0


def test_the_same_input_gives_the_same_plan(cli, graph, plan, tmp_path):
    again = tmp_path / "again.json"
    assert cli("plan", graph, "-o", again, "--threads", 4).returncode == 0  # of older scripts
    assert again.read_bytes() == plan.read_bytes()


def test_keep_order_keeps_program_order(cli, graph, tmp_path):
    path = tmp_path / "p.json"
    result = cli.json("plan", graph, "-o", path, "--keep-order")
    assert [step["op"] for step in json.loads(path.read_text())["steps"]] == list(range(10))
    assert result["peak_bytes"] == result["program_peak_bytes"]


def test_takeover_has_a_switch(cli, tmp_path):
    buffers = [
        {"name": "a", "bytes": 64, "kind": "temporary"},
        {"name": "b", "bytes": 64, "kind": "output", "returned": True},
    ]
    ops = [
        {"name": "fill", "target": "f", "creates": [0]},
        {"name": "relu", "target": "r", "reads": [0], "creates": [1], "takeover": [[0, 1]]},
    ]
    graph, plan = tmp_path / "g.json", tmp_path / "p.json"
    graph.write_text(
        json.dumps(
            {"format": "stowage-graph", "version": 1, "name": "two", "align": 64, "buffers": buffers, "ops": ops}
        )
    )
    for flags, arena in (((), 64), (("--no-takeover",), 128), (("--no-in-place-reuse",), 128)):
        result = cli.json("plan", graph, "-o", plan, *flags)
        assert (result["peak_bytes"], result["arena_bytes"], result["lower_bound_bytes"]) == (arena, arena, 64)
        assert cli("check", graph, plan).returncode == 0


ROAM_PARTS = ["segments", "tree", "order-ilp", "updates", "layout-ilp", "activation-stack", "concatenation"]


def test_roam_plans_with_and_without_each_part(cli, graph, plan, tmp_path):
    out = tmp_path / "roam.plan.json"
    best = cli.json("plan", graph, "-o", tmp_path / "best.plan.json")
    for without in [[], *([part] for part in ROAM_PARTS), ROAM_PARTS]:
        result = cli.json(
            "plan", graph, "-o", out, "--method", "roam", *(x for part in without for x in ("--roam-without", part))
        )
        assert set(result) == set(best)
        assert best["lower_bound_bytes"] <= result["peak_bytes"] <= result["arena_bytes"]
        assert cli("check", graph, out).returncode == 0
        assert json.loads(out.read_text())["meta"]["method"] == "roam"
    assert cli.json("plan", graph, "-o", out, "--method", "roam")["peak_bytes"] == best["peak_bytes"]


def test_roam_gives_the_same_plan_each_time(cli, graph, tmp_path):
    for name in "ab":
        cli("plan", graph, "-o", tmp_path / name, "--method", "roam")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_multi_stream_model_reports_its_peak(cli, graph, tmp_path):
    out = tmp_path / "roam.plan.json"
    result = cli.json("plan", graph, "-o", out, "--method", "roam", "--roam-multi-stream")
    assert json.loads(out.read_text())["meta"]["multi_stream_peak_bytes"] >= result["peak_bytes"]


def test_a_missing_solver_says_what_to_install(cli, graph, tmp_path):
    done = cli("plan", graph, "-o", tmp_path / "p", "--method", "roam", "--highs", "/nowhere/libhighs.so.1")
    assert done.returncode == 2
    assert "pip install 'highspy" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "wrong", [["--method", "best"], ["--roam-without", "luck"], ["--method", "roam", "--keep-order"]]
)
def test_methods_that_do_not_exist(cli, graph, tmp_path, wrong):
    assert cli("plan", graph, "-o", tmp_path / "p", *wrong).returncode == 2


def test_compressed_files(cli, graph, plan, tmp_path):
    packed = tmp_path / "g.graph.json.gz"
    packed.write_bytes(gzip.compress(graph.read_bytes()))
    out = tmp_path / "p.plan.json.gz"
    assert cli("plan", packed, "-o", out).returncode == 0
    assert gzip.decompress(out.read_bytes()) == plan.read_bytes()
    assert cli("check", packed, out).returncode == 0
    assert cli("check", graph, out).returncode == 0  # the digest is of the uncompressed text


def test_standard_streams(cli, graph, plan):
    done = cli("plan", "-", "-o", "-", stdin=graph.read_bytes())
    assert done.returncode == 0 and done.stdout == plan.read_text()
    assert done.stderr == ""  # no progress line: stderr is no terminal
    assert cli("check", graph, "-", stdin=plan.read_bytes()).returncode == 0


def test_bound(cli, graph):
    result = cli.json("bound", graph)
    assert list(result) == ["lower_bound_bytes", "program_peak_bytes", "resident_bytes", "seconds"]
    assert 0 < result["lower_bound_bytes"] <= result["program_peak_bytes"]


def test_info(cli, graph):
    result = cli.json("info", graph)
    assert (result["name"], result["ops"], result["buffers"], result["align"]) == ("small", 10, 14, 64)
    assert result["bytes_by_kind"]["parameter"] == result["resident_bytes"] == 768
    assert sum(result["bytes_by_kind"].values()) == sum(b["bytes"] for b in json.loads(graph.read_text())["buffers"])
    assert (result["rng_ops"], result["effect_ops"], result["cost_ns"]) == (0, 0, 9800)
    assert result["lower_bound_bytes"] <= result["program_peak_bytes"]


def test_layout(cli, intervals, tmp_path):
    out = tmp_path / "out.csv"
    result = cli.json("layout", intervals, "-o", out)
    assert list(result) == ["outcome", "buffers", "height_bytes", "lower_bound_bytes", "gap", "seconds"]
    assert (result["outcome"], result["height_bytes"], result["lower_bound_bytes"], result["gap"]) == (
        "optimal",
        12,
        12,
        0,
    )
    rows = [line.split(",") for line in out.read_text().splitlines()]
    assert rows[0] == ["id", "lower", "upper", "size", "offset"]
    placed = [tuple(map(int, row[1:])) for row in rows[1:]]
    for i, (lower, upper, size, offset) in enumerate(placed):
        assert offset + size <= 12
        for other_lower, other_upper, other_size, other in placed[:i]:
            assert (
                upper <= other_lower or other_upper <= lower or offset + size <= other or other + other_size <= offset
            )


def test_text_output(cli, graph, plan, intervals, tmp_path):
    assert cli("check", graph, plan).stdout.startswith("valid\n")
    assert "lower bound" in cli("bound", graph).stdout
    assert "random ops" in cli("info", graph).stdout
    assert "height" in cli("layout", intervals).stdout
    assert cli("plan", graph, "-o", tmp_path / "p").stdout.split()[0] in ("optimal", "feasible")


def test_version_and_help(cli):
    assert cli("--version").stdout.startswith("stowage 0.")
    done = cli("plan", "--help")
    assert done.returncode == 0
    for flag in (
        "--budget",
        "--link-gbps",
        "--keep-order",
        "--no-takeover",
        "--time-limit",
        "--seed",
        "--threads",
        "--json",
    ):
        assert flag in done.stdout


STRATEGY = {
    "problem": {
        "name": "two",
        "nodes": {"intervals": [[0, 2], [1, 3]], "costs": [[1, 10], [1, 10]], "usages": [[8, 4], [8, 4]]},
        "edges": {"nodes": [[0, 1]], "costs": [[5, 0, 0, 5]]},
        "usage_limit": 12,
    }
}


def test_strategy(cli, tmp_path):
    problem, out = tmp_path / "two.json", tmp_path / "out.json"
    problem.write_text(json.dumps(STRATEGY))
    result = cli.json("strategy", problem, "-o", out)
    assert (result["outcome"], result["cost"], result["bound"], result["gap"]) == ("optimal", 11, 11, 0)
    written = json.loads(out.read_text())
    assert list(written) == ["strategies", "cost", "bound", "gap", "seconds"]
    assert sorted(written["strategies"]) == [0, 1] and written["cost"] == 11


def test_strategy_that_cannot_be(cli, tmp_path):
    problem, out = tmp_path / "two.json", tmp_path / "out.json"
    problem.write_text(json.dumps({"problem": {**STRATEGY["problem"], "usage_limit": 7}}))
    done = cli("strategy", problem, "-o", out)
    assert done.returncode == 4 and "infeasible" in done.stderr and not out.exists()


@pytest.mark.parametrize(
    ("part", "key", "value", "message"),
    [
        ("nodes", "usages", [[8, 4], [8]], "node 1: 2 costs but 1 usages"),
        ("nodes", "intervals", [[0, 2], [1]], "node 1: its interval must be a pair"),
        ("nodes", "costs", [[1, 10], []], "node 1: has no strategy"),
        ("edges", "nodes", [[0, 7]], "edge 0: there is no node 7"),
        ("edges", "nodes", [[0, 0]], "edge 0: joins node 0 with itself"),
        ("edges", "costs", [[5, 0, 0]], "edge 0: 3 costs where its nodes have 4 pairs"),
        ("edges", "costs", [[5, 0, 0, -1]], "edges.costs"),
    ],
)
def test_wrong_strategy_problem(cli, tmp_path, part, key, value, message):
    broken = {"problem": {**STRATEGY["problem"], part: {**STRATEGY["problem"][part], key: value}}}
    problem = tmp_path / "two.json"
    problem.write_text(json.dumps(broken))
    done = cli("strategy", problem)
    assert done.returncode == 3 and message in done.stderr and "two.json" in done.stderr

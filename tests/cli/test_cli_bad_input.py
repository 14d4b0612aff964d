"""Exit codes, and what is left on the disk when something is wrong. Also run under the sanitizers."""

import gzip
import json
import os
import random
import resource
import signal
import subprocess

import pytest

pytestmark = pytest.mark.badinput


def one_line(done, *parts):
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("stowage: "), done.stderr
    for part in parts:
        assert part in done.stderr, done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["juggle"],
        ["plan"],
        ["plan", "g"],
        ["plan", "g", "-o"],
        ["plan", "g", "-o", "p", "--budget", "lots"],
        ["plan", "g", "-o", "p", "--budget", "-5"],
        ["plan", "g", "-o", "p", "--budget", "1.5GiB"],
        ["plan", "g", "-o", "p", "--link-gbps", "-1"],
        ["plan", "g", "-o", "p", "--threads", "0"],
        ["plan", "g", "-o", "p", "--time-limit", "-1"],
        ["plan", "g", "-o", "p", "--seed", "x"],
        ["plan", "g", "-o", "p", "--fast"],
        ["plan", "g", "-o", "-", "--json"],
        ["plan", "g", "h", "-o", "p"],
        ["check", "g"],
        ["check", "-", "-"],
        ["bound"],
        ["layout"],
        ["layout", "i", "--capacity", "big"],
        ["info"],
        ["fit", "g"],
        ["fit", "--budget", "1GiB"],
        ["fit", "g", "--budget", "lots"],
        ["fit", "g", "--budget", "1GiB", "--link-gbps", "-1"],
        ["fit", "-", "-", "--budget", "1GiB"],
    ],
)
def test_usage(cli, arguments):
    done = cli(*arguments)
    assert done.returncode == 2
    assert done.stderr and not done.stdout


@pytest.mark.parametrize(
    "verb",
    [
        ["plan", "G", "-o", "OUT"],
        ["check", "G", "P"],
        ["bound", "G"],
        ["info", "G"],
        ["layout", "G"],
        ["fit", "G", "--budget", "1GiB"],
    ],
)
def test_missing_input(cli, plan, tmp_path, verb):
    missing = tmp_path / "missing.json"
    names = {"G": missing, "P": plan, "OUT": tmp_path / "out"}
    done = cli(*[names.get(word, word) for word in verb])
    assert done.returncode == 3
    one_line(done, str(missing), "No such file")
    assert not (tmp_path / "out").exists()


def test_missing_plan_and_folder_as_input(cli, graph, tmp_path):
    assert cli("check", graph, tmp_path / "none").returncode == 3
    assert cli("info", tmp_path).returncode == 3


@pytest.mark.parametrize(
    "change, message",
    [
        (
            lambda g: g["ops"][5]["reads"].append(99),
            "op 5 'step2': reads[1]: buffer id 99 is out of range (14 buffers)",
        ),
        (lambda g: g["ops"][0].update(after=[3]), "op 0 'forward0': after[0]"),
        (lambda g: g["buffers"][3].update(bytes=-1), "buffer 3 'a0': bytes"),
        (lambda g: g["buffers"][3].update(bytes=2**53), "buffer 3 'a0': bytes"),
        (lambda g: g["buffers"][3].update(size=1), "buffer 3 'a0': unknown key 'size'"),
        (lambda g: g.update(version=2), "version"),
        (lambda g: g.pop("ops"), "'ops' is missing"),
    ],
)
def test_broken_graph_is_named(cli, graph, tmp_path, change, message):
    content = json.loads(graph.read_text())
    change(content)
    graph.write_text(json.dumps(content))
    out = tmp_path / "out"
    out.write_text("old")
    done = cli("plan", graph, "-o", out)
    assert done.returncode == 3
    one_line(done, str(graph), message)
    assert out.read_text() == "old"


@pytest.mark.parametrize(
    "change, rule",
    [
        (lambda p: p.update(graph_sha256="0" * 64), 0),
        (lambda p: p["steps"].pop(), 1),
        (lambda p: p["steps"].reverse(), 2),
        (lambda p: p["placements"][0].update({"to": 10**6}), 3),
        (lambda p: p["steps"].append({"swap_out": 0, "until": len(p["steps"]) + 1}), 4),
        (lambda p: p.update(arena_bytes=p["arena_bytes"] - 64), 6),
        (lambda p: p["scratch"].pop(), 6),
    ],
)
def test_invalid_plan(cli, graph, plan, change, rule):
    content = json.loads(plan.read_text())
    change(content)
    plan.write_text(json.dumps(content))
    report = cli.json("check", graph, plan, code=6)
    assert list(report) == ["valid", "rule", "message", "peak_bytes", "arena_bytes"]
    assert report["valid"] is False and report["peak_bytes"] is None
    if rule != 2:  # steps run backward break several rules at once
        assert report["rule"] == rule, report
    assert "invalid: " in cli("check", graph, plan).stdout


def test_infeasible_budget_writes_nothing(cli, graph, tmp_path):
    out = tmp_path / "out"
    out.write_text("old")
    done = cli("plan", graph, "-o", out, "--budget", "100B", "--json")
    assert done.returncode in (4, 5)
    result = json.loads(done.stdout)
    assert result["outcome"] == ("infeasible" if done.returncode == 4 else "unknown")
    assert result["budget_bytes"] == 100 and result["arena_bytes"] is None
    one_line(done, "100 bytes")
    assert out.read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["out", "small.graph.json"]


def test_layout_above_capacity_writes_nothing(cli, intervals, tmp_path):
    out = tmp_path / "out.csv"
    done = cli("layout", intervals, "-o", out, "--capacity", "11", "--json")
    assert done.returncode == 4
    assert json.loads(done.stdout)["outcome"] == "infeasible"
    assert not out.exists()
    assert cli("layout", intervals, "-o", out, "--capacity", "12").returncode == 0


def test_unwritable_output_leaves_nothing(cli, graph, tmp_path):
    done = cli("plan", graph, "-o", tmp_path / "no" / "such" / "folder.json")
    assert done.returncode == 1
    one_line(done, "folder.json", "cannot be written")
    assert sorted(os.listdir(tmp_path)) == ["small.graph.json"]


def test_truncated_files(cli, graph, plan, tmp_path):
    """Every prefix, in steps, of the graph, of the plan and of their compressed forms is refused."""
    for source, arguments in ((graph, lambda f: ("info", f)), (plan, lambda f: ("check", graph, f))):
        text = source.read_bytes().rstrip()
        for data, suffix in ((text, ""), (gzip.compress(text), ".gz")):
            cut = tmp_path / ("cut.json" + suffix)
            for size in range(0, len(data) - 1, max(1, len(data) // 12)):
                cut.write_bytes(data[:size])
                done = cli(*arguments(cut))
                assert done.returncode == 3, (suffix, size)
                one_line(done, str(cut))


def test_deep_nesting(cli, tmp_path):
    path = tmp_path / "deep.json"
    for text in (
        "[" * 200_000,
        '{"meta":' * 100_000,
        '{"format":"stowage-graph","meta":' + '{"a":' * 100_000 + "1" + "}" * 100_001,
    ):
        path.write_text(text)
        assert cli("info", path).returncode == 3


def mutate(data, rng):
    data = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data))
        kind = rng.randrange(5)
        if kind == 0:
            data[at] = rng.randrange(256)
        elif kind == 1:
            data[at : at + 1] = str(rng.choice([0, 1, 9, 63, 2**31, 2**53, 2**63])).encode()
        elif kind == 2:
            del data[at : at + rng.randint(1, 20)]
        elif kind == 3:
            data[at:at] = data[at : at + rng.randint(1, 20)]
        else:
            digits = [i for i, c in enumerate(data) if chr(c).isdigit()]
            data[rng.choice(digits)] = ord(rng.choice("0123456789"))
        if len(data) < 2:
            break
    return bytes(data) or b"{}"


@pytest.mark.parametrize(
    "seed", range(int(os.environ.get("STOWAGE_TEST_SEED", "1")), int(os.environ.get("STOWAGE_TEST_SEED", "1")) + 12)
)
def test_mutated_files_never_crash(cli, graph, plan, tmp_path, seed):
    rng = random.Random(seed)
    originals = graph.read_bytes(), plan.read_bytes()
    for round_number in range(10):
        broken_graph, broken_plan = tmp_path / "g.json", tmp_path / "p.json"
        broken_graph.write_bytes(mutate(originals[0], rng) if rng.random() < 0.5 else originals[0])
        broken_plan.write_bytes(mutate(originals[1], rng) if rng.random() < 0.7 else originals[1])
        done = cli("check", broken_graph, broken_plan)
        assert done.returncode in (0, 3, 6), f"STOWAGE_TEST_SEED={seed}, round {round_number}"


def test_mutated_intervals_never_crash(cli, intervals, tmp_path):
    rng = random.Random(1)
    path = tmp_path / "broken.csv"
    for round_number in range(25):
        path.write_bytes(mutate(intervals.read_bytes(), rng))
        done = cli("layout", path)
        assert done.returncode in (0, 3), f"round {round_number}"


@pytest.mark.parametrize("name", ["small.graph.json", "../{}/small.graph.json", "link.json"])
def test_an_input_is_not_overwritten(cli, graph, plan, tmp_path, name):
    os.symlink(graph, tmp_path / "link.json")
    before = graph.read_bytes()
    done = cli("plan", graph, "-o", f"{tmp_path}/{name.format(tmp_path.name)}")
    assert done.returncode == 2
    one_line(done, name.split("/")[-1], "is an input")
    assert graph.read_bytes() == before
    page = tmp_path / "x.html"
    os.link(plan, page)
    done = cli("report", graph, page, "-o", page)
    assert done.returncode == 2
    one_line(done, "x.html", "is an input")


def test_layouts_and_strategies_overwrite_no_input(cli, intervals, tmp_path):
    assert cli("layout", intervals, "-o", intervals).returncode == 2
    problem = tmp_path / "problem.json"
    problem.write_text(json.dumps(strategy_problem(1)))
    assert cli("strategy", problem, "-o", problem).returncode == 2
    assert json.loads(problem.read_text()) == strategy_problem(1)


def test_a_full_disk_is_said(cli, graph):
    """On a device that is always full, and with a limit on the size of files: nothing half-written is left."""
    for arguments in (["plan", graph, "-o", "/dev/full"], ["plan", graph, "-o", "-"]):
        with open("/dev/full", "wb") as full:
            done = subprocess.run(
                [cli.executable, *map(str, arguments)], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
            )
        assert done.returncode == 1
        one_line(done, "cannot be written: No space left on device")
        assert "internal" not in done.stderr


def test_a_file_that_grows_too_large_leaves_the_old_one(cli, graph, tmp_path):
    out = tmp_path / "out.json"
    out.write_text("old")

    def limited():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    command = [cli.executable, "plan", str(graph), "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, preexec_fn=limited)
    assert done.returncode == 1
    one_line(done, "out.json", "cannot be written: File too large")
    assert out.read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["out.json", "small.graph.json"]


def test_a_small_compressed_file_does_not_ask_for_memory(cli, tmp_path):
    bomb = tmp_path / "bomb.json.gz"
    bomb.write_bytes(gzip.compress(b" " * (400 << 20), 6))
    assert bomb.stat().st_size < 1 << 20
    done = cli("info", bomb)
    assert done.returncode == 3
    one_line(done, "bomb.json.gz", "holds more than")


def strategy_problem(unit):
    """Five nodes; ``unit`` is the cost of the first."""
    nodes = {
        "intervals": [[30, 70], [40, 70], [50, 120], [110, 140], [110, 150]],
        "costs": [[unit], [55, 65], [25, 45, 35], [85, 75], [95]],
        "usages": [[10], [25, 25], [15, 20, 15], [10, 10], [15]],
    }
    edges = {
        "nodes": [[0, 1], [0, 2], [1, 3], [2, 4], [3, 4]],
        "costs": [[30, 40], [50, 10, 40], [90, 10, 20, 80], [60, 20, 30], [70, 60]],
    }
    return {"problem": {"name": "example", "nodes": nodes, "edges": edges, "usage_limit": 50}}


@pytest.mark.parametrize("unit", [1, 1 << 40, 1 << 52])
@pytest.mark.parametrize("solver", [None, "/nonexistent"])
def test_small_strategy_problems_end_soon(cli, tmp_path, unit, solver, monkeypatch):
    if solver:
        monkeypatch.setenv("STOWAGE_HIGHS", solver)
    problem = tmp_path / "problem.json"
    problem.write_text(json.dumps(strategy_problem(unit)))
    done = cli("strategy", problem, "--json", timeout=10)
    result = json.loads(done.stdout)
    assert (result["outcome"], result["cost"] - unit, result["gap"]) == ("optimal", 430, 0)
    problem.write_text(
        json.dumps(strategy_problem(10**17 - 1))
        .replace("[95]", f"[{10**17 - 1}]")
        .replace("[70, 60]", str([10**17 - 1] * 2))
    )
    assert cli("strategy", problem, timeout=10).returncode == 0


def test_sums_of_costs_that_overflow_are_refused(cli, tmp_path):
    problem = strategy_problem(1)
    nodes = problem["problem"]["nodes"]
    for values, value in (("intervals", [0, 1]), ("costs", [10**17 - 1]), ("usages", [1])):
        nodes[values] += [value] * 60
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(problem))
    done = cli("strategy", path)
    assert done.returncode == 3
    one_line(done, "problem.json", "node 51: costs: the largest allowed ones add up to 2^62")

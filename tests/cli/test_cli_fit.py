"""stowage fit: the largest of growing graphs that a budget holds."""

import copy
import json

import pytest

BATCHES = (1, 2, 3, 4, 6, 8, 12, 16)


@pytest.fixture
def growing(small_graph, tmp_path):
    """One step at growing batch sizes: activations and costs grow, weights and their gradients do not."""
    paths = []
    for batch in BATCHES:
        graph = copy.deepcopy(small_graph)
        for buffer in graph["buffers"]:
            if buffer["kind"] == "activation" or buffer["name"] in ("g", "g0", "g1", "g2"):
                buffer["bytes"] *= batch
        for op in graph["ops"]:
            op["cost_ns"] *= batch
        paths.append(tmp_path / f"b{batch}.graph.json")
        paths[-1].write_text(json.dumps(graph))
    return paths


def planned_bytes(cli, path, budget, tmp_path):
    """What the plan under a budget needs, or None."""
    done = cli("plan", path, "-o", tmp_path / "p.json", "--budget", budget, "--json")
    assert done.returncode in (0, 4, 5), done.stderr
    summary = json.loads(done.stdout)
    return summary["resident_bytes"] + summary["arena_bytes"] if done.returncode == 0 else None


@pytest.mark.parametrize("budget", [7000, 9000, 12000, 20000, 45000, 10**9])
def test_the_answer_is_that_of_trying_all(cli, growing, tmp_path, budget):
    fitting = [path for path in growing if planned_bytes(cli, path, budget, tmp_path) is not None]
    assert fitting == growing[: len(fitting)] and fitting, "the test needs a budget that splits the graphs"
    result = cli.json("fit", *growing, "--budget", budget)
    assert list(result) == ["budget_bytes", "index", "graph", "tried"]
    assert (result["budget_bytes"], result["index"], result["graph"]) == (budget, len(fitting) - 1, str(fitting[-1]))
    tried = {trial["graph"]: trial for trial in result["tried"]}
    best = tried[str(fitting[-1])]
    assert best["resident_bytes"] + best["arena_bytes"] <= budget
    assert best["slowdown"] == pytest.approx(best["step_ns"] / best["program_step_ns"]) and best["slowdown"] >= 1
    if len(fitting) < len(growing):
        following = tried[str(growing[len(fitting)])]  # the neighbour has been planned and does not fit
        assert following["outcome"] in ("infeasible", "unknown") and following["arena_bytes"] is None
        assert following["smallest_bytes"] > budget
    assert len(tried) <= 4


def test_a_budget_that_holds_exactly_one_plan(cli, growing, tmp_path):
    smallest = cli("fit", growing[3], "--budget", "1", "--json")
    needed = json.loads(smallest.stdout)["tried"][0]["smallest_bytes"]
    assert cli.json("fit", *growing[:4], "--budget", needed)["index"] == 3
    assert cli.json("fit", *growing[:4], "--budget", needed - 1)["index"] < 3


def test_nothing_fits(cli, growing):
    done = cli("fit", *growing, "--budget", "1KiB")
    assert done.returncode == 4 and not done.stdout
    assert done.stderr.count("\n") == 1 and str(growing[0]) in done.stderr and "1.0 KiB" in done.stderr
    result = cli.json("fit", *growing, "--budget", "1KiB", code=4)
    assert result["index"] is None and result["graph"] is None


def test_text(cli, growing):
    done = cli("fit", *growing, "--budget", "12000")
    assert done.returncode == 0 and done.stdout.startswith(str(growing[0])[: -len("b1.graph.json")])
    assert "next " in done.stdout
    assert "the largest graph named fits" in cli("fit", *growing, "--budget", "1GiB").stdout


def test_graphs_must_grow(cli, growing):
    done = cli("fit", growing[2], growing[0], "--budget", "1GiB")
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1 and str(growing[0]) in done.stderr and str(growing[2]) in done.stderr


def test_a_bad_graph_is_named(cli, growing, tmp_path):
    bad = tmp_path / "bad.graph.json"
    bad.write_text("{")
    done = cli("fit", growing[0], bad, "--budget", "1GiB")
    assert done.returncode == 3 and str(bad) in done.stderr and not done.stdout

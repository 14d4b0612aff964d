"""stowage explain: the text, the JSON, the exit codes; a plan that is given and one that is made."""

import json

import pytest


@pytest.fixture
def graph_file(tmp_path, small_graph):
    for op in small_graph["ops"]:
        op["meta"] = {"line": f"/path/to/train.py:{len(op['name'])}"}
    path = tmp_path / "step.graph.json"
    path.write_text(json.dumps(small_graph))
    return path


def test_text_names_bytes_ops_lines_and_prices(cli, graph_file):
    done = cli("explain", graph_file)
    assert done.returncode == 0, done.stderr
    for part in (
        "Where the bytes go",
        "What holds the peak: step",
        "train.py:",
        "What a budget costs",
        "What to change",
    ):
        assert part in done.stdout, done.stdout
    assert len(done.stdout.splitlines()) <= 50
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert done.stderr == "", "progress must be silent when stderr is no terminal"


def test_a_given_plan_is_what_is_explained(cli, graph_file, tmp_path):
    keep, best = tmp_path / "keep.plan.json", cli.json("explain", graph_file, "--no-prices")
    summary = cli.json("plan", graph_file, "-o", keep, "--keep-order")
    explained = cli.json("explain", graph_file, keep, "--no-prices")
    assert explained["peak"]["bytes"] == explained["peak_bytes"] == summary["peak_bytes"]
    assert explained["arena_bytes"] == summary["arena_bytes"]
    assert explained["free_arena_bytes"] == best["arena_bytes"]
    assert explained["prices"] == [] and best["prices"] == []


def test_prices_are_what_plan_says_of_each_budget(cli, graph_file, tmp_path):
    prices = cli.json("explain", graph_file)["prices"]
    assert len(prices) >= 2
    for price in prices:
        code = 0 if price["arena_bytes"] is not None else 4
        summary = cli.json(
            "plan", graph_file, "-o", tmp_path / "p.plan.json", "--budget", price["budget_bytes"], code=code
        )
        if code == 0:
            assert (summary["arena_bytes"], summary["step_ns"]) == (price["arena_bytes"], price["step_ns"])


def test_a_budget_without_a_plan_is_infeasible(cli, graph_file):
    done = cli("explain", graph_file, "--budget", "900")
    assert done.returncode == 4
    assert "No plan fits the budget; the smallest budget met is" in done.stdout


def test_plans_that_do_not_belong_to_the_graph(cli, graph_file, tmp_path):
    plan = tmp_path / "step.plan.json"
    assert cli("plan", graph_file, "-o", plan).returncode == 0
    wrong = json.loads(plan.read_text())
    wrong["placements"] = wrong["placements"][1:]
    plan.write_text(json.dumps(wrong))
    done = cli("explain", graph_file, plan)
    assert done.returncode == 6 and done.stderr.startswith("stowage: invalid: rule ") and done.stdout == ""


@pytest.mark.badinput
@pytest.mark.parametrize("arguments, code", [(["-", "-"], 2), (["/no/such.graph.json"], 3), (["--width", "7", "-"], 2)])
def test_bad_arguments(cli, arguments, code):
    assert cli("explain", *arguments).returncode == code

"""The Python names of docs/formats.md section 5, and their errors."""

import json
import subprocess
import sys

import pytest
import torch
import zoo
from training import OPTIMIZERS, plain_step

import stowage

SUMMARY_KEYS = {
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
}
STATS_KEYS = {
    "arena_bytes",
    "resident_bytes",
    "planned_peak_bytes",
    "measured_peak_bytes",
    "lower_bound_bytes",
    "gap",
    "outcome",
    "misses",
    "eager_steps",
    "planned_steps",
    "step_ns",
    "eager_step_ns",
    "recomputed_ops",
    "swapped_bytes",
    "host_bytes",
    "host_refusal",
    "stall_ns",
    "plan_from_cache",
    "replaced_ops",
    "replacement_refusal",
    "unrepeatable_op",
    "tiled_ops",
    "tile_error",
    "tile_largest_error",
    "tile_refusal",
    "graph_ops",
    "graph_refusal",
    "away_bytes",
    "fetched_bytes",
    "home_bytes",
    "checked_steps",
    "check_ns",
}


@pytest.fixture(scope="module")
def compiled():
    torch.set_num_threads(1)
    model, loss_fn, batches = zoo.make("gpt2")
    step = stowage.compile(plain_step(model, OPTIMIZERS["adamw"](model.parameters()), loss_fn))
    for batch in batches:
        step(batch)
    return step


def test_stats(compiled):
    stats = compiled.stats()
    assert set(stats) == STATS_KEYS
    assert stats["planned_steps"] == 3 and stats["eager_steps"] == 3
    assert stats["step_ns"] > 0 and stats["eager_step_ns"] > 0


def test_graph_and_plan_are_files_that_load_again(compiled, tmp_path):
    graph_path, plan_path = str(tmp_path / "g.graph.json.gz"), str(tmp_path / "g.plan.json")
    compiled.graph.save(graph_path)
    compiled.plan.save(plan_path)
    graph, plan = stowage.Graph.load(graph_path), stowage.Plan.load(plan_path)
    assert graph.sha256 == compiled.graph.sha256
    assert stowage.check(graph, plan) == compiled.stats()["planned_peak_bytes"]
    assert set(compiled.plan.summary()) == SUMMARY_KEYS


def test_a_plan_for_another_graph_is_invalid(compiled):
    model, loss_fn, batches = zoo.make("unet")
    other = stowage.capture(plain_step(model, OPTIMIZERS["sgd"](model.parameters()), loss_fn), batches[0])
    with pytest.raises(stowage.InvalidPlan):
        stowage.check(other, compiled.plan)


def test_a_damaged_plan_is_invalid(compiled):
    data = json.loads(compiled.plan._plan.to_json())
    live = ([p for p in data["placements"] if p["from"] <= i < p["to"]] for i in range(len(data["steps"])))
    first, second = max(live, key=len)[:2]
    first["offset"] = second["offset"]
    damaged = stowage.Plan(stowage._core.Plan.parse(json.dumps(data)), {})
    with pytest.raises(stowage.InvalidPlan, match="overlap|placement"):
        stowage.check(compiled.graph, damaged)


def test_infeasible_budget(compiled):
    with pytest.raises(stowage.Infeasible) as caught:
        stowage.plan(compiled.graph, budget=1024)
    assert caught.value.smallest_bytes >= caught.value.bound_bytes > 1024
    assert isinstance(caught.value, stowage.Error)


def test_budgets_that_are_no_budgets(compiled):
    with pytest.raises(stowage.Error, match="lots"):
        stowage.plan(compiled.graph, budget="lots")
    with pytest.raises(TypeError):
        stowage.plan(compiled.graph, budget=1.5)
    with pytest.raises(ValueError):
        stowage.plan(compiled.graph, budget=-1)


def test_a_budget_that_is_met(compiled):
    need = compiled.plan.arena_bytes + compiled.stats()["resident_bytes"]
    assert stowage.plan(compiled.graph, budget=need).summary()["budget_bytes"] == need


def test_plan_by_roam(compiled):
    ops = [{"name": f"op{i}", "target": "t", "reads": [i - 1] if i else [], "creates": [i]} for i in range(5)]
    buffers = [{"name": f"b{i}", "bytes": 64 * (i + 1), "kind": "activation"} for i in range(5)]
    tiny = {"format": "stowage-graph", "version": 1, "name": "tiny", "align": 64, "buffers": buffers, "ops": ops}
    chain = stowage.Graph.parse(json.dumps(tiny))
    assert stowage.check(chain, stowage.plan(chain, method="roam")) == 9 * 64
    graph = compiled.graph
    quick = stowage.plan(graph, method="roam", roam_without=["order-ilp"])
    assert stowage.check(graph, quick) == quick.summary()["peak_bytes"]
    assert set(quick.summary()) == SUMMARY_KEYS
    for wrong in ({"method": "best"}, {"roam_without": ["luck"]}, {"method": "roam", "keep_order": True}):
        with pytest.raises(ValueError):
            stowage.plan(graph, **wrong)


def test_roam_without_its_solver(compiled, monkeypatch):
    monkeypatch.setenv("STOWAGE_HIGHS", "/nowhere/libhighs.so.1")
    with pytest.raises(stowage.Error, match="pip install 'highspy"):
        stowage.plan(compiled.graph, method="roam")


def test_missing_and_malformed_files(tmp_path):
    with pytest.raises(stowage.Error, match="nothing.graph.json"):
        stowage.Graph.load(str(tmp_path / "nothing.graph.json"))
    bad = tmp_path / "bad.graph.json"
    bad.write_text('{"format": "stowage-graph"')
    with pytest.raises(stowage.InvalidGraph, match="bad.graph.json"):
        stowage.Graph.load(str(bad))


def test_compiled_step_over_its_budget(monkeypatch):
    """A call that raises has changed nothing. (Here eager fits, and plans are asked for less.)"""
    plan = stowage.step.replay.step_plan.plan
    monkeypatch.setattr(
        stowage.step.replay.step_plan, "plan", lambda graph, budget, **options: plan(graph, 100 << 10, **options)
    )
    model, loss_fn, batches = zoo.make("gpt2")
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    step = stowage.compile(plain_step(model, optimizer, loss_fn), budget="100MiB")
    step(batches[0])
    step(batches[1])
    before = [t.clone() for t in (*model.state_dict().values(), torch.get_rng_state())]
    moments = [v.clone() for s in optimizer.state.values() for v in s.values()]
    for batch in batches[2:4]:
        with pytest.raises(stowage.Infeasible) as caught:
            step(batch)
        assert caught.value.smallest_bytes > 100 << 10
    assert all(
        torch.equal(a, b) for a, b in zip(before, (*model.state_dict().values(), torch.get_rng_state()), strict=True)
    )
    assert all(
        torch.equal(a, b)
        for a, b in zip(moments, (v for s in optimizer.state.values() for v in s.values()), strict=True)
    )
    assert step.stats()["eager_steps"] == 2


def test_structures_in_and_out():
    """Nested arguments, keyword arguments and results keep their shape."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(batch, *, scale=1.0, extra=None):
        optimizer.zero_grad()
        y = model(batch["x"])
        loss = (y - batch["pair"][1]).square().mean() * scale
        loss.backward()
        optimizer.step()
        return {
            "loss": loss.detach(),
            "outputs": (y.detach(), y.detach().t()),
            "x": batch["x"],
            "none": None,
            "name": "a",
            "n": 3,
        }

    step = stowage.compile(train_step, strict=True)
    generator = torch.Generator().manual_seed(1)
    for _ in range(7):
        batch = {"x": torch.randn(3, 4, generator=generator), "pair": [None, torch.randn(3, 2, generator=generator)]}
        weight, bias = model.weight.detach().clone(), model.bias.detach().clone()
        out = step(batch, scale=2.0)
        y = torch.nn.functional.linear(batch["x"], weight, bias)
        assert torch.equal(out["outputs"][0], y) and torch.equal(out["outputs"][1], y.t())
        assert torch.equal(out["x"], batch["x"]) and out["none"] is None and out["name"] == "a" and out["n"] == 3
    assert step.stats()["planned_steps"] == 3, step.refusal


def test_results_survive_the_next_step():
    model, loss_fn, batches = zoo.make("gpt2", 8)
    step = stowage.compile(plain_step(model, OPTIMIZERS["adamw"](model.parameters()), loss_fn))
    losses = [step(b) for b in batches]
    values = [loss.item() for loss in losses]
    step._room.arena.fill(0xFF)
    assert [loss.item() for loss in losses] == values


def test_the_command_line_reads_what_python_writes(compiled, tmp_path):
    import pathlib
    import shutil

    beside = pathlib.Path(stowage._core.__file__).parents[2] / "bin" / "stowage"
    program = str(beside) if beside.exists() else shutil.which("stowage")
    if program is None:
        pytest.skip("the command line tool is not built")
    graph, plan = str(tmp_path / "g.graph.json"), str(tmp_path / "g.plan.json")
    compiled.graph.save(graph)
    compiled.plan.save(plan)
    done = subprocess.run([program, "check", graph, plan, "--json"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["peak_bytes"] == compiled.stats()["planned_peak_bytes"]


def test_import_is_quiet():
    done = subprocess.run([sys.executable, "-c", "import stowage"], capture_output=True, text=True, check=True)
    assert done.stdout == "" and done.stderr == ""


def test_parts_are_there_by_their_name():
    code = "import stowage; stowage.hf.plan, stowage.inductor.options, stowage.lightning.Stowage"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
    assert not hasattr(stowage, "nothing")


@pytest.mark.parametrize("check", ["auto", "never"])
@pytest.mark.parametrize("name", ["scale", "_scale"])
def test_attributes_are_those_of_the_function(check, name):
    """As users count calls and keep settings on a function: what is set on either is read from both, and is watched."""

    def trained(compile):
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step(x):
            loss = model(x).square().mean() * getattr(step, name)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        def counting(x):
            counting.calls += 1
            loss = model(x).square().mean() / counting.calls
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        counting.calls = 0
        step, counting = compile(step), compile(counting)
        setattr(step, name, 1.0)
        seen = []
        for call in range(12):
            if call in (6, 9):
                setattr(step, name, call / 2)
            seen.append(step(torch.randn(3, 8)))
            seen.append(counting(torch.randn(3, 8)))
        return seen, (step, counting), model.weight.detach()

    expected, _, weight = trained(lambda step: step)
    found, steps, planned_weight = trained(lambda step: stowage.compile(step, check=check))
    assert all(map(torch.equal, expected, found)) and torch.equal(weight, planned_weight)
    assert all(step.stats()["planned_steps"] > 4 for step in steps)
    assert steps[1].calls == 12 and steps[1].__wrapped__.calls == 12
    delattr(steps[0], name)
    assert not hasattr(steps[0], name) and not hasattr(steps[0].__wrapped__, name)

"""A limit of bytes per rank as one decision: against trying every placement, monotone, infeasible where it says so, checked by
what shares nothing with the planner; and executed on two ranks (shard_budget_cases.py)."""

import copy
import itertools
import json
import random
import subprocess
import sys

import pytest
import ranks
import shard_budget_cases
import shard_zoo
import torch
from searches import first_seed, seeds

import stowage
from stowage import _core
from stowage.planning import plan
from stowage.sharding.check_rank import check_rank
from stowage.sharding.decision import Contender, decisions
from stowage.sharding.paper import program_of
from stowage.sharding.placements import ShardingPlan
from stowage.sharding.program import Program
from stowage.sharding.rank_graph import rank_graph

# Of a machine on which the small models here are not all latency
LINKS = {"tflops": 1e-4, "memory_gbps": 0.1, "kernel_ns": 200, 0: {"latency_ns": 200, "gbps": 0.2}}
LINK_GBPS = 0.05
SLOW_MESH = {
    "axes": [{"size": 2, "latency_ns": 200, "gbps": 0.2}],
    "tflops": 1e-4,
    "memory_gbps": 0.1,
    "kernel_ns": 200,
}


def zoo_program(name: str) -> Program:
    make, batches = shard_zoo.training(name, torch.float32, 1)
    return program_of(make()[2], batches[0], name=name)


@pytest.fixture(scope="module")
def convnet():
    return decisions(zoo_program("convnet"), SLOW_MESH, (2,), {}, LINK_GBPS)


# ---- The graph of a rank


@pytest.mark.parametrize("name", ["gpt2", "bert", "vit", "moe", "convnet"])
@pytest.mark.parametrize("mesh", [(2,), (2, 2)])
def test_the_graph_of_a_rank_is_the_sharded_program(name, mesh):
    """check_rank() walks it: bytes, newest contents, costs, what needs other ranks."""
    program = zoo_program(name)
    for eps in (0.0, 1.0):
        made = stowage.shard_plan(program, mesh=mesh, eps=eps, budget="1GiB", relative_gap=0.1)
        check_rank(made)
        ledger = made.local_bytes([0] * len(mesh), list(mesh))
        assert made.graph.resident_bytes >= sum(ledger.values()) - ledger["gradients"]
        assert made.summary()["budget"]["means"] == []


def damaged(made: ShardingPlan, change) -> ShardingPlan:
    graph, document = json.loads(made.graph.to_json()), copy.deepcopy(made.document)
    change(graph, document)
    fresh = _core.Graph.parse(json.dumps(graph))
    ops = document.pop("ops")
    return ShardingPlan(made.program, json.dumps({**document, "ops": ops}), made.mesh, fresh, plan(fresh))


def sends(graph):
    return next(op for op in graph["ops"] if op["meta"]["part"] != "kernel" and "effect" in op.get("traits", ()))


FAULTS = {
    "a part is too small": lambda g, d: g["buffers"][sends(g)["creates"][0]].update(bytes=1),
    "a collective may run again": lambda g, d: sends(g).pop("traits"),
    "a move comes from elsewhere": lambda g, d: sends(g)["meta"].update({"from": "S9"}),
    "an op is of another one": lambda g, d: next(o for o in g["ops"] if o.get("creates"))["meta"].update(op=len(d["ops"]) - 1),
    "costs are lower": lambda g, d: g["ops"][0].update(cost_ns=1 << 20),
    "a time is left out": lambda g, d: d["budget"]["time"].update(compute_ns=1),
    "a part is left out": lambda g, d: d["budget"]["bytes"].update(parameters=1),
    "the limit is passed": lambda g, d: d["budget"].update(limit_bytes=1000),
    "a gradient is let go": lambda g, d: [b.pop("returned", None) for b in g["buffers"] if b["kind"] == "gradient"],
    "a parameter is larger": lambda g, d: next(b for b in g["buffers"] if b["kind"] == "parameter").update(bytes=1 << 20),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_the_checker_finds(convnet, fault):
    made = convnet.best(None).plan()
    check_rank(made)
    with pytest.raises(stowage.InvalidPlan):
        check_rank(damaged(made, FAULTS[fault]))


# ---- Against trying everything


def random_program(seed: int) -> Program:
    """Forward: products, sums and elementwise ops of rows and a parameter; backward reads what forward made."""
    rng = random.Random(seed)
    program = Program(f"random-{seed}")

    def tensor(shape, kind="activation"):
        program.tensors.append({"shape": list(shape), "item_bytes": 64, "kind": kind})
        program.strides.append((shape[-1], 1))
        return len(program.tensors) - 1

    def op(target, phase, args, out, writes=()):
        entry = {"target": target, "phase": phase, "args": args, "outputs": [] if out is None else [out]}
        program.ops.append({**entry, **({"writes": list(writes)} if writes else {})})
        return out

    rows, width = rng.choice([7, 16, 24]), rng.choice([4, 6])
    shape = (rows, width)
    x, w = tensor(shape, "input"), tensor((width, width), "parameter")
    h = x
    made = []
    for i in range(3):
        if i == 0 or rng.random() < 0.7:
            h = op("aten.mm.default", "forward", {"self": h, "mat2": w}, tensor(shape))
        else:
            h = op("aten.gelu.default", "forward", {"self": h}, tensor(shape))
        made.append(h)
    g = op("aten.mul.Tensor", "backward", {"self": h, "other": made[2]}, tensor(shape))
    for saved in (made[1], made[0]):
        op("aten.mul_.Tensor", "backward", {"self": g, "other": saved}, None, [g])
    grad = tensor((width, width), "gradient")
    program.tensors[grad]["of"] = w
    t = tensor((width, rows))
    program.tensors[t]["alias_of"] = g
    op("aten.t.default", "backward", {"self": g}, t)
    op("aten.mm.default", "backward", {"self": t, "mat2": x}, grad)
    op("aten.add_.Tensor", "optimizer", {"self": w, "other": grad}, None, [w])
    program.parameters["w"], program.gradients["w"], program.inputs = w, grad, [x]
    return program


def every_placement(program: Program) -> list[ShardingPlan]:
    """Each home of each tensor but views and arguments; ops then as is fastest."""
    free = [i for i, t in enumerate(program.tensors) if t["kind"] != "input" and "alias_of" not in t]
    found = {}
    for places in itertools.product(("R", "S0", "S1"), repeat=len(free)):
        fixed = {str(t): p for t, p in [*zip(free, places), *((i, "R") for i in program.inputs)]}
        options = {"goal": "time", "fixed": fixed, "relative_gap": 0, "cluster_rounds": 0}
        try:
            text = _core.plan_sharding(program.to_json(), json.dumps(SLOW_MESH), json.dumps(options))
        except stowage.Error:  # tensors that live alike cannot live otherwise
            continue
        if not text.endswith('"ops":[]}'):
            made = ShardingPlan(program, text, (2,))
            found.setdefault(json.dumps(made.document["ops"]), made)
    return list(found.values())


def test_no_placement_that_is_tried_is_much_faster_or_needs_much_less():
    """By the planner of budgets for every placement."""
    worst = 1.0
    for seed in seeds(first_seed(), at_least=2):
        program = random_program(seed)
        made = decisions(program, SLOW_MESH, (2,), {"relative_gap": 0, "cluster_rounds": 0}, LINK_GBPS)
        graphs = [rank_graph(p) for p in every_placement(program)]

        def step_ns(graph, limit):
            try:
                return plan(graph, limit, link_gbps=LINK_GBPS).summary()["step_ns"]
            except stowage.Infeasible:
                return None

        smallest = made.smallest_bytes()
        for i in range(3):
            limit = round(smallest * (made.unlimited_bytes() / smallest) ** (i / 2))
            decided = made.best(limit)
            check_rank(decided.plan())
            # Nothing makes a step faster than its placement is by itself
            hopeful = [graph for graph in graphs if graph.program_step_ns < decided.step_ns]
            tried = min((ns for graph in hopeful if (ns := step_ns(graph, limit)) is not None), default=decided.step_ns)
            worst = max(worst, decided.step_ns / tried)
            assert decided.step_ns <= 1.1 * tried, f"seed {seed}, limit {limit}: {decided.step_ns}, tried {tried}"
            assert decided.bound_ns <= tried * (1 + 1e-6), f"seed {seed}: a bound above what was found"
        less = int(smallest / 1.25)
        below = [g for g in graphs if Contender(None, g).floor_bytes <= less and step_ns(g, less) is not None]
        assert not below, (
            f"seed {seed}: {len(below)} placements meet {less}, where the smallest is said to be {smallest}"
        )
        assert made.least_bytes() <= smallest
    print(f"at most {worst:.3f} of the fastest that was tried")


# ---- Limits


def test_a_larger_limit_is_never_slower_and_each_is_held(convnet):
    smallest, top = convnet.smallest_bytes(), convnet.unlimited_bytes()
    limits = [round(smallest + (top - smallest) * i / 9) for i in range(10)]
    times = []
    for limit in reversed(limits):  # so that nothing is known of the smaller ones
        decided = convnet.best(limit)
        check_rank(decided.plan())
        times.append(decided.step_ns)
    assert times == sorted(times) and times[0] < times[-1]


def test_what_nothing_meets_names_the_smallest_limit_that_is_met(convnet):
    with pytest.raises(stowage.Infeasible, match="a rank") as error:
        convnet.best(convnet.smallest_bytes() - 1)
    assert (
        error.value.smallest_bytes == convnet.smallest_bytes() and error.value.bound_bytes <= error.value.smallest_bytes
    )
    check_rank(convnet.best(error.value.smallest_bytes).plan())
    with pytest.raises(stowage.Infeasible, match="proven"):
        convnet.best(convnet.least_bytes() - 1)


def test_the_frontier_shows_what_each_means_contributes(convnet):
    points = convnet.frontier([round(convnet.smallest_bytes() * f) for f in (1, 1.3)] + [convnet.unlimited_bytes()])
    assert [p["limit_bytes"] for p in points] == sorted((p["limit_bytes"] for p in points), reverse=True)
    assert [p["step_ns"] for p in points] == sorted(p["step_ns"] for p in points)
    assert "placement" not in points[0]["means"]
    assert {"recomputation", "host"} & set(points[-1]["means"]), points[-1]["means"]
    for p in points:
        assert all(ns is None or ns >= p["step_ns"] for ns in p["without"].values()), p
    assert points[-1]["without"]["recomputation and host"] is None


def test_eps_chooses_the_placement_and_the_budget_is_met_by_the_rest():
    program = zoo_program("convnet")
    free = stowage.shard_plan(program, mesh=(2,), eps=0.0, links=LINKS)
    made = stowage.shard_plan(program, mesh=(2,), eps=0.0, budget="1GiB", links=LINKS)
    assert made.document["tensors"] == free.document["tensors"] and made.summary()["budget"]["placements"] == 1
    with pytest.raises(stowage.Error, match="overlap"):
        stowage.shard_plan(program, mesh=(2,), budget="1GiB", overlap=True)


def test_the_same_question_has_the_same_answer():
    program = zoo_program("moe")
    limit = decisions(program, SLOW_MESH, (2,), {}, LINK_GBPS).smallest_bytes()
    answers = {
        stowage.shard_plan(program, mesh=(2,), budget=limit, links=LINKS, link_gbps=LINK_GBPS).text for _ in range(2)
    }
    without_seconds = {
        json.dumps({k: v for k, v in json.loads(a).items() if k not in ("time", "redundancy")}) for a in answers
    }
    assert len(without_seconds) == 1


# ---- The command line

SCRIPT = """
import torch
from torch import nn

def make_step(batch_size=64):
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    optimizer = torch.optim.AdamW(model.parameters())

    def train_step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return train_step, torch.randn(batch_size, 64)
"""


def shard(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "stowage", "shard", *arguments], capture_output=True, text=True)


def test_the_verb(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    asked = [f"--model-from={script}:make_step", "--mesh=2"]
    refused = shard(*asked, "--budget=1KiB")
    smallest = int(refused.stderr.split("(")[-1].split()[0])
    assert refused.returncode == 4 and "proven" in refused.stderr and "Traceback" not in refused.stderr
    table = shard(*asked, "--frontier", "--limits", str(smallest), "1GiB", "1KiB")
    assert table.returncode == 0, table.stderr
    assert len(table.stdout.splitlines()) == 4 and "collectives" in table.stdout and "does not fit" in table.stdout
    points = json.loads(shard(*asked, "--frontier", "--limits", str(smallest), "--json").stdout)
    done = shard(*asked, f"--budget={smallest}", "--json", "-o", str(tmp_path / "plan.json"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["budget"]["step_ns"] == points[-1]["step_ns"]
    assert json.loads((tmp_path / "plan.json").read_text())["format"] == "stowage-sharding"
    assert shard(*asked, "--budget=some").returncode == 2
    assert shard(f"--model-from={script}:other", "--mesh=2").returncode == 3


# ---- On two ranks

CASES = ranks.cases_of(shard_budget_cases)


@pytest.fixture(scope="module")
def two(request, tmp_path_factory):
    return ranks.run_chosen(request, tmp_path_factory, 2, CASES)


@pytest.mark.parametrize("case", CASES)
def test_two_ranks(two, case):
    assert two[case] == [""] * 2, "\n".join(two[case])

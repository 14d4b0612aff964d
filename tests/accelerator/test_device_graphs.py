"""Pieces of a plan as graphs of the device: the bits of eager, kernels that nobody asks for one by one, and nothing else
changed. The stand-in's own graphs (tests/support/accelerator/graphs.h) note addresses and numbers, as a GPU's do: a stale one
gives wrong bits here, too."""

import random
import threading

import pytest
import searches
import torch
import torch.nn.functional as F
from mean_square import mean_square_step
from programs import Program
from test_compiled import assert_as_planned, compiled, same, update
from torch import nn

import stowage

pytestmark = pytest.mark.skipif(not hasattr(torch.accelerator, "Graph"), reason="torch has no generic graphs")

STEPS = 20  # the first with graphs is the tenth or so; where gradients come to lie elsewhere once, they are noted anew


# ---- The stand-in's own


def test_a_capture_does_no_work_and_a_replay_does(loaded):
    loaded.configure(poison=True, check_order=True)
    x, total = torch.arange(4.0, device="standin"), torch.zeros(4, device="standin")
    graph, side = torch.accelerator.Graph(), torch.Stream("standin")
    with side:
        x.mul(2)
        torch.accelerator.synchronize()
        graph.capture_begin()
        doubled = x * 2
        total += doubled
        graph.capture_end()
    assert total.tolist() == [0, 0, 0, 0]
    kernels = loaded.counters()["kernels"]
    for i in range(3):
        x.fill_(i)
        graph.replay()
        assert doubled.tolist() == [2.0 * i] * 4
    assert total.tolist() == [6, 6, 6, 6]
    counters = loaded.counters()
    assert (counters["graph_launches"], counters["graph_kernels"]) == (3, 6)
    assert counters["kernels"] < kernels + 20 and counters["races"] == 0


@pytest.mark.parametrize("what", [
    lambda x: torch.rand(3, device="standin"), lambda x: x.nonzero(), lambda x: x.cpu(), lambda x: x.sum().item(),
    lambda x: torch.accelerator.synchronize(),
])  # fmt: skip
def test_what_cannot_be_captured_is_refused(loaded, what):
    x, graph = torch.ones(3, device="standin"), torch.accelerator.Graph()
    with torch.Stream("standin"):
        graph.capture_begin()
        with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
            what(x)
        graph.capture_end()
    assert x.tolist() == [1, 1, 1]


# ---- Planned steps


def with_graphs(standin, seed, **options):
    """Both runs of the program, and what the graphs did in the second; None where no plan meets the budget."""
    program, made = Program(seed), []
    wanted = list(program.run("standin", standin.move, STEPS))
    before = standin.counters()
    try:
        got = list(program.run("standin", standin.move, STEPS, compiled(made, strict=True, graphs=True, **options)))
    except (stowage.Infeasible, stowage.OutOfMemory):
        return None
    assert all(map(same, wanted, got)), program
    assert_as_planned(standin, made[0])
    counters = standin.counters()
    return made[0], {name: counters[name] - before[name] for name in ("graph_launches", "graph_kernels")}


def test_random_programs(loaded):
    loaded.configure(poison=True, check_order=True)
    in_graphs = 0
    for seed in searches.seeds(searches.first_seed() + 40, at_least=8):
        step, did = with_graphs(loaded, seed)
        stats = step.stats()
        assert (stats["graph_ops"] > 0) == (did["graph_launches"] > 0), (seed, stats["graph_refusal"])
        assert stats["graph_ops"] > 0 or "kernels in a row" in stats["graph_refusal"], seed
        in_graphs += stats["graph_ops"] > 0
    assert in_graphs >= 5


def test_random_programs_in_less_memory(loaded):
    """Pieces end where copies begin and end; what is made again is in them."""
    in_graphs = 0
    for seed in searches.seeds(searches.first_seed() + 1000, at_least=4):
        draw = random.Random(seed)
        loaded.configure(poison=True, check_order=True, link_gbps=draw.choice([0.0, 0.02, 1.0]))
        stats = with_graphs(loaded, seed)[0].stats()
        budget = stats["resident_bytes"] + int(stats["arena_bytes"] * draw.uniform(0.4, 0.9))
        for options in ({}, {"link_gbps": 0}):
            done = with_graphs(loaded, seed, budget=budget, **options)
            in_graphs += done is not None and done[1]["graph_launches"] > 0
    assert in_graphs >= 3


class Net(nn.Module):
    """With statistics that the forward pass writes, and a check of indices behind them."""

    def __init__(self, width=16):
        super().__init__()
        self.layers = nn.Sequential(*[
            nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.GELU(), nn.Linear(width, width), nn.Tanh())
            for _ in range(3)
        ])  # fmt: skip
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        places = torch.arange(x.shape[1], device=x.device) * 0.01  # a kernel that resizes what it fills
        return self.head(self.layers(x * 1 + places))


def trained(standin, plan=True, steps=STEPS, scale=lambda i: 1.0, between=lambda i, model: None, **options):
    """(what all steps return and leave, the step, kernels asked for in each call)"""
    torch.manual_seed(0)
    model = standin.move(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    now = {"scale": 1.0}

    def step(x, y):
        hidden = torch.relu(model(x) * now["scale"]).square().tanh().add(0.5).sigmoid()
        return update(model, optimizer, F.cross_entropy(hidden, y))

    run = stowage.compile(step, graphs=True, **options) if plan else step
    generator, seen, kernels = torch.Generator().manual_seed(5), [], []
    for i in range(steps):
        between(i, model)
        now["scale"] = scale(i)
        x = torch.randn(6, 16, generator=generator).to("standin")
        y = torch.randint(0, 4, (6,), generator=generator).to("standin")
        before = standin.counters()["kernels"]
        loss = run(x, y)
        kernels.append(standin.counters()["kernels"] - before)
        seen.append(loss.cpu())
    seen += [t.detach().cpu() for t in model.state_dict().values()]
    return seen, run, kernels


def test_most_kernels_are_not_asked_for(loaded):
    loaded.configure(poison=True, check_order=True)
    wanted, _, _ = trained(loaded, plan=False)
    got, step, kernels = trained(loaded, strict=True)
    assert same(got, wanted)
    assert_as_planned(loaded, step)
    stats = step.stats()
    assert stats["graph_ops"] > 60 and stats["graph_refusal"] == ""
    plain = max(kernels[4:6])  # planned, without graphs
    assert kernels[-1] <= plain - stats["graph_ops"], "what is in graphs is asked for all the same"


def test_without_the_option_nothing_is_noted(loaded):
    model, x = loaded.move(Net()), torch.ones(6, 16, device="standin")
    step = stowage.compile(mean_square_step(model, torch.optim.SGD(model.parameters(), lr=0.1)))
    for _ in range(STEPS):
        step(x)
    assert step.stats()["planned_steps"] > 5
    assert step.stats()["graph_ops"] == loaded.counters()["graph_launches"] == 0 and step.stats()["graph_refusal"] == ""


@pytest.mark.parametrize("check", ["auto", "always"])
def test_a_number_that_changes(loaded, check):
    """It is in the kernels of the graph; so that piece runs kernel by kernel where it is another one."""
    numbers = lambda i: 1.0 if i < 17 or i % 2 else 1.0 + i
    wanted, _, _ = trained(loaded, plan=False, steps=24, scale=numbers)
    got, step, kernels = trained(loaded, steps=24, scale=numbers, check=check)
    assert same(got, wanted)
    assert step.stats()["graph_ops"] > 0 and kernels[-1] != kernels[-2]


def test_a_number_that_goes_on_changing_stays_outside(loaded):
    """After some calls the others are noted without it."""
    numbers = lambda i: 1.0 if i < 11 else 1.0 + i
    wanted, _, _ = trained(loaded, plan=False, steps=30, scale=numbers)
    got, _, kernels = trained(loaded, steps=30, scale=numbers)
    assert same(got, wanted)
    assert kernels[-1] < max(kernels[4:6]) - 20


def test_gradients_that_are_kept(loaded):
    """Then the next call's lie elsewhere than those that the graphs make."""

    def run(plan):
        torch.manual_seed(0)
        model = loaded.move(Net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def step(x):
            return update(model, optimizer, model(x).square().mean())

        run, kept, in_graphs = stowage.compile(step, graphs=True, strict=True) if plan else step, [], []
        x = torch.ones(6, 16).to("standin")
        for i in range(30):
            before = loaded.counters()["graph_kernels"]
            run(x)
            in_graphs.append(loaded.counters()["graph_kernels"] - before)
            if i > 10:
                kept.append([p.grad for p in model.parameters()])
        return (
            [g.cpu() for grads in kept for g in grads] + [p.detach().cpu() for p in model.parameters()],
            run,
            in_graphs,
        )

    loaded.configure(poison=True, check_order=True)
    got, step, in_graphs = run(True)
    assert same(got, run(False)[0])
    assert step.stats()["graph_ops"] > 10
    assert in_graphs[-1] > in_graphs[14], "at last, gradients are outside, and the rest is in graphs"


def new_memory(i, model):
    if i == 11:
        model.head.weight.data = model.head.weight.data.clone()


in_its_place = []


def new_memory_of_a_storage(i, model):
    """The same storage object, and another address."""
    if i == 11:
        storage = model.head.weight.untyped_storage()
        content, taken = model.head.weight.detach().clone(), storage.nbytes()
        storage.resize_(0)
        in_its_place.append(torch.empty(taken, dtype=torch.uint8, device="standin"))
        storage.resize_(taken)
        with torch.no_grad():
            model.head.weight.copy_(content)


def another_stream(i, model):
    torch.accelerator.synchronize()
    torch.accelerator.set_stream(torch.Stream("standin"))


def eager_work_beside(i, model):
    """Which takes the arena's memory meanwhile."""
    if i > 9:
        model(torch.ones(6, 16, device="standin")).sum().backward()
        model.zero_grad()


@pytest.mark.parametrize("what", [new_memory, new_memory_of_a_storage, another_stream, eager_work_beside])
def test_what_changes_between_calls(loaded, what):
    default = torch.accelerator.current_stream()
    loaded.configure(poison=True, check_order=True)
    wanted, _, _ = trained(loaded, plan=False, between=what, steps=24)
    got, step, kernels = trained(loaded, between=what, steps=24)
    torch.accelerator.set_stream(default)
    assert same(got, wanted)
    assert step.stats()["graph_ops"] > 0, step.stats()["graph_refusal"]
    assert kernels[-1] < max(kernels[4:6]) - 20, "they are not used any more"
    assert loaded.counters()["races"] == 0, loaded.first_race()


def test_an_arena_that_lies_elsewhere_later(loaded):
    """Other lengths make it grow: the graphs of each are noted anew for the new place."""
    step, eager = with_a_twin(loaded, strict=True)
    launches = []
    sizes = [(8, 14), (64, 14), (8, 6), (512, 14), (64, 6), (8, 6)]
    for rows, calls in [*sizes, *((rows, 6) for n in range(1024, 4096, 512) for rows in (n, 8))]:
        x = torch.randn(rows, 16).to("standin")
        for _ in range(calls):
            assert torch.equal(step(x).cpu(), eager(x).cpu())
        before = loaded.counters()["graph_launches"]
        assert torch.equal(step(x).cpu(), eager(x).cpu())
        launches.append(loaded.counters()["graph_launches"] - before)
    assert min(launches[: len(sizes)]) > 0


def test_a_kernel_that_the_device_cannot_note_stays_outside(loaded):
    loaded.configure(poison=True, check_order=True)
    wanted, _, _ = trained(loaded, plan=False)
    with loaded.not_noted("aten::tanh"):
        got, step, _ = trained(loaded, strict=True)
    assert same(got, wanted)
    stats = step.stats()
    assert stats["graph_ops"] > 30 and "tanh" in stats["graph_refusal"] and "cannot be noted" in stats["graph_refusal"]


def test_the_workspace_that_a_library_keeps_for_a_stream(loaded):
    """It is taken before anything is noted. Once it is freed, whoever has its memory now keeps it."""
    loaded.configure(poison=True, workspace_bytes=4096)
    step, eager = with_a_twin(loaded, strict=True)
    x = torch.ones(8, 16).to("standin")

    def launches(calls):
        before = loaded.counters()["graph_launches"]
        for _ in range(calls):
            assert torch.equal(step(x).cpu(), eager(x).cpu())
        return loaded.counters()["graph_launches"] - before

    launches(STEPS)
    assert step.stats()["graph_ops"] > 0 and step.stats()["graph_refusal"] == "" and launches(1) > 0
    loaded.configure(workspace_bytes=0)
    eager(x)
    step(x)
    loaded.configure(workspace_bytes=4096)
    torch.mm(x, x.t())  # on the current stream it is there again
    assert launches(2) == 0
    assert launches(6) > 0, "they are noted anew"


def test_memory_that_an_operator_before_takes_in_the_place_of_its_result(loaded):
    """A library takes a workspace of the size of a result, late, and keeps it: the result lies elsewhere in this call, and what
    is planned to lie there later, too."""
    loaded.configure(poison=True)
    step, eager = with_a_twin(loaded)
    x = torch.ones(8, 16).to("standin")
    for _ in range(STEPS):
        assert torch.equal(step(x).cpu(), eager(x).cpu())
    assert step.stats()["graph_ops"] > 0 and step.stats()["misses"] == 0
    loaded.configure(workspace_bytes=8 * 16 * 4)
    for _ in range(8):
        assert torch.equal(step(x).cpu(), eager(x).cpu())
    assert step.stats()["misses"] > 0, "the operator has found its memory: this shows nothing"


def test_a_device_that_has_no_room_for_another_workspace(loaded):
    wanted, _, _ = trained(loaded, plan=False)

    def between(i, model):
        if i == 6:
            loaded.configure(limit_bytes=torch.accelerator.memory_allocated() + (32 << 10))

    loaded.configure(workspace_bytes=64 << 10, poison=True, check_order=True)
    got, step, _ = trained(loaded, between=between)
    loaded.configure(limit_bytes=2 << 30)
    assert same(got, wanted)
    assert loaded.counters()["races"] == 0, loaded.first_race()
    assert step.stats()["graph_ops"] == 0 and "out of memory" in step.stats()["graph_refusal"]


def test_where_nothing_can_be_noted_the_plan_runs_as_without(loaded):
    with loaded.not_noted(""):
        got, step, _ = trained(loaded, strict=True)
    assert same(got, trained(loaded, plan=False)[0])
    stats = step.stats()
    assert stats["graph_ops"] == 0 and "cannot be noted" in stats["graph_refusal"]
    assert_as_planned(loaded, step)


def test_a_kernel_that_takes_memory_only_when_it_is_noted(loaded):
    """What it has kept would be somebody else's later, or beside the limit."""
    wanted, _, _ = trained(loaded, plan=False)
    loaded.configure(captures_take=True)
    got, step, _ = trained(loaded, strict=True)
    loaded.configure(captures_take=False)
    assert same(got, wanted)
    assert step.stats()["graph_ops"] == 0 and "beside the arena" in step.stats()["graph_refusal"]


def test_batches_and_losses_that_are_kept(loaded):
    """So each call has them elsewhere."""
    step, eager = with_a_twin(loaded, strict=True)
    kept, launches = [], []
    for _ in range(STEPS):
        x = torch.randn(8, 16).to("standin")
        before = loaded.counters()["graph_launches"]
        kept += [x, step(x)]
        launches.append(loaded.counters()["graph_launches"] - before)
        assert torch.equal(kept[-1].cpu(), eager(x).cpu())
    noted = launches.index(max(launches))
    assert len(set(launches[noted + 1 :])) == 1 and launches[-1] > 0, launches


def test_graphs_that_give_other_bits_are_not_used(loaded):
    loaded.configure(poison=True)
    loaded.configure(wrong_graphs=True)
    got, step, _ = trained(loaded, strict=True)
    loaded.configure(wrong_graphs=False)
    assert same(got, trained(loaded, plan=False)[0])
    assert step.stats()["graph_ops"] == 0 and "other bits" in step.stats()["graph_refusal"]


def test_an_index_out_of_range_leaves_all_as_before(loaded):
    """It is found behind graphs that have written statistics."""
    torch.manual_seed(0)
    model = loaded.move(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def body(x, y):
        return update(model, optimizer, F.nll_loss(torch.log_softmax(model(x), 1), y))

    step = stowage.compile(body, graphs=True, strict=True)
    x, good = torch.randn(6, 16).to("standin"), torch.zeros(6, dtype=torch.long, device="standin")
    bad = torch.full((6,), 9, device="standin")
    for _ in range(STEPS):
        step(x, good)
    assert step.stats()["graph_ops"] > 0
    state = lambda: [
        t.cpu().clone()
        for t in [*model.state_dict().values(), *(v for s in optimizer.state.values() for v in s.values())]
    ]
    before, launches = state(), loaded.counters()["graph_launches"]
    for _ in range(2):
        with pytest.raises((IndexError, RuntimeError)):
            step(x, bad)
        assert same(state(), before)
    assert loaded.counters()["graph_launches"] > launches
    planned = step.stats()["planned_steps"]
    step(x, good)
    assert step.stats()["planned_steps"] > planned and not same(state(), before)


def layers():
    return nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.LayerNorm(16)) for _ in range(4)])


def with_a_twin(standin, **options):
    """(step, the same step of another model, run eagerly)"""
    model, twin = standin.move(layers()), standin.move(layers())
    twin.load_state_dict(model.state_dict())
    steps = [mean_square_step(m, torch.optim.SGD(m.parameters(), lr=0.1)) for m in (model, twin)]
    return stowage.compile(steps[0], graphs=True, **options), steps[1]


def test_steps_in_several_threads(loaded):
    """One call at a time: while a kernel of the stand-in runs, the CPU's allocator is its own in all threads."""
    pairs = [with_a_twin(loaded) for _ in range(3)]
    batches = [[torch.randn(8, 16).to("standin") for _ in range(20)] for _ in pairs]
    wanted = [[eager(x).cpu() for x in batch] for (_, eager), batch in zip(pairs, batches)]
    got, turn = [[] for _ in pairs], threading.Lock()

    def work(i):
        with torch.Stream("standin"):
            for x in batches[i]:
                with turn:
                    got[i].append(pairs[i][0](x).cpu())

    torch.accelerator.synchronize()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(pairs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(map(same, got, wanted))
    assert sum(step.stats()["graph_ops"] > 0 for step, _ in pairs) >= 1, [step.refusal for step, _ in pairs]


def test_on_the_cpu_there_are_none():
    model = nn.Linear(4, 4)
    step = stowage.compile(
        mean_square_step(model, torch.optim.SGD(model.parameters(), lr=0.1)), graphs=True, strict=True
    )
    for _ in range(STEPS):
        step(torch.ones(2, 4))
    stats = step.stats()
    assert stats["planned_steps"] > 5 and stats["graph_ops"] == 0
    assert stats["graph_refusal"] == "there are no graphs on cpu"


def test_wrong_option():
    with pytest.raises(stowage.Error, match="graphs must be True or False, not 'yes'"):
        stowage.compile(lambda x: x, graphs="yes")

"""Planned steps on an accelerator: the bits of the same step run eagerly there, at the planned addresses, within the
device's own limit. That the host never touches the device's memory needs no assertion: it ends the process."""

import os
import random

import pytest
import searches
import torch
import torch.nn.functional as F
from mean_square import mean_square_step
from programs import Program
from torch import nn
from torch.utils.checkpoint import checkpoint

import stowage
from stowage.errors import UnsupportedWarning

STEPS = 6


def same(a, b):
    """To the bit: numbers that are none count."""
    return len(a) == len(b) and all(
        x.dtype == y.dtype and x.shape == y.shape and torch.equal(as_bytes(x), as_bytes(y)) for x, y in zip(a, b)
    )


def as_bytes(x):
    return x.contiguous().reshape(-1).view(torch.uint8)


def compiled(made, **options):
    def wrap(step):
        made.append(stowage.compile(step, **options))
        return made[-1]

    return wrap


def assert_as_planned(standin, step):
    stats = step.stats()
    assert stats["planned_steps"] >= 2
    assert stats["misses"] == 0
    assert stats["measured_peak_bytes"] == stats["planned_peak_bytes"]
    assert standin.counters()["races"] == 0, standin.first_race()


def planned_like_eager(standin, seed, **options):
    """The compiled step of the program; None where no plan meets the budget."""
    program, made = Program(seed), []
    wanted = list(program.run("standin", standin.move, STEPS))
    try:
        got = list(program.run("standin", standin.move, STEPS, compiled(made, strict=True, **options)))
    except (stowage.Infeasible, stowage.OutOfMemory):
        return None
    assert all(map(same, wanted, got)), program
    assert_as_planned(standin, made[0])
    return made[0]


@pytest.mark.parametrize("seed", range(40 if searches.SECONDS else 5))
def test_random_programs(loaded, seed):
    loaded.configure(poison=True, check_order=True)
    planned_like_eager(loaded, seed)


@pytest.mark.parametrize("link", ["stream", "no link"])
@pytest.mark.parametrize("seed", range(12 if searches.SECONDS else 2))
def test_random_programs_in_less_memory(loaded, seed, link):
    """Swaps on the device's streams, at several speeds of the link; or recomputation alone, with the device's draws."""
    speed = random.Random(seed).choice([0.0, 0.02, 0.1, 1.0, 12.0])
    loaded.configure(poison=True, check_order=True, link_gbps=speed)
    stats = planned_like_eager(loaded, 1000 + seed).stats()
    options = {} if link == "stream" else {"link_gbps": 0}
    for share in (0.85, 0.6, 0.4):
        budget = stats["resident_bytes"] + int(stats["arena_bytes"] * share)
        step = planned_like_eager(loaded, 1000 + seed, budget=budget, **options)
        if step is not None:
            assert step.stats()["resident_bytes"] + step.stats()["arena_bytes"] <= budget


def test_swaps_and_recomputation_were_among_them(loaded):
    """Else the test above proves nothing."""
    kinds = {"swapped_bytes": 0, "recomputed_ops": 0}
    for seed in range(1000, 1003):
        stats = planned_like_eager(loaded, seed).stats()
        for options in ({}, {"link_gbps": 0}):
            budget = stats["resident_bytes"] + int(stats["arena_bytes"] * 0.85)
            step = planned_like_eager(loaded, seed, budget=budget, **options)
            for kind in kinds:
                kinds[kind] += step is not None and step.stats()[kind] > 0
    assert min(kinds.values()) >= 1, kinds


@searches.longer
def test_many_random_programs(loaded):
    for seed in searches.seeds(searches.first_seed()):
        draw = random.Random(seed)
        loaded.configure(poison=True, check_order=True, link_gbps=draw.choice([0.0, 0.02, 0.1, 1.0, 12.0]))
        stats = planned_like_eager(loaded, seed).stats()
        budget = stats["resident_bytes"] + int(stats["arena_bytes"] * draw.uniform(0.3, 1.0))
        planned_like_eager(loaded, seed, budget=budget, **draw.choice([{}, {"link_gbps": 0}]))


# ---- Habits of training


def test_attention_that_drops_nothing_moves_the_generator_as_eager_does(loaded):
    """A device may count draws of nothing, too: then the plan takes them back and makes them as any other."""

    def states(wrap):
        torch.manual_seed(3)
        weight = torch.randn(2, 2, 8, 4).to("standin").requires_grad_()
        optimizer = torch.optim.SGD([weight], lr=0.1)

        def step(x):
            loss = F.scaled_dot_product_attention(x * weight, x, x).square().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        step, x, seen = wrap(step), torch.ones(2, 2, 8, 4, device="standin"), []
        for _ in range(STEPS):
            step(x)
            seen.append(torch.standin.get_rng_state().tolist())
        return seen

    made = []
    wanted = states(lambda step: step)
    assert len({tuple(state) for state in wanted}) == STEPS, "eager draws nothing here: another operator is needed"
    assert states(compiled(made)) == wanted
    assert_as_planned(loaded, made[0])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)

    def forward(self, x):
        return self.b(torch.relu(self.norm(self.a(x))))


def update(model, optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def loss_of(model, x, y):
    return F.cross_entropy(model(x), y)


def within_autocast(model, optimizer, x, y):
    with torch.autocast("standin", dtype=torch.bfloat16):
        loss = loss_of(model, x, y)
    return update(model, optimizer, loss)


def seeds_itself(model, optimizer, x, y):
    torch.manual_seed(11)
    return update(model, optimizer, loss_of(model, F.dropout(x), y))


def decides_by_a_number(model, optimizer, x, y):
    loss = loss_of(model, x, y)
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    if norm.item() > 0:
        optimizer.step()
    return loss.detach(), norm


HABITS = {
    "tensor_of_python": lambda m, o, x, y: update(m, o, loss_of(m, x, y) * torch.tensor([0.5], device="standin").sum()),
    "item": lambda m, o, x, y: update(m, o, loss_of(m, x, y)).item(),
    "decides_by_a_number": decides_by_a_number,
    "tolist": lambda m, o, x, y: [update(m, o, loss_of(m, x, y)), *m(x).argmax(1).tolist()],
    "result_on_the_host": lambda m, o, x, y: update(m, o, loss_of(m, x, y)).cpu(),
    "batch_from_the_host": lambda m, o, x, y: update(m, o, loss_of(m, x.cpu().to("standin"), y.cpu().to("standin"))),
    "draws": lambda m, o, x, y: update(m, o, (m(x) + torch.randn(4, device="standin")).square().sum()),
    "draws_on_the_host": lambda m, o, x, y: update(m, o, (m(x) + torch.randn(6, 4).to("standin")).square().sum()),
    "draws_on_both": lambda m, o, x, y: update(
        m, o, (m(F.dropout(x)) + torch.rand(6, 4).to("standin") * torch.rand(4, device="standin")).square().sum()
    ),
    "seeds_itself": seeds_itself,
    "checkpoint": lambda m, o, x, y: update(
        m, o, F.cross_entropy(checkpoint(lambda t: m(F.dropout(t)), x, use_reentrant=False), y)
    ),
    "reentrant_checkpoint": lambda m, o, x, y: update(
        m, o, checkpoint(lambda t, w: m(F.dropout(t)) * w.mean(), x, m.a.weight, use_reentrant=True).sum()
    ),
    "within_autocast": within_autocast,
}

OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "capturable": lambda p: torch.optim.AdamW(p, lr=0.01, capturable=True),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "one by one": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01), foreach=False),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
}


def train(standin, body, optimizer=OPTIMIZERS["adamw"], steps=8, between=lambda i, model: None, **options):
    """What eight steps return, and then the state; and the step."""
    torch.manual_seed(0)
    model = standin.move(Net())
    optimizer = optimizer(model.parameters())
    step = lambda x, y: body(model, optimizer, x, y)
    if options.pop("plan", True):
        step = stowage.compile(step, **options)
    generator, seen = torch.Generator().manual_seed(5), []
    torch.manual_seed(3)
    for i in range(steps):
        between(i, model)
        x = torch.randn(6, 8, generator=generator).to("standin")
        result = step(x, torch.randint(0, 4, (6,), generator=generator).to("standin"))
        for value in result if isinstance(result, (tuple, list)) else [result]:
            seen.append(value.cpu().clone() if isinstance(value, torch.Tensor) else torch.tensor(value))
    seen += [t.cpu() for t in model.state_dict().values()]
    seen += [v.cpu() for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
    return [t.detach() for t in seen], step


@pytest.mark.parametrize("habit", HABITS)
def test_habits(loaded, habit):
    loaded.configure(poison=True, check_order=True)
    got, step = train(loaded, HABITS[habit], strict=True)
    assert same(got, train(loaded, HABITS[habit], plan=False)[0])
    assert_as_planned(loaded, step)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers(loaded, optimizer):
    body = lambda m, o, x, y: update(m, o, loss_of(m, x, y))
    got, step = train(loaded, body, OPTIMIZERS[optimizer], strict=True)
    assert same(got, train(loaded, body, OPTIMIZERS[optimizer], plan=False)[0])
    assert_as_planned(loaded, step)


def test_a_number_of_python_that_changes(loaded):
    def runs(**options):
        calls = []

        def body(model, optimizer, x, y):
            calls.append(0)
            scale = torch.tensor([len(calls), 0.5], device="standin")
            return update(model, optimizer, (loss_of(model, x, y) * scale).sum())

        return train(loaded, body, **options)

    got, step = runs(strict=True)
    assert same(got, runs(plan=False)[0])
    assert_as_planned(loaded, step)


# ---- Around calls, and beside them


def plain(model, optimizer, x, y):
    return update(model, optimizer, loss_of(model, F.dropout(x), y))


def switches_autocast(standin, i, model):
    if i in (3, 5):
        torch.set_autocast_enabled("standin", i == 3)


def takes_another_stream(standin, i, model):
    torch.accelerator.synchronize()
    torch.accelerator.set_stream(torch.Stream("standin"))


def takes_new_memory(standin, i, model):
    if i == 4:
        model.a.weight.data = model.a.weight.data.clone()


AROUND = {
    "autocast": switches_autocast,
    "the generators": lambda standin, i, model: torch.manual_seed(i),
    "the device's generator": lambda standin, i, model: standin.manual_seed(i),
    "the current stream": takes_another_stream,
    "memory": takes_new_memory,
    "mode": lambda standin, i, model: model.train(i not in (4, 5)),
}


@pytest.mark.parametrize("what", AROUND)
def test_what_changes_between_calls(loaded, what):
    def between(i, model):
        AROUND[what](loaded, i, model)

    default = torch.accelerator.current_stream()
    loaded.configure(poison=True, check_order=True)
    wanted, _ = train(loaded, plain, plan=False, between=between)
    got, step = train(loaded, plain, between=between)
    torch.accelerator.set_stream(default)
    assert same(got, wanted)
    assert step.stats()["planned_steps"] > 0 and loaded.counters()["races"] == 0, loaded.first_race()


def seeds_the_device(standin, model, optimizer, x, y):
    standin.manual_seed(11)
    return plain(model, optimizer, x, y)


def draws_the_same_again(standin, model, optimizer, x, y):
    state = standin.get_rng_state()
    first = F.dropout(x)
    standin.set_rng_state(state)
    return update(model, optimizer, loss_of(model, first + F.dropout(x), y))


@pytest.mark.parametrize("body", [seeds_the_device, draws_the_same_again])
def test_steps_that_set_the_devices_generator(loaded, body):
    got, step = train(loaded, lambda *a: body(loaded, *a), strict=True)
    assert same(got, train(loaded, lambda *a: body(loaded, *a), plan=False)[0])
    assert_as_planned(loaded, step)


def on_another_stream(model, optimizer, x, y):
    with torch.Stream("standin"):
        x = x * 2
    torch.accelerator.synchronize()
    return plain(model, optimizer, x, y)


def with_an_event(model, optimizer, x, y):
    event = torch.Event("standin")
    loss = plain(model, optimizer, x, y)
    event.record()
    return loss


@pytest.mark.parametrize("body, why", [
    (on_another_stream, "runs on another stream than the step's first operators"),
    (with_an_event, "uses streams or events of a device"),
])  # fmt: skip
def test_refused(loaded, body, why):
    """Whoever waits for the step's kernels through these waits in vain where the step's Python does not run."""
    with pytest.warns(UnsupportedWarning, match=why):
        got, step = train(loaded, body)
    assert same(got, train(loaded, body, plan=False)[0])
    assert step.stats()["planned_steps"] == 0


def test_a_result_that_a_copy_is_still_filling(loaded):
    def on_its_way(model, optimizer, x, y):
        return plain(model, optimizer, x, y).to("cpu", non_blocking=True)

    class Waits:
        def __init__(self, step):
            self.step = step

        def __call__(self, *args):
            result = self.step(*args)
            torch.accelerator.synchronize()
            return result

    loaded.configure(poison=True, link_gbps=0.0001)
    runs = []
    for wrap in (lambda step: step, stowage.compile):
        torch.manual_seed(0)
        model = loaded.move(Net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = Waits(wrap(lambda x, y: on_its_way(model, optimizer, x, y)))
        x, y = torch.ones(6, 8, device="standin"), torch.zeros(6, dtype=torch.long, device="standin")
        runs.append([step(x, y).clone() for _ in range(7)])
    assert same(*runs)


def test_a_model_that_lies_on_host_and_device(loaded):
    """What lies on the host takes nothing of the arena."""

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(1000, 8), loaded.move(nn.Linear(8, 4))

        def forward(self, i):
            return self.head(self.table(i).to("standin"))

    runs = []
    for wrap in (lambda step: step, lambda step: stowage.compile(step, strict=True)):
        torch.manual_seed(0)
        model = Mixed()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        step = wrap(lambda i, y: update(model, optimizer, loss_of(model, i, y)))
        draw = torch.Generator().manual_seed(1)
        runs.append([])
        for _ in range(8):
            i, y = torch.randint(0, 1000, (6,), generator=draw), torch.randint(0, 4, (6,), generator=draw)
            runs[-1].append(step(i, y.to("standin")).cpu())
        runs[-1] += [p.detach().cpu() for p in model.parameters()]
    assert same(*runs)
    assert_as_planned(loaded, step)
    assert step.stats()["arena_bytes"] < 1000 * 8 * 4


# ---- The limit


@pytest.mark.parametrize("share", [1.0, 0.75])
def test_the_devices_own_limit_is_what_the_plan_says(loaded, share):
    """Residents, arena, and the batch beside them: not a byte more."""

    def run(limit, **options):
        others_bytes = torch.accelerator.memory_allocated()  # of tests before, if cycles hold it
        torch.manual_seed(0)
        model = loaded.move(nn.Sequential(*[nn.Sequential(nn.Linear(128, 128), nn.GELU()) for _ in range(6)]))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        body = mean_square_step(model, optimizer)
        step = stowage.compile(body, strict=True, **options)
        x, losses = torch.ones(64, 128, device="standin"), []
        for i in range(12):
            losses.append(step(x).cpu())
            if i == 8 and limit:
                taken = torch.accelerator.memory_allocated()
                loaded.configure(limit_bytes=taken + 1024)  # the result, twice: before the next call the last one lives
        peak = torch.accelerator.max_memory_allocated()
        loaded.configure(limit_bytes=2 << 30)
        return losses, step.stats(), (taken if limit else peak) - others_bytes

    free, stats, _ = run(limit=False)
    budget = stats["resident_bytes"] + int(stats["arena_bytes"] * share)
    losses, stats, taken = run(limit=True, **({} if share == 1 else {"budget": budget}))
    assert same(losses, free)
    assert stats["planned_steps"] >= 8
    assert taken <= -(-budget // 512) * 512 + 64 * 512, "residents and arena, each block of them rounded up"


# ---- Errors, and looking closely


@pytest.mark.parametrize("share", [0, 0.15, 0.4, 0.7, 1])
def test_an_error_leaves_the_state_as_before(loaded, share):
    def run(fails):
        torch.manual_seed(0)
        model = loaded.move(Net())
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        step = stowage.compile(lambda x, y: plain(model, optimizer, x, y), strict=True)
        draw = torch.Generator().manual_seed(5)
        losses = []
        for i in range(9):
            x = torch.randn(6, 8, generator=draw).to("standin")
            y = torch.randint(0, 4, (6,), generator=draw).to("standin")
            if fails and i == 6:
                step._latest.executor.inject(1 << 40)
            if fails and i == 7:
                runs = step._latest.executor.runs
                kernels = (1 << 40) - step._latest.executor.injected_in
                assert kernels > 20
                step._latest.executor.inject(int(share * (kernels - 1)))
                with pytest.raises(RuntimeError, match="injected"):
                    step(x, y)
                if step._latest.executor.runs > runs:  # it has been finished
                    losses.append(None)
                    continue
            losses.append(step(x, y).cpu())
        return losses, [t.cpu() for t in model.state_dict().values()]

    losses, state = run(fails=True)
    wanted_losses, wanted = run(fails=False)
    assert same(state, wanted)
    assert all(a is None or torch.equal(a, b) for a, b in zip(losses, wanted_losses))


def test_verify(loaded):
    torch.manual_seed(0)
    model = loaded.move(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    batches = [(torch.randn(6, 8).to("standin"), torch.randint(0, 4, (6,)).to("standin")) for _ in range(6)]
    before = [t.cpu() for t in model.state_dict().values()]
    found = stowage.verify(lambda batch: plain(model, optimizer, *batch), batches)
    assert found.equal and found.planned_calls > 0
    assert same([t.cpu() for t in model.state_dict().values()], before)


def test_capture(loaded):
    torch.manual_seed(0)
    model = loaded.move(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x, y = torch.randn(6, 8).to("standin"), torch.randint(0, 4, (6,)).to("standin")
    graph = stowage.capture(lambda: plain(model, optimizer, x, y))
    plan = stowage.plan(graph)
    stowage.check(graph, plan)
    assert plan.summary()["outcome"] == "optimal" and graph.align == 512


def test_looked_at_closely(loaded):
    got, step = train(loaded, plain, strict="paranoid")
    assert same(got, train(loaded, plain, plan=False)[0])
    assert_as_planned(loaded, step)


def test_a_budget_of_the_host_leaves_devices_alone(loaded):
    with stowage.budget("1GiB", device="cpu"):
        got, _ = train(loaded, plain, plan=False)
    assert same(got, train(loaded, plain, plan=False)[0])


def test_steps_of_several_lengths_take_nothing_more_once_all_are_planned(loaded):
    """And the figures of the device are those of the plans."""
    others_bytes = torch.accelerator.memory_allocated()  # of tests before
    torch.manual_seed(0)
    net = loaded.move(nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8)))
    updates = torch.optim.AdamW(net.parameters())

    @stowage.compile
    def step(x):
        updates.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        updates.step()
        return loss

    batches = [torch.randn(length, 8).to("standin") for length in (16, 64, 32, 48)]
    for batch in batches * 4:
        step(batch)
    before = step.stats()["planned_steps"]
    assert before >= 4  # each has a plan
    largest = 0
    torch.accelerator.reset_peak_memory_stats()
    for batch in batches:
        step(batch)
        stats = step.stats()
        assert stats["planned_bytes"] == stats["resident_bytes"] + stats["arena_bytes"]
        assert stats["reserved_bytes"] == stats["allocated_bytes"]  # the stand-in has no cache: no fragments either
        largest = max(largest, stats["planned_bytes"])
    most = torch.accelerator.memory_stats()["reserved_bytes.all.peak"]
    for batch in batches * 10:
        step(batch)
    assert step.stats()["planned_steps"] == before + 44
    assert torch.accelerator.memory_stats()["reserved_bytes.all.peak"] == most
    of_the_test = sum(batch.nbytes for batch in batches)
    assert most <= others_bytes + largest + of_the_test + 4096  # results and alignment


def test_a_kernel_that_does_not_repeat_its_bits(loaded):
    """As many do on a GPU: planned when rehearsals by deterministic algorithms agree; all else has eager's bits."""
    from test_repetition import sum_rows, told

    def train(planned):
        torch.manual_seed(0)
        model = loaded.move(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def step(x):
            y = model(x)
            loss = y.square().mean() + sum_rows(y.detach()).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        run = stowage.compile(step) if planned else step
        generator = torch.Generator().manual_seed(1)
        _, said = told(lambda: [run(torch.randn(512, 64, generator=generator).to("standin")) for _ in range(12)])
        if planned:
            assert run.refusal == "" and run.stats()["planned_steps"] >= 4
            assert any("repetition::sum_rows" in words for words in said), said
        return [p.detach().cpu() for p in model.parameters()]

    assert all(map(torch.equal, train(True), train(False)))


def _place(count):
    return int.from_bytes(os.urandom(4), "little") % count


@torch.library.custom_op("contents::one_word", mutates_args=())
def one_word(x: torch.Tensor) -> torch.Tensor:
    out = x.clone()
    out[_place(x.numel())] += 1
    return out


@torch.library.custom_op("contents::two_words", mutates_args=())
def two_words(x: torch.Tensor) -> torch.Tensor:
    """Beside each other, in one line of memory: the line's sum stays."""
    out, at = x.clone(), 2 * _place(x.numel() // 2)
    out[at : at + 2] = x[at : at + 2].flip(0)
    return out


@pytest.mark.parametrize("op", [one_word, two_words], ids=lambda op: op._name)
def test_large_contents_are_told_apart_on_the_device(loaded, op):
    """In so large a buffer by sums: what is otherwise in a word, or stands elsewhere, is seen by the rehearsals."""
    model = loaded.move(nn.Linear(8, 8))
    content = torch.randint(0, 1 << 20, (1 << 16,), dtype=torch.int32, generator=torch.Generator().manual_seed(1))
    model.register_buffer("large", content.to("standin"))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    def step(x):
        model.large.copy_(op(model.large))
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    compiled = stowage.compile(step)
    with pytest.warns(UnsupportedWarning, match=f"contents::{op._name}"):
        for _ in range(12):
            compiled(torch.ones(4, 8).to("standin"))
    assert compiled.stats()["planned_steps"] == 0


for _op in (one_word, two_words):
    _op.register_fake(torch.empty_like)

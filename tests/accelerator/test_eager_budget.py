"""stowage.budget on an accelerator: the bits of a run without a limit, and never more live bytes than the limit. Memory that
is let go is filled, kernels and copies are checked for races, and links are slow, so that whatever comes too early shows."""

import contextlib
import os
import random
import subprocess
import sys
import threading

import pytest
import searches
import torch
import zoo
from programs import Program
from test_compiled import same
from test_families import OPTIMIZERS, steps
from torch import nn

import stowage
import stowage.cache.costs

DEVICE = "standin:0"


def peak_of(run):
    """What run() returns, and the most bytes that lived on the device meanwhile, beside those that did before."""
    before = torch.accelerator.memory_allocated()
    torch.accelerator.reset_peak_memory_stats()
    result = run()
    torch.accelerator.synchronize()
    return result, before, torch.accelerator.max_memory_allocated() - before


def rounded(bytes_):
    """The stand-in gives blocks of 512 bytes: a limit counts what was asked for."""
    return bytes_ + 512 * 2000


def large(seed):
    """Most tensors of a random program are so small that they never leave."""
    program = Program(seed)
    program.batch *= 40
    return program


def random_program(standin, seed, draw):
    """How much was let go, in each limit that can be kept."""
    program = large(seed)
    wanted, before, peak = peak_of(lambda: list(program.run(DEVICE, standin.move, 4)))
    let_go = 0
    for share in (0.85, 0.65, 0.5):
        release = draw.choice(["both", "recompute", "swap"])
        policy = draw.choice(["default", "default", "delta", "dtr", "lru", "random"])
        limit = before + int(share * peak)
        try:
            with stowage.budget(limit, policy=policy, release=release, debug=True, device=DEVICE) as b:
                (got, _, most) = peak_of(lambda: list(program.run(DEVICE, standin.move, 4)))
        except stowage.OutOfMemory:
            continue
        assert all(map(same, wanted, got)), (program, share, release, policy)
        assert before + most <= rounded(limit), (program, share, release, policy)
        assert b.stats()["notes_lost"] == 0
        assert standin.counters()["races"] == 0, standin.first_race()
        let_go += b.stats()["evictions"]
    assert not any(b.alive().values()), b.alive()
    return let_go


@pytest.mark.parametrize("part", range(3))
def test_random_programs(loaded, part):
    let_go = 0
    for seed in range(7000 + 8 * part, 7008 + 8 * part):
        draw = random.Random(seed)
        loaded.configure(poison=True, check_order=True, link_gbps=draw.choice([0.0, 0.02, 0.1, 1.0, 12.0]))
        let_go += random_program(loaded, seed, draw)
    assert let_go > 100, let_go  # else this proves nothing


@searches.longer
def test_many_random_programs(loaded):
    for seed in searches.seeds(searches.first_seed(), searches.SECONDS / 4):
        draw = random.Random(seed)
        loaded.configure(poison=True, check_order=True, link_gbps=draw.choice([0.0, 0.02, 0.1, 1.0, 12.0]))
        random_program(loaded, seed, draw)


SHORT = [("gpt2", "Adam"), ("resnet50", "SGD"), ("lstm", "AdamW")]
FAMILIES = [(f, o) for f in zoo.BUILDERS for o in OPTIMIZERS] if searches.SECONDS else SHORT


@pytest.mark.parametrize("family, optimizer", FAMILIES)
def test_family(loaded, family, optimizer):
    loaded.configure(poison=True, check_order=True, link_gbps=2.0)
    wanted, before, peak = peak_of(lambda: steps(family, optimizer, loaded.move, count=3))
    for share in (0.9, 0.8):
        limit = before + int(share * peak)
        with stowage.budget(limit, debug=True, device=DEVICE) as b:
            got, _, most = peak_of(lambda: steps(family, optimizer, loaded.move, count=3))
        assert all(torch.equal(x, y) for x, y in zip(got, wanted, strict=True))
        assert b.stats()["evictions"] > 0 and before + most <= rounded(limit)
    assert loaded.counters()["races"] == 0, loaded.first_race()


# ---- A training loop of this file's own


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(128, 128) for _ in range(6))
        self.dropout = nn.Dropout(0.25)

    def forward(self, x):
        for layer in self.layers:
            x = self.dropout(torch.nn.functional.gelu(layer(x)))
        return x


def mean_square(net, x):
    return net(x).square().mean()


def trained(net, updates, batches, body=mean_square):
    """Losses and parameters after an update for each batch; ``body(net, x)`` gives the loss."""
    losses = []
    for batch in batches:
        loss = body(net, batch.to(DEVICE))
        loss.backward()
        updates.step()
        updates.zero_grad()
        losses.append(loss.detach().cpu())
    return [*losses, *(p.detach().cpu() for p in net.parameters())]


def loop(standin, body=mean_square, count=4):
    torch.manual_seed(0)
    net = standin.move(Net())
    updates = torch.optim.AdamW(net.parameters(), lr=1e-3)
    torch.manual_seed(1)
    return trained(net, updates, (torch.full((512, 128), 0.1 * (i + 1)) for i in range(count)), body)


def within(standin, share, run, **options):
    wanted, before, peak = peak_of(run)
    limit = before + int(share * peak)
    with stowage.budget(limit, debug=True, device=DEVICE, **options) as b:
        got, _, most = peak_of(run)
    assert all(torch.equal(x, y) for x, y in zip(got, wanted, strict=True))
    assert b.stats()["evictions"] > 0 and before + most <= rounded(limit)
    assert standin.counters()["races"] == 0, standin.first_race()
    return b


@pytest.mark.parametrize("release", ["both", "recompute", "swap"])
def test_ways_to_leave(loaded, release):
    loaded.configure(poison=True, check_order=True, link_gbps=0.5)
    b = within(loaded, 0.7, lambda: loop(loaded), release=release)
    assert (b.stats()["recomputed_ops"] > 0) == (release == "recompute") or release == "both"
    assert (b.stats()["swapped_in"] > 0) == (release == "swap") or release == "both"


def test_no_copy_is_waited_for_by_the_host(loaded):
    """Copies out and in are asked for and run behind the host, on streams of their own."""
    loaded.configure(link_gbps=0.5)
    counted = loaded.counters()["async_copies"]
    within(loaded, 0.7, lambda: loop(loaded), release="swap")
    assert loaded.counters()["async_copies"] - counted > 20


def test_what_was_made_before_the_block_leaves_too(loaded):
    loaded.configure(poison=True, check_order=True)
    torch.manual_seed(0)
    net, x = loaded.move(Net()), torch.ones(512, 128).to(DEVICE)
    net.eval()
    kept = [x * i for i in range(8)]
    wanted = [net(k).detach().cpu() for k in kept]
    live = torch.accelerator.memory_allocated()
    with stowage.budget(live - (1 << 20), debug=True, device=DEVICE) as b:
        assert torch.accelerator.memory_allocated() <= rounded(live - (1 << 20))
        got = [net(k).detach().cpu() for k in kept]
    assert b.stats()["evictions"] > 0 and all(map(torch.equal, wanted, got))


def test_what_is_older_than_the_front_leaves_too():
    """In a process of its own, where nothing has asked stowage for memory on the device before."""
    code = """
import sys, torch, standin
standin.load()
net = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)]).to("standin")
x = torch.ones(64, 256, device="standin")
wanted = net(x).detach().cpu()
import stowage
from stowage import _runtime
before = torch.accelerator.memory_allocated()
with stowage.budget(before - (1 << 20), device="standin") as b:
    assert torch.accelerator.memory_allocated() <= before - (1 << 20) + 512 * 100
    assert torch.equal(net(x).detach().cpu(), wanted)
    assert abs(_runtime.live_bytes("standin:0") - torch.accelerator.memory_allocated()) < 512 * 100
assert torch.equal(net(x).detach().cpu(), wanted) and b.stats()["swapped_out"] > 0
del net, x
assert torch.accelerator.memory_allocated() == 0 and _runtime.live_bytes("standin:0") == 0
print("done")
"""
    path = os.pathsep.join([os.path.dirname(sys.modules["standin"].__file__), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.stdout == "done\n", done.stderr[-3000:]


def test_the_devices_own_limit_may_be_met_first(loaded):
    """The device has less than the budget says, or not in one piece: what can go goes, instead of an error."""
    wanted, before, peak = peak_of(lambda: loop(loaded))
    loaded.configure(poison=True, limit_bytes=before + int(0.75 * peak))
    with pytest.raises(torch.OutOfMemoryError):
        loop(loaded)
    with stowage.budget(before + peak, device=DEVICE) as b:
        got = loop(loaded)
    assert b.stats()["evictions"] > 0 and all(map(torch.equal, wanted, got))


def test_work_on_other_streams(loaded):
    """What they use comes back and stays; what they make is used on the first stream, and leaves from there."""
    loaded.configure(poison=True, check_order=True)
    other = torch.Stream(DEVICE)

    def body(net, x):
        first = torch.accelerator.current_stream()
        other.wait_stream(first)
        torch.accelerator.set_stream(other)
        scaled = x * 0.5
        shifted = [scaled + i for i in range(6)]
        torch.accelerator.set_stream(first)
        first.wait_stream(other)
        for t in shifted:
            t.record_stream(first)
        x.record_stream(other)
        return sum(net(t).square().mean() for t in shifted)

    within(loaded, 0.7, lambda: loop(loaded, body))


def test_autocast_and_numbers_read_on_the_host(loaded):
    def body(net, x):
        with torch.autocast("standin", dtype=torch.bfloat16):
            loss = net(x).float().square().mean()
        return loss * (2.0 if loss.item() > 1e9 else 1.0)

    within(loaded, 0.75, lambda: loop(loaded, body))


def test_host_tensors_take_nothing_of_the_limit(loaded):
    kept = [torch.randn(1 << 20) for _ in range(4)]
    with stowage.budget(torch.accelerator.memory_allocated() + (1 << 20), device=DEVICE) as b:
        more = [k + 1 for k in kept]
        x = torch.ones(1000, device=DEVICE)
    assert b.stats()["evictions"] == 0 and float(more[0].sum()) == float((kept[0] + 1).sum()) and x.sum().item() == 1000


def test_the_hosts_memory_can_still_be_limited(loaded):
    with stowage.budget("64MiB", device="cpu") as b:
        x = [torch.ones(1 << 20) * i for i in range(24)]
        y = torch.ones(1 << 22, device=DEVICE)  # none of the host's
        assert [t[0].item() for t in x] == list(range(24))
    assert b.device == torch.device("cpu") and b.stats()["evictions"] > 0 and y.sum().item() == 1 << 22


def test_by_default_it_is_the_accelerators(loaded):
    assert stowage.budget("1MiB").device == torch.device(DEVICE)
    with pytest.raises(stowage.Error, match="PyTorch finds no cuda here; device='cpu' limits host memory"):
        stowage.budget("1MiB", device="cuda")


def test_what_does_not_fit_says_so_and_leaves_all_there(loaded):
    torch.manual_seed(0)
    net, x = loaded.move(Net()), torch.ones(512, 128).to(DEVICE)
    wanted = net.eval()(x).detach().cpu()
    live = torch.accelerator.memory_allocated()
    with pytest.raises(stowage.OutOfMemory, match="short by"):
        with stowage.budget(live, device=DEVICE):
            torch.ones(64 << 20, device=DEVICE)
    assert torch.equal(net(x).detach().cpu(), wanted)


def test_reads_past_the_dispatcher(loaded):
    loaded.configure(poison=True)
    with stowage.budget("3MiB", device=DEVICE, release="swap", debug=True) as b:
        x = [torch.full((1 << 17,), float(i), device=DEVICE) for i in range(12)]
        assert b.stats()["swapped_out"] > 0
        address = x[0].data_ptr()  # comes back, and stays
        y = [t + 1 for t in x]
        assert x[0].data_ptr() == address
        assert [t[0].item() for t in y] == [i + 1.0 for i in range(12)]
    assert [t[5].item() for t in x] == [float(i) for i in range(12)]


# ---- Compiled steps: the calls before there is a plan


def test_the_first_calls_of_a_compiled_step_keep_its_budget(loaded, tmp_path, monkeypatch):
    """Nobody has measured the link before: that takes no more than there is room for, either."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(stowage.cache.costs, "_FILES", {})
    loaded.configure(poison=True, check_order=True)

    def train(budget):
        torch.manual_seed(0)
        net = loaded.move(Net())
        updates = torch.optim.AdamW(net.parameters(), lr=1e-3)

        def step(x):
            loss = net(x).square().mean()
            loss.backward()
            updates.step()
            updates.zero_grad()
            return loss

        torch.manual_seed(1)
        call = stowage.compile(step, budget=budget) if budget else step
        x = torch.full((512, 128), 0.3).to(DEVICE)
        return [call(x).detach().cpu() for _ in range(7)], call

    (wanted, _), _, peak = peak_of(lambda: train(None))
    budget = int(0.75 * peak)
    (got, step), _, most = peak_of(lambda: train(budget))
    assert all(map(torch.equal, wanted, got)), step.refusal
    assert step.stats()["planned_steps"] >= 3, step.refusal
    assert most <= rounded(budget)
    assert loaded.counters()["races"] == 0, loaded.first_race()


# ---- stowage run


@pytest.mark.parametrize("share", [None, 0.7])
def test_stowage_run_waits_for_the_model_and_limits_its_device(loaded, share, capfd, monkeypatch):
    from stowage.run import around

    wanted, before, peak = peak_of(lambda: loop(loaded))
    limit = None if share is None else before + int(share * peak)
    monkeypatch.setattr(threading.Thread, "_bootstrap_inner", threading.Thread._bootstrap_inner)
    around._runtime.forget_owners()
    run = around._Around({"budget_bytes": limit, "report": "", "script": True, "pid": os.getpid()})
    run.begin()
    try:
        assert run._device is None  # nothing has touched the device
        got, _, most = peak_of(lambda: loop(loaded))
        assert run._device == torch.device(DEVICE)
        ending = run._ending(1)
    finally:
        around.optimizer_steps.forget(run)
        run.end()
        if run._budget is not None:
            run._budget.__exit__(None, None, None)
    assert all(map(torch.equal, wanted, got))
    said = capfd.readouterr().err
    assert "stowage run: peak" in said and "4 optimizer steps" in said, said
    assert any("test_eager_budget.py" in row["line"] for row in ending.rows()), ending.rows()
    assert ending.peak["bytes"] > 0.6 * peak
    if limit is not None:
        assert most <= rounded(limit) - before and ending.evictions > 0


class Products(nn.Module):
    """Operators that autocast casts and that have kernels, called by themselves."""

    def __init__(self, width):
        super().__init__()
        self.weight, self.other = (nn.Parameter(torch.randn(width, width) / width**0.5) for _ in range(2))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        y = torch.nn.functional.gelu(torch.addmm(self.bias, x, self.weight))
        return torch.softmax(torch.mm(y, self.other), 1).exp().log() + x


@pytest.mark.parametrize("release", ["recompute", "swap", "both"])
def test_autocast(loaded, release):
    """An operator whose arguments autocast is about to cast is not the one that runs."""
    loaded.configure(poison=True, check_order=True, link_gbps=1.0)

    def under_autocast(net, x):
        with torch.autocast("standin", torch.bfloat16):
            return mean_square(net, x)

    def train():
        torch.manual_seed(0)
        model = loaded.move(nn.Sequential(*(Products(64) for _ in range(4))))
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        generator = torch.Generator().manual_seed(1)
        batches = (torch.randn(512, 64, generator=generator) for _ in range(3))
        return trained(model, optimizer, batches, under_autocast)

    wanted, before, peak = peak_of(train)
    limit = before + int(0.6 * peak)
    with stowage.budget(limit, release=release, debug=True, device=DEVICE) as b:
        got, _, most = peak_of(train)
    assert all(map(torch.equal, wanted, got))
    assert before + most <= rounded(limit)
    stats = b.stats()
    assert stats["evictions"] > 10 and (release != "recompute" or stats["recomputed_ops"] > 10), stats


@pytest.mark.parametrize("deterministic", [False, True])
def test_what_adds_in_any_order_is_not_made_again(loaded, deterministic):
    """On an accelerator index_add has no fixed order: made again, the backward pass would see other numbers than the
    forward pass has used. Told to repeat its bits, it may be."""

    def messages():
        torch.manual_seed(0)
        x = torch.randn(400, 64).to(DEVICE).requires_grad_()
        rows = torch.randint(0, 400, (400,)).to(DEVICE)
        y = x
        for _ in range(12):
            y = torch.zeros_like(y).index_add(0, rows, y.sin())
        y.square().mean().backward()
        return x.grad.cpu()

    wanted, before, peak = peak_of(messages)
    torch.use_deterministic_algorithms(deterministic)
    fails = contextlib.nullcontext() if deterministic else pytest.raises(stowage.OutOfMemory, match="computed again")
    try:
        with fails, stowage.budget(before + int(0.5 * peak), release="recompute", debug=True, device=DEVICE) as b:
            assert torch.equal(messages(), wanted)
        made_again = {event["op"] for event in b.timeline() if event["event"] == "recompute"}
        assert ("aten::index_add" in made_again) == deterministic
    finally:
        torch.use_deterministic_algorithms(False)

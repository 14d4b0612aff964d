"""An argument that the step can also reach by itself: a trainer keeps the batch that it passes, a data set is reachable, a
global is passed. Planned where the step reads it by one of its names, or by both while its Python runs; the bits are
eager's when the caller holds another tensor there in a later call."""

import random
import types

import pytest
import searches
import torch
from torch import nn

import stowage

SEED = searches.first_seed()
WIDTH, CALLS = 4, 20
_module_s = types.SimpleNamespace(kept=None)


class Kept:
    """Where the caller keeps something, and how the step reads it there."""

    def __init__(self):
        self.state = types.SimpleNamespace(batch=None)

    def keep(self, value):
        self.state.batch = value

    def read(self):
        return self.state.batch


class InDict(Kept):
    def __init__(self):
        self.found = {"batch": None, "others": []}

    def keep(self, value):
        self.found["batch"] = value
        self.found["others"] = [*self.found["others"][-2:], value]

    def read(self):
        return self.found["batch"]


class InList(Kept):
    def __init__(self):
        self.found = []

    def keep(self, value):
        self.found[:] = [value]

    def read(self):
        return self.found[0]


class OfModule(Kept):
    """A name of the module's."""

    def keep(self, value):
        _module_s.kept = value

    def read(self):
        return _module_s.kept


class BehindName(Kept):
    """By a name that no code shows."""

    def keep(self, value):
        self.one = value

    def read(self):
        return getattr(self, "on" + "e")


PLACES = [Kept, InDict, InList, OfModule, BehindName]
READS = ["argument", "kept", "both", "shape"]
CALLER = {  # what the caller keeps while it passes x
    "same": lambda x, rng, all_: x,
    "view": lambda x, rng, all_: x[1:],
    "alias": lambda x, rng, all_: x.view_as(x),
    "all": lambda x, rng, all_: all_[3],
    "sometimes": lambda x, rng, all_: x if rng.random() < 0.6 else rng.choice(all_),
    "later another": lambda x, rng, all_: x if rng.random() < 0.9 else x.clone(),
}


def trained(place, reads, caller, compiled, seed, given):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    model = nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    kept = place()
    batches = [torch.randn(3, WIDTH) for _ in range(6)]

    def step(x, *trainer):
        optimizer.zero_grad()
        loss = model(x).square().mean() if reads in ("argument", "both", "shape") else 0.0
        if reads in ("kept", "both"):
            loss = loss + model(kept.read()).cos().mean()
        if reads == "shape":
            loss = loss * kept.read().shape[0]
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = stowage.compile(step) if compiled else step
    left = []
    for call in range(CALLS):
        x = batches[call % len(batches)]
        if rng.random() < 0.2:
            x.mul_(0.9)
        kept.keep(CALLER[caller](x, rng, batches))
        left.append(run(x, kept) if given else run(x))
    left += [p.detach().clone() for p in model.parameters()]
    return left, run


@pytest.mark.filterwarnings("ignore:stowage")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("reads", READS)
def test_bits_whatever_the_caller_keeps(place, reads):
    for seed in searches.seeds(SEED, searches.SECONDS / len(PLACES) / len(READS)):
        for caller in CALLER:
            given = (seed + len(caller)) % 2 == 0
            eager, _ = trained(place, reads, caller, False, seed, given)
            planned, _ = trained(place, reads, caller, True, seed, given)
            assert all(map(torch.equal, eager, planned)), f"seed {seed}, the caller keeps: {caller}, passed: {given}"


@pytest.mark.parametrize("place", [Kept, InDict, InList, OfModule])
@pytest.mark.parametrize("reads", ["argument", "kept", "both"])
@pytest.mark.parametrize("given", [False, True])
def test_the_argument_itself_is_planned(place, reads, given):
    _, step = trained(place, reads, "same", True, SEED, given)
    assert step.stats()["planned_steps"] >= CALLS // 2, step.refusal


def test_what_the_step_does_not_read_needs_no_python():
    """A trainer with its batch, and with the list of all of them."""

    class Trainer:
        def __init__(self, model):
            self.model, self.batch, self.loader = model, None, [torch.randn(3, WIDTH) for _ in range(5)]

    trainer = Trainer(nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1)

    def step(trainer, batch):
        optimizer.zero_grad()
        trainer.model(batch).square().mean().backward()
        optimizer.step()

    compiled = stowage.compile(step, check="never")
    for call in range(CALLS):
        trainer.batch = trainer.loader[call % 5]
        compiled(trainer, trainer.batch)
    assert compiled.stats()["planned_steps"] >= CALLS // 2, compiled.refusal
    replays = [replay for entry in compiled._entries.values() for replay in entry.replays]
    assert [replay.shadowed_because for replay in replays] == [""]


def test_a_parameter_as_an_argument_is_refused():
    model = nn.Linear(WIDTH, WIDTH)

    def step(x):
        (model(x).square().mean()).backward()

    compiled = stowage.compile(step)
    with pytest.warns(UserWarning, match="shares its memory with 'model.weight'"):
        for _ in range(4):
            compiled(model.weight.detach())


@pytest.mark.parametrize("caller", ["view", "alias"])
def test_another_tensor_over_the_same_memory_is_refused(caller):
    with pytest.warns(UserWarning, match="shares its memory with '.*batch', which the function also reaches"):
        _, step = trained(Kept, "both", caller, True, SEED, False)
    assert step.stats()["planned_steps"] == 0


@pytest.mark.parametrize("options", [{}, {"check": "never"}, {"budget": "1MiB"}], ids=["auto", "never", "budget"])
@pytest.mark.parametrize("cut", [lambda w: w[:2], lambda w: w.t(), lambda w: w.view(-1)[:4].view(1, 4)])
def test_a_view_of_a_parameter_made_without_gradients(cut, options):
    """PyTorch looks at nothing of it once an optimizer has written to its base; the step has happened all the same."""

    def trained(compiled):
        torch.manual_seed(0)
        model = nn.Linear(WIDTH, WIDTH)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step(anchor):
            optimizer.zero_grad()
            loss = model(anchor).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run, losses = stowage.compile(step, **options) if compiled else step, []
        for _ in range(8):
            with torch.no_grad():
                anchor = cut(model.weight)
            losses.append(run(anchor).item())
        return losses, model.weight.tolist()

    assert trained(True) == trained(False)

"""Gradients that a step's next call lets go of unread stay in the arena until then, and it is not given to anybody else
while they live: whoever holds them, in whatever form, has what eager would have, as long as they want it.
"""

import gc
import io
import json
import random
import threading
import weakref

import numpy
import pytest
import searches
import torch
from torch import nn

import stowage
from stowage import _runtime

SEED = searches.first_seed()
WIDTH = 48
SETTLES = 7  # calls


def build(seed=0, forward_first=False):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x):
        if not forward_first:
            optimizer.zero_grad()
        loss = model(x).square().mean()
        if forward_first:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def add(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return model, step, add


def batch(seed, rows=16):
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed))


def settled(step):
    planned = stowage.compile(step)
    for i in range(SETTLES):
        planned(batch(i))
    assert planned.stats()["planned_steps"] >= 2, planned.refusal
    return planned


def grads(model):
    return [p.grad for p in model.parameters()]


def stay(planned):
    return planned._latest.executor.has_staying_results


def parameter_bytes(model):
    return sum(p.nbytes for p in model.parameters())


@pytest.mark.parametrize("forward_first", [False, True])
def test_they_stay_and_take_no_room_beside_the_arena(forward_first):
    model, step, _ = build(forward_first=forward_first)
    planned = settled(step)
    assert stay(planned)
    graph = json.loads(planned.graph.to_json())
    made = [b for b in graph["buffers"] if b.get("returned")]  # not the loss, which may be kept for ever
    assert sum(b["bytes"] for b in made) == parameter_bytes(model)
    x = batch(9)
    before_bytes = _runtime.live_bytes()
    _runtime.reset_peak()
    planned(x)
    assert _runtime.peak_bytes() - before_bytes <= 64  # the loss


FORMS = {
    "tensor": lambda t: t,
    "alias": lambda t: t.detach(),
    "data": lambda t: t.data,
    "row": lambda t: t[1:2],
    "storage": lambda t: t.untyped_storage(),
    "bits": lambda t: t.view(torch.int32),
    "numpy": lambda t: t.numpy(),
    "dlpack": lambda t: torch.from_dlpack(t),
    "numpy's dlpack": lambda t: numpy.from_dlpack(t),
    "buffer": lambda t: memoryview(t.numpy()),
}


def content(held):
    if isinstance(held, torch.UntypedStorage):
        return bytes(held.tolist()) if held.nbytes() < 1 << 20 else b""
    if isinstance(held, torch.Tensor):
        return held.contiguous().numpy().tobytes()
    return numpy.ascontiguousarray(held).tobytes()


@pytest.mark.parametrize("form", FORMS)
def test_whoever_holds_one_keeps_its_content(form):
    model, step, _ = build()
    planned = settled(step)
    held = FORMS[form](model[2].weight.grad)
    was = content(held)
    planned(batch(20))
    planned._room.arena.fill(0xFF)
    assert content(held) == was
    for i in range(21, 21 + SETTLES):
        planned(batch(i))
        assert content(held) == was
    # Made anew, so that this costs one arena at most
    assert planned.refusal == "" and not stay(planned)
    twin, eager, _ = build()
    for i in [*range(SETTLES), *range(20, 21 + SETTLES)]:
        eager(batch(i))
    assert all(torch.equal(a, b) for a, b in zip(grads(model), grads(twin)))


def test_their_pages_are_all_that_is_left_of_an_arena():
    model, step, _ = build()
    planned = settled(step)
    gradient_bytes = sum(g.untyped_storage().nbytes() for g in grads(model))
    live_bytes, arena_bytes = _runtime.live_bytes(), planned._room.arena.bytes
    planned._room.arena.release()
    assert _runtime.live_bytes() == live_bytes - arena_bytes + gradient_bytes
    was = [g.clone() for g in grads(model)]
    del planned
    gc.collect()
    assert all(torch.equal(g, w) for g, w in zip(grads(model), was))
    without_bytes = _runtime.live_bytes() - gradient_bytes
    model.zero_grad()
    assert _runtime.live_bytes() == without_bytes


SHAPES = {
    "a tensor": lambda loss, y: y,
    "a tuple": lambda loss, y: (loss.item(), y),
    "a dict": lambda loss, y: {"loss": loss, "y": [y, (y,)]},
    "a named tuple": lambda loss, y: torch.return_types.max((y, y.argmax())),
}


@pytest.mark.parametrize("budget", [None, "64MiB"])
@pytest.mark.parametrize("shape", SHAPES)
def test_they_die_with_their_last_holder(shape, budget):
    """Without a collection of garbage, in whatever form they come, after recorded and planned calls."""
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x):
        y = model(x)
        loss = y.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return SHAPES[shape](loss.detach(), y.detach())

    step, x = stowage.compile(step, budget=budget), torch.randn(64, WIDTH)
    gc.collect()
    gc.disable()
    try:
        for call in range(SETTLES):
            result = step(x)
            last = weakref.ref(
                next(t for t in stowage._torch.private.flatten(result)[0] if isinstance(t, torch.Tensor))
            )
            del result
            assert last() is None, call
    finally:
        gc.enable()


def test_they_may_die_on_another_thread():
    model, step, _ = build()
    planned = settled(step)
    for i in range(30):
        held = grads(model)
        model.zero_grad() if i % 3 == 0 else None
        thread = threading.Thread(target=held.clear)
        planned(batch(i))
        thread.start()
        thread.join()
    assert planned.refusal == ""


def test_a_plan_that_cannot_part_from_them_within_its_budget_stays():
    """The gradients of a model that is all weights: nowhere else is there room for them at the smallest budget."""
    (model, step, _), (twin, eager, _) = build(), build()
    stats = settled(build()[1]).stats()
    planned = stowage.compile(step, budget=stats["resident_bytes"] + stats["arena_bytes"], link_gbps=0)
    held = []
    for i in range(20):
        assert torch.equal(planned(batch(i)), eager(batch(i)))
        if 8 <= i < 12:
            held.append([(g, g.clone()) for g in grads(model)])
        assert all(torch.equal(g, w) for pairs in held for g, w in pairs)
        assert all(torch.equal(a, b) for a, b in zip(grads(model), grads(twin)))
    assert planned.stats()["planned_steps"] > 10 and planned.refusal == "" and stay(planned)


def test_an_error_that_somebody_keeps_holds_none():
    _, step, _ = build()
    planned = settled(step)
    kept = []
    for k in (0, 3, 7):
        planned._latest.executor.inject(k)
        with pytest.raises(RuntimeError, match="injected") as caught:
            planned(batch(30 + k))
        planned._latest.executor.inject(-1, 0)
        kept.append(caught.value)
        step(batch(40 + k))  # leaves gradients behind, as the step expects
        planned(batch(50 + k))
    assert planned.refusal == "" and not planned._room.arena.results_outlive


# ---- Any order of holding, letting go, and all else that happens between calls


class Side:
    """One of two twins. ``held``: what somebody has kept, in any form."""

    def __init__(self, compiled, forward_first):
        self.model, self.plain, self.plain_add = build(1, forward_first)
        self.compiled = compiled
        self.held = []
        self.renew()

    def renew(self):
        self.step = stowage.compile(self.plain) if self.compiled else self.plain
        self.add = stowage.compile(self.plain_add) if self.compiled else self.plain_add

    def gradient(self, which):
        return list(self.model.parameters())[which].grad


def call(side, seed, rows):
    side.step(batch(seed, rows))


def accumulate(side, seed, rows):
    side.add(batch(seed, rows))


def hold(side, which, form):
    if side.gradient(which) is not None:
        side.held.append(FORMS[form](side.gradient(which)))


def let_go(side, which):
    del side.held[which:]


def let_go_elsewhere(side):
    thread = threading.Thread(target=side.held.clear)
    thread.start()
    thread.join()


def write(side, which):
    if side.gradient(which) is not None:
        side.gradient(which).mul_(2)


def move(side, which, how):
    grad = side.gradient(which)
    if grad is None:
        return
    if how == "share" and not side.held:
        grad.share_memory_()
    elif how == "save":
        file = io.BytesIO()
        torch.save(grad, file)
        file.seek(0)
        side.held.append(torch.load(file))
    elif how == "clear":
        side.model.zero_grad()
    elif how == "zero":
        side.model.zero_grad(set_to_none=False)
    elif how == "swap":
        list(side.model.parameters())[which].grad = grad.clone()


def room(side, how):
    if not side.compiled:
        return
    if how == "release":
        side.step._room.arena.release()
    elif how == "fill":
        side.step._room.arena.fill(0xFF)
    else:
        side.renew()
        gc.collect()


def random_action(rng):
    kind = rng.choices(
        ["call", "accumulate", "hold", "let go", "elsewhere", "write", "move", "room"], [12, 2, 3, 2, 1, 1, 2, 1]
    )[0]
    which = rng.randrange(3)
    return {
        "call": lambda: (call, rng.randrange(99), rng.choice([16, 16, 16, 5])),
        "accumulate": lambda: (accumulate, rng.randrange(99), 16),
        "hold": lambda: (hold, which, rng.choice(list(FORMS))),
        "let go": lambda: (let_go, which),
        "elsewhere": lambda: (let_go_elsewhere,),
        "write": lambda: (write, which),
        "move": lambda: (move, which, rng.choice(["share", "save", "clear", "zero", "swap"])),
        "room": lambda: (room, rng.choice(["release", "fill", "renew"])),
    }[kind]()


def test_any_order():
    for seed in searches.seeds(SEED, at_least=3):
        print("seed", seed)
        any_order(random.Random(seed))


def any_order(rng):
    forward_first = rng.random() < 0.5
    sides = Side(True, forward_first), Side(False, forward_first)
    for at in range(SETTLES + 40):
        action, *args = (call, at, 16) if at < SETTLES else random_action(rng)
        for side in sides:
            action(side, *args)
        planned, eager = sides
        where = f"action {at}: {action.__name__} {args}"
        assert len(planned.held) == len(eager.held)
        assert all(content(a) == content(b) for a, b in zip(planned.held, eager.held)), where
        for a, b in zip(planned.model.parameters(), eager.model.parameters()):
            assert torch.equal(a, b), where
            assert (a.grad is None) == (b.grad is None) and (a.grad is None or torch.equal(a.grad, b.grad)), where

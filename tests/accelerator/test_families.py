"""The model families of the runtime's tests train on the stand-in with the bits of the CPU, with each optimizer."""

import pytest
import searches
import torch
import zoo

import stowage

OPTIMIZERS = {
    "SGD": (torch.optim.SGD, {"momentum": 0.9}),
    "Adam": (torch.optim.Adam, {"foreach": True}),
    "AdamW": (torch.optim.AdamW, {"fused": True}),
}


def trained(device, family, optimizer, move=lambda model: model):
    """The losses, then all tensors of the model."""
    if family not in ("lstm", "unet"):
        pytest.importorskip("transformers")
    model, loss_fn, batches = zoo.make(family, count=3)
    model = move(model)
    make, options = OPTIMIZERS[optimizer]
    updates = make(model.parameters(), lr=1e-3, **({"foreach": False} | options if "fused" not in options else options))
    torch.manual_seed(1)
    losses = []
    for batch in batches:
        batch = batch.to(device) if isinstance(batch, torch.Tensor) else tuple(t.to(device) for t in batch)
        loss = loss_fn(model, batch)
        loss.backward()
        updates.step()
        updates.zero_grad()
        losses.append(loss)
    return [t.detach().cpu() for t in [*losses, *model.state_dict().values()]]


# All of them in ./dev soak; else each family with one optimizer.
EACH = [(f, o) for f in zoo.BUILDERS for o in OPTIMIZERS]
if not searches.SECONDS:
    EACH = [(f, list(OPTIMIZERS)[i % len(OPTIMIZERS)]) for i, f in enumerate(zoo.BUILDERS)]


@pytest.mark.parametrize("family, optimizer", EACH)
def test_family(loaded, family, optimizer):
    loaded.configure(cpu_numbers=True, poison=True, check_order=True)
    device = trained("standin", family, optimizer, loaded.move)
    # Recurrent cells of devices are fused: other bits than the CPU's, but the same each time.
    where, *how = ("standin", loaded.move) if family == "lstm" else ("cpu",)
    wanted = trained(where, family, optimizer, *how)
    assert len(device) == len(wanted)
    differ = [i for i, (a, b) in enumerate(zip(device, wanted)) if not torch.equal(a, b)]
    assert not differ, f"{len(differ)} of {len(device)}"
    assert loaded.counters()["races"] == 0, loaded.first_race()


def steps(family, optimizer, move, wrap=lambda step: step, count=6):
    """Losses of each step, then all tensors of the model; ``wrap`` may compile the step."""
    if family not in ("lstm", "unet"):
        pytest.importorskip("transformers")
    model, loss_fn, batches = zoo.make(family, count=count)
    model = move(model)
    make, options = OPTIMIZERS[optimizer]
    updates = make(model.parameters(), lr=1e-3, **options)

    def step(batch):
        updates.zero_grad()
        loss = loss_fn(model, batch)
        loss.backward()
        updates.step()
        return loss

    step = wrap(step)
    torch.manual_seed(1)
    losses = []
    for batch in batches:
        batch = batch.to("standin") if isinstance(batch, torch.Tensor) else tuple(t.to("standin") for t in batch)
        losses.append(step(batch).detach().cpu())
    return [*losses, *(t.detach().cpu() for t in model.state_dict().values())]


def planned_steps(family, optimizer, move, budget):
    made = []

    def wrap(step):
        made.append(stowage.compile(step, budget=budget, strict=True))
        return made[0]

    got = steps(family, optimizer, move, wrap)
    return made[0], got


# All of them in ./dev soak: minutes.
SHORT = [("gpt2", "Adam"), ("unet", "AdamW")]
PLANNED = [(f, o) for f in zoo.BUILDERS for o in OPTIMIZERS] if searches.SECONDS else SHORT


@pytest.mark.parametrize("family, optimizer", PLANNED)
def test_family_planned(loaded, family, optimizer):
    """Planned without a limit; then in three quarters of that arena, or the least that works if that is more."""
    loaded.configure(poison=True, check_order=True, link_gbps=1.0)
    wanted = steps(family, optimizer, loaded.move)
    arena_bytes = resident_bytes = 0
    for share in (None, 0.75):
        budget = None if share is None else resident_bytes + int(arena_bytes * share)
        for _ in range(4):
            try:
                step, got = planned_steps(family, optimizer, loaded.move, budget)
                break
            except stowage.Infeasible as error:
                budget = error.smallest_bytes
            except stowage.OutOfMemory as error:  # of the calls before there is a plan
                budget = error.bound_bytes
        differ = [i for i, (a, b) in enumerate(zip(got, wanted, strict=True)) if not torch.equal(a, b)]
        assert not differ, f"{len(differ)} of {len(got)}, {step.refusal}"
        stats = step.stats()
        assert stats["planned_steps"] >= 2 and stats["misses"] == 0, step.refusal
        assert stats["measured_peak_bytes"] == stats["planned_peak_bytes"]
        arena_bytes, resident_bytes = stats["arena_bytes"], stats["resident_bytes"]
        assert budget is None or resident_bytes + arena_bytes <= budget
    assert loaded.counters()["races"] == 0, loaded.first_race()

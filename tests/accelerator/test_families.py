"""The model families of the runtime's tests train on the stand-in with the bits of the CPU, with each optimizer."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
import zoo

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


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("family", zoo.BUILDERS)
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

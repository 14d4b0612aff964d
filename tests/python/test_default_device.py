"""Calls under a default device that is not the step's (torch.set_default_device, ``with torch.device(...)``): what Stowage makes
for itself lies where it has to. The default is "meta" here, on which nothing can be read."""

import contextlib
import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stowage

READS = {
    "nothing": lambda h: None,
    "numpy": lambda h: h.detach().cpu().numpy().sum(),
    "array": lambda h: np.asarray(h.detach())[0, 0],
    "list": lambda h: h.detach()[0].tolist(),
    "text": lambda h: repr(h.detach()[0]),
    "number": lambda h: h.sum().item(),
    "rows": lambda h: len(h[h > 0]),
    "decision": lambda h: bool((h > 0).any()),
    "copy": lambda h: copy.deepcopy(h.detach()).sum().item(),
    "tensor of numbers": lambda h: torch.tensor([h.sum(), 2.0], device="cpu").sum().item(),
    "words": lambda h: f"{h.sum():.3f}",
    "complex": lambda h: torch.view_as_complex(h.detach()[:, :2].contiguous()).tolist()[0],
    "bfloat16": lambda h: h.detach().bfloat16()[0].tolist(),
}


@contextlib.contextmanager
def everywhere():
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


DEFAULTS = {"for all": everywhere, "a block": lambda: torch.device("meta")}


@pytest.mark.parametrize("default", DEFAULTS)
@pytest.mark.parametrize("name", READS)
def test_what_is_read_is_eagers(name, default):
    def train(compiled, around):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        batches = [torch.randn(5, 6) for _ in range(10)]
        seen = []

        def train_step(x):
            h = model(x)
            seen.append(READS[name](h))
            loss = F.mse_loss(h, torch.zeros(5, 4, device="cpu"))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = stowage.compile(train_step) if compiled else train_step
        with around():
            losses = [step(x).clone() for x in batches]
        return losses, seen, [p.detach().clone() for p in model.parameters()], step

    expected, found = train(False, contextlib.nullcontext), train(True, DEFAULTS[default])
    assert all(map(torch.equal, expected[0] + expected[2], found[0] + found[2]))
    assert [str(a) for a in expected[1]] == [str(b) for b in found[1]]
    assert found[3].stats()["planned_steps"] > 0 or name == "rows"


def test_within_a_budget():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(256, 64)

    def train_step(x):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    first = copy.deepcopy(model.state_dict())
    expected = [train_step(batch) for _ in range(6)]
    model.load_state_dict(first)
    free = stowage.compile(train_step)
    for _ in range(4):
        free(batch)
    model.load_state_dict(first)
    figures = free.stats()
    step = stowage.compile(train_step, budget=int(figures["resident_bytes"] + 0.8 * figures["arena_bytes"]))
    with everywhere():
        found = [step(batch) for _ in range(6)]
    assert all(map(torch.equal, expected, found)) and step.stats()["planned_steps"] > 0

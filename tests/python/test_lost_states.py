"""Steps that keep a state of a random generator, and read numbers: reversible layers, whose dropout is drawn again in
the backward pass. No planned call knows such a state, so they run eagerly, and say so."""

import warnings

import torch
from torch import nn

import stowage


def trained(compiled, calls=20):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    kept = {}

    def train_step(x):
        first = model(x)
        kept["state"] = torch.get_rng_state()
        first = first + model(x)
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(kept["state"])
            loss = (first + model(x)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    step = stowage.compile(train_step) if compiled else train_step
    left = []
    for _ in range(calls):
        told = step(torch.randn(5, 6))
        left.append((told, kept["state"].clone(), [p.detach().clone() for p in model.parameters()]))
    return left, step


def test_they_are_refused_by_their_reason():
    eager, _ = trained(False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        planned, step = trained(True)
    for (a, s, p), (b, t, q) in zip(eager, planned):
        assert a == b and torch.equal(s, t) and all(torch.equal(x, y) for x, y in zip(p, q))
    assert "keeps a state of a random generator, and reads numbers" in step.refusal
    assert len([w for w in caught if "a planned call does not know that state" in str(w.message)]) == 1

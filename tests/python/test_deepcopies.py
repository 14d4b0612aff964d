"""copy.deepcopy within a step: snapshots of a state dict, of a model's buffers, of tensors that share memory."""

import copy

import pytest
import torch
from torch import nn

import stowage


def snapshot(model, kept, made):
    kept["state"] = copy.deepcopy(model.state_dict())


def snapshot_loaded(model, kept, made):
    kept["copy"].load_state_dict(copy.deepcopy(model.state_dict()))


def module(model, kept, made):
    kept["module"] = copy.deepcopy(model)


def tied(model, kept, made):
    weight = model[0].weight.detach()
    kept["state"] = copy.deepcopy({"a": weight, "b": weight, "c": model[0].weight.detach(), "d": made.detach()})
    kept["state"]["a"].add_(1)  # c is the same memory


def transposed(model, kept, made):
    kept["state"] = copy.deepcopy([made.detach().t().contiguous().t(), model[1].running_mean])


def part(model, kept, made):
    """Of a larger storage: eager's own copy, which sees it."""
    kept["state"] = copy.deepcopy(model[0].weight.detach()[1])


def trained(act, planned):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    kept = {"copy": copy.deepcopy(model)}
    history = []

    def step(x):
        made = model(x)
        loss = made.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        act(model, kept, made)
        return loss.detach()

    run = stowage.compile(step) if planned else step
    for call in range(9):
        torch.manual_seed(call)
        history.append([run(torch.randn(6, 4)), *(p.detach().clone() for p in model.parameters())])
        for value in kept.values():
            values = value.state_dict() if isinstance(value, nn.Module) else value
            values = values.values() if isinstance(values, dict) else [values] if torch.is_tensor(values) else values
            history[-1] += [v.clone() for v in values]
            history[-1] += [torch.tensor(v.stride()) for v in values]
            history[-1] += [torch.tensor([v.requires_grad, v._is_view()]) for v in values]
    return history, run


@pytest.mark.parametrize("act", [snapshot, snapshot_loaded, module, tied, transposed, part])
def test_copies_are_eagers(act):
    expected, _ = trained(act, planned=False)
    got, step = trained(act, planned=True)
    for call, (a, b) in enumerate(zip(expected, got)):
        assert len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b)), f"call {call}"
    if act is not part:
        assert step.stats()["planned_steps"] > 3, step.refusal

"""Programs that hold parameters by themselves: in lists, dicts, closures, optimizers of their own, beside the model or in no model."""

from __future__ import annotations

import copy

import torch
from shard_pair import mlp_batches, zero_plan
from torch import nn

import stowage


def _model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 9), nn.GELU(), nn.Linear(9, 5)).double()


def _clips_a_list():
    model = _model()
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=0.01)

    def train_step(x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(params, 0.1)
        optimizer.step()
        return loss.detach(), norm.detach()

    return train_step, params, None


def _scale_in_no_module():
    model, scale = _model(), nn.Parameter(torch.tensor(2.6, dtype=torch.float64))
    optimizer = torch.optim.Adam([*model.parameters(), scale], lr=0.01)

    def train_step(x, y):
        optimizer.zero_grad()
        loss = (model(x) * scale.exp() - y).square().mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            scale.clamp_(max=2.62)
        return loss.detach()

    return train_step, [scale], None


def _plain_tensors():
    torch.manual_seed(0)
    weight, bias = (
        torch.randn(5, 7, dtype=torch.float64, requires_grad=True),
        torch.zeros(5, dtype=torch.float64, requires_grad=True),
    )
    optimizer = torch.optim.SGD([weight, bias], lr=0.1, momentum=0.9)

    def train_step(x, y):
        loss = (x @ weight.T + bias - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach(), bias.detach().sum()

    return train_step, [weight, bias], None


def _penalized():
    model = _model()
    decayed = {name: p for name, p in model.named_parameters() if p.dim() > 1}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(x, y):
        optimizer.zero_grad()
        penalty = sum(p.square().sum() for p in decayed.values())
        loss = (model(x) - y).square().mean() + 0.01 * penalty
        loss.backward()
        for p in decayed.values():
            p.grad.mul_(0.5)
            p.grad += 0.1 * p.detach()
        optimizer.step()
        return loss.detach()

    return train_step, list(decayed.values()), None


def _gradients_asked_for():
    model = _model()
    params = tuple(model.parameters())
    optimizer = torch.optim.SGD(params, lr=0.1)

    def train_step(x, y):
        loss = (model(x) - y).square().mean()
        for p, g in zip(params, torch.autograd.grad(loss, params)):
            p.grad = g
        optimizer.step()
        return loss.detach()

    return train_step, list(params), None


def _optimizer_of_its_own():
    model = _model()

    class Plain:
        def __init__(self, params):
            self.params = list(params)

        @torch.no_grad()
        def step(self):
            for p in self.params:
                p -= 0.1 * p.grad
                p.grad = None

    optimizer = Plain(model.parameters())

    def train_step(x, y):
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return train_step, optimizer.params, None


def _gradients_dropped_between_calls():
    model = _model()
    params = list(model.parameters())
    optimizer = torch.optim.SGD(params, lr=0.1)

    def train_step(x, y):
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def between(call):
        for p in params:
            p.grad = None
        if call == 4:
            with torch.no_grad():
                params[0].mul_(0.9)
                params[1].fill_(0.2)

    return train_step, params, between


def _average_of_a_list():
    model = _model()
    params = list(model.parameters())
    average = [p.detach().clone() for p in params]
    optimizer = torch.optim.AdamW(params, lr=0.01)

    def train_step(x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for a, p in zip(average, params):
                a.lerp_(p, 0.1)
        return loss.detach(), average[0].sum(), average[3].sum()

    return train_step, params, None


def _functional():
    model, optimizer_of = _model(), torch.optim.Adam
    params = dict(model.named_parameters())
    optimizer = optimizer_of(params.values(), lr=0.01)

    def train_step(x, y):
        optimizer.zero_grad()
        loss = (torch.func.functional_call(model, params, (x,)) - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return train_step, list(params.values()), None


WAYS = {f.__name__.strip("_").replace("_", " "): f for f in (
    _clips_a_list, _scale_in_no_module, _plain_tensors, _penalized, _gradients_asked_for, _optimizer_of_its_own,
    _gradients_dropped_between_calls, _average_of_a_list, _functional)}  # fmt: skip


def _whole(p) -> torch.Tensor:
    return p.full_tensor().detach() if hasattr(p, "full_tensor") else p.detach()


def what_is_held_stands_for_the_parameter(rank, size):
    batches, wrong = mlp_batches(9), []
    for name, make in WAYS.items():
        for plan in (zero_plan, None):
            try:
                (alone, theirs, _), (step, mine, _) = (runs := [make(), make()])
                step = stowage.shard(step, (size,), plan=plan)
                for call, batch in enumerate(batches):
                    results = []
                    for run, (_, _, between) in zip((alone, step), runs):
                        if between is not None:
                            between(call)
                        result = run(*batch)
                        results.append(result if isinstance(result, tuple) else (result,))
                    for a, b in zip(*results, strict=True):
                        assert (a - b).abs().max().item() < 1e-9, f"call {call}: {a} and {b}"
                for a, b in zip(theirs, mine, strict=True):
                    assert a.shape == b.shape and (a - _whole(b)).abs().max().item() < 1e-9
                # Gradients that stay after a step are none that a sharded plan keeps
                assert between is not None or step.stats()["planned_steps"] >= 2, step.refusal or step.stats()
            except Exception as error:
                wrong.append(f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
    assert not wrong, "\n".join(wrong)


def what_is_held_can_be_used_as_before(rank, size):
    """Between calls, too: read, copied, printed, given to functions."""
    train_step, (scale,), _ = _scale_in_no_module()
    step = stowage.shard(train_step, (size,), plan=zero_plan)
    step(*mlp_batches()[0])
    assert isinstance(scale, nn.Parameter) and scale.shape == () and scale.requires_grad
    assert abs(scale.item() - 2.6) < 0.02 and f"{scale.item():.6f}" in f"{scale.full_tensor().item():.6f}"
    assert copy.deepcopy(scale).full_tensor().item() == scale.item() and "DTensor" in repr(scale)
    with torch.no_grad():
        scale.fill_(1.5)
    assert (scale * 2).full_tensor().item() == 3.0
    assert scale.placements[0].is_replicate()

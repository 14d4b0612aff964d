"""Sharded steps that write to tensors of their own and to views, of which each rank may have a copy."""

from __future__ import annotations

import random

import torch
from shard_pair import Pair, mlp_batches, zero_plan
from torch import nn


def tensors_of_the_step_s_own_are_written_to_whole(rank, size):
    """Running totals that are no module's: of five numbers, of two (a part of which would broadcast), by ops of each kind."""

    def make():
        torch.manual_seed(0)
        model = nn.Linear(7, 2).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        total, average, counts = (torch.ones(2, dtype=torch.float64) for _ in range(3))
        latest = torch.zeros(6, 2, dtype=torch.float64)
        rows = torch.zeros(9, 7, dtype=torch.float64)

        def train_step(x, y):
            optimizer.zero_grad()
            out = model(x)
            loss = (out - y).square().mean()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                counts.mul_(0.5).add_(1)  # which no tensor of the model decides
                counts[0] += 1
                total.add_(out.detach().mean(0))
                average.mul_(0.9).add_(model.bias, alpha=0.1)
                average.lerp_(out.detach()[0], 0.2)
                counts.index_add_(0, out.argmax(1), torch.ones(6, dtype=torch.float64))
                latest.copy_(out)
                rows[3:] = x
                torch._foreach_add_([total, average], [model.bias.detach(), out.detach()[1]])
            return loss.detach(), total.clone(), average.clone(), counts.clone(), latest.clone(), rows.sum()

        return model, optimizer, train_step

    batches = [(x, y[:, :2]) for x, y in mlp_batches(9)]
    for plan in (zero_plan, None):
        pair = Pair(make, batches, (size,), plan=plan)
        pair.run(1e-9)
        assert pair.step.refusal == "" and pair.step.stats()["planned_steps"] >= 2


def _training(between=None, behind=None, forward=None):
    """An MLP: ``forward`` changes what it gives, ``between`` each parameter before the optimizer's step, ``behind`` after."""

    def make():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(7, 9), nn.GELU(), nn.Linear(9, 5)).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def changed(change) -> None:
            with torch.no_grad():
                for p in model.parameters() if change is not None else ():
                    change(p)

        def train_step(x, y):
            optimizer.zero_grad()
            out = model(x)
            out = out if forward is None else forward(out)
            loss = (out - y).square().mean()
            loss.backward()
            changed(between)
            optimizer.step()
            changed(behind)
            return loss.detach()

        return model, optimizer, train_step

    return make


def _check(make, size: int, what: str) -> None:
    for plan in (None, zero_plan):
        try:
            pair = Pair(make, mlp_batches(6), (size,), plan=plan)
            pair.run(1e-9)
        except Exception as error:
            raise AssertionError(f"{what}, {'solved' if plan is None else 'zero'}: {error}") from error


def views_of_gradients_and_parameters(rank, size):
    for what, change in {
        "row": lambda t: t[0].zero_(),
        "rows": lambda t: t[1:4].mul_(0.5),
        "last": lambda t: t.__setitem__(-1, 1.0),
        "column": lambda t: t[..., 0].fill_(0.1),
        "flat": lambda t: t.view(-1)[0].fill_(0.2),
        "turned": lambda t: t.t()[1:].mul_(0.5),
        "detached": lambda t: t.detach()[0].add_(0.1),
        "data": lambda t: t.data[-1].zero_(),
        "diagonal": lambda t: t.fill_diagonal_(0.0) if t.dim() == 2 else t,
        "other view read": lambda t: t.copy_(t + _written_through(t)),
    }.items():
        _check(_training(between=lambda p, change=change: change(p.grad)), size, f"gradient, {what}")
        _check(_training(behind=change), size, f"parameter, {what}")


def _written_through(t):
    """Of a copy: one view is made, another is written, the first is read."""
    copy = t.clone()
    first, second = copy[1:], copy[:2]
    second.mul_(3.0)
    return 0.001 * first.sum()


_VIEWS = (
    lambda t, r: t[r.randrange(t.shape[0])] if t.dim() > 1 else t[: r.randint(1, t.shape[0])],
    lambda t, r: t[r.randrange(t.shape[0]) :],
    lambda t, r: t[..., : r.randint(1, t.shape[-1])],
    lambda t, r: t[:: r.randint(1, 2)],
    lambda t, r: t.transpose(0, -1),
    lambda t, r: t.view(-1) if t.is_contiguous() else t[:1],
    lambda t, r: t.unsqueeze(0),
    lambda t, r: t.diagonal() if t.dim() == 2 else t,
    lambda t, r: t.narrow(0, 0, r.randint(1, t.shape[0])),
    lambda t, r: t.detach(),
    lambda t, r: t.view(t.shape[0], 1, -1).squeeze(1) if t.is_contiguous() else t,
)
_WRITES = (
    lambda t, r: t.mul_(0.5),
    lambda t, r: t.zero_(),
    lambda t, r: t.add_(t.sum() * 0.01),
    lambda t, r: t.copy_(t.flip(0) * 0.5),
    lambda t, r: t.clamp_(-0.2, 0.2),
    lambda t, r: torch._foreach_add_([t], [torch.ones_like(t) * 0.1]),
)


def _random_writes(seed: int):
    """Views of views of a tensor; some are written, some are read behind that."""

    def change(h):
        source = random.Random(seed)
        base = h.detach().clone()
        known, told = [base], []
        for _ in range(source.randint(3, 8)):
            t = known[source.randrange(len(known))]
            kind = source.random()
            if kind < 0.5 or t.dim() == 0 or t.numel() == 0:
                view = _VIEWS[source.randrange(len(_VIEWS))](t, source) if t.dim() and t.numel() else t
                known.append(view if view.dim() and view.numel() else t)
            elif kind < 0.8:
                _WRITES[source.randrange(len(_WRITES))](t, source)
            else:
                told.append(t.tanh().sum())
        return h * 1.0 + 0.1 * base + 0.01 * sum([k.mean() for k in known] + told)

    return change


def random_views_are_written(rank, size):
    for seed in range(12):
        _check(_training(forward=_random_writes(seed)), size, f"seed {seed}")


def rows_are_filled_one_by_one(rank, size):
    def filled(h):
        out = torch.zeros_like(h)
        for i in range(h.shape[0]):
            out[i] = h[i] * (i + 1)
        out[:, 1:3].mul_(2)
        return out

    def through_the_flat_view(h):
        h = h.clone()
        flat, turned = h.view(-1), h.t()
        flat[3:5].mul_(3)
        turned[0].add_(1)
        return h + flat.sum() * 0.01

    def into_a_plain_one(h):
        out = torch.zeros(6, 5, dtype=torch.float64)
        out[:, :3] = h[:, 2:]
        out[2:, 3:] = h[2:, :2] * 2
        return out

    def rows_into_a_plain_one(h):
        out = torch.empty(6, 5, dtype=torch.float64)
        for i in range(6):
            out[i] = h[i] * (i + 1)
        return out

    for forward in (filled, through_the_flat_view, into_a_plain_one, rows_into_a_plain_one):
        _check(_training(forward=forward), size, forward.__name__)


def writes_to_views_that_need_gradients_are_planned(rank, size):
    def multiplied(h):
        h = h * 1.0
        h[:, :2] *= 2
        return h

    def set_from_another(h):
        h = h * 1.0
        h[:, :2] = h[:, 2:4] * 0.5
        return h

    def flat(h):
        h = h * 1.0
        h.view(-1).mul_(2)
        return h

    def by_a_grid_of_its_own(h):
        grid = torch.arange(5, dtype=torch.float64)
        grid.unsqueeze_(0)  # as PyTorch does within affine_grid()
        affine = torch.nn.functional.affine_grid(h[:, :3].repeat(1, 2).view(6, 2, 3), [6, 1, 2, 2], False)
        return h * grid + affine.mean() * 0.1

    for forward in (multiplied, set_from_another, flat, by_a_grid_of_its_own):
        pair = Pair(_training(forward=forward), mlp_batches(7), (size,))
        pair.run(1e-9)
        assert pair.step.stats()["planned_steps"] >= 2, (forward.__name__, pair.step.refusal)


def complex_numbers_are_looked_at_as_pairs(rank, size):
    def make():
        torch.manual_seed(0)
        model = nn.Module()
        model.weight = nn.Parameter(torch.randn(7, 5, dtype=torch.complex128))
        model.scale = nn.Parameter(torch.ones(5, 2, dtype=torch.float64))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

        def train_step(x, y):
            optimizer.zero_grad()
            h = x.to(torch.complex128) @ model.weight * torch.view_as_complex(model.scale)
            pairs = torch.view_as_real(h.clone())
            pairs[..., 0].mul_(0.5)
            loss = (
                (torch.view_as_complex(pairs).abs() - y).square().mean() + h.real.mean() + h.conj().imag.square().mean()
            )
            loss.backward()
            optimizer.step()
            return loss.detach()

        return model, optimizer, train_step

    _check(make, size, "complex")

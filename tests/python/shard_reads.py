"""Sharded steps whose Python reads numbers that the step makes: planning of placements goes by guesses, and what runs by the
numbers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from shard_pair import columns_plan, mlp_batches, zero_plan
from torch import nn
from torch.utils._pytree import tree_leaves as flatten

import stowage


def _made(body, layers=None):
    """``body``(model, optimizer, seen, x, y) is one step; what it reads goes to ``seen``, too."""

    def make():
        torch.manual_seed(0)
        model = (layers() if layers else nn.Sequential(nn.Linear(7, 9), nn.GELU(), nn.Linear(9, 5))).double()
        optimizer, seen = torch.optim.AdamW(model.parameters(), lr=0.05), []
        optimizer.scaler = torch.amp.GradScaler("cpu", 64.0)

        def train_step(x, y):
            optimizer.zero_grad()
            return body(model, optimizer, seen, x, y)

        return model, train_step, seen

    return make


def _learn(optimizer, loss):
    loss.backward()
    optimizer.step()


def _loss(model, x, y):
    return (model(x) - y).square().mean()


def _returned(model, optimizer, seen, x, y):
    loss = _loss(model, x, y)
    _learn(optimizer, loss)
    return loss.item(), int((model(x) > 0).sum())


def _logged(model, optimizer, seen, x, y):
    loss = _loss(model, x, y)
    _learn(optimizer, loss)
    seen.append(f"{loss.item():.9f}")
    return loss.detach()


def _logarithm(model, optimizer, seen, x, y):
    loss = _loss(model, x, y)
    _learn(optimizer, loss)
    return math.log(loss.item())


def _checked(model, optimizer, seen, x, y):
    loss = _loss(model, x, y)
    assert not torch.isnan(loss).any()
    if not torch.isfinite(loss):
        raise ValueError("not finite")
    _learn(optimizer, loss)
    return loss.detach()


def _skipped(model, optimizer, seen, x, y):
    loss = _loss(model, x, y)
    loss.backward()
    if loss.item() > 1.1:
        optimizer.zero_grad()
        return None
    optimizer.step()
    return loss.detach()


def _another_way(model, optimizer, seen, x, y):
    """Ops that the program has not, for some batches: of parts, sums and whole tensors."""
    out = model(x)
    if out.sum() > 0.3:
        out = torch.tanh(out) * out.softmax(1).sum(0) + out.cumsum(0)
    loss = F.mse_loss(out, y) if out[0, 0] > 0 else F.huber_loss(out, y)
    _learn(optimizer, loss)
    return loss.detach()


def _clipped_or_raised(model, optimizer, seen, x, y):
    loss = _loss(model, x, y)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1, error_if_nonfinite=True)
    optimizer.step()
    return loss.detach(), norm.detach()


def _checked_for_anomalies(model, optimizer, seen, x, y):
    with torch.autograd.set_detect_anomaly(True):
        loss = _loss(model, x, y)
        _learn(optimizer, loss)
    return loss.detach()


def _a_distribution(model, optimizer, seen, x, y):
    loss = -torch.distributions.Normal(model(x), 0.5).log_prob(y).mean()
    _learn(optimizer, loss)
    return loss.detach()


def _writes_where_a_number_says(model, optimizer, seen, x, y):
    """To views, of which planning has not seen that they are written to."""
    out = model(x) * 1
    left, right = out[:, :2], out[1:]
    if out.sum() > 0.3:
        right[:, 1:3].mul_(2)
        left += 0.5
    loss = (out - y).square().mean() + left.sin().mean() + right.cos().mean()
    _learn(optimizer, loss)
    return loss.detach()


def _printed(model, optimizer, seen, x, y):
    loss = _loss(model, x, y)
    _learn(optimizer, loss)
    seen.append(f"{loss:.6f} {float(loss):.6f} {bool(loss > 1)} {(loss > 1).item()}")
    return float(loss), complex(loss).real


def _lists(model, optimizer, seen, x, y):
    out = model(x)
    loss = (out - y).square().mean()
    _learn(optimizer, loss)
    seen.append([round(v, 6) for v in out.sum(0).tolist()] + out.argmax(1).tolist() + [torch.equal(out, out)])
    return loss.tolist()


def _arrays(model, optimizer, seen, x, y):
    out = model(x)
    loss = (out - y).square().mean()
    _learn(optimizer, loss)
    seen.append([round(float(v), 6) for v in out.detach().sum(0).numpy()])
    return float(np.asarray(loss.detach()))


def _scaled(model, optimizer, seen, x, y):
    loss = _loss(model, x, y)
    optimizer.scaler.scale(loss).backward()
    optimizer.scaler.step(optimizer)
    optimizer.scaler.update()
    return loss.detach()


def _repeated_by_a_number(model, optimizer, seen, x, y):
    loss = _loss(model, x, y)
    for _ in range(1 + int(loss.item() > 0.9)):
        loss = loss + 0.01 * model[0].weight.square().sum()
    _learn(optimizer, loss)
    return loss.detach()


class _Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.into, self.encoder, self.out = (
            nn.Linear(7, 8),
            nn.TransformerEncoder(layer, 1, enable_nested_tensor=False),
            nn.Linear(8, 5),
        )
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(6).double())

    def forward(self, x):
        return self.out(self.encoder(self.into(x)[None], mask=self.mask)[0])


WAYS = {f.__name__.strip("_").replace("_", " "): _made(f) for f in (
    _returned, _logged, _logarithm, _checked, _skipped, _another_way, _clipped_or_raised, _checked_for_anomalies, _a_distribution,
    _repeated_by_a_number, _scaled, _printed, _lists, _arrays, _writes_where_a_number_says)}  # fmt: skip
WAYS["a causal mask is looked at"] = _made(
    lambda model, optimizer, seen, x, y: _skipped(model, optimizer, seen, x, y), _Encoder
)


def _flat(result) -> list:
    return [math.nan if v is None else v for v in (result if isinstance(result, tuple) else (result,))]


def numbers_that_are_read_are_those_of_one_process(rank, size):
    batches, wrong = mlp_batches(9), []
    for name, make in WAYS.items():
        for plan in (zero_plan, None):
            try:
                (theirs, alone, read), (mine, step, read_here) = make(), make()
                step = stowage.shard(step, (size,), plan=plan)
                for call, batch in enumerate(batches):
                    for a, b in zip(_flat(alone(*batch)), _flat(step(*batch)), strict=True):
                        same = torch.allclose(
                            torch.as_tensor(a).double(), torch.as_tensor(b).double(), 1e-9, 1e-9, equal_nan=True
                        )
                        assert same and isinstance(a, torch.Tensor) == isinstance(b, torch.Tensor), (
                            f"call {call}: {a} and {b}"
                        )
                assert read == read_here
                for a, b in zip(theirs.parameters(), mine.parameters(), strict=True):
                    assert (a - b.full_tensor()).abs().max().item() < 1e-9
            except Exception as error:
                wrong.append(f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
    assert not wrong, "\n".join(wrong)


def _named(model, optimizer, seen, x, y):
    out = model(x)
    loss = (out - y).square().mean()
    right = (out.argmax(1) == y.argmax(1)).sum().item()
    _learn(optimizer, loss)
    return {"loss": loss.item(), "right": right, "out": out.detach(), "rows": len(x)}


def _asked_for(loss):
    return float(loss)


def _by_another_function(model, optimizer, seen, x, y):
    loss = _loss(model, x, y)
    _learn(optimizer, loss)
    return _asked_for(loss)


def _before_the_update(model, optimizer, seen, x, y):
    """Of parameters, of a part's own sum, and of an argument."""
    loss = (model(x) - y).square().mean()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5).item()
    weight = model[0].weight.abs().max().item()
    optimizer.step()
    return loss.detach(), norm, weight, x.sum().item(), bool(model[0].bias.detach().sum() > 0)


def _kept_too(model, optimizer, seen, x, y):
    loss = _loss(model, x, y)
    _learn(optimizer, loss)
    number = loss.item()
    seen.append(round(number, 9))
    return number


def steps_that_read_numbers_are_planned(rank, size):
    bodies = (_returned, _named, _by_another_function, _before_the_update, _kept_too, _logarithm)
    for body, plan in itertools.product(bodies, (zero_plan, columns_plan, None)):
        (theirs, alone, read), (mine, step, read_here) = _made(body)(), _made(body)()
        step = stowage.shard(step, (size,), plan=plan)
        for batch in mlp_batches(9):
            expected, result = flatten(alone(*batch)), flatten(step(*batch))
            assert [type(v) for v in expected] == [type(v) for v in result]
            for a, b in zip(expected, result, strict=True):
                torch.testing.assert_close(torch.as_tensor(b), torch.as_tensor(a), rtol=1e-9, atol=1e-9)
        assert read == read_here
        for a, b in zip(theirs.parameters(), mine.parameters(), strict=True):
            assert (a - b.full_tensor()).abs().max().item() < 1e-9
        assert step.stats()["planned_steps"] > 2, f"{body.__name__}: {step.stats()}"


def views_that_are_older_than_the_update_are_not_read(rank, size):
    """They may have memory of their own: refused, whoever reads them, by a number, a list or an array."""

    def reading(read):
        def body(model, optimizer, seen, x, y):
            view = model[0].weight.detach()[1, 1:3]
            _learn(optimizer, _loss(model, x, y))
            return read(view)

        return body

    for read in (
        lambda v: v[0].item(),
        lambda v: v.tolist(),
        lambda v: float(v.numpy()[1]),
        lambda v: bool(v.sum() > 0),
    ):
        step = stowage.shard(_made(reading(read))()[1], (size,), plan=zero_plan)
        with pytest.raises(stowage.Unsupported, match="older than optimizer.step"):
            step(*mlp_batches()[0])

    def after(model, optimizer, seen, x, y):
        before = model[0].weight.detach()[1, 1].item()
        _learn(optimizer, _loss(model, x, y))
        return before, model[0].weight.detach()[1, 1].item()

    (_, alone, _), (_, step, _) = _made(after)(), _made(after)()
    step = stowage.shard(step, (size,), plan=zero_plan)
    for batch in mlp_batches(9):
        for a, b in zip(alone(*batch), step(*batch), strict=True):
            assert abs(a - b) < 1e-9
    assert step.stats()["planned_steps"] > 2, step.refusal


def what_planning_cannot_guess_is_refused_by_the_line(rank, size):
    def shapes_of_a_number(model, optimizer, seen, x, y):
        out = model(x)
        loss = (out[out[:, 0] > 0]).square().sum()
        _learn(optimizer, loss)
        return loss.detach()

    def raises_for_every_guess(model, optimizer, seen, x, y):
        loss = _loss(model, x, y)
        if loss.item() in (0.0, 1.0):
            raise ValueError("such a loss cannot be")
        _learn(optimizer, loss)
        return loss.detach()

    for body, words in (
        (shapes_of_a_number, r"shard_reads.py:\d+: the step makes shapes of numbers"),
        (raises_for_every_guess, r"shard_reads.py:\d+: .* raises for those .* such a loss cannot be"),
    ):
        _, train_step, _ = _made(body)()
        with pytest.raises(stowage.Unsupported, match=words):
            stowage.shard(train_step, (size,), plan=zero_plan)(*mlp_batches()[0])

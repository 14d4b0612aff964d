"""What a step returns is the very object that eager returns: a gradient, a parameter, a buffer, an attribute, a state; or
lies over the same memory as a view of it. The caller may write into it."""

import types

import pytest
import torch
from torch import nn

import stowage

CALLS = 16
RETURNED = {
    "a gradient": lambda o, x: o.model.weight.grad,
    "all gradients": lambda o, x: [p.grad for p in o.model.parameters()],
    "a row of a gradient": lambda o, x: o.model.weight.grad[0],
    "a gradient without its graph": lambda o, x: o.model.weight.grad.detach(),
    "a gradient that no backward fills": lambda o, x: o.other.grad,
    "parameters": lambda o, x: list(o.model.parameters()),
    "a parameter's data": lambda o, x: o.model.weight.data,
    "a buffer and a view": lambda o, x: (o.model.mean, o.model.mean[1:]),
    "an attribute": lambda o, x: o.sums,
    "what the step does nothing with": lambda o, x: o.zero,
    "the same, expanded": lambda o, x: o.zero.expand(3, 4),
    "of a dict": lambda o, x: o.held["zero"],
    "states": lambda o, x: [v for p in o.model.parameters() for v in o.optimizer.state[p].values()],
    "the argument": lambda o, x: x,
    "one of a list": lambda o, x: o.queue[0],
}
ZEROED = {
    "to None": lambda o: o.optimizer.zero_grad(),
    "to zeros": lambda o: o.optimizer.zero_grad(set_to_none=False),
    "never": lambda o: None,
}


def train(returned: str, zeroed: str, clips: bool, compiled: bool):
    torch.manual_seed(0)
    o = types.SimpleNamespace(model=nn.Linear(6, 4), sums=torch.zeros(4), zero=torch.zeros(4))
    o.model.register_buffer("mean", torch.zeros(4))
    o.other, o.held, o.queue = nn.Parameter(torch.ones(4)), {"zero": torch.zeros(4)}, [torch.zeros(4) for _ in range(3)]
    o.other.grad = torch.ones(4)
    o.optimizer = torch.optim.Adam(o.model.parameters(), 0.01)

    def train_step(x):
        ZEROED[zeroed](o)
        loss = ((o.model(x) + o.model.mean) * o.other.detach()).square().mean()
        loss.backward()
        if clips:
            nn.utils.clip_grad_norm_(o.model.parameters(), 0.5)
        o.optimizer.step()
        with torch.no_grad():
            o.model.mean.lerp_(x.mean(0)[:4], 0.1)
            o.other.grad.mul_(0.9)
            o.sums.add_(0.1)
            o.queue[0].add_(0.1)
        return loss.detach(), RETURNED[returned](o, x)

    step = stowage.compile(train_step) if compiled else train_step
    seen, kept = [], []
    for call in range(CALLS):
        x = torch.randn(5, 6)
        loss, what = step(x)
        what = list(what) if isinstance(what, (list, tuple)) else [what]
        known = {
            "x": x, "mean": o.model.mean, "sums": o.sums, "zero": o.zero, "held": o.held["zero"], "other": o.other.grad,
            **{f"parameter {i}": p for i, p in enumerate(o.model.parameters())},
            **{f"gradient {i}": p.grad for i, p in enumerate(o.model.parameters())},
            **{f"queue {i}": t for i, t in enumerate(o.queue)},
            **{f"{key} {i}": v for i, p in enumerate(o.model.parameters()) for key, v in o.optimizer.state[p].items()},
        }  # fmt: skip
        known = {name: t for name, t in known.items() if t is not None}
        seen.append([
            float(loss),
            [[name for name, t in known.items() if t is each] for each in what],
            [[name for name, t in known.items() if storage(t) == storage(each)] for each in what],
            [(each.tolist(), each.stride(), each.requires_grad) for each in what],
        ])  # fmt: skip
        if call in (8, 12, 13):
            with torch.no_grad():
                for each in what:
                    if each.dim() and 0 not in each.stride():
                        each.mul_(0.5)
        if call % 2:
            kept.append(what)
    return seen, step


def storage(t: torch.Tensor) -> int:
    return t.untyped_storage().data_ptr()


@pytest.mark.parametrize("clips", [False, True], ids=["", "clips"])
@pytest.mark.parametrize("zeroed", list(ZEROED))
@pytest.mark.parametrize("returned", list(RETURNED))
def test_is_what_eager_returns(returned, zeroed, clips):
    wanted, _ = train(returned, zeroed, clips, False)
    got, step = train(returned, zeroed, clips, True)
    assert got == wanted
    assert step.stats()["planned_steps"] >= 5, step.refusal

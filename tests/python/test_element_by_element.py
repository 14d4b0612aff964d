"""Optimizer steps that a sharded step may run on parts: all that are accepted give a part what they give the whole; what
looks beyond its element is refused."""

import random

import pytest
import torch
from torch import nn

import stowage
from stowage.sharding.paper import program_of

OPT = torch.optim
TABLE = torch.ones(8, 6)
ELEMENT_WISE = {
    "SGD": lambda ps: OPT.SGD(ps, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "SGD foreach": lambda ps: OPT.SGD(ps, lr=0.1, momentum=0.9, foreach=True),
    "SGD fused": lambda ps: OPT.SGD(ps, lr=0.1, momentum=0.9, fused=True),
    "Adam": lambda ps: OPT.Adam(ps, amsgrad=True),
    "Adam foreach": lambda ps: OPT.Adam(ps, foreach=True, amsgrad=True),
    "Adam fused": lambda ps: OPT.Adam(ps, fused=True, amsgrad=True),
    "AdamW": lambda ps: OPT.AdamW(ps, maximize=True),
    "AdamW foreach": lambda ps: OPT.AdamW(ps, foreach=True),
    "AdamW fused": lambda ps: OPT.AdamW(ps, fused=True),
    "NAdam": lambda ps: OPT.NAdam(ps, foreach=False),
    "NAdam foreach": lambda ps: OPT.NAdam(ps, foreach=True),
    "RAdam": lambda ps: OPT.RAdam(ps, foreach=False),
    "RAdam foreach": lambda ps: OPT.RAdam(ps, foreach=True),
    "Adamax": lambda ps: OPT.Adamax(ps, foreach=False),
    "Adamax foreach": lambda ps: OPT.Adamax(ps, foreach=True),
    "Adadelta": lambda ps: OPT.Adadelta(ps, foreach=False),
    "Adadelta foreach": lambda ps: OPT.Adadelta(ps, foreach=True),
    "Adagrad": lambda ps: OPT.Adagrad(ps, foreach=False),
    "Adagrad foreach": lambda ps: OPT.Adagrad(ps, foreach=True),
    "Adagrad fused": lambda ps: OPT.Adagrad(ps, fused=True),
    "RMSprop": lambda ps: OPT.RMSprop(ps, foreach=False, centered=True, momentum=0.9),
    "RMSprop foreach": lambda ps: OPT.RMSprop(ps, foreach=True, centered=True, momentum=0.9),
    "Rprop": lambda ps: OPT.Rprop(ps, foreach=False),
    "Rprop foreach": lambda ps: OPT.Rprop(ps, foreach=True),
}


class Own(torch.optim.Optimizer):
    """``update(p, state)`` of each parameter."""

    def __init__(self, parameters, update):
        super().__init__(parameters, {})
        self.update = update

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.update(p, self.state[p])


class CentredSGD(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.sub_(p.grad.mean(0, keepdim=True))
        return super().step()


class ClippingSGD(torch.optim.SGD):
    def step(self, closure=None):
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.1)
        return super().step()


def _hooked(register, hook):
    def make(parameters):
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        getattr(optimizer, register)(hook)
        return optimizer

    return make


def _normalizes(optimizer, args, kwargs):
    with torch.no_grad():
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.div_(p.norm())


BEYOND = {
    "Muon": lambda ps: OPT.Muon([p for p in ps if p.dim() == 2], lr=0.02),
    "LARS": lambda ps: Own(ps, lambda p, s: p.sub_(p.grad * (p.norm() / (p.grad.norm() + 1e-8)))),
    "gradients centred": lambda ps: CentredSGD(ps, lr=0.1),
    "clips in its step": lambda ps: ClippingSGD(ps, lr=0.1),
    "a hook before": _hooked("register_step_pre_hook", lambda o, a, k: [nn.utils.clip_grad_norm_(o.param_groups[0]["params"], 0.1)].clear()),
    "a hook after": _hooked("register_step_post_hook", _normalizes),
    "noise": lambda ps: Own(ps, lambda p, s: p.add_(torch.randn_like(p), alpha=0.1)),
    "noise by shape": lambda ps: Own(ps, lambda p, s: p.add_(torch.randn(p.shape, dtype=p.dtype))),
    "noise in place": lambda ps: Own(ps, lambda p, s: p.add_(torch.empty_like(p).normal_())),
    "positions": lambda ps: Own(ps, lambda p, s: p.mul_(torch.arange(p.numel(), dtype=p.dtype).view(p.shape))),
    "a row": lambda ps: Own(ps, lambda p, s: p[0].zero_()),
    "turned": lambda ps: Own(ps, lambda p, s: p.t().mul_(0.9)),
    "sorted": lambda ps: Own(ps, lambda p, s: p.copy_(p.flatten().sort().values.view_as(p))),
    "largest": lambda ps: Own(ps, lambda p, s: p.div_(p.abs().max())),
    "a table": lambda ps: Own(ps, lambda p, s: p.mul_(TABLE) if p.dim() == 2 else None),
    "norms at once": lambda ps: Own(ps, lambda p, s: torch._foreach_norm([p, p.grad]) and None),
}  # fmt: skip


def _step(make):
    torch.manual_seed(0)
    model = nn.Linear(6, 8)
    optimizer = make(list(model.parameters()))

    def train_step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return train_step


@pytest.mark.parametrize("make", ELEMENT_WISE.values(), ids=ELEMENT_WISE)
def test_optimizers_that_work_by_elements_are_accepted(make):
    program = program_of(_step(make), (torch.ones(4, 6),))
    assert any(op["phase"] == "optimizer" for op in program.ops)


@pytest.mark.parametrize("make", BEYOND.values(), ids=BEYOND)
def test_optimizers_that_look_beyond_are_refused(make):
    with pytest.raises(stowage.Unsupported, match=r"step\(\) calls .* element by element"):
        program_of(_step(make), (torch.ones(4, 6),))


def test_a_closure_runs_forward_in_the_step_and_is_refused():
    model = nn.Linear(6, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(x):
        def closure():
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        return optimizer.step(closure).detach()

    with pytest.raises(stowage.Unsupported, match="closures"):
        program_of(train_step, (torch.ones(4, 6),))


# ---- Random updates

_UNARY = (
    torch.abs, torch.sign, torch.neg, torch.exp, torch.tanh, torch.sqrt, torch.square, torch.zeros_like, torch.clone,
    lambda t: t.clamp(-0.5, 0.5), lambda t: t.nan_to_num(), lambda t: torch.full(t.shape, 0.3, dtype=t.dtype),
    lambda t: t.to(torch.float32).to(t.dtype), lambda t: torch.where(t > 0, t, -t), lambda t: torch._foreach_abs([t])[0],
    lambda t: t.clone().masked_fill_(t > 0.2, 0.2), lambda t: t.detach(), lambda t: torch.ones(()) * t,
)  # fmt: skip
_BEYOND = (
    torch.mean, torch.norm, lambda t: t.sum(0), lambda t: t.cumsum(0), lambda t: t.flip(0), lambda t: t.t(), lambda t: t[0],
    lambda t: t.softmax(-1), lambda t: t.sort(0).values, lambda t: torch.arange(t.numel(), dtype=t.dtype).view(t.shape),
    lambda t: t.reshape(-1), lambda t: t.amax(), torch.rand_like, lambda t: t @ t.t(), lambda t: t.roll(1, 0),
    lambda t: t.expand(2, *t.shape).sum(0), lambda t: t.std(), lambda t: t.argmax(),
)  # fmt: skip
_BINARY = (
    torch.add, torch.mul, torch.sub, torch.maximum, torch.addcmul, torch.lerp,
    lambda a, b: torch._foreach_add([a], [b])[0], lambda a, b: a.clone().copy_(b), lambda a, b: a.addcdiv(b, b.abs() + 1),
)  # fmt: skip


def _random_update(seed):
    """An update of a parameter: a few ops, sometimes one that looks beyond its element."""
    source = random.Random(seed)
    ops = [(source.random(), source.random(), source.random(), source.random()) for _ in range(source.randint(2, 6))]
    beyond = source.random() < 0.5

    def update(p, state):
        known = [p, p.grad, state.setdefault("average", torch.zeros_like(p))]
        for kind, which, first, second in ops:
            a, b = known[int(first * len(known))], known[int(second * len(known))]
            if beyond and kind < 0.3:
                made = _BEYOND[int(which * len(_BEYOND))](a)
            elif kind < 0.6:
                made = _UNARY[int(which * len(_UNARY))](a)
            else:
                op = _BINARY[int(which * len(_BINARY))]
                made = op(a, b, b) if op is torch.addcmul else op(a, b, 0.3) if op is torch.lerp else op(a, b)
            known.append(made)
        state["average"].mul_(0.9).add_(known[-2])
        p.sub_(0.1 * known[-1])

    return update


def _updated(update, p, grad, steps=3):
    p = nn.Parameter(p.clone())
    optimizer = Own([p], update)
    for step in range(steps):
        p.grad = grad * (step + 1)
        optimizer.step()
    return p.detach()


def test_what_is_accepted_gives_parts_what_it_gives_the_whole():
    accepted = refused = 0
    for seed in range(400):
        update = _random_update(seed)
        generator = torch.Generator().manual_seed(seed)
        p, grad = (torch.randn(6, 6, generator=generator, dtype=torch.float64) for _ in range(2))
        model = nn.Module()
        model.p = nn.Parameter(p.clone())
        optimizer = Own([model.p], update)

        def train_step(x, model=model, optimizer=optimizer):
            optimizer.zero_grad()
            (model.p * x).sum().backward()
            optimizer.step()

        try:
            program_of(train_step, (grad,))
        except stowage.Unsupported:
            refused += 1
            continue
        except (RuntimeError, TypeError, IndexError):  # shapes that do not meet: no step at all
            continue
        accepted += 1
        whole = _updated(update, p, grad)
        for cut in (slice(0, 4), slice(4, 6)):
            part = _updated(update, p[cut], grad[cut])
            torch.testing.assert_close(part, whole[cut], rtol=1e-12, atol=0, equal_nan=True, msg=f"seed {seed}")
    assert accepted > 100 and refused > 50, (accepted, refused)

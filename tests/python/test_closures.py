"""optimizer.step(closure): forward and backward run in the optimizer's step."""

import pytest
import torch
from torch import nn

import stowage


class Sharpness(torch.optim.Optimizer):
    """Sharpness-aware minimization: the closure runs at the weights, and a step uphill of them."""

    def __init__(self, params, rho=0.05):
        super().__init__(params, {"rho": rho})
        self.inner = torch.optim.AdamW(self.param_groups, 0.05)

    @torch.no_grad()
    def step(self, closure=None):
        with torch.enable_grad():
            loss = closure()
        params = [p for group in self.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.norm() for p in params]).norm()
        kept = [p.clone() for p in params]
        for p in params:
            p.add_(p.grad * (self.param_groups[0]["rho"] / (norm + 1e-12)))
        with torch.enable_grad():
            closure()
        for p, old in zip(params, kept):
            p.copy_(old)
        self.inner.step()
        return loss


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, 0.05),
    "foreach": lambda p: torch.optim.Adam(p, 0.05, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01),
    "sharpness": Sharpness,
}
LBFGS = {
    "as it is": lambda p: torch.optim.LBFGS(p),
    "lbfgs": lambda p: torch.optim.LBFGS(p, 0.1, max_iter=3, history_size=3),
    "wolfe": lambda p: torch.optim.LBFGS(p, 1, max_iter=4, history_size=2, line_search_fn="strong_wolfe"),
}


def run(make, compiled, calls=16):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 4))
    optimizer = make(model.parameters())

    def train_step(x):
        def closure():
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        return optimizer.step(closure).detach()

    step = stowage.compile(train_step) if compiled else train_step
    seen = []
    generator = torch.Generator().manual_seed(1)
    for i in range(calls):
        if i == 9:
            optimizer.param_groups[0]["lr" if "lr" in optimizer.param_groups[0] else "rho"] *= 0.5
        seen.append(step(torch.randn(6, 8, generator=generator)))
        seen += [p.detach().clone() for p in model.parameters()]
        seen += [p.grad.clone() for p in model.parameters()]
    return [*seen, torch.get_rng_state()], step


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_closure_runs_as_often_in_each_call(name):
    expected, _ = run(OPTIMIZERS[name], False)
    got, step = run(OPTIMIZERS[name], True)
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    assert step.stats()["planned_steps"] >= 5, step.refusal


@pytest.mark.filterwarnings("ignore:stowage")
@pytest.mark.parametrize("name", LBFGS)
def test_data_decide_how_often(name):
    expected, _ = run(LBFGS[name], False, 14)
    got, step = run(LBFGS[name], True, 14)
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    assert step.stats()["planned_steps"] > 0 or "optimizer.step(stowage.compile(closure))" in step.refusal


def _by_closure(make, compiled, budget=None):
    """A loss with a gradient in it, on all data, as networks are trained that solve equations."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = make(model.parameters())
    points = torch.rand(64, 2, requires_grad=True)

    def closure():
        optimizer.zero_grad()
        found = model(points)
        slopes = torch.autograd.grad(found.sum(), points, create_graph=True)[0]
        loss = (slopes.square().sum(1) - 1).square().mean() + found[:8].square().mean()
        loss.backward()
        return loss

    step = stowage.compile(closure, budget=budget) if compiled else closure
    seen = []
    for _ in range(8):
        seen.append(optimizer.step(step).detach().clone())
        seen += [p.detach().clone() for p in model.parameters()]
    return seen, step


@pytest.mark.parametrize("budget", [None, "64MiB"])
@pytest.mark.parametrize("name", LBFGS)
def test_the_closure_alone_is_planned(name, budget):
    expected, _ = _by_closure(LBFGS[name], False)
    got, step = _by_closure(LBFGS[name], True, budget)
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    assert step.stats()["eager_steps"] <= 3 and step.stats()["planned_steps"] > 15, step.refusal

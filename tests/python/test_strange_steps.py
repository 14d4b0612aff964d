"""Steps as strangers write them: their Python runs once in every call or not at all, what they keep is there, and whatever
they do that was not recorded has happened as in eager. Each is compared with eager, call by call, to the bit."""

import collections
import itertools
import random

import pytest
import torch
import torch.nn.functional as F
from strange import CHECKS, agrees, net, nothing, same
from torch import nn

import stowage

# ---- Python runs once


@CHECKS
def test_an_optimizer_that_counts(check):
    class Counting(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {"lr": 0.01})
            self.k = 0

        @torch.no_grad()
        def step(self, closure=None):
            self.k += 1
            for group in self.param_groups:
                for p in group["params"]:
                    if self.k % 3 == 0:
                        p.add_(p.grad, alpha=-group["lr"])
                    else:
                        p.sub_(p.grad.sign(), alpha=group["lr"] / self.k)

    def make():
        model, _ = net()
        optimizer = Counting(model.parameters())

        def step(x, y, i):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step, model, lambda i: optimizer.k

    agrees(make, 20, planned=0, check=check)


@CHECKS
def test_numbers_that_change_in_every_call(check):
    def make():
        model, optimizer = net()
        state = {"calls": 0, "weights": []}

        def step(x, y, i):
            state["calls"] += 1
            weight = 1.0 / state["calls"]
            state["weights"].append(weight)
            loss = F.cross_entropy(model(x), y) * weight + i * 0.01 * model[0].weight.square().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return step, model, lambda i: (state["calls"], list(state["weights"]))

    agrees(make, 20, planned=10, check=check)


@CHECKS
def test_draws_of_python(check):
    def make():
        model, optimizer = net()

        def step(x, y, i):
            if random.random() < 0.4:
                x = x.flip(1)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return step, model, lambda i: random.getstate()

    agrees(make, 40, planned=10, check=check)


@CHECKS
def test_a_value_that_is_new_half_way_is_computed_in_that_call(check):
    def make():
        model, optimizer = net()
        settings = {"scale": 1.0, "noise": False}

        def step(x, y, i):
            hidden = model[1](model[0](x))
            if settings["noise"]:
                hidden = hidden + torch.rand_like(hidden)
            loss = F.cross_entropy(model[2](F.dropout(hidden, 0.1)), y) * settings["scale"]
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        def change(i):
            settings["noise"] = i % 7 == 6
            settings["scale"] = 0.5 if i > 20 else 1.0
            return torch.get_rng_state()

        return step, model, change

    agrees(make, 40, planned=10, check=check)


def test_an_exception_of_the_step_leaves_what_eager_leaves():
    class Stop(Exception):
        pass

    def make():
        model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Linear(32, 4))
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)

        def inner(x, y, i):
            loss = F.cross_entropy(model(x), y)
            if i in (6, 9):
                raise Stop
            loss.backward()
            if i == 11:
                raise Stop
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return inner, model, lambda i: [b.clone() for b in model.buffers()]

    def run(planned):
        torch.manual_seed(0)
        step, model, show = make()
        step = stowage.compile(step, check="always") if planned else step
        generator = torch.Generator().manual_seed(1)
        seen = []
        for i in range(16):
            x, y = torch.randn(8, 16, generator=generator), torch.randint(0, 4, (8,), generator=generator)
            try:
                seen.append(step(x, y, i))
            except Stop:
                seen.append("stopped")
            seen.append(
                [
                    [p.detach().clone() for p in model.parameters()],
                    show(i),
                    [None if p.grad is None else p.grad.clone() for p in model.parameters()],
                ]
            )
        return seen

    assert same(run(False), run(True))


# ---- Decisions on data


@CHECKS
def test_a_decision_on_an_argument(check):
    def make():
        model, optimizer = net()

        def step(x, y, i):
            mask = y > 0
            logits = model(x)
            if not mask.all():
                logits = logits * 2
            loss = F.cross_entropy(logits, y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        def with_ones(x, y, i):
            return step(x, y if i % 3 else y.clamp(min=1), i)

        with_ones.__name__ = "step"
        return with_ones, model, nothing

    agrees(make, 30, planned=10, check=check)


@CHECKS
def test_a_decision_on_a_buffer_that_the_step_changes(check):
    def make():
        model, optimizer = net()
        average = torch.optim.swa_utils.AveragedModel(model)

        def step(x, y, i):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            average.update_parameters(model)
            return loss.detach()

        return step, model, lambda i: [p.detach().clone() for p in average.parameters()]

    agrees(make, 14, planned=5, check=check)


@CHECKS
def test_composites_that_read_an_argument_on_the_host(check):
    def make():
        model, optimizer = net()

        def step(x, y, i):
            where = torch.tensor([3 if i < 8 else 5]) if i >= 0 else None
            first, second = torch.tensor_split(model(x), y[:1] % 3 + 1, dim=1)
            loss = first.sum() - second.square().sum() + 0 * where.sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return step, model, nothing

    agrees(make, 30, planned=5, check=check)


# ---- What Python keeps


@CHECKS
def test_what_the_step_keeps_is_there(check):
    def make():
        model, optimizer = net()
        kept = {}

        def step(x, y, i):
            hidden = model[1](model[0](x))
            kept["hidden"] = hidden.detach()
            kept["mean"] = hidden.mean(0).detach() + kept.get("mean", 0) * 0.5
            loss = F.cross_entropy(model[2](hidden), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return step, model, lambda i: (kept["hidden"].clone(), kept["mean"].clone())

    agrees(make, 12, planned=0, check=check)


@CHECKS
def test_backward_outside_of_the_step(check):
    def make():
        model, optimizer = net()
        losses = []

        def step(x, y, i):
            losses[:] = [F.cross_entropy(model(x), y)]
            return losses[0]

        def outside(i):
            losses[0].backward()
            optimizer.step()
            optimizer.zero_grad()

        return step, model, outside

    agrees(make, 12, planned=0, check=check)


@pytest.mark.parametrize("check", ["never", "auto"])
def test_an_optimizer_whose_state_is_made_anew_now_and_then(check):
    """Its step counters are then tensors that the step fills anew, and that its Python writes; also where a call raises."""

    def trained(compile):
        torch.manual_seed(0)
        model = nn.Linear(8, 4)
        optimizer = torch.optim.AdamW(model.parameters())
        calls = itertools.count(1)

        def step(x, classes):
            call = next(calls)
            if call == 6:
                for state in optimizer.state.values():
                    state["step"].zero_()
            if call in (12, 20):
                optimizer.state = collections.defaultdict(dict)
            loss = nn.functional.cross_entropy(model(x), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = compile(step)
        draws = torch.Generator().manual_seed(1)
        seen = []
        for call in range(28):
            classes = torch.randint(0, 4, (6,), generator=draws)
            if call in (17, 25):
                with pytest.raises(IndexError):
                    run(torch.randn(6, 8, generator=draws), classes + 4)
            seen.append(run(torch.randn(6, 8, generator=draws), classes))
            seen += [p.detach().clone() for p in model.parameters()]
            seen += [v.clone() for p in model.parameters() for v in optimizer.state[p].values()]
        return seen, run

    expected, _ = trained(lambda step: step)
    found, step = trained(lambda step: stowage.compile(step, check=check))
    assert all(map(torch.equal, expected, found))
    assert not step.refusal and step.stats()["planned_steps"] >= 6


class _Preconditioned(torch.optim.Optimizer):
    """Shampoo's shape: every ``period`` steps, counted in its state, it makes what the others go on with."""

    def __init__(self, params, period):
        super().__init__(params, {"lr": 0.05})
        self.period = period

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            rows = p.grad.reshape(p.shape[0], -1)
            if not state:
                state["n"], state["square"] = 0, torch.eye(p.shape[0]) * 1e-2
            state["square"] += rows @ rows.T
            if state["n"] % self.period == 0:
                values, vectors = torch.linalg.eigh(state["square"])
                state["root"] = vectors @ torch.diag(values.clamp(min=1e-8) ** -0.25) @ vectors.T
            state["n"] += 1
            p.sub_((state["root"] @ rows).reshape(p.shape), alpha=0.05)


@pytest.mark.parametrize("period", [3, 10, 12])
@pytest.mark.parametrize("where", ["optimizer", "step"])
def test_what_is_made_anew_every_so_many_calls(period, where):
    def trained(compile):
        torch.manual_seed(0)
        model = nn.Linear(6, 4)
        optimizer = (
            _Preconditioned(model.parameters(), period)
            if where == "optimizer"
            else torch.optim.SGD(model.parameters(), 0.1)
        )
        kept = {"mean": torch.zeros(4)}
        calls = itertools.count()

        def step(x):
            out = model(x)
            if where == "step" and next(calls) % period == 0:
                kept["mean"] = out.detach().mean(0)
            loss = (out - kept["mean"]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = compile(step)
        seen = []
        for _ in range(6 * period + 16):
            seen.append(run(torch.randn(5, 6)))
            seen += [p.detach().clone() for p in model.parameters()]
        before = run.stats()["planned_steps"] if run is not step else 0
        for _ in range(2 * period):
            seen.append(run(torch.randn(5, 6)))
        return seen, run, before

    expected, _, _ = trained(lambda step: step)
    found, step, before = trained(stowage.compile)
    assert all(map(torch.equal, expected, found))
    assert not step.refusal and step.stats()["planned_steps"] - before == 2 * period

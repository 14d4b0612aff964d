"""Steps as strangers write them: their Python runs once in every call or not at all, their gradients and what they keep
are there, and whatever they do that was not recorded has happened as in eager. Each is compared with eager, call by
call, to the bit."""

import collections
import itertools
import random
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stowage


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def trained(make, calls, planned, **options):
    """[what each call showed], the compiled step. ``make()`` -> (step, model, show); ``calls``: arguments, or a
    function that makes them."""
    torch.manual_seed(0)
    random.seed(0)
    step, model, show = make()
    run = stowage.compile(step, **options) if planned else step
    seen = []
    generator = torch.Generator().manual_seed(1)
    for i in range(calls):
        x, y = torch.randn(8, 16, generator=generator), torch.randint(0, 4, (8,), generator=generator)
        result = run(x, y, i)
        seen.append(
            (
                result.clone() if isinstance(result, torch.Tensor) else result,
                [p.detach().clone() for p in model.parameters()],
                [None if p.grad is None else p.grad.clone() for p in model.parameters()],
                show(i),
            )
        )
    return seen, run


def same(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    return a == b


def agrees(make, calls=12, planned=1, **options):
    """Eager and compiled show the same; at least so many calls were planned."""
    eager, _ = trained(make, calls, False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled, step = trained(make, calls, True, **options)
    for i, (a, b) in enumerate(zip(eager, compiled)):
        for what, x, y in zip(("result", "parameters", "gradients", "what Python shows"), a, b):
            assert same(x, y), f"call {i}: {what}; {step.refusal!r}"
    assert step.stats()["planned_steps"] >= planned, step.refusal
    return step


def net():
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
    return model, torch.optim.AdamW(model.parameters(), 1e-2)


def nothing(i):
    return None


CHECKS = pytest.mark.parametrize("check", ["auto", "always", "never"])


# ---- Hooks


@CHECKS
@pytest.mark.parametrize("kind", ["before", "after"])
def test_a_hook_on_the_node_that_adds_up_a_gradient(check, kind):
    """No object of Python's shows it. It comes and goes between calls."""

    def make():
        model, optimizer = net()
        nodes, handles, seen = [], [], []

        def step(x, y, i):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

        def outside(i):
            if i in (5, 9):
                weight = model[0].weight
                nodes.append(weight.expand_as(weight).grad_fn.next_functions[0][0])
                hook = nodes[-1].register_hook if kind == "after" else nodes[-1].register_prehook
                handles.append(hook(lambda *grads: seen.append(1)))
                if kind == "before":
                    handles.append(hook(lambda grads: (grads[0] * 2,)))
            if i == 7:
                while handles:
                    handles.pop().remove()
            return len(seen)

        return step, model, outside

    agrees(make, 14, planned=4, check=check)


# ---- Gradients


@CHECKS
def test_gradients_stay_for_an_optimizer_outside(check):
    def make():
        model, optimizer = net()

        def step(x, y, i):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss.detach()

        def outside(i):
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return norm

        return step, model, outside

    agrees(make, planned=8, check=check)


@CHECKS
@pytest.mark.parametrize("end", [True, False])
def test_gradients_given_from_outside_are_added_to(check, end):
    def make():
        model, optimizer = net()

        def step(x, y, i):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if end:
                optimizer.zero_grad()

        def outside(i):
            if i in (5, 6, 8):
                for p in model.parameters():
                    p.grad = torch.full_like(p, 0.5)
            if i == 9:
                model(torch.ones(2, 16)).sum().backward()

        return step, model, outside

    agrees(make, 16, planned=6, check=check)


@CHECKS
def test_accumulation_over_calls(check):
    def make():
        model, optimizer = net()
        count = {"calls": 0}

        def step(x, y, i):
            (F.cross_entropy(model(x), y) / 4).backward()
            count["calls"] += 1
            if count["calls"] % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()

        return step, model, lambda i: count["calls"]

    agrees(make, 40, planned=20, check=check)


def test_two_models_that_leave_gradients_in_each_other():
    def make():
        critic, maker = nn.Linear(16, 1), nn.Linear(16, 16)
        a, b = torch.optim.Adam(critic.parameters()), torch.optim.Adam(maker.parameters())

        def judge(x):
            a.zero_grad()
            loss = critic(x).mean() - critic(maker(x).detach()).mean()
            loss.backward()
            a.step()
            return loss.detach()

        def pretend(x):
            b.zero_grad()
            loss = critic(maker(x)).mean()
            loss.backward()
            b.step()
            return loss.detach()

        steps = []

        def both(x, y, i):
            if not steps:
                steps.extend([stowage.compile(judge), stowage.compile(pretend)] if make.planned else [judge, pretend])
            return torch.stack([steps[0](x), steps[1](x)])

        return both, nn.ModuleList([critic, maker]), lambda i: None

    make.planned = False
    eager, _ = trained(make, 12, False)
    make.planned = True
    compiled, _step = trained(make, 12, False)
    assert same(eager, compiled)


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


# ---- Ways that differ in what is differentiated


def _gradients_of_gradients(net, x, y, due):
    loss = F.cross_entropy(net(x), y)
    weights = list(net.parameters())
    gradients = torch.autograd.grad(loss, weights, create_graph=due)
    if due:
        gradients = [g + 0.1 * h for g, h in zip(gradients, torch.autograd.grad(gradients[0].square().sum(), weights))]
    return loss, gradients


def _features_without_gradients(net, x, y, due):
    with torch.set_grad_enabled(not due):
        features = net[1](net[0](x))
    loss = F.cross_entropy(net[2](features), y)
    return loss, torch.autograd.grad(loss, list(net.parameters()), allow_unused=True)


def _targets_with_gradients(net, x, y, due):
    with torch.set_grad_enabled(due):
        target = net(x + 1).softmax(1)
    loss = F.cross_entropy(net(x), y) + (net(x).softmax(1) - target).square().sum()
    return loss, torch.autograd.grad(loss, list(net.parameters()))


@CHECKS
@pytest.mark.parametrize("kind", [_gradients_of_gradients, _features_without_gradients, _targets_with_gradients])
def test_ways_that_run_the_same_operators_in_another_grad_mode(kind, check):
    def make():
        model, _ = net()

        def step(x, y, i):
            loss, gradients = kind(model, x, y, i % 4 == 0)
            with torch.no_grad():
                for p, g in zip(model.parameters(), gradients):
                    if g is not None:
                        p.sub_(0.1 * g)
            return loss.item()

        return step, model, nothing

    agrees(make, 32, planned=16, check=check)


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


# ---- Kinds of operators


def activations():
    return {
        "mul_": lambda h: h.clone().mul_(h.sigmoid()),
        "div_": lambda h: h.clone().div_(h.abs() + 1),
        "pow_": lambda h: h.clone().pow_(2),
        "silu_": lambda h: F.silu(h.clone(), inplace=True),
        "relu6_": lambda h: F.relu6(h.clone(), inplace=True),
        "hardswish_": lambda h: F.hardswish(h.clone(), inplace=True),
        "leaky_relu_": lambda h: F.leaky_relu(h.clone(), 0.2, inplace=True),
        "elu_": lambda h: F.elu(h.clone(), inplace=True),
        "addcmul_": lambda h: h.clone().addcmul_(h, h),
        "square_ of a number": lambda h: h * (h.mean() * 1).square_(),
        "mul_ of a number": lambda h: h + (h.sum() * 1).mul_(h.mean()),
        "exp_": lambda h: h.clone().exp_(),
        "copy_": lambda h: torch.zeros_like(h).copy_(h),
        "index_put_": lambda h: h.clone().index_put_((torch.tensor([1, 2]),), h[:2]),
        "checkpoint": lambda h: torch.utils.checkpoint.checkpoint(
            lambda v: F.dropout(F.relu(v), 0.3), h, use_reentrant=False
        ),
        "saved on cpu": lambda h: offloaded(h),
        "complex": lambda h: torch.fft.ifft(torch.fft.fft(h).conj() * 2).real,
        "vmap": lambda h: torch.func.vmap(lambda row: row * row.sum())(h),
        "jvp": lambda h: torch.func.grad(lambda v: (v**3).sum())(h.detach()) + h,
    }


def offloaded(h):
    with torch.autograd.graph.save_on_cpu():
        return h.sigmoid() * h


@pytest.mark.parametrize("name", sorted(activations()))
def test_operators(name):
    import torch.utils.checkpoint  # noqa: F401

    def make():
        model, optimizer = net()
        act = activations()[name]

        def step(x, y, i):
            loss = F.cross_entropy(model[2](act(model[0](x))), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return step, model, nothing

    agrees(make, 8, planned=3, strict=True)


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
def test_recurrent(kind):
    def make():
        layer = kind(16, 16, 2)
        optimizer = torch.optim.AdamW(layer.parameters())

        def step(x, y, i):
            loss = layer(x.reshape(4, 2, 16))[0].square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return step, layer, nothing

    agrees(make, 8, planned=3)


def test_a_negated_argument():
    def make():
        model, optimizer = net()

        def step(x, y, i):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        def called(x, y, i):
            z = torch.view_as_complex(torch.stack([x, x.flip(0)], -1))
            return compiled(z.conj().imag if i >= 6 else z.imag, y, 0)

        compiled = stowage.compile(step) if make.planned else step
        return called, model, nothing

    make.planned = False
    eager, _ = trained(make, 12, False)
    make.planned = True
    assert same(eager, trained(make, 12, False)[0])


def test_a_scripted_module():
    def make():
        model = torch.jit.script(nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4)))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step(x, y, i):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return step, model, nothing

    agrees(make, 12, planned=0)


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
    assert not step.refusal and step.stats()["planned_steps"] > 6


@pytest.mark.parametrize("check", ["never", "auto"])
def test_recorded_in_a_call_that_finds_one_gradient_less(check):
    """The next calls find it; they do the same operations, and need a recording of their own."""

    def trained(compile):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x, y):
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = compile(step)
        seen = []
        for call in range(16):
            if call in (1, 9):
                model[0].weight.grad = None
            seen.append(run(torch.randn(6, 8), torch.randn(6, 4)))
            seen += [p.detach().clone() for p in model.parameters()]
        return seen, run

    expected, _ = trained(lambda step: step)
    found, step = trained(lambda step: stowage.compile(step, check=check))
    assert all(map(torch.equal, expected, found))
    assert step.stats()["planned_steps"] > 8


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

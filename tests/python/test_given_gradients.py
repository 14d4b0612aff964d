"""What a step finds in the .grad of its parameters, and which parameters its optimizers hold, may be another thing in
each call."""

import gc
import json

import pytest
import torch
from torch import nn

import stowage
from stowage import _runtime

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "amsgrad": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True, foreach=True),
    "fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
}
CALLS, AT = 15, 9  # a change before call AT


def trained(compiled, optimizer, begins, change, check="auto", steps=True):
    """What each call returned, and parameters and gradients at the end. The step uses one parameter that its optimizer
    does not have."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    spare = nn.Parameter(torch.ones(8))
    opt = OPTIMIZERS[optimizer](model.parameters())
    second = torch.optim.SGD([nn.Parameter(torch.ones(2))], 0.1)

    def step(x):
        if begins:
            opt.zero_grad(), second.zero_grad()
        loss = (model(x) * spare).square().mean()
        loss.backward()
        opt.step()
        if steps:
            second.step()
        if not begins:
            opt.zero_grad(), second.zero_grad()
        return loss.detach()

    run = stowage.compile(step, check=check) if compiled else step
    made = torch.Generator().manual_seed(1)
    results = []
    for i in range(CALLS):
        if i == AT:
            change(model, spare, opt, second)
        results.append(run(torch.randn(4, 8, generator=made)))
    parameters = [*model.parameters(), spare]
    return [
        *results,
        *(p.detach() for p in parameters),
        *(torch.zeros(0) if p.grad is None else p.grad for p in parameters),
    ], run


def as_eager(check="auto", **how):
    expected, _ = trained(False, **how)
    got, run = trained(True, check=check, **how)
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    assert run.refusal == "" and run.stats()["planned_steps"] >= 8


def given(which, transposed):
    def change(model, spare, opt, second):
        p = list(model.parameters())[which]
        values = torch.randn(p.shape, generator=torch.Generator().manual_seed(5))
        p.grad = values.t().contiguous().t() if transposed else values

    return change


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize("begins", [True, False], ids=["zero first", "zero last"])
@pytest.mark.parametrize(("which", "transposed"), [(0, False), (1, False), (2, True)])
def test_a_gradient_from_outside(optimizer, begins, which, transposed):
    """A step that ends with zero_grad() adds to it all the same."""
    as_eager(optimizer=optimizer, begins=begins, change=given(which, transposed))


def two_functions(compiled):
    """One adds to the gradients, another one steps with all of them and lets them go."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    opt = torch.optim.AdamW(model.parameters(), 0.01)

    def add(x):
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    def train(x):
        loss = add(x)
        opt.step()
        opt.zero_grad()
        return loss

    run = [stowage.compile(f) if compiled else f for f in (add, train)]
    made = torch.Generator().manual_seed(1)
    results = [run[i % 4 == 3 or i < 8](torch.randn(4, 8, generator=made)) for i in range(24)]
    return [*results, *(p.detach() for p in model.parameters())], run


def test_accumulated_by_another_function():
    expected, _ = two_functions(False)
    got, run = two_functions(True)
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    assert all(step.stats()["planned_steps"] >= 4 for step in run)


def another_group(model, spare, opt, second):
    opt.add_param_group({"params": [spare], "lr": 0.02})


def group_of_another(model, spare, opt, second):
    second.add_param_group({"params": [spare], "lr": 0.02})


def appended(model, spare, opt, second):
    second.param_groups[0]["params"].append(spare)


@pytest.mark.parametrize("check", ["auto", "always", "never"])
@pytest.mark.parametrize("begins", [True, False], ids=["zero first", "zero last"])
@pytest.mark.parametrize("change", [another_group, group_of_another, appended], ids=lambda f: f.__name__)
@pytest.mark.parametrize("steps", [True, False], ids=["both step", "one steps"])
@pytest.mark.filterwarnings("error:.*not watched")
def test_parameters_that_an_optimizer_gets(change, begins, check, steps):
    """zero_grad() goes through them, whether or not the step calls step()."""
    as_eager(optimizer="sgd", begins=begins, change=change, check=check, steps=steps)


@pytest.mark.parametrize("which", ["begins", "ends", "zeros", "none"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_layers_that_are_left_out_at_random(optimizer, which):
    """A number that the step draws decides: recordings that begin alike have found other gradients, and go on with
    each other's place."""

    def trained(planned):
        torch.manual_seed(0)
        layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        opt = OPTIMIZERS[optimizer](layers.parameters())
        calls = [0]

        def step(x):
            calls[0] += 1
            if which == "zeros":
                opt.zero_grad(set_to_none=False)
            x = x + layers[0](x)
            for layer in layers[1:]:
                if torch.rand(()).item() < 0.6:
                    x = x + torch.tanh(layer(x))
            loss = x.square().mean()
            if which == "begins":
                opt.zero_grad()
            loss.backward()
            opt.step()
            if which == "ends" or (which == "none" and calls[0] % 5 == 0):
                opt.zero_grad()
            return loss.detach()

        run = stowage.compile(step) if planned else step
        torch.manual_seed(3)
        history = []
        for _ in range(30):
            loss = run(torch.randn(8, 4))
            grads = [torch.zeros(()) if p.grad is None else p.grad.clone() for p in layers.parameters()]
            history.append([loss, *grads, *(p.detach().clone() for p in layers.parameters())])
        return history

    for call, (a, b) in enumerate(zip(trained(False), trained(True), strict=True)):
        assert all(torch.equal(x, y) for x, y in zip(a, b)), f"call {call}"


def _let_go_first():
    """Two equal layers, whose gradients the step lets go of at first."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Tanh(), nn.Linear(64, 64, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, sum(p.nbytes for p in model.parameters()), model


def test_gradients_that_are_let_go_first_take_no_room():
    step, parameter_bytes, _ = _let_go_first()
    planned = stowage.compile(step)
    for _ in range(8):
        planned(torch.ones(4, 64))
    stats = planned.stats()
    assert stats["planned_steps"] > 3
    assert parameter_bytes <= stats["resident_bytes"] < 1.2 * parameter_bytes
    assert parameter_bytes <= stats["arena_bytes"] < 1.4 * parameter_bytes  # those that the step makes stay there
    before_bytes = stowage._runtime.live_bytes()
    stowage._runtime.reset_peak()
    planned(torch.ones(4, 64))
    assert stowage._runtime.peak_bytes() - before_bytes < 0.2 * parameter_bytes


def test_gradients_that_are_let_go_first_within_a_budget():
    """Eager has parameters, gradients and little else; so has a plan: its gradients stay in the arena."""
    (eager, parameter_bytes, _), (step, _, _) = _let_go_first(), _let_go_first()
    planned = stowage.compile(step, budget=int(2.3 * parameter_bytes))
    for i in range(10):
        x = torch.randn(4, 64, generator=torch.Generator().manual_seed(i))
        assert torch.equal(eager(x), planned(x))
    assert planned.stats()["planned_steps"] > 3


def test_results_that_last_are_written_where_they_are_handed_out():
    """In the graph of a compiled step; in that of capture they are made by the step, as recorded."""
    torch.manual_seed(0)
    model = nn.Linear(64, 64, bias=False)

    def step(x):
        return torch.autograd.grad(model(x).square().mean(), model.weight)[0]

    planned = stowage.compile(step)
    for _ in range(8):
        planned(torch.ones(4, 64))
    made, captured = (json.loads(g.to_json()) for g in (planned.graph, stowage.capture(step, torch.ones(4, 64))))
    written = {b for op in made["ops"] for b in op.get("writes", [])}
    stay = [b for i, b in enumerate(made["buffers"]) if b.get("resident") and i in written]
    returned = [b for b in captured["buffers"] if b.get("returned")]
    assert [b["bytes"] for b in stay] == [b["bytes"] for b in returned] == [model.weight.nbytes]
    assert planned.stats()["arena_bytes"] < model.weight.nbytes


def test_gradients_in_one_buffer_take_their_room():
    """Nobody can tell who else has it."""
    step, parameter_bytes, model = _let_go_first()
    planned = stowage.compile(step)
    for _ in range(8):
        for p, grad in zip(model.parameters(), torch.ones(2, 64, 64)):
            p.grad = grad
        planned(torch.ones(4, 64))
    assert planned.stats()["planned_steps"] > 3
    assert planned.stats()["resident_bytes"] >= 3 * parameter_bytes


@pytest.mark.parametrize("asks", ["nothing", "of the argument", "of the step"])
def test_gradients_that_are_let_go_behind_the_forward_pass(asks):
    """A number that the step asks for before is worked out while they are there. What follows from arguments is known
    before the call."""

    def make():
        torch.manual_seed(0)
        model = nn.Linear(64, 64, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step(x):
            if asks == "of the argument" and bool((x > 100).any()):
                return None
            loss = model(x).square().mean()
            value = loss.item() if asks == "of the step" else 0.0
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach() + value

        return model, step

    (model, step), (twin, eager) = make(), make()
    planned = stowage.compile(step)
    for i in range(8):
        x = torch.randn(4, 64, generator=torch.Generator().manual_seed(i))
        assert torch.equal(planned(x), eager(x))
        assert torch.equal(model.weight.grad, twin.weight.grad) and torch.equal(model.weight, twin.weight)
    stats = planned.stats()
    assert stats["planned_steps"] > 3
    there = 3 if asks == "of the step" else 1  # the weight; with its old gradient, and its new one
    assert there <= stats["resident_bytes"] / model.weight.nbytes < there + 0.3


@pytest.mark.parametrize("accumulates", [False, True])
def test_a_budget_counts_those_that_were_there(accumulates):
    """In every call: also where the plan is compared with the plain step, which lets go of them at its beginning."""

    def training():
        torch.manual_seed(0)
        layers = [layer for _ in range(5) for layer in (nn.Linear(128, 128), nn.GELU())]
        model = nn.Sequential(*layers, nn.Linear(128, 4))
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

        def step(x, updates):
            model(x).square().mean().backward()
            if updates:
                optimizer.step()
                optimizer.zero_grad()

        return model, step

    def run(wrap):
        model, step = training()
        step, draw, peaks = wrap(step), torch.Generator().manual_seed(1), []
        for i in range(12):
            if not accumulates:
                for p in model.parameters():
                    p.grad = torch.ones_like(p)
            x = torch.randn(100, 128, generator=draw)
            gc.collect()
            _runtime.reset_peak()
            step(x, not accumulates or i % 2 == 1)
            peaks.append(_runtime.peak_bytes() - others)
        return [p.detach().clone() for p in model.parameters()], peaks, step

    gc.collect()
    others = _runtime.live_bytes()
    expected, peaks, plain = run(lambda step: step)
    del plain
    gc.collect()
    budget, others = int(0.88 * max(peaks)), _runtime.live_bytes()
    got, peaks, step = run(lambda step: stowage.compile(step, budget=budget))
    assert all(map(torch.equal, got, expected))
    assert step.stats()["planned_steps"] > 0, step.refusal
    assert max(peaks) <= budget + 4096, (budget, peaks)

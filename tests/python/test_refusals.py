"""What cannot be replayed is refused by name, with the source line, and runs eagerly with the right numbers."""

import contextlib
import threading
import warnings

import pytest
import torch
from torch import nn

import stowage
from stowage import compiled_regions
from stowage.errors import UnsupportedWarning
from stowage.step import compiled as calls
from stowage.step.reach.world import World


def run(make_step, count=6, planned=False):
    """Runs the step eagerly and compiled from the same seed; both must give the same results. Returns the refusal.
    ``planned``: whether it must be planned; None: as it may be."""
    results = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = make_step(model, optimizer)
        if compiled:
            step = stowage.compile(step)
        generator = torch.Generator().manual_seed(1)
        out = []
        for _ in range(count):
            out.append(step(torch.randn(3, 8, generator=generator)))
        results.append(out)
    for a, b in zip(*results, strict=True):
        assert a == b if not isinstance(a, torch.Tensor) else torch.equal(a, b)
    assert planned is None or planned == (step.stats()["planned_steps"] > 0), step.refusal
    return step.refusal


def training(model, optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def test_a_shape_that_depends_on_data():
    def make(model, optimizer):
        def train_step(x):
            y = model(x)
            return training(model, optimizer, y.square().sum() + torch.unique(y, dim=0).numel())

        return train_step

    with pytest.warns(UserWarning, match="unique"):
        refusal = run(make)
    assert "test_refusals.py:" in refusal and "unique" in refusal


@pytest.fixture
def group():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield torch.distributed.group.WORLD.group_name
    torch.distributed.destroy_process_group()


def _waited_for(gradient, group):
    functional = torch.ops._c10d_functional
    return functional.wait_tensor(functional.all_reduce(gradient, "sum", group))


@pytest.mark.parametrize(
    "reduced",
    [lambda gradient, group: torch.distributed.all_reduce(gradient) or gradient, _waited_for],
    ids=["all_reduce", "functional"],
)
@pytest.mark.filterwarnings("ignore:stowage")
def test_messages_to_other_processes(reduced, group):
    """Ranks decide alone when they rehearse, so that messages of one would meet others of its peers."""

    def make(model, optimizer):
        def train_step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            for p in model.parameters():
                p.grad = reduced(p.grad, group)
            optimizer.step()
            return loss.detach()

        return train_step

    refusal = run(make)
    assert "talks to other processes" in refusal and "test_refusals.py:" in refusal


def test_a_directional_derivative():
    def make(model, optimizer):
        def train_step(x):
            _, tangent = torch.func.jvp(lambda v: torch.cat([model(v), v], 1), (x,), (torch.ones_like(x),))
            return training(model, optimizer, tangent.square().mean())

        return train_step

    with pytest.warns(UnsupportedWarning):
        assert "reverse mode" in run(make)


def test_item_in_control_flow_and_a_returned_number_are_planned():
    def make(model, optimizer):
        def train_step(x):
            loss = model(x).square().mean()
            if loss.item() > 0.3:
                loss = loss * 2
            return float(training(model, optimizer, loss))

        return train_step

    assert run(make, count=12, planned=True) == ""


def test_a_budget_within_the_step():
    """A plan would not keep its limit. Refused; and where it appears later, that call runs eagerly within it."""
    blocks = []

    def make(model, optimizer):
        def train_step(x):
            with stowage.budget("1GiB", progress=False) as block:
                loss = model(x).square().mean()
            blocks.append(block.stats()["ops"])
            return training(model, optimizer, loss)

        return train_step

    with pytest.warns(UserWarning, match="budget block inside the step"):
        run(make)
    assert len(blocks) == 12 and all(ops > 0 for ops in blocks)


def test_a_budget_that_appears_within_the_step():
    limits = []

    def make(model, optimizer):
        calls = []

        def train_step(x):
            calls.append(1)
            with stowage.budget("1GiB", progress=False) if len(calls) in (8, 9) else contextlib.nullcontext() as block:
                loss = model(x).square().mean()
            if block is not None:
                limits.append(block.stats()["ops"])
            return training(model, optimizer, loss)

        return train_step

    run(make, count=14, planned=None)
    assert len(limits) == 4 and all(ops > 0 for ops in limits)


def test_sparse_gradients():
    def make(model, optimizer):
        table = nn.Embedding(8, 8, sparse=True)
        sgd = torch.optim.SGD(table.parameters(), lr=0.1)

        def train_step(x):
            loss = model(table(x.long().abs() % 8).mean(1)).square().mean()
            sgd.zero_grad()
            result = training(model, optimizer, loss)
            sgd.step()
            return result

        return train_step

    with pytest.warns(UserWarning, match="sparse"):
        run(make)


def test_numpy_input_that_is_not_an_argument():
    def make(model, optimizer):
        import numpy as np

        rng = np.random.default_rng(0)

        def train_step(x):
            noise = torch.from_numpy(rng.standard_normal((3, 4)).astype("float32"))
            return training(model, optimizer, (model(x) + noise).square().mean())

        return train_step

    run(make, planned=True)


def test_step_that_counts():
    def make(model, optimizer):
        state = {"steps": 0}

        def train_step(x):
            state["steps"] += 1
            return training(model, optimizer, model(x).square().mean() / state["steps"])

        return train_step

    run(make, planned=True)


def test_tensor_kept_beyond_the_step():
    def make(model, optimizer):
        class Memory:
            last = None

        def train_step(x):
            y = model(x)
            previous = 0 if Memory.last is None else Memory.last
            Memory.last = y.detach()
            return training(model, optimizer, (y + previous).square().mean())

        return train_step

    run(make, planned=None)


def test_optimizer_with_a_closure():
    def make(model, optimizer):
        lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=2)

        def train_step(x):
            def closure():
                lbfgs.zero_grad()
                loss = model(x).square().mean()
                loss.backward()
                return loss

            return lbfgs.step(closure).detach()

        return train_step

    run(make, planned=None)


def test_tensor_subclass():
    class Tagged(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            def unwrap(v):
                return v.inner if isinstance(v, Tagged) else v

            return func(
                *torch.utils._pytree.tree_map(unwrap, args), **torch.utils._pytree.tree_map(unwrap, kwargs or {})
            )

    def make(model, optimizer):
        def train_step(x):
            wrapped = torch.Tensor._make_wrapper_subclass(Tagged, x.shape, dtype=x.dtype)
            wrapped.inner = x
            return training(model, optimizer, model(wrapped + 1).square().mean())

        return train_step

    run(make, planned=None)


def test_a_warning_that_is_made_an_error_comes_between_two_calls():
    """As under python -W error: the call that has trained gives its result; the next one raises, and changes nothing."""

    def train_step(model, optimizer, table, x):
        loss = (model(x) + table(torch.arange(3))).square().mean()
        return training(model, optimizer, loss)

    def trained(compiled):
        torch.manual_seed(0)
        model, table = nn.Linear(8, 4), nn.Embedding(3, 4, sparse=True)
        optimizer = torch.optim.SGD([*model.parameters(), *table.parameters()], lr=0.1)

        def step(x):
            return train_step(model, optimizer, table, x)

        run = stowage.compile(step) if compiled else step
        seen, raised, kept = [], [], model.weight.detach().clone()
        for _ in range(6):
            x = torch.randn(3, 8)
            while True:
                try:
                    seen.append(run(x))
                    break
                except UnsupportedWarning as error:
                    raised.append(error)
                    assert torch.equal(kept, model.weight)
            kept = model.weight.detach().clone()
        return seen, raised

    expected, _ = trained(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, raised = trained(True)
    assert all(map(torch.equal, expected, found))
    assert len(raised) == 1 and "sparse" in str(raised[0])


def test_an_optimizer_that_each_call_makes_is_given_up():
    def make(model, optimizer):
        def step(x):
            mine = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            for _ in range(2):
                loss = training(model, mine, model(x).square().mean())
            return loss

        return step

    assert "makes its state 'momentum_buffer' in this call, as in" in run(make, count=40)


def test_an_operator_that_raises_in_each_call_is_named():
    def make(model, optimizer):
        def step(x):
            out = model(x)
            with contextlib.suppress(RuntimeError):
                out = out.view(7)
            return training(model, optimizer, out.square().mean())

        return step

    assert "calls aten::view where" in run(make, count=40)


def test_eager_calls_of_a_refused_step_do_not_look_through_it(monkeypatch):
    """Nor where PyTorch's compiler has been imported, which its optimizers do."""
    import torch._dynamo

    looks = []

    def world(*args):
        looks.append(args)
        return World(*args)

    monkeypatch.setattr(compiled_regions, "_WRAPPED", threading.Event())
    model = nn.Linear(4, 4)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)

    @stowage.compile
    def step(x):
        def closure():
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        return optimizer.step(closure)

    with pytest.warns(UnsupportedWarning):
        for _ in range(12):
            step(torch.randn(3, 4))
    monkeypatch.setattr(calls, "World", world)
    for _ in range(20):
        step(torch.randn(3, 4))
    assert step.refusal and not looks

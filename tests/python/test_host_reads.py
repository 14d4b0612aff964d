"""Steps whose Python asks for whole tensors: tolist(), numpy(), np.asarray(). Planned with eager's bits, or refused by
the true reason."""

from __future__ import annotations

import copy
import io
import logging
import pickle
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import stowage
from stowage.step.record.content import as_list, bytes_of

CALLS = 14


def trained(make, compiled, calls=CALLS, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    seen: list = []
    step = make(model, optimizer, seen)
    run = stowage.compile(step, **options) if compiled else step
    torch.manual_seed(5)
    data = torch.Generator().manual_seed(1)
    results = []
    for _ in range(calls):
        loss = run(torch.randn(12, 16, generator=data), torch.randint(0, 8, (12,), generator=data))
        results.append([loss.clone(), *(p.detach().clone() for p in model.parameters())])
    return results, seen, torch.get_rng_state(), run


def as_eager(make, **options):
    expected, seen, state, _ = trained(make, False)
    got, seen_too, state_too, step = trained(make, True, **options)
    for call, (a, b) in enumerate(zip(expected, got)):
        assert all(torch.equal(x, y) for x, y in zip(a, b)), f"call {call}"
    assert str(seen) == str(seen_too)
    assert torch.equal(state, state_too)
    return step


def finished(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def asks_whether_shared(model, optimizer, seen):
    """Of what it makes, of a parameter, and of an argument. PyTorch asks the memory, which shells have not."""

    def step(x, y):
        out = model(x)
        seen.extend([out.is_shared(), model[0].weight.is_shared(), x.is_shared()])
        loss = finished(optimizer, nn.functional.cross_entropy(out, y))
        seen.append(model[0].weight.grad.is_shared())
        return loss

    return step


def asks_for_memory_and_catches(ask):
    """A handler of the step's own, which a tensor without memory would lead astray."""

    def make(model, optimizer, seen):
        def step(x, y):
            out = model(x)
            try:
                there = ask(out.detach())
            except RuntimeError:
                there = None
                out = out * 2
            seen.append(there is not None)
            return finished(optimizer, nn.functional.cross_entropy(out, y))

        return step

    return make


def lists_predictions(model, optimizer, seen):
    def step(x, y):
        out = model(x)
        seen.extend(out.argmax(1).tolist())
        return finished(optimizer, nn.functional.cross_entropy(out, y))

    return step


def counts_in_numpy(model, optimizer, seen):
    def step(x, y):
        out = model(x)
        loss = finished(optimizer, nn.functional.cross_entropy(out, y))
        predicted = out.detach().argmax(1).cpu().numpy()
        seen.append(float((predicted == y.numpy()).mean()))
        return loss

    return step


def matches_by_cost(model, optimizer, seen):
    """As detection models do: costs go to NumPy, an assignment comes back as an index."""

    def step(x, y):
        out = model(x)
        cost = torch.cdist(out, out).detach()
        order = np.argsort(np.asarray(cost).sum(axis=1), kind="stable")
        partner = torch.as_tensor(order)
        return finished(optimizer, (out - out.detach()[partner]).square().mean() + nn.functional.cross_entropy(out, y))

    return step


def converts_its_costs(model, optimizer, seen):
    """As SciPy does, whose assignments are in fp64: a converted array is Python's own, to write as it likes."""

    def step(x, y):
        out = model(x)
        cost = np.asarray(torch.cdist(out, out).detach(), dtype=np.float64)
        rows, kept = np.asarray(out.detach()[:, ::2], dtype=np.float32), np.array(y, dtype=np.int32)
        seen.append((cost.sum(), rows.max(), kept.sum()))
        cost[np.arange(len(cost)), np.arange(len(cost))] = np.inf
        kept[:] = 0
        partner = torch.as_tensor(cost.argmin(axis=1))
        return finished(optimizer, (out - out.detach()[partner]).square().mean() + nn.functional.cross_entropy(out, y))

    return step


def takes_a_slice(model, optimizer, seen):
    """Not contiguous, and a number goes back into the step."""

    def step(x, y):
        out = model(x)
        column = out[:, 1::3].detach().numpy(force=False)
        scale = float(np.median(column)) + sum(out.t().tolist()[2])
        return finished(optimizer, nn.functional.cross_entropy(out * (1 + 1e-3 * scale), y))

    return step


def asks_now_and_then(model, optimizer, seen):
    count = [0]

    def step(x, y):
        count[0] += 1
        out = model(x)
        if count[0] % 4 == 0:
            seen.append(out.detach().numpy().max())
        return finished(optimizer, nn.functional.cross_entropy(out, y))

    return step


def keeps_the_array(model, optimizer, seen):
    def step(x, y):
        out = model(x)
        seen.append(out.detach().numpy())
        return finished(optimizer, nn.functional.cross_entropy(out, y))

    return step


def counts_its_arguments(model, optimizer, seen):
    """What follows from the arguments differs from call to call: first worked out before the step, then waited for."""

    def step(x, y):
        weight = (y > 3).sum().item() / len(y)
        seen.append(y.tolist())
        return finished(optimizer, nn.functional.cross_entropy(model(x), y) * (0.5 + weight))

    return step


def plateaus(model, optimizer, seen):
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)

    def step(x, y):
        loss = finished(optimizer, nn.functional.cross_entropy(model(x), y))
        scheduler.step(loss.item())
        seen.append(optimizer.param_groups[0]["lr"])
        return loss

    return step


PLANNED = [
    lists_predictions,
    counts_in_numpy,
    matches_by_cost,
    converts_its_costs,
    takes_a_slice,
    keeps_the_array,
    counts_its_arguments,
    plateaus,
]


@pytest.mark.parametrize("make", PLANNED, ids=lambda f: f.__name__)
@pytest.mark.parametrize("check", ["auto", "always"])
def test_contents_are_told(make, check):
    step = as_eager(make, check=check)
    assert not step.refusal, step.refusal
    assert step.stats()["planned_steps"] > 4
    assert step.stats()["misses"] == 0


@pytest.mark.parametrize("options", [{"check": "never"}, {"check": "always"}, {"budget": "1MiB"}], ids=str)
@pytest.mark.parametrize(
    "ask",
    [
        lambda t: t.data_ptr(),
        lambda t: t.__dlpack_device__(),
        lambda t: t.is_pinned() or True,
        lambda t: repr(t),
        lambda t: t.untyped_storage().data_ptr(),
    ],
    ids=["data_ptr", "dlpack_device", "is_pinned", "repr", "storage"],
)
@pytest.mark.filterwarnings("ignore:stowage")
def test_a_handler_sees_no_error_of_shells(ask, options):
    as_eager(asks_for_memory_and_catches(ask), **options)


def logs_a_tensor(model, optimizer, seen):
    """Made into text within logging, which catches what is raised there."""
    logger, text = logging.Logger("of the step"), io.StringIO()
    logger.addHandler(logging.StreamHandler(text))

    def step(x, y):
        out = model(x)
        logger.info("%s", out.detach())
        seen[:] = [text.getvalue()]
        return finished(optimizer, nn.functional.cross_entropy(out, y))

    return step


@pytest.mark.parametrize("options", [{"check": "never"}, {"check": "always"}, {"budget": "1MiB"}], ids=str)
def test_logging_shows_the_tensor(options, capfd):
    as_eager(logs_a_tensor, **options)
    assert "Logging error" not in capfd.readouterr().err


@pytest.mark.parametrize("options", [{"check": "never"}, {"check": "always"}, {"budget": "1MiB"}], ids=str)
def test_shells_are_not_shared(options):
    step = as_eager(asks_whether_shared, **options)
    assert step.stats()["planned_steps"] >= 4, step.refusal


def test_asked_now_and_then():
    step = as_eager(asks_now_and_then)
    assert not step.refusal, step.refusal
    assert step.stats()["planned_steps"] > 0


@pytest.mark.parametrize("from_call", [0, 6])
def test_an_array_that_is_written(from_call):
    """In eager the tensor shows it: such a step is refused, or that call happens eagerly."""

    def make(model, optimizer, seen):
        count = [0]

        def step(x, y):
            out = model(x)
            kept = out.detach().clone()
            view = kept.numpy()
            if count[0] >= from_call:
                view[:, 0] = 0.0
            count[0] += 1
            seen.append(float(kept.sum()))
            return finished(optimizer, nn.functional.cross_entropy(out + kept, y))

        return step

    if from_call == 0:
        with pytest.warns(UserWarning, match="writes into the NumPy array"):
            step = as_eager(make)
        assert "writes into the NumPy array" in step.refusal
    else:
        with pytest.warns(UserWarning, match="writes into the NumPy array"):  # of what is recorded since
            step = as_eager(make)
        assert step.stats()["planned_steps"] > 0


@pytest.mark.parametrize("factor", [2.0, 1.0])  # 1.0: it does not show in the recorded call
def test_a_tensor_that_is_written_behind_its_array(factor):
    def make(model, optimizer, seen):
        def step(x, y):
            out = model(x)
            kept = out.detach().clone()
            view = kept.numpy()
            kept.mul_(factor)
            seen.append(float(view.sum()))
            return finished(optimizer, nn.functional.cross_entropy(out, y))

        return step

    with pytest.warns(UserWarning, match="writes into the NumPy array of a tensor, or into the tensor behind it"):
        as_eager(make)


def test_large_arrays_and_dlpack_are_refused():
    def large(model, optimizer, seen):
        def step(x, y):
            seen.append(torch.zeros(600, 600).add(x[0, 0]).numpy().sum())
            return finished(optimizer, nn.functional.cross_entropy(model(x), y))

        return step

    def dlpack(model, optimizer, seen):
        def step(x, y):
            out = model(x)
            seen.append(float(np.from_dlpack(out.detach()).sum()))
            return finished(optimizer, nn.functional.cross_entropy(out, y))

        return step

    for make, reason in ((large, "numpy"), (dlpack, "__dlpack__")):
        with pytest.warns(UserWarning, match=reason):
            as_eager(make)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
                                   torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.complex64, torch.complex128])  # fmt: skip
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 3, 4), (0,), (0, 3), (3, 0), (2, 0, 3)])
def test_lists_are_those_of_torch(dtype, shape):
    tensor = (torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) * 50).to(dtype)
    words = torch.ops.stowage.content(tensor, False)
    assert str(as_list(tensor, bytes_of(tensor, words))) == str(tensor.tolist())
    if tensor.dim() > 1 and tensor.dtype not in (torch.uint16, torch.uint32, torch.uint64):
        turned = tensor.transpose(0, -1)
        assert str(as_list(turned, bytes_of(turned, torch.ops.stowage.content(turned, True)))) == str(turned.tolist())


def saves(model, optimizer):
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    return file.getvalue()


HANDED_OUT = {
    "torch.save": saves,
    "pickle": lambda model, optimizer: pickle.dumps(model[0].weight.detach()),
    "deepcopy": lambda model, optimizer: copy.deepcopy(model[0].weight.detach()),
    "deepcopy of the model": lambda model, optimizer: copy.deepcopy(model).state_dict(),
    "storage": lambda model, optimizer: bytes(model[0].bias.untyped_storage()),
    "tolist": lambda model, optimizer: model[0].bias.tolist(),
    "numpy": lambda model, optimizer: model[0].weight.detach().numpy().copy(),
    "large numpy": lambda model, optimizer: model[4].table.numpy().copy(),
    "state's numpy": lambda model, optimizer: (
        optimizer.state[model[0].weight]["exp_avg"].numpy().copy() if optimizer.state else None
    ),
}


def _plain(value):
    """Tensors and arrays as bytes."""
    if isinstance(value, torch.Tensor):
        return value.detach().numpy().tobytes()
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, bytes) and value.startswith(b"\x80"):
        return _plain(pickle.loads(value))
    if isinstance(value, bytes) and value.startswith(b"PK"):
        return _plain(torch.load(io.BytesIO(value)))
    if isinstance(value, dict):
        return [(str(k), _plain(v)) for k, v in value.items()]
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.zeros(600, 600))

    def forward(self, x):
        self.table += x.detach().mean()
        return x


@pytest.mark.parametrize("what", HANDED_OUT)
@pytest.mark.parametrize("every", [1, 3])
def test_what_is_read_behind_the_update_is_new(what, every):
    """A checkpoint that the step itself writes holds what the step has made, as in eager; not what was there before
    it."""

    def trained(compiled):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 8), Counts())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        seen, count = [], [0]

        def step(x, y):
            count[0] += 1
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if count[0] % every == 0:
                seen.append(HANDED_OUT[what](model, optimizer))
            return loss.detach()

        run = stowage.compile(step, check="always") if compiled else step
        torch.manual_seed(5)
        data = torch.Generator().manual_seed(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            losses = [
                run(torch.randn(12, 16, generator=data), torch.randint(0, 8, (12,), generator=data)).clone()
                for _ in range(13)
            ]
        return losses, seen, list(model.state_dict().values())

    expected, got = pickle.dumps(_plain(trained(False))), pickle.dumps(_plain(trained(True)))
    assert expected == got


MADE_OF_NUMBERS = {
    "list": lambda a, b: torch.tensor([a, b]),
    "nested, with Python's numbers": lambda a, b: torch.tensor([[a, 1], [2.5, b.long()]]),
    "of a type": lambda a, b: torch.tensor([a, b], dtype=torch.float64),
    "integers": lambda a, b: torch.tensor([a.long(), 3]),
    "truths": lambda a, b: torch.tensor([a > 0, True]),
    "two types": lambda a, b: torch.tensor([a.double(), b]),
    "bfloat16": lambda a, b: torch.tensor([a.bfloat16(), b.bfloat16()]),
    "complex": lambda a, b: torch.tensor((a, b, 1.0 + 2j)),
    "as_tensor": lambda a, b: torch.as_tensor([a, b]),
    "asarray": lambda a, b: torch.asarray([a, b]),
    "new_tensor": lambda a, b: a.new_tensor([b, a, 1]),
    "by name": lambda a, b: torch.tensor(data=[a, b], requires_grad=True),
    "mean": lambda a, b: torch.tensor([a, b]).mean(),
}


@pytest.mark.parametrize("name", MADE_OF_NUMBERS)
def test_a_tensor_made_of_numbers(name):
    def make(model, optimizer, seen):
        def step(x, y):
            out = model(x)
            loss = nn.functional.cross_entropy(out, y)
            seen.append(1)
            made = MADE_OF_NUMBERS[name](loss, out.mean())
            seen.append((made.dtype, made.requires_grad, made.detach().clone()))
            return finished(optimizer, loss)

        return step

    step = as_eager(make)
    assert step.stats()["planned_steps"] > 4, step.refusal


LOSSES = ["mse_loss", "smooth_l1_loss", "huber_loss", "l1_loss", "soft_margin_loss"]


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_is_kept_alone(name):
    """Their kernels make storages longer than their elements."""
    kept = {}

    def make(model, optimizer, seen):
        def step(x, y):
            loss = getattr(nn.functional, name)(model(x), torch.nn.functional.one_hot(y, 8).float())
            kept["loss"] = loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        def outer(*batch):
            step_(*batch)
            return kept["loss"].detach()

        step_ = make.compiled(step)
        return outer

    def run(compile):
        make.compiled = compile
        results, *_ = trained(make, False)
        return results

    steps = []
    expected = run(lambda f: f)
    got = run(lambda f: steps.append(stowage.compile(f)) or steps[-1])
    assert all(torch.equal(a, b) for x, y in zip(expected, got) for a, b in zip(x, y))
    assert steps[-1].stats()["planned_steps"] > 4, steps[-1].refusal

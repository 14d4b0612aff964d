"""Planned calls that do without the step's Python give what it would: the same objects, over the same memory, and what depends
on which object an argument is."""

import collections
import contextvars
import threading
import types
import warnings
from functools import lru_cache

import numpy as np
import pytest
import torch
from torch import nn

import stowage

CALLS = 18
PLACE = contextvars.ContextVar("place", default={"scale": 1})  # noqa: B039


class Held:
    def __init__(self):
        torch.manual_seed(0)
        self.weight = torch.randn(3, requires_grad=True)
        self.array = np.zeros(3, dtype=np.float32)
        self.dict, self.list, self.deque = {}, [], collections.deque()
        self.model = nn.ModuleDict({"used": nn.Linear(3, 2), "seen": nn.Linear(2, 2)})
        self.tensor, self.settings, self.object = torch.ones(3), {"a": 1}, types.SimpleNamespace(a=1)
        self.cached = lru_cache(lambda name: [name])
        PLACE.get()["scale"] = 1

    def loss(self, x):
        return (self.weight * x).sum().detach()


class Name(str):
    """Takes attributes."""


def set_once(name):
    assert not hasattr(name, "seen")
    name.seen = True


def changes_now_and_then(call):
    return call > 5 and call // 3 % 2 == 1


# Name: (the step, what it is given beside x, what whoever calls does then)
def nothing(held, result, changed):
    pass


STEPS = {
    "array": (lambda h, x, _: (h.loss(x), torch.from_numpy(h.array)), None, lambda h, r, c: r[1].add_(1)),
    "part of an array": (lambda h, x, _: torch.as_tensor(h.array)[:2], None, lambda h, r, c: h.array.__iadd__(1)),
    "empty dict": (lambda h, x, _: (h.loss(x), h.dict), None, lambda h, r, c: r[1].update(a=len(r[1]))),
    "empty list": (lambda h, x, _: [h.loss(x), h.list], None, lambda h, r, c: r[1].append(1)),
    "empty deque": (lambda h, x, _: {"l": h.loss(x), "d": h.deque}, None, lambda h, r, c: r["d"].append(1)),
    "cached list": (lambda h, x, _: (h.loss(x), h.cached("a")), None, lambda h, r, c: r[1].append(c)),
    "new containers": (lambda h, x, _: {"l": [h.loss(x)], "e": {}}, None, lambda h, r, c: r["e"].update(a=c)),
    "named by an argument": (lambda h, x, _: {x: h.loss(x)}, None, lambda h, r, c: next(iter(r)).add_(1)),
    "named by a text of one's own": (lambda h, x, _: {Name("l"): h.loss(x)}, None, lambda h, r, c: set_once(next(iter(r)))),
    "a text of one's own": (lambda h, x, _: [Name("l"), h.loss(x)], None, lambda h, r, c: set_once(r[0])),
    "numbers": (lambda h, x, _: (h.loss(x), h.object.a * 0.5, -0.0), None, lambda h, r, c: setattr(h.object, "a", 1 + c)),
    "no number": (
        lambda h, x, _: (h.loss(x), float("nan") if h.object.a == 1 else h.object.a), None,
        lambda h, r, c: setattr(h.object, "a", [1, 1j, 0.0, -0.0][c * (1 + len(h.list) % 3)]),
    ),
    "view": (lambda h, x, _: (h.loss(x), h.tensor.view(3, 1)), None, lambda h, r, c: r[1].add_(1)),
    "default of a variable": (
        lambda h, x, _: h.loss(x) * PLACE.get()["scale"], None, lambda h, r, c: PLACE.get().update(scale=1 + c)
    ),
    "the settings themselves": (lambda h, x, a: (h.loss(x) * (2 if a is h.settings else 1), a is h.settings), "settings", nothing),
    "the object itself": (lambda h, x, a: (h.loss(x), a is h.object), "object", nothing),
    "the tensor itself": (lambda h, x, a: h.loss(x) * (2 if a is h.tensor else 3), "tensor", nothing),
    "one list twice": (lambda h, x, a: (h.loss(x), a[0] is a[1]), "twice", nothing),
    "one object twice": (lambda h, x, a: (h.loss(x), a[0] is a[1]), "objects twice", nothing),
    "dtype of what is only seen": (
        lambda h, x, _: h.loss(x) * (2 if h.model["seen"].weight.dtype == torch.float64 else 1), None,
        lambda h, r, c: h.model["seen"].double() if c else h.model["seen"].float(),
    ),
    "size of what is only seen": (
        lambda h, x, _: (h.model["used"](x).sum().detach(), sum(p.numel() for p in h.model.parameters())), None,
        lambda h, r, c: setattr(h.model["seen"].weight, "data", torch.zeros(2 + c, 2)),
    ),
}  # fmt: skip


def given(held, kind, changed):
    known = {"settings": held.settings, "object": held.object, "tensor": held.tensor}
    if kind in known:
        copies = {"settings": {"a": 1}, "object": types.SimpleNamespace(a=1), "tensor": torch.ones(3)}
        return known[kind] if changed else copies[kind]
    one = [1] if kind == "twice" else types.SimpleNamespace(a=1)
    return [one, one] if changed else [one, [1] if kind == "twice" else types.SimpleNamespace(a=1)]


def plain(value):
    if isinstance(value, torch.Tensor):
        return value.tolist(), value._is_view()
    if isinstance(value, dict):
        return [(plain(key), plain(item)) for key, item in value.items()]
    if isinstance(value, (float, complex)):
        return repr(value)
    return [plain(item) for item in value] if isinstance(value, (list, tuple, collections.deque)) else value


def run(name, compiled, **options):
    body, kind, after = STEPS[name]
    held = Held()

    def without(x):
        return body(held, x, None)

    def step(x, argument):
        return body(held, x, argument)

    step = without if kind is None else step
    step = stowage.compile(step, **options) if compiled else step
    seen = []
    for call in range(CALLS):
        changed = changes_now_and_then(call)
        arguments = [torch.randn(3)] + ([given(held, kind, changed)] if kind else [])
        result = step(*arguments)
        seen.append(plain(result))
        with torch.no_grad():
            after(held, result, changed)
        seen.append((held.array.tolist(), held.tensor.tolist(), dict(held.dict), list(held.list), list(held.deque)))
    return seen, step


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("check", ["never", "auto", "always"])
def test_as_eager(name, check):
    expected, _ = run(name, compiled=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no guard has missed anything
        got, step = run(name, compiled=True, check=check)
    for i, (a, b) in enumerate(zip(expected, got, strict=True)):
        assert a == b, (i // 2, a, b)
    assert step.stats()["planned_steps"] >= 5


def test_numbers_of_python_s_own_need_no_python():
    held = Held()
    step = stowage.compile(lambda x: (held.loss(x), held.object.a * 0.5, -0.0, 1j), check="never")
    for _ in range(CALLS):
        assert plain(step(torch.ones(3)))[1:] == ["0.5", "-0.0", "1j"]
    assert step.stats()["checked_steps"] <= 2


def test_new_containers_need_no_python():
    _, step = run("new containers", compiled=True, check="never")
    assert step.stats()["checked_steps"] <= 2


def test_a_check_looks_at_what_is_returned():
    """Where something that no guard watches decides what is no tensor, a check finds it."""
    array = np.zeros(3)
    model = nn.Linear(3, 1)
    step = stowage.compile(lambda x: (model(x).sum().detach(), array.flags.writeable))
    for _ in range(6):
        assert step(torch.randn(3))[1]
    array.flags.writeable = False
    with pytest.warns(UserWarning, match="it returns something else"):
        told = [step(torch.randn(3))[1] for _ in range(12)]
    assert not any(told[told.index(False) :])


@pytest.mark.parametrize("every", [1, 3, 4, 7])
@pytest.mark.parametrize("to", ["none", "zeros", "ones"])
@pytest.mark.parametrize("check", ["never", "auto"])
def test_gradients_of_a_leaf_that_whoever_calls_replaces(every, to, check):
    """It is in no module and no optimizer: latent codes, prompts, noise."""

    def trained(compiled):
        torch.manual_seed(0)
        codes, model = torch.ones(3, requires_grad=True), nn.Linear(3, 1)

        def step(x):
            loss = model(x * codes).square().sum() + (codes * x).square().sum()
            loss.backward()
            return loss.detach()

        run, seen = stowage.compile(step, check=check) if compiled else step, []
        for call in range(24):
            seen.append(run(torch.randn(3)).item())
            seen += [codes.grad.tolist(), model.weight.grad.tolist()]
            if call % every == every - 1:
                with torch.no_grad():
                    codes -= 0.1 * codes.grad
                codes.grad = {"none": None, "zeros": torch.zeros(3), "ones": torch.ones(3)}[to]
        return seen

    assert trained(True) == trained(False)


def test_variables_of_threads():
    """Each thread has its own, whichever was recorded."""
    held, local = Held(), threading.local()
    step = stowage.compile(lambda x: (held.loss(x) * local.scale, local.scale), check="never")
    local.scale = 1
    for _ in range(6):
        assert step(torch.ones(3))[1] == 1
    assert step.stats()["planned_steps"] >= 3
    seen = []

    def elsewhere():
        torch.set_num_threads(torch.get_num_threads())
        local.scale = 7
        seen.extend(step(torch.ones(3)) for _ in range(3))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert [(loss.item(), scale) for loss, scale in seen] == [((held.loss(torch.ones(3)) * 7).item(), 7)] * 3
    assert step(torch.ones(3))[1] == 1


class Scaled(nn.Parameter):
    scale, other = 1.0, 0.0

    def scaled(self, loss):
        return loss * self.scale


class Plain(torch.Tensor):
    scale = 1.0

    @property
    def half(self):
        return self.scale / 2


@pytest.mark.parametrize("check", ["never", "auto"])
@pytest.mark.parametrize(
    "read",
    [
        lambda h, loss: loss * h.parameter.scale,
        lambda h, loss: h.parameter.scaled(loss),
        lambda h, loss: loss * getattr(h.parameter, "scale"),  # noqa: B009
        lambda h, loss: loss * h.plain.scale,
        lambda h, loss: loss * h.plain.half,
        lambda h, loss: loss * h.layer.weight.scale,
    ],
)
def test_attributes_of_the_classes_of_tensors(read, check):
    """Read through an instance, and changed in the class."""

    def seen(compiled):
        torch.manual_seed(0)
        Scaled.scale = Plain.scale = 1.0
        layer = nn.Linear(3, 2)
        layer.weight = Scaled(layer.weight.detach())
        held = types.SimpleNamespace(
            parameter=Scaled(torch.ones(3)), plain=torch.ones(3).as_subclass(Plain), layer=layer, model=nn.Linear(3, 1)
        )

        def step(x):
            return read(held, held.model(x).sum().detach())

        run, losses = stowage.compile(step, check=check) if compiled else step, []
        for call in range(CALLS):
            Scaled.scale = Plain.scale = 0.5 if changes_now_and_then(call) else 1.0
            losses.append(run(torch.full((3,), float(call))).item())
        return losses, run

    expected, _ = seen(False)
    got, step = seen(True)
    assert got == expected
    assert step.stats()["planned_steps"] >= 5


def test_arguments_lie_where_nothing_is_found():
    """What the walk over the step's objects has made for itself is gone afterwards. A batch that comes to lie there is no
    object that the step finds."""
    held = Held()
    step = stowage.compile(lambda x, **options: held.loss(x) * options["scale"], check="never")
    for _ in range(4):
        step(torch.ones(3), scale=2)
    (entry,) = step._entries.values()
    for make in (list, dict, set, lambda: [1, 2], lambda: {"a": 1}, lambda: torch.ones(2)):
        made = [make() for _ in range(20_000)]
        assert not any(entry.replays[0].recording.world.found_among([id(each) for each in made]))
    checked = step.stats()["checked_steps"]
    for _ in range(64):
        step(torch.ones(3), scale=2)
    assert step.stats()["checked_steps"] == checked


@pytest.mark.parametrize("check", ["never", "auto", "always"])
@pytest.mark.parametrize("made", ["argument", "kept", "returned", "loss"])
def test_tensors_of_inference_mode(made, check):
    def trained(compiled):
        torch.manual_seed(0)
        model = nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with torch.inference_mode():
            total = torch.zeros(())

        def step(x, y):
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            with torch.inference_mode():
                if made == "argument":
                    y.mul_(2)
                if made == "kept":
                    total.add_(loss.detach())
                if made == "returned":
                    return model(x).sum()
                return loss.detach() if made == "loss" else loss.detach().clone()

        run, seen = stowage.compile(step, check=check) if compiled else step, []
        for call in range(CALLS):
            with torch.inference_mode():
                y = torch.ones(2, 3) * call
            result = run(torch.ones(2, 3), y)
            seen.append((result.item(), result.is_inference(), total.item(), y.tolist(), model.weight.tolist()))
        return seen, run

    got, step = trained(True)
    assert got == trained(False)[0]
    assert step.stats()["planned_steps"] >= 5


@pytest.mark.parametrize("check", ["never", "auto"])
@pytest.mark.parametrize(
    "results",
    [
        lambda model, h: (h, h[0]),
        lambda model, h: (h, h.detach()),
        lambda model, h: [*h.unbind(1)],
        lambda model, h: (h.t(), h),
        lambda model, h: model.weight.detach(),
        lambda model, h: (h, model.weight.view(-1).detach()),
        lambda model, h: {"a": h, "b": h.clone()},
    ],
)
def test_results_that_share_memory(results, check):
    """With each other, or with what lasts: they are views, and count what is written together."""

    def facts(compiled):
        torch.manual_seed(0)
        model = nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step(x):
            optimizer.zero_grad()
            y = model(x)
            y.square().mean().backward()
            optimizer.step()
            return results(model, y.detach() * 2)

        run, seen = stowage.compile(step, check=check) if compiled else step, []
        for _ in range(CALLS):
            result = run(torch.ones(2, 3))
            tensors = (
                [result]
                if isinstance(result, torch.Tensor)
                else [*result.values()]
                if isinstance(result, dict)
                else result
            )
            last = tensors[-1]
            before = [t._version for t in tensors]
            q = torch.full((1,), 2.0, requires_grad=True)
            with torch.no_grad():
                last.add_(0)
            bumped = [t._version - was for t, was in zip(tensors, before)]
            told = ""
            try:
                loss = (tensors[0] * q).sum()
                model.weight.detach().mul_(1)
                last.mul_(1)
                loss.backward()
            except RuntimeError as error:
                told = str(error)[:40]
            seen.append(([t.tolist() for t in tensors], [t._is_view() for t in tensors], bumped, told))
        return seen

    assert facts(True) == facts(False)

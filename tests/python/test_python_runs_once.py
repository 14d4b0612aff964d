"""What a step's Python changes, it changes once a call: also where it asks for the content or the memory of a tensor that has
none yet. Whatever is asked, whatever is changed, in whatever way Python or C keeps it."""

from __future__ import annotations

import array
import collections
import contextvars
import ctypes
import dataclasses
import enum
import functools
import io
import itertools
import pickle
import queue
import random
import sys
import tempfile
import types
import weakref

import numpy as np
import pytest
import torch
from torch import nn

import stowage
from stowage import _runtime
from stowage.step.reach import kept_by_c
from stowage.step.reach.python_state import PythonState

CALLS = 12


def moved_on():
    """Functions that each change something, and tell how often they have."""
    attribute, items, elements, deque, made = (
        types.SimpleNamespace(n=0),
        {"n": 0},
        [],
        collections.deque(range(99)),
        [0],
    )
    numbers, floats, waiting, put = np.zeros(2, int), array.array("i", [0]), queue.SimpleQueue(), queue.Queue()
    file, text = tempfile.TemporaryFile("w+"), io.StringIO()
    drawn, own, generator = random.Random(3), np.random.default_rng(3), torch.Generator().manual_seed(3)
    cell = 0

    def counts():
        nonlocal cell
        cell += 1
        attribute.n += 1
        items["n"] += 1
        elements.append(cell)
        numbers[0] += 1
        floats[0] += 1
        return cell, attribute.n, items["n"], len(elements), int(numbers[0]), floats[0]

    def endless():
        while True:
            made[0] += 1
            yield made[0]

    def writes():
        file.write("x")
        text.write("x")
        return file.tell(), text.tell()

    def passes():
        waiting.put(1)
        put.put(1)
        return waiting.qsize(), put.qsize()

    loader = iter(torch.utils.data.DataLoader(list(range(99))))
    of_iterators = [
        iter(list(range(99))),
        iter(tuple(range(99))),
        iter(range(99)),
        iter({k: k for k in range(99)}),
        itertools.count(),
        itertools.cycle([1, 2, 3]),
        enumerate(range(99)),
        zip(range(99), range(99)),
        map(str, range(99)),
        (i for i in range(99)),
        endless(),
    ]
    return [
        counts,
        writes,
        passes,
        deque.popleft,
        lambda: next(loader).item(),
        random.random,
        drawn.random,
        lambda: float(np.random.rand()),
        lambda: int(own.integers(99)),
        lambda: torch.rand(2, generator=generator).tolist(),
        *(functools.partial(next, iterator) for iterator in of_iterators),
        *kept_elsewhere(),
    ]


class Key:
    pass


class Pair(ctypes.Structure):
    _fields_ = (("a", ctypes.c_int), ("b", ctypes.c_double))


KEY = Key()


class OfDict(dict):
    pass


class OfList(list):
    pass


class Member(enum.Enum):
    ONE = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    n: int = 0


class Other:
    pass


class One:
    pass


def more_kept_elsewhere():
    """Attributes of what is no plain object, and what Python has for itself."""
    of_counter = type("OfCounter", (collections.Counter,), {})
    holders = [OfDict(), OfList(), of_counter(), nn.Parameter(torch.ones(1)), types.ModuleType("of_nobody"), Member.ONE]
    frozen, waiting, state, void = Frozen(), queue.Queue(), np.random.RandomState(0), np.zeros(2, [("a", int)])[0]
    function, changes, replaced, error = (lambda n=0: n), One(), One(), ValueError(0)
    made = collections.defaultdict(int)
    Member.ONE.__dict__.pop("n", None)

    def of_attribute(holder):
        holder.n = getattr(holder, "n", 0) + 1
        return holder.n

    def of_frozen():
        object.__setattr__(frozen, "n", frozen.n + 1)
        return frozen.n

    def of_queue():
        waiting.put(1)
        return waiting.qsize()

    def of_void():
        void["a"] += 1
        return int(void["a"])

    def of_defaults():
        function.__defaults__ = (function.__defaults__[0] + 1,)
        return function()

    def of_class():
        changes.__class__ = Other if type(changes) is One else One
        return type(changes).__name__

    def of_namespace():
        replaced.__dict__ = {"n": getattr(replaced, "n", 0) + 1}
        return replaced.n

    def of_error():
        error.args = (error.args[0] + 1,)
        return error.args[0]

    def of_factory():
        made.default_factory = float if made.default_factory is int else int
        return made.default_factory.__name__

    return [
        *(functools.partial(of_attribute, holder) for holder in holders),
        *(
            of_frozen,
            of_queue,
            lambda: float(state.rand()),
            of_void,
            of_defaults,
            of_class,
            of_namespace,
            of_error,
            of_factory,
        ),
    ]


def kept_elsewhere():
    """As moved_on(), of what keeps its state in a way of its own; each can be set back."""
    held, number = [Key() for _ in range(99)], ctypes.c_int(0)
    weak, values, weakly = weakref.WeakKeyDictionary({KEY: 0}), weakref.WeakValueDictionary(), weakref.WeakSet()
    ordered, plain = collections.OrderedDict(a=1, b=2, c=3), {"a": 1, "b": 2, "c": 3}
    pair, numbers, shown = Pair(0, 0.0), (ctypes.c_int * 3)(), memoryview(bytearray(4))
    variable = contextvars.ContextVar("variable")
    variable.set(0)

    def of_variable():
        variable.set(variable.get() + 1)
        return variable.get()

    def of_weak():
        weak[KEY] += 1
        return weak[KEY]

    def of_values():
        values[len(values)] = held[len(values)]
        return len(values)

    def of_set():
        weakly.add(held[len(weakly)])
        return len(weakly)

    def of_order():
        ordered.move_to_end(next(iter(ordered)))
        return list(ordered)

    def of_plain_order():
        first = next(iter(plain))
        plain[first] = plain.pop(first)
        return list(plain)

    def of_number():
        number.value += 1
        return number.value

    def of_structure():
        pair.a += 1
        pair.b += 0.5
        return pair.a, pair.b

    def of_numbers():
        numbers[1] += 1
        return list(numbers)

    def of_view():
        shown[2] += 1
        return shown.tolist()

    return [
        *(
            of_variable,
            of_weak,
            of_values,
            of_set,
            of_order,
            of_plain_order,
            of_number,
            of_structure,
            of_numbers,
            of_view,
        ),
        *more_kept_elsewhere(),
    ]


class Reads(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.detach().data_ptr()
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        repr(gradient)
        gradient.data_ptr()
        return gradient * 2


def packs_by_address(out):
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        kept = out.detach().requires_grad_().clone()
        squared = kept.square()
        with torch.no_grad():
            kept.mul_(2)
        squared.mean().backward()


PLANNED = {
    "repr": lambda out: repr(out),
    "text": lambda out: f"{out.detach()} {out.argmax(1)}",
    "print": lambda out: print(out, file=io.StringIO()),
    "parts": lambda out: "{} {}".format(*out[:2]),
    "of no dimensions": lambda out: repr(out.mean()),
}
READS = PLANNED | {
    "data_ptr": lambda out: out.data_ptr(),
    "const_data_ptr": lambda out: out.const_data_ptr() if hasattr(out, "const_data_ptr") else out.data_ptr(),
    "is_pinned": lambda out: out.is_pinned(),
    "storage": lambda out: out.untyped_storage().data_ptr(),
    "pickled": lambda out: pickle.dumps(out.detach()),
    "saved": lambda out: torch.save(out.detach(), io.BytesIO()),
    "function": lambda out: Reads.apply(out).mean(),
    "saved tensors": packs_by_address,
    "large": lambda out: repr(out.detach().repeat(20, 2000)),
}


def trained(read, options, at=lambda call: True):
    """Losses, and what each of moved_on() told in each call. ``options``: of stowage.compile, or none."""
    torch.manual_seed(0)
    random.seed(1)
    np.random.seed(1)
    net, told, call = nn.Linear(6, 8), [], itertools.count()
    optimizer = torch.optim.SGD(net.parameters(), 0.05)
    advance = moved_on()

    def step(x, asks):
        told.append([each() for each in advance])
        out = net(x) * (1 + told[-1][0][0] / 10)
        more = read(out) if asks else None
        told[-1].append(more if isinstance(more, str) else None)
        loss = out.square().mean()
        if isinstance(more, torch.Tensor):
            loss = loss + more
        optimizer.zero_grad()
        loss.backward()
        told[-1].append(nn.functional.dropout(x).tolist())
        optimizer.step()
        return loss.detach()

    run = step if options is None else stowage.compile(step, **options)
    data = torch.Generator().manual_seed(1)
    losses = [run(torch.randn(3, 6, generator=data), bool(at(next(call)))).item() for _ in range(CALLS)]
    return (losses, told), run


@pytest.mark.filterwarnings("ignore:stowage")
@pytest.mark.parametrize("options", [{}, {"check": "never"}, {"budget": "16MiB"}], ids=str)
@pytest.mark.parametrize("name", READS)
def test_whatever_is_asked(name, options):
    expected, _ = trained(READS[name], None)
    got, step = trained(READS[name], options)
    assert got == expected
    planned = step.stats()["planned_steps"]
    assert planned >= 4 if name in PLANNED else bool(step.refusal) or planned == 0, step.refusal


@pytest.mark.filterwarnings("ignore:stowage")
@pytest.mark.parametrize("name", ["text", "data_ptr", "saved tensors"])
def test_asked_now_and_then(name):
    at = lambda call: call in (4, 8, 9)
    expected, _ = trained(READS[name], None, at)
    got, step = trained(READS[name], {}, at)
    assert got == expected
    assert step.stats()["planned_steps"] >= 2, step.refusal


def texts(net, made):
    """Of tensors of all forms: after the first call, of shells."""
    with torch.no_grad():
        base = made.detach()
        forms = [base.to(dtype) for dtype in (torch.float64, torch.bfloat16, torch.half, torch.int32, torch.uint8)]
        forms += [base > 0, base[:0], base[None], base.t(), base[0, 0], base[:, 1].expand(3, -1), base.repeat(12, 60)]
        forms += [torch.complex(base, base), base / 0, base * 1e-9, base * 1e9, base.round(), torch.zeros(0, 3, 2)]
    forms += [
        made,
        made.sum(),
        net.weight,
        net.weight.grad,
        net.weight.detach(),
        made.exp(),
        made.clone().requires_grad_(),
    ]
    return [
        text
        for t in forms
        for text in (repr(t), str(t), f"{t}", f"{t!r}", "%s" % t, "{}".format(t))  # noqa: UP031, UP032
    ]


@pytest.mark.parametrize("shown", [{}, {"precision": 2, "sci_mode": True}, {"threshold": 4, "edgeitems": 1}], ids=str)
def test_texts_are_eagers(shown):
    def run(compiled):
        torch.manual_seed(0)
        net, told = nn.Linear(6, 8), []
        optimizer = torch.optim.SGD(net.parameters(), 0.1)

        def step(x):
            made = net(x)
            optimizer.zero_grad()
            made.square().mean().backward()
            told.append(texts(net, made))
            optimizer.step()
            return made.detach().sum()

        step_ = stowage.compile(step) if compiled else step
        data = torch.Generator().manual_seed(1)
        losses = [step_(torch.randn(3, 6, generator=data)).item() for _ in range(6)]
        return losses, told, step_

    torch.set_printoptions(**shown)
    try:
        losses, told, _ = run(False)
        got, told_too, step = run(True)
    finally:
        torch.set_printoptions(profile="default")
    assert got == losses
    for a, b in zip(told, told_too):
        assert a == b
    assert step.stats()["planned_steps"] >= 2, step.refusal


def test_a_format_that_is_none_raises_as_in_eager():
    def step(x):
        y = x * 2
        try:
            return y, f"{y:.2f}"
        except TypeError as error:
            return y, str(error)

    run = stowage.compile(step)
    for _ in range(5):
        x = torch.randn(3)
        (a, said), (b, says) = step(x), run(x)
        assert torch.equal(a, b)
        assert said == says


OF_TORCH = 9  # its generators are a part of the step's state


@pytest.mark.parametrize("index", [i for i in range(len(moved_on())) if i != OF_TORCH])
def test_what_a_run_has_changed_is_set_back_or_noticed(index):
    """Of each way to keep something: after a run that is not to count it is as before, or said not to be."""
    advance, twin = moved_on()[index], moved_on()[index]
    if isinstance(advance, functools.partial) and isinstance(advance.args[0], (types.ModuleType, enum.Enum)):
        pytest.skip("there is one, which its twin shares, or which is not looked into here")
    random.seed(1)
    np.random.seed(1)
    advance(), twin()
    drawn, of_numpy = random.getstate(), np.random.get_state()
    held = []

    class World:
        def reached(self):
            return held

    held.extend(everything_within(advance))
    state = PythonState(World())
    advance(), advance()
    left = state.put_back()
    if left:
        return
    after = advance()
    random.setstate(drawn)
    np.random.set_state(of_numpy)
    assert str(after) == str(twin()), index


@pytest.mark.filterwarnings("ignore:stowage")
@pytest.mark.parametrize("check", ["auto", "always", "never"])
@pytest.mark.parametrize("index", range(len(kept_elsewhere())))
def test_a_kernels_error_that_is_caught(index, check):
    """The step's Python runs again, from where it began."""

    def run(compiled):
        torch.manual_seed(0)
        net, advance = nn.Linear(3, 1), kept_elsewhere()[index]
        optimizer = torch.optim.SGD(net.parameters(), 0.05)

        def step(x, a):
            told.append(str(advance()))
            loss = net(x).square().mean()
            try:
                torch.linalg.cholesky(a)
            except RuntimeError:
                loss = loss * 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        told, step_ = [], stowage.compile(step, check=check) if compiled else step
        data = torch.Generator().manual_seed(1)
        losses = [
            step_(torch.randn(4, 3, generator=data), torch.eye(3) * (-1 if call in (5, 9, 13) else 1)).item()
            for call in range(16)
        ]
        return losses, told

    assert run(True) == run(False)


def test_a_variable_that_was_not_set_is_said():
    variable = contextvars.ContextVar("variable")

    class World:
        def reached(self):
            return [variable]

    def run():
        state = PythonState(World())
        variable.set(1)
        return state.put_back()

    assert contextvars.copy_context().run(run) == "ContextVar"
    variable = contextvars.ContextVar("by_default", default=7)
    assert contextvars.copy_context().run(lambda: (run(), variable.get())) == ("", 7)


def everything_within(function):
    """What a function holds, and what that holds."""
    import gc

    found, waiting = {}, [function]
    while waiting:
        value = waiting.pop()
        if id(value) in found or isinstance(value, (types.ModuleType, type, types.CodeType, str, int, float)):
            continue
        if isinstance(value, dict) and "__builtins__" in value:
            continue
        found[id(value)] = value
        if not isinstance(value, types.FrameType) and len(found) < 2000:
            waiting.extend(gc.get_referents(value))
    return list(found.values())


def test_iterators_over_sequences_go_back():
    for iterator in (iter([1, 2, 3]), iter((1, 2, 3)), iter(range(3)), iter("abc"), iter(b"abc"), reversed([1, 2, 3])):
        first, back = next(iterator), kept_by_c.way_back(iterator)
        if back is None:
            assert type(iterator) is type(iter(range(1))) and sys.version_info >= (3, 12)
            continue
        was = kept_by_c.state_of(iterator)
        second = next(iterator)
        assert not kept_by_c.same(iterator, was)
        back()
        assert kept_by_c.same(iterator, was)
        assert next(iterator) == second != first


def test_python_that_cannot_run_again_is_said():
    """An extension reads a shell, seldom: the step's Python has moved a generator on."""

    def natural():
        number = 0
        while True:
            yield number
            number += 1

    numbers = natural()
    net = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step(x):
        number = next(numbers)
        out = net(x).sum()
        if number == 3:
            raise RuntimeError(_runtime.SHELL_TEXT)  # as a function of C raises it
        optimizer.zero_grad()
        out.backward()
        optimizer.step()
        return out.detach()

    run = stowage.compile(step)
    for _ in range(3):
        run(torch.ones(2, 4))
    before = net.weight.detach().clone()
    with (
        pytest.raises(stowage.Error, match="generator cannot be set back"),
        pytest.warns(UserWarning, match="runs eagerly"),
    ):
        run(torch.ones(2, 4))
    assert torch.equal(net.weight, before)
    assert run.refusal
    run(torch.ones(2, 4))
    assert next(numbers) == 5


class Counted(torch.Tensor):
    asked: list = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if cls is Counted:
            Counted.asked.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("options", [None, {}, {"check": "always"}, {"check": "never"}, {"budget": "1MiB"}], ids=str)
def test_a_subclass_hears_what_the_step_asks_alone(options):
    torch.manual_seed(0)
    net = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step(x, batch):
        loss = net(x).square().mean() + batch["more"][0].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    run = step if options is None else stowage.compile(step, **options)
    heard = []
    for _ in range(8):
        x = torch.randn(3, 4).as_subclass(Counted)
        batch = {"more": [torch.randn(3).as_subclass(Counted)]}
        Counted.asked.clear()
        run(x, batch)
        heard.append(list(Counted.asked))
    assert heard == [["linear", "square", "mean", "mean", "add", "backward", "item"]] * 8

"""A step that shows its tensors to other threads, or waits for what they read, gives them eager's numbers: it is not planned. One that
tells them numbers is."""

from __future__ import annotations

import _thread
import asyncio
import collections
import concurrent.futures
import contextlib
import contextvars
import functools
import itertools
import logging
import multiprocessing.pool
import operator
import queue
import sched
import sys
import threading
import types
import unittest.mock
import weakref

import numpy as np
import pytest
import torch
from torch import nn

import stowage

CALLS = 10


class Reader:
    """A thread that lasts, and reads what comes."""

    def __init__(self, read):
        self.queue, self.heard, self._read = queue.Queue(), [], read
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while True:
            self.heard.append(self._read(self.queue.get()))
            self.queue.task_done()


def number(value):
    try:
        return value if isinstance(value, (int, float)) else value.mean().item()
    except RuntimeError as error:
        return str(error)


def puts_a_tensor(net, out, loss, tools):
    tools["reader"].queue.put(out.detach())


def puts_and_waits(net, out, loss, tools):
    tools["reader"].queue.put({"of": [1]} and out.detach())
    tools["reader"].queue.join()


def asks_a_pool(net, out, loss, tools):
    tools["heard"].append(tools["pool"].submit(number, out.detach()).result())


def asks_a_pool_by_closure(net, out, loss, tools):
    tools["heard"].append(tools["pool"].submit(lambda: number(out.detach())).result())


def asks_a_pool_by_partial(net, out, loss, tools):
    tools["heard"].append(tools["pool"].submit(functools.partial(number, out.detach())).result())


def lets_a_thread_read_parameters(net, out, loss, tools):
    tools["waker"].queue.put(1)
    tools["waker"].queue.join()


def starts_a_thread(net, out, loss, tools):
    thread = threading.Thread(target=lambda: tools["heard"].append(number(out.detach())))
    thread.start()
    thread.join()


def puts_a_number(net, out, loss, tools):
    tools["reader"].queue.put(loss.item())


def asks_a_pool_first(net, out, loss, tools):
    pass


NEVER = [puts_a_tensor, puts_and_waits, asks_a_pool, asks_a_pool_by_closure, asks_a_pool_by_partial,
         lets_a_thread_read_parameters, starts_a_thread]  # fmt: skip
PLANNED = [puts_a_number, asks_a_pool_first]


def trained(tell, compiled):
    torch.manual_seed(0)
    net = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    counted, reader = itertools.count(), Reader(number)
    tools = {"reader": reader, "heard": [], "pool": concurrent.futures.ThreadPoolExecutor(1)}
    tools["waker"] = Reader(lambda _: net.weight.sum().item())
    numbers = []

    def step(x):
        first = tools["pool"].submit(abs, -1).result() if tell is asks_a_pool_first else 1
        numbers.append(next(counted) * first)
        out = net(x)
        loss = out.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tell(net, out, loss.detach(), tools)
        return loss.detach()

    run = stowage.compile(step) if compiled else step
    data = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(CALLS):
        losses.append(run(torch.randn(3, 4, generator=data)).item())
        reader.queue.join()
    return (losses, numbers, reader.heard, tools["waker"].heard, tools["heard"]), run


@pytest.mark.filterwarnings("ignore:stowage")
@pytest.mark.parametrize("tell", NEVER + PLANNED, ids=lambda f: f.__name__)
def test_threads_see_eagers_numbers(tell):
    expected, _ = trained(tell, False)
    got, step = trained(tell, True)
    assert got == expected
    assert bool(step.refusal) == (tell in NEVER), step.refusal
    if tell in PLANNED:
        assert step.stats()["planned_steps"] >= 4
    else:
        assert "thread" in step.refusal


# ---- What a thread comes to by a global name, an object, a class: each way of handing it over, in each call or in some


class Trainer:
    """Whose methods threads run."""

    def __init__(self):
        torch.manual_seed(0)
        self.net = nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.1)
        self.box, self.seen, self.name = {"optimizer": self.optimizer}, [], "a name"
        self.data = torch.randn(8, 4)
        self.pool = concurrent.futures.ThreadPoolExecutor(1)
        self.threads = multiprocessing.pool.ThreadPool(1)

    def looks(self):
        self.seen.append(self.net.weight.sum().item())

    def saves(self):
        self.seen.append({k: v.tolist() for k, v in self.net.state_dict().items()})

    def updates(self):
        self.box["optimizer"].step()

    def tells(self):  # nothing of the step's
        self.seen.append(self.name)

    def loads(self):
        self.seen.append(self.data[0].tolist())


class Job(threading.Thread):
    def __init__(self, trainer, what):
        super().__init__()
        self.trainer, self.what = trainer, what

    def run(self):
        getattr(self.trainer, self.what)()


class Called:
    def __init__(self, trainer, what):
        self._call = getattr(trainer, what)

    def __call__(self):
        self._call()


TRAINER = None  # found by its name


def by_name(what):
    return {"looks": _looks, "saves": _saves, "updates": _updates, "tells": _tells, "loads": _loads}[what]


def _looks():
    TRAINER.looks()


def _saves():
    TRAINER.saves()


def _updates():
    TRAINER.updates()


def _tells():
    TRAINER.tells()


def _loads():
    TRAINER.loads()


def joined(thread):
    thread.start()
    thread.join()


def low_level(function):
    done = threading.Lock()
    done.acquire()

    def run():
        function()
        done.release()

    _thread.start_new_thread(run, ())
    done.acquire(timeout=10)


WAYS = {
    "method": lambda t, what: joined(threading.Thread(target=getattr(t, what))),
    "by name": lambda t, what: joined(threading.Thread(target=by_name(what))),
    "closure": lambda t, what: joined(threading.Thread(target=lambda: getattr(t, what)())),
    "partial": lambda t, what: joined(threading.Thread(target=functools.partial(getattr(t, what)))),
    "argument": lambda t, what: joined(threading.Thread(target=Called.__call__, args=(Called(t, what),))),
    "object": lambda t, what: joined(threading.Thread(target=Called(t, what))),
    "class of threads": lambda t, what: joined(Job(t, what)),
    "timer": lambda t, what: joined(threading.Timer(0, getattr(t, what))),
    "pool": lambda t, what: t.pool.submit(getattr(t, what)).result(),
    "pool by name": lambda t, what: t.pool.submit(by_name(what)).result(),
    "map": lambda t, what: list(t.pool.map(lambda f: f(), [getattr(t, what)])),
    "pool of threads": lambda t, what: t.threads.apply(by_name(what)),
    "mapped by threads": lambda t, what: t.threads.map(lambda f: f(), [getattr(t, what)]),
    "lazily mapped": lambda t, what: list(t.threads.imap(lambda f: f(), [getattr(t, what)])),
    "coroutine": lambda t, what: asyncio.run(asyncio.to_thread(by_name(what))),
    "of C": lambda t, what: low_level(by_name(what)),
}  # fmt: skip
DYNAMIC = ("closure", "class of threads")  # code that names no attribute may read any


def with_work(way, what, calls_with_it, compiled):
    global TRAINER
    TRAINER = trainer = Trainer()
    calls = itertools.count()

    def step(x):
        loss = trainer.net(x).square().mean()
        trainer.optimizer.zero_grad()
        loss.backward()
        here = next(calls) in calls_with_it
        if what != "updates" or not here:
            trainer.optimizer.step()
        if here:
            WAYS[way](trainer, what)
        return loss.detach()

    run = stowage.compile(step) if compiled else step
    data = torch.Generator().manual_seed(1)
    losses = [run(torch.randn(3, 4, generator=data)).item() for _ in range(16)]
    trainer.pool.shutdown()
    trainer.threads.terminate()
    return (losses, trainer.seen, trainer.net.weight.tolist()), run


@pytest.mark.filterwarnings("ignore:stowage")
@pytest.mark.parametrize("when", ["each", "some"])
@pytest.mark.parametrize("what", ["looks", "saves", "updates", "tells", "loads"])
@pytest.mark.parametrize("way", WAYS)
def test_what_a_thread_comes_to(way, what, when):
    calls_with_it = range(16) if when == "each" else (8, 9, 14)
    expected, _ = with_work(way, what, calls_with_it, False)
    got, step = with_work(way, what, calls_with_it, True)
    assert got == expected
    if when == "some":
        assert step.stats()["planned_steps"] >= 5
    elif what in ("tells", "loads") and way not in DYNAMIC:
        assert step.stats()["planned_steps"] >= 10, step.refusal
    elif what not in ("tells", "loads"):
        assert "thread" in step.refusal


def test_a_thread_that_changes_what_the_step_has_read():
    """The step's kernels before it read what was there then."""

    def trained(compiled):
        noise, seen = torch.zeros(4), []
        pool = concurrent.futures.ThreadPoolExecutor(1)

        def step(x):
            before = x * (noise + 1)
            pool.submit(noise.add_, 1).result()
            return before.sum() + (x * noise).sum()

        run = stowage.compile(step) if compiled else step
        for call in range(8):
            seen.append(run(torch.full((4,), float(call))).item())
        return seen

    assert trained(True) == trained(False)


# ---- Ways by which a job finds the model


class Data:
    """Its methods are called without being named."""

    def __init__(self, trainer):
        self.trainer = trainer

    def __len__(self):
        return 1

    def __getitem__(self, index):
        self.trainer.looks()
        return 0

    def __str__(self):
        self.trainer.looks()
        return "data"

    @functools.cached_property
    def once(self):
        return self.trainer.looks()


class Handler(logging.Handler):
    def __init__(self, trainer):
        super().__init__()
        self.trainer = trainer

    def emit(self, record):
        self.trainer.looks()


class Made:
    def __init__(self, trainer):
        trainer.looks()


def logger_of(trainer):
    logger = logging.Logger("of a test")
    logger.addHandler(Handler(trainer))
    return logger


def imported(trainer):
    module = types.ModuleType("stowage_test_of_threads")
    module.trainer = trainer
    sys.modules[module.__name__] = module

    def job():
        import stowage_test_of_threads

        stowage_test_of_threads.trainer.looks()

    return job


def on_exit(trainer):
    stack = contextlib.ExitStack()
    stack.callback(trainer.looks)
    return stack.close


def scheduled(trainer):
    scheduler = sched.scheduler()
    scheduler.enter(0, 1, trainer.looks)
    return scheduler.run


def by_variable(trainer):
    variable = contextvars.ContextVar("trainer", default=trainer)
    return lambda: variable.get().looks()


FINDS = {
    "import": imported,
    "weak reference": lambda t: (lambda ref: lambda: ref().looks())(weakref.ref(t)),
    "weak method": lambda t: (lambda ref: lambda: ref()())(weakref.WeakMethod(t.looks)),
    "weak dict": lambda t: (lambda d: lambda: d["t"].looks())(weakref.WeakValueDictionary(t=t)),
    "user dict": lambda t: (lambda d: lambda: d["t"].looks())(collections.UserDict(t=t)),
    "chain": lambda t: (lambda d: lambda: d["t"].looks())(collections.ChainMap({}, {"t": t})),
    "proxy": lambda t: (lambda d: lambda: d["t"].looks())(types.MappingProxyType({"t": t})),
    "view": lambda t: functools.partial(lambda view: next(iter(view)).looks(), {"t": t}.values()),
    "iterator": lambda t: functools.partial(
        list, map(operator.call if hasattr(operator, "call") else (lambda f: f()), [t.looks])
    ),
    "array": lambda t: functools.partial(lambda a: a[0].looks(), np.array([t], dtype=object)),
    "queue": lambda t: (lambda q: lambda: q.get().looks())((lambda q: (q.put(t), q)[1])(queue.Queue())),
    "variable": by_variable,
    "cached": lambda t: functools.lru_cache(None)(lambda: t.looks()),
    "item": lambda t: (lambda data: lambda: data[0])(Data(t)),
    "text": lambda t: (lambda data: lambda: f"{data}")(Data(t)),
    "property": lambda t: (lambda data: lambda: data.once)(Data(t)),
    "loader": lambda t: (lambda loader: lambda: list(loader))(torch.utils.data.DataLoader(Data(t))),
    "logger": lambda t: (lambda logger: lambda: logger.error("x"))(logger_of(t)),
    "exit": on_exit,
    "scheduler": scheduled,
    "mock": lambda t: unittest.mock.Mock(side_effect=t.looks),
    "caller": lambda t: functools.partial(operator.methodcaller("looks"), t),
    "finalizer": lambda t: weakref.finalize(t, t.looks),
    "class": lambda t: functools.partial(Made, t),
    "name of a global": lambda t: lambda: globals()["TRAINER"].looks(),
    "evaluated": lambda t: lambda: eval("TRAINER.looks()"),
    "nested": lambda t: lambda: [each() for each in (lambda: t.looks(),)],
    "plain": lambda t: (lambda seen: lambda: seen.append(1))(t.seen),
}


@pytest.mark.filterwarnings("ignore:stowage")
@pytest.mark.parametrize("finds", FINDS)
def test_ways_to_the_model(finds):
    def trained(compiled):
        global TRAINER
        TRAINER = trainer = Trainer()

        def step(x):
            loss = trainer.net(x).square().mean()
            trainer.optimizer.zero_grad()
            loss.backward()
            trainer.optimizer.step()
            joined(threading.Thread(target=FINDS[finds](trainer)))
            return loss.detach()

        run = stowage.compile(step) if compiled else step
        data = torch.Generator().manual_seed(1)
        losses = [run(torch.randn(3, 4, generator=data)).item() for _ in range(10)]
        trainer.pool.shutdown()
        trainer.threads.terminate()
        return (losses, trainer.seen), run

    expected, _ = trained(False)
    got, step = trained(True)
    assert got == expected
    assert (step.stats()["planned_steps"] >= 4) == (finds == "plain"), step.refusal

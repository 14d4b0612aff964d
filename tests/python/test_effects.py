"""What a step's Python does besides computing: it prints, counts, fills queues, sets PyTorch's settings. It has
happened after each call, planned or not, as often as in eager; also where the step only writes, and never reads, what
it changes."""

import array
import collections
import contextvars
import ctypes
import heapq
import io
import itertools
import logging
import os
import queue
import random
import sqlite3
import tempfile
import threading
import time
import types

import numpy as np
import pytest
import torch
from torch import nn

import stowage

EFFECTS = {}  # name -> make(model): what the step does, and what the caller sees of it after each call


def then(read, back):
    """Looks, and puts back what was seen, so that a call which does nothing shows."""

    def look():
        seen = read()
        back()
        return seen

    return look


def effect(make):
    EFFECTS[make.__name__] = make
    return make


@effect
def prints(model):
    out = io.StringIO()
    return lambda: print("a", file=out), lambda: len(out.getvalue())


@effect
def prints_to_a_file(model):
    out = tempfile.TemporaryFile("w")

    def look():
        out.flush()
        return out.tell()

    return lambda: print("a", file=out), look


@effect
def writes_to_a_pipe(model):
    read, write = os.pipe()
    os.set_blocking(read, False)

    def look():
        try:
            return len(os.read(read, 100))
        except BlockingIOError:
            return 0

    return lambda: os.write(write, b"ab"), look


class Collects(logging.Handler):
    def __init__(self):
        super().__init__()
        self.told = []

    def emit(self, record):
        self.told.append(record.getMessage())


@effect
def logs_to_a_handler_of_its_own(model):
    logger, handler = logging.Logger("b", logging.INFO), Collects()
    logger.addHandler(handler)
    return lambda: logger.info("x %d", 3), lambda: len(handler.told)


@effect
def logs(model):
    stream = io.StringIO()
    logger = logging.Logger("a", logging.INFO)
    logger.addHandler(logging.StreamHandler(stream))
    return lambda: logger.info("x %d", 3), lambda: len(stream.getvalue())


@effect
def fills_a_queue(model):
    things = queue.Queue()
    return lambda: things.put(1), things.qsize


@effect
def fills_a_simple_queue(model):
    things = queue.SimpleQueue()
    return lambda: things.put(1), things.qsize


@effect
def counts_in_a_counter(model):
    counter = collections.Counter()
    return lambda: counter.update(["a"]), lambda: counter["a"]


@effect
def counts_with_itertools(model):
    counter = itertools.count()
    return lambda: next(counter), lambda: repr(counter)


@effect
def sets_an_event(model):
    event = threading.Event()
    return event.set, lambda: (event.is_set(), event.clear())


@effect
def releases_a_semaphore(model):
    semaphore = threading.Semaphore(0)
    return semaphore.release, lambda: semaphore._value


@effect
def looks_at_the_clock(model):
    times = []
    return lambda: times.append(time.time()), lambda: len(times)


@effect
def only_writes_the_clock(model):
    holder = types.SimpleNamespace(at=0.0)

    return lambda: setattr(holder, "at", time.time()), then(lambda: holder.at > 0, lambda: setattr(holder, "at", 0.0))


@effect
def counts_in_the_environment(model):
    os.environ["STOWAGE_TEST_COUNT"] = "0"

    def count():
        os.environ["STOWAGE_TEST_COUNT"] = str(int(os.environ["STOWAGE_TEST_COUNT"]) + 1)

    return count, lambda: os.environ["STOWAGE_TEST_COUNT"]


@effect
def only_writes_the_environment(model):
    def write():
        os.environ["STOWAGE_TEST_ONLY"] = "1"

    return write, lambda: os.environ.pop("STOWAGE_TEST_ONLY", None)


@effect
def sets_a_context_variable(model):
    variable = contextvars.ContextVar("variable", default=0)
    return lambda: variable.set(variable.get() + 1), variable.get


@effect
def adds_to_a_large_array(model):
    numbers = np.zeros(1_000_000)

    def add():
        numbers[5] += 1

    return add, lambda: numbers[5]


@effect
def adds_to_bytes(model):
    numbers = array.array("b", [0])

    def add():
        numbers[0] += 1

    return add, lambda: numbers[0]


@effect
def adds_to_a_number_of_c(model):
    number = ctypes.c_int(0)

    def add():
        number.value += 1

    return add, lambda: number.value


@effect
def fills_a_heap(model):
    heap = []
    return lambda: heapq.heappush(heap, len(heap)), lambda: len(heap)


@effect
def has_a_default_that_grows(model):
    def grow(seen=[]):  # noqa: B006
        seen.append(1)

    return grow, lambda: len(grow.__defaults__[0])


@effect
def only_writes_an_item(model):
    items = {}
    return lambda: items.__setitem__("a", 3), lambda: items.pop("a", None)


@effect
def only_deletes_an_attribute(model):
    holder = types.SimpleNamespace()
    return lambda: holder.__dict__.pop("a", None), lambda: (hasattr(holder, "a"), setattr(holder, "a", 1))


@effect
def only_clears_a_list(model):
    things = []
    return things.clear, lambda: (len(things), things.append(1))


@effect
def reads_on_in_a_generator(model):
    def numbers():
        yield from range(100)

    at = numbers()
    seen = []
    return lambda: seen.append(next(at)), lambda: seen[-1]


@effect
def draws_from_a_generator_of_its_own(model):
    generator = random.Random(3)
    return generator.random, lambda: hash(generator.getstate())


@effect
def draws_from_numpys(model):
    generator = np.random.default_rng(3)
    return generator.random, lambda: str(generator.bit_generator.state)


@effect
def fills_a_table(model):
    table = sqlite3.connect(":memory:")
    table.execute("create table t(a)")
    return lambda: table.execute("insert into t values(1)"), lambda: table.execute("select count(*) from t").fetchone()


@effect
def counts_in_a_thread(model):
    holder = types.SimpleNamespace(count=0)

    def count():
        holder.count += 1

    def in_thread():
        thread = threading.Thread(target=count)
        thread.start()
        thread.join()

    return in_thread, lambda: holder.count


@effect
def sets_a_setting(model):
    return lambda: torch.use_deterministic_algorithms(True), then(
        torch.are_deterministic_algorithms_enabled, lambda: torch.use_deterministic_algorithms(False)
    )


@effect
def turns_gradients_off(model):
    return lambda: torch.set_grad_enabled(False), then(torch.is_grad_enabled, lambda: torch.set_grad_enabled(True))


@effect
def ends_in_another_mode(model):
    return model.eval, then(lambda: model.training, model.train)


@effect
def freezes_a_parameter(model):
    bias = model[0].bias
    return lambda: bias.requires_grad_(False), then(lambda: bias.requires_grad, lambda: bias.requires_grad_(True))


@effect
def adds_a_hook(model):
    return lambda: model.register_forward_hook(lambda *_: None), lambda: len(model._forward_hooks)


@effect
def marks_a_parameter(model):
    weight = model[0].weight
    return lambda: setattr(weight, "mark", 5), then(
        lambda: getattr(weight, "mark", 0), lambda: setattr(weight, "mark", 0)
    )


def run(name: str, check: str | None, first: bool) -> tuple[list, int]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    act, look = EFFECTS[name](model)

    def step(x):
        if first:
            act()
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        if loss.requires_grad:
            loss.backward()
            optimizer.step()
        if not first:
            act()
        return loss.detach()

    compiled = stowage.compile(step, check=check) if check else step
    seen = []
    try:
        for _ in range(10):
            loss = compiled(torch.randn(4, 6))
            seen.append((loss, look()))
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_grad_enabled(True)
    return seen, compiled.stats()["planned_steps"] if check else 0


@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("name", list(EFFECTS))
def test_it_happens_in_each_call(name, first):
    eager, _ = run(name, None, first)
    for check in ("never", "auto"):
        planned, count = run(name, check, first)
        for call, ((loss, effect), (expected_loss, expected)) in enumerate(zip(planned, eager)):
            assert torch.equal(loss, expected_loss) and effect == expected, (
                f"call {call + 1}, check={check!r}: {effect}, not {expected}"
            )
        assert count > 0

"""Interrupts at random moments, in calls of every kind: the state is that before the call or that after it, PyTorch
works as before, and the next call goes on with the bits of eager."""

import dis
import gc
import io
import random
import signal
import sys
import time
import warnings

import pytest
import searches
import torch
import torch.nn.functional as F
from process_state import left_over
from torch import nn
from torn import WIDE, WORLDS, Loop, Torn, Twins

import stowage

SOAK = searches.SECONDS
SEED = searches.first_seed()
INTERRUPTS = 10_000 if SOAK else 200


class Storm:
    """Sends one signal after so long; counts those that arrive while a step is on its way.

    Python ignores an interrupt within a finalizer. What pytest keeps of it would hold the frames of the step, and so
    its tensors."""

    def __init__(self, number: int):
        self._before = signal.signal(number, signal.default_int_handler)
        self._number = number
        self._ignored = sys.unraisablehook
        sys.unraisablehook = lambda ignored: None

    def close(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(self._number, self._before)
        sys.unraisablehook = self._ignored

    def call(self, twins: Twins, after_s: float):
        """What the call returned, or the interrupt."""
        twins.ready()
        try:
            signal.setitimer(signal.ITIMER_REAL, after_s)
            result = twins.compiled(*twins.batch)
            signal.setitimer(signal.ITIMER_REAL, 0)
            return result
        except KeyboardInterrupt as interrupt:
            return interrupt
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.fixture
def storm():
    found = Storm(signal.SIGALRM)
    yield found
    found.close()


def works() -> bool:
    """PyTorch is as before: nothing of ours listens."""
    saved = io.BytesIO()
    torch.save(torch.ones(3) + 1, saved)
    assert left_over() == []
    return torch.is_grad_enabled() and torch.ones(2, requires_grad=True).mul(2).sum().item() == 4


def interrupted(storm: Storm, twins: Twins, after_s: float) -> bool:
    try:
        result = storm.call(twins, after_s)
    except BaseException as error:
        raise Torn(f"not the interrupt, but {error!r}") from error
    assert works()
    if isinstance(result, KeyboardInterrupt):
        twins.stopped(result, says=False)
        return True
    twins.agree(result)
    return False


@pytest.mark.parametrize("check", ["never", "always"])
@pytest.mark.parametrize("name", list(WORLDS))
def test_planned_calls(name, check, storm):
    rng = random.Random(SEED + hash_of(name + check))
    width = WIDE[name] if rng.random() < 0.3 else 16
    twins = Twins(lambda: WORLDS[name](width), check=check)
    twins.settle()
    start = time.perf_counter()
    for _ in range(5):
        twins.step()
    typical_s = (time.perf_counter() - start) / 5
    caught = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        while caught < INTERRUPTS // (2 * len(WORLDS)):
            caught += interrupted(storm, twins, rng.uniform(1e-6, typical_s))
            if rng.random() < 0.2:
                twins.step()
    print(f"seed {SEED}: {name} {check}: {caught} interrupts, {twins.befores} before, {twins.afters} after")
    assert twins.compiled.refusal == ""


class Interruption:
    """A trace function: raises at the ``at``-th place where Python could run a signal handler. Those are after a call
    of a function of C that has returned, at the start of one of Python, and where a loop goes round; a few that it
    counts, after a function of Python, are none.

    The trace function raises one instruction after the place. Where another handler would catch it there, it is no
    place: at a handler's first instruction Python would even take the error that is being handled for the one of the
    caller, and never forget it."""

    PLACES = {dis.opmap[name] for name in ("CALL", "CALL_FUNCTION_EX", "RESUME", "JUMP_BACKWARD") if name in dis.opmap}

    def __init__(self, at: int):
        self._at = at
        self.places, self.where = 0, ""
        self._handlers: dict[object, dict[int, tuple[int, int]]] = {}

    def __call__(self, frame, event, arg):
        if event != "call":
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        code, now = frame.f_code.co_code, -1
        handlers = self._handlers.get(frame.f_code)
        if handlers is None:
            handlers = self._handlers[frame.f_code] = handler_of(frame.f_code)

        def within(frame, event, arg):
            nonlocal now
            if event == "exception":
                now = -1  # the instruction has not come to its end
            if event == "opcode":
                before, now = now, frame.f_lasti
                if before >= 0 and code[before] in self.PLACES and handlers.get(before) == handlers.get(now):
                    self.places += 1
                    if self.places == self._at:
                        self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                        raise KeyboardInterrupt
            return within

        return within


def handler_of(code) -> dict[int, tuple[int, int]]:
    """For each instruction within a try: the handler of its errors, and what stays on the stack there."""
    return {
        at: (entry.target, entry.depth)
        for entry in dis._parse_exception_table(code)
        for at in range(entry.start, entry.end, 2)
    }


def call_interrupted_at(twins: Twins, at: int):
    """What the call returned, or the interrupt; and the trace function."""
    twins.ready()
    interruption = Interruption(at)
    try:
        sys.settrace(interruption)
        result = twins.compiled(*twins.batch)
        sys.settrace(None)
        return result, interruption
    except KeyboardInterrupt as interrupt:
        return interrupt, interruption
    finally:
        sys.settrace(None)


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="counts the instructions of Python 3.11")
@pytest.mark.parametrize("check", ["never", "always"])
@pytest.mark.parametrize("name", list(WORLDS))
def test_at_each_place(name, check):
    """A planned call is interrupted at all places, one call a place; by default at some, drawn at random."""
    rng = random.Random(SEED + hash_of(name + check))
    twins = Twins(lambda: WORLDS[name](16), check=check)
    twins.settle()
    counts = []
    for _ in range(4):  # the first that is traced looks at more, and so does one that checks what has changed
        result, counted = call_interrupted_at(twins, 0)
        twins.agree(result)
        counts.append(counted.places)
    assert min(counts) > 500
    places = list(range(1, min(counts) + 1))
    rng.shuffle(places)
    interrupts = 0
    for at in places if SOAK else places[:40]:
        result, interruption = call_interrupted_at(twins, at)
        try:
            assert works()
            if isinstance(result, KeyboardInterrupt):
                interrupts += 1
                twins.stopped(result, says=False)
            else:
                twins.agree(result)
            if rng.random() < 0.2:
                twins.step()
        except AssertionError as error:
            raise Torn(
                f"seed {SEED}: interrupted at {interruption.where}, place {at} of {len(places)}: {error}"
            ) from error
    print(
        f"seed {SEED}: {name} {check}: {len(places)} places, {interrupts} interrupts, {twins.befores} before, {twins.afters} after"
    )
    assert interrupts > 15 and twins.compiled.refusal == ""


def varying() -> Loop:
    """Its Python may do one thing more; it draws random numbers first, so that the generator must be put back."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 5)).train()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    loop = Loop(model, optimizer)
    loop.more = False

    def step(x, y):
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy((out * 2 if loop.more else out).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    loop.step = step
    return loop


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="counts the instructions of Python 3.11")
def test_where_a_call_leaves_what_is_recorded():
    """Within an operator, which calls Python to enter the budget: the interrupt stays one, and nothing has happened
    until an op has run."""
    rng = random.Random(SEED)
    within = 0
    for _ in range(400 if SOAK else 12):
        twins = Twins(varying, check="always", budget=1 << 30)
        twins.settle()
        twins.planned.more = twins.eager.more = True
        matcher = twins.compiled._latest.matcher
        runs, at = matcher.plain_runs, int(10 ** rng.uniform(2.5, 4.2))
        result, interruption = call_interrupted_at(twins, at)
        assert works(), interruption.where
        if not isinstance(result, KeyboardInterrupt):
            twins.agree(result)
        elif matcher.plain_runs == runs:  # else it goes on eagerly, and is stopped as eager is
            within += "stowage" in interruption.where
            twins.stopped(result, says=False)
            twins.step()
    print(f"seed {SEED}: {within} interrupts where it leaves")
    assert within > 2


def hash_of(text: str) -> int:
    return sum(ord(c) * 31**i for i, c in enumerate(text)) % 65536


@pytest.mark.parametrize("name", list(WORLDS))
def test_calls_that_record_and_rehearse(name, storm):
    """The second to the fifth call of a step that is new, each stopped once."""
    rng = random.Random(SEED + hash_of(name))
    caught = 0
    tries = 0
    while caught < (INTERRUPTS // (2 * len(WORLDS)) if SOAK else 6):
        twins = Twins(WORLDS[name])
        twins.step()
        for _ in range(4):
            caught += interrupted(storm, twins, 10 ** rng.uniform(-5, -1.2))
            twins.step()
        tries += 1
    print(
        f"seed {SEED}: {name}: {caught} interrupts in {tries} beginnings, {twins.befores} before, {twins.afters} after in the last"
    )


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="counts the instructions of Python 3.11")
@pytest.mark.parametrize("budget", [None, 1 << 30], ids=["no budget", "budget"])
@pytest.mark.parametrize("name", ["mlp", "dropout", "conv"])
def test_calls_before_the_plan_at_random_places(name, budget):
    """One of the first five calls, which run eagerly, record and rehearse: nothing of ours is left in the process, and
    all goes on."""
    rng = random.Random(SEED + hash_of(name) + bool(budget))
    interrupts = 0
    for _ in range(300 if SOAK else 12):
        twins = Twins(WORLDS[name], budget=budget)
        for _ in range(rng.randrange(5)):
            twins.step()
        result, interruption = call_interrupted_at(twins, int(10 ** rng.uniform(1, 5)))
        try:
            assert works()
            if isinstance(result, KeyboardInterrupt):
                interrupts += 1
                if twins.compiled.stats()["eager_steps"] > 0:  # else the call was eager, and is stopped as eager is
                    twins.stopped(result, says=False)
                    twins.settle()
            else:
                twins.agree(result)
        except AssertionError as error:
            raise Torn(f"seed {SEED}: interrupted at {interruption.where}: {error}") from error
    print(f"seed {SEED}: {name}: {interrupts} interrupts")
    assert interrupts > 2


def in_block() -> None:
    with stowage.budget(1 << 30, progress=lambda *_: None):
        torch.ones(3).add_(1)


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="counts the instructions of Python 3.11")
def test_a_budgets_block_is_left_wherever_it_is_interrupted():
    """At each place of its beginning, of what runs within it, and of its end."""
    in_block()
    interrupts, at, over = 0, 1, False
    while not over:
        interruption = Interruption(at)
        try:
            sys.settrace(interruption)
            in_block()
            sys.settrace(None)
            over = interruption.places < at
        except KeyboardInterrupt:
            interrupts += 1
        finally:
            sys.settrace(None)
        assert left_over() == [], f"interrupted at {interruption.where}, place {at}"
        at += 1
    print(f"{interrupts} interrupts")
    assert interrupts > 100 and works()


class Finalized:
    """Garbage that is interrupted when it is collected."""

    def __init__(self):
        self.cycle = self

    def __del__(self):
        raise KeyboardInterrupt


@pytest.mark.filterwarnings("error:.*not watched")
def test_an_interrupt_in_a_finalizer_that_somebody_keeps(monkeypatch):
    """It holds the step's frames, and their tensors. That call is eager's; all before it were checked, so no warning
    says that they may be wrong."""
    kept = []
    monkeypatch.setattr(sys, "unraisablehook", lambda ignored: kept.append(ignored.exc_value))

    def make() -> Loop:
        loop = WORLDS["mlp"]()
        plain = loop.step

        def step(x, y):
            twice = x * 2
            gc.collect(0)
            return plain(twice, y)

        loop.step = step
        return loop

    twins = Twins(make, check="always")
    twins.settle()
    for calls in range(1, 4):
        gc.disable()  # so that the step collects it, and nothing else
        try:
            Finalized()
            twins.step()
        finally:
            gc.enable()
        twins.step()
        assert len(kept) == calls
    assert twins.compiled.stats()["planned_steps"] >= 3

"""Four threads with a compiled step each (trainings_in_threads.py): all planned, with the bits of eager; with budgets
and without."""

import os
import pathlib
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import searches
import torch
from at_once import in_threads
from torn import WORLDS, differs

import stowage
from stowage import _runtime
from stowage._torch import optimizer_steps
from stowage.cache.costs import CostFile
from stowage.step.compiled import CompiledStep
from stowage.step.replay.replay import Replay

SEED = searches.first_seed()
A_CHILD = 50
_TOOL = pathlib.Path(__file__).with_name("trainings_in_threads.py")


def runs(first: int, count: int, *flags: str) -> str:
    done = subprocess.run([sys.executable, str(_TOOL), str(first), str(count), *flags], capture_output=True, text=True)
    assert done.returncode == 0, (
        f"status {done.returncode}, seeds from {first}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    )
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("flags", [(), ("--draws",)], ids=["none draws", "one draws"])
def test_four_trainings(flags):
    print(runs(SEED, 3, *flags))


@searches.longer
def test_many_times_four_trainings():
    for seed in searches.seeds(SEED, by=A_CHILD):
        told = runs(seed, A_CHILD, *(["--draws"] if seed // A_CHILD % 2 else []))
        print(f"seed {seed}: {told}; {seed - SEED + A_CHILD} in all", flush=True)


def test_optimizers_step_while_others_begin_to_listen():
    """PyTorch goes through its registry of hooks in each step, which must not change meanwhile."""
    stop = threading.Event()

    def step():
        parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(3)]
        optimizer = torch.optim.SGD(parameters, 0.1)
        while not stop.is_set():
            optimizer.step()

    def listen():
        end = time.monotonic() + 1
        while time.monotonic() < end:
            key = object()
            optimizer_steps.listen(key, lambda *_: None, lambda *_: None)
            optimizer_steps.forget(key)
            with stowage.budget("1GiB", progress=False):
                pass
        stop.set()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        in_threads([step, step, listen])
    finally:
        sys.setswitchinterval(interval)


def test_a_step_that_draws_nothing_leaves_the_generator_to_others():
    """In eager the numbers of the one thread that draws do not depend on what others do."""
    torch.manual_seed(1)
    loop = WORLDS["mlp"]()
    compiled = stowage.compile(loop.step, check="always", strict=True)
    torch.manual_seed(7)
    expected = [torch.rand(3) for _ in range(3000)]
    torch.manual_seed(7)
    drawn, stop = [], threading.Event()

    def draw():
        for _ in range(3000):
            drawn.append(torch.rand(3))
            time.sleep(0)
        stop.set()

    def train():
        made = torch.Generator().manual_seed(3)
        while not stop.is_set():
            compiled(torch.randn(4, 6, 8, generator=made), torch.randint(0, 5, (4, 6), generator=made))

    in_threads([draw, train])
    assert all(torch.equal(a, b) for a, b in zip(drawn, expected, strict=True))
    assert compiled.refusal == ""


@torch.library.custom_op("threads::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    """That there is such an operator makes the process one whose kernels may be Python's."""
    return x * 2


class OtherThread:
    """Another thread that draws: in eager its numbers do not depend on what this one does, which draws nothing."""

    def __init__(self):
        torch.manual_seed(7)
        random.seed(7)
        self.expected = [self._now(3) for _ in range(64)]
        torch.manual_seed(7)
        random.seed(7)
        self.drawn = []

    def _now(self, count: int) -> tuple:
        return torch.rand(count).tolist(), random.random()

    def draws(self) -> None:
        in_threads([lambda: self.drawn.append(self._now(3))])

    def had_its_own(self) -> bool:
        return len(self.drawn) > 0 and self.drawn == self.expected[: len(self.drawn)]


def trained(between=lambda: None, attends=False, reads=False):
    """A step that draws nothing. ``between`` is called within its Python; ``attends``: one of its operators could
    draw; ``reads``: it reads a number of its own before that."""
    torch.manual_seed(1)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step(x):
        out = model(x)
        if attends:
            heads = out.view(1, 2, 4, 8)
            out = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.0)
        loss = out.square().mean()
        if reads:
            loss.item()
        between()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def test_a_rehearsal_leaves_the_generators_to_others(monkeypatch):
    other = None

    rehearse_matched = Replay.rehearse_matched

    def rehearse(self, *args, **kwargs):
        found = rehearse_matched(self, *args, **kwargs)
        other.draws()
        return found

    compiled = stowage.compile(trained(), strict=True)
    monkeypatch.setattr(Replay, "rehearse_matched", rehearse)
    other = OtherThread()
    for _ in range(4):
        compiled(torch.ones(8, 8))
        other.draws()
    assert len(other.drawn) > 4 and other.had_its_own()
    assert compiled.stats()["planned_steps"] > 0


@pytest.mark.parametrize("attends", [False, True])
def test_calls_in_which_another_thread_draws(attends):
    """Within the step's own Python."""
    now = []
    compiled = stowage.compile(trained(lambda: now and now[0].draws(), attends), strict=True, check="always")
    now.append(OtherThread())
    for _ in range(6):
        compiled(torch.ones(8, 8))
    assert len(now[0].drawn) == 6 and now[0].had_its_own()
    assert compiled.stats()["planned_steps"] == 3


def test_a_call_in_which_another_thread_draws_much():
    """More than could be followed number by number."""
    count = 6_000_000
    torch.manual_seed(7)
    expected = [torch.rand(count)[-3:] for _ in range(6)]
    drawn = []

    def draw():
        drawn.append(torch.rand(count)[-3:])

    compiled = stowage.compile(trained(lambda: in_threads([draw])), strict=True, check="always")
    torch.manual_seed(7)
    for _ in range(6):
        compiled(torch.ones(8, 8))
    assert all(map(torch.equal, drawn, expected))
    assert compiled.stats()["planned_steps"] == 3


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("attends", [False, True])
@pytest.mark.parametrize("call", range(4))
def test_interrupted_calls_in_which_another_thread_has_drawn(call, attends, reads):
    """They are taken back, but for the numbers that are gone."""
    other, calls = None, []

    def between():
        other.draws()
        if len(calls) == call:
            calls.append("interrupted")
            raise KeyboardInterrupt

    compiled = stowage.compile(trained(between, attends, reads), strict=True, check="always")
    other = OtherThread()
    for _ in range(4):
        try:
            compiled(torch.ones(8, 8))
            calls.append("done")
        except KeyboardInterrupt:
            pass
    other.draws()
    assert len(other.drawn) == 5 and other.had_its_own()
    assert calls.count("interrupted") == 1


# ---- Turns


def test_turns_together_and_alone():
    """Two hold a turn at once; one that is alone does so by itself; whoever has one gets another at once."""
    together, log = threading.Barrier(2), []

    def planned():
        with _runtime.Turn():
            together.wait(10)

    in_threads([planned, planned])
    at_work = [0]

    def alone():
        for _ in range(200):
            with _runtime.Turn() as turn:
                assert turn.alone()
                assert not turn.alone()
                with _runtime.Turn() as inner:
                    assert not inner.alone()
                at_work[0] += 1
                assert at_work[0] == 1
                time.sleep(0)
                at_work[0] -= 1
            log.append(1)

    def others():
        for _ in range(200):
            with _runtime.Turn():
                assert at_work[0] == 0
                time.sleep(0)

    in_threads([alone, alone, others, others])
    assert len(log) == 400


@pytest.mark.parametrize("inner_budget", [None, 1 << 28])
def test_a_call_whose_python_waits_for_a_call_of_another_thread(inner_budget, monkeypatch):
    """Within a limit nothing else may run, so neither could go on: the inner call gives up with an error, and both go
    on after it."""
    monkeypatch.setattr(_runtime, "Turn", lambda gate=None, turn=_runtime.Turn: turn(gate, 0.3))
    inner = WORLDS["mlp"](16)
    inner_step = stowage.compile(inner.step, budget=inner_budget)
    outer = WORLDS["mlp"](16)
    batch = torch.randn(4, 6, 8), torch.randint(0, 5, (4, 6))
    errors = []

    def waiting(x, y):
        def call():
            try:
                inner_step(*batch)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
        return outer.step(x, y)

    outer_step = stowage.compile(waiting, budget=1 << 28)
    before = inner.state()
    for _ in range(3):
        outer_step(*(t.clone() for t in batch))
    assert errors and all("waits for this thread" in str(e) for e in errors) and not differs(before, inner.state())
    for _ in range(6):
        inner_step(*batch)
    assert inner_step.refusal == "" and inner_step.stats()["planned_steps"] > 0


def test_a_call_whose_python_waits_for_the_same_step_in_another_thread(monkeypatch):
    monkeypatch.setattr(_runtime, "Turn", lambda gate=None, turn=_runtime.Turn: turn(gate, 0.3))
    loop = WORLDS["mlp"](16)
    errors = []

    def call(x, y):
        try:
            step(x, y)
        except stowage.Error as error:
            errors.append(str(error))

    def waiting(x, y):
        if threading.current_thread() is threading.main_thread():
            in_threads([lambda: call(x, y)])
        return loop.step(x, y)

    step = stowage.compile(waiting)
    batch = torch.randn(4, 6, 8), torch.randint(0, 5, (4, 6))
    step(*batch)
    assert len(errors) == 1 and "waits for this thread" in errors[0]
    in_threads([lambda: call(*batch)])
    assert len(errors) == 1


def test_turns_after_a_fork():
    """The child has those of the thread that forked, and no other."""
    there, go = threading.Event(), threading.Event()

    def holds():
        with _runtime.Turn():
            there.set()
            go.wait(30)

    thread = threading.Thread(target=holds)
    thread.start()
    there.wait(10)
    with _runtime.Turn() as mine:
        child = os.fork()
        if child == 0:
            mine.alone()
            os._exit(0)
    end = time.monotonic() + 20
    while (done := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < end:
        time.sleep(0.01)
    go.set()
    thread.join()
    if done[0] == 0:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert done == (child, 0)


def test_no_call_leaves_the_thread_to_a_budget():
    """Of another thread, later, which would see ops of a thread that knows nothing of it."""
    torch.manual_seed(1)
    loop = WORLDS["mlp"]()
    step = stowage.compile(loop.step, "1GiB")
    made = torch.Generator().manual_seed(3)
    for _ in range(8):
        step(torch.randn(4, 6, 8, generator=made), torch.randint(0, 5, (4, 6), generator=made))
        assert not _runtime.thread_attached()
    assert step.stats()["planned_steps"] >= 4


def test_steps_with_budgets_beside_a_block_of_the_user():
    """A block of another thread that begins in mid-step waits for its end; in it calls are eager; all with the bits of
    eager."""

    def trained(compile_it, blocks):
        torch.manual_seed(1)
        loop = WORLDS["mlp"]()
        step = stowage.compile(loop.step, "1GiB") if compile_it else loop.step
        made = torch.Generator().manual_seed(3)
        results, stop = [], threading.Event()

        def train():
            try:
                for _ in range(60):
                    results.append(
                        step(torch.randn(4, 6, 8, generator=made), torch.randint(0, 5, (4, 6), generator=made))
                    )
            finally:
                stop.set()

        def block():
            while not stop.is_set():
                with stowage.budget("1GiB", progress=False):
                    time.sleep(0.002)
                time.sleep(0.005)

        in_threads([train, *([block] if blocks else [])])
        return results

    assert all(torch.equal(a, b) for a, b in zip(trained(False, False), trained(True, True), strict=True))


@pytest.mark.parametrize("calls_before", [0, 1, 2, 3, 8])
def test_a_block_begins_while_a_call_waits_to_be_alone(calls_before):
    """The call then runs eagerly in it, as one that comes later does. Whatever it was about to do: run eagerly within its
    own budget, record, rehearse, check."""

    def trained(compile_it):
        torch.manual_seed(1)
        loop = WORLDS["mlp"]()
        step = stowage.compile(loop.step, "1GiB", check="always") if compile_it else loop.step
        made = torch.Generator().manual_seed(3)

        def call():
            results.append(step(torch.randn(4, 6, 8, generator=made), torch.randint(0, 5, (4, 6), generator=made)))

        def block():
            under_way.wait(20)
            with stowage.budget("1GiB", progress=False):
                called.wait(20)

        def entry(*arguments):
            under_way.set()
            time.sleep(0.1)  # the block waits to be alone meanwhile, and so does this call after it
            return CompiledStep._entry(step, *arguments)

        def last_call():
            step._entry = entry
            try:
                call()
            finally:
                del step._entry
                called.set()

        results = []
        under_way, called = threading.Event(), threading.Event()
        for _ in range(calls_before):
            call()
        if compile_it:
            with ThreadPoolExecutor(2) as pool:
                with _runtime.Turn():  # a planned call of a third thread, say
                    both = [pool.submit(block), pool.submit(last_call)]
                    time.sleep(0.3)
                for one in both:
                    one.result()
        else:
            call()
        for _ in range(3):
            call()
        return results

    assert all(torch.equal(a, b) for a, b in zip(trained(False), trained(True), strict=True))


def test_costs_are_measured_while_they_are_saved(tmp_path, monkeypatch):
    """One file of costs serves all steps of the process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    costs = CostFile(tmp_path / "costs.json", {})
    end = time.monotonic() + 2

    def add(first):
        i = first
        while time.monotonic() < end:
            costs.add([(f"op {i % 3000}", i)])
            i += 1

    def save():
        while time.monotonic() < end:
            costs.save()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        in_threads([lambda: add(0), lambda: add(1500), save])
    finally:
        sys.setswitchinterval(interval)
    assert costs.ops

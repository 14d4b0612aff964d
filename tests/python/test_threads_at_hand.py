"""Threads that were there before a step wakes them or waits for them: where they may read what it has made, it gives eager's numbers
and is not planned; loaders and loggers beside it change nothing. Nothing runs of what is looked at."""

from __future__ import annotations

import concurrent.futures
import itertools
import queue
import threading
import unittest.mock
import weakref

import pytest
import torch
from test_between_threads import Trainer, number
from torch import nn

import stowage
from stowage.step.guards.threads import tensors_within_reach

# ---- Threads that were there before, which the step wakes


class Server:
    """Answers when it is woken, by what it is told to do."""

    def __init__(self, does):
        self.asked, self.answers, self.does = queue.Queue(), queue.Queue(), does
        self.begins, self.over = threading.Semaphore(0), threading.Semaphore(0)
        self.condition, self.tasks, self.done = threading.Condition(), 0, 0
        for serve in (self.by_queue, self.by_semaphore, self.by_condition):
            threading.Thread(target=serve, daemon=True).start()

    def by_queue(self):
        while self.asked.get():
            self.answers.put(self.does())

    def by_semaphore(self):
        while self.begins.acquire():
            self.does()
            self.over.release()

    def by_condition(self):
        with self.condition:
            while self.condition.wait_for(lambda: self.tasks > self.done):
                self.does()
                self.done += 1
                self.condition.notify_all()


def wakes_by_queue(server):
    server.asked.put(1)
    server.answers.get(timeout=10)


def wakes_by_semaphore(server):
    server.begins.release()
    server.over.acquire(timeout=10)


def wakes_by_condition(server):
    with server.condition:
        server.tasks += 1
        server.condition.notify_all()
        server.condition.wait_for(lambda: server.done == server.tasks, timeout=10)


def begins_before(does):
    """A thread that the step starts before its first operator."""
    event = threading.Event()
    thread = threading.Thread(target=lambda: (event.wait(10), does()))
    thread.start()

    def ends():
        event.set()
        thread.join()

    return ends


@pytest.mark.filterwarnings("ignore:stowage")
@pytest.mark.parametrize("what", ["looks", "tells", "loads"])
@pytest.mark.parametrize("wakes", [wakes_by_queue, wakes_by_semaphore, wakes_by_condition, begins_before])
def test_a_thread_that_is_woken(wakes, what):
    def trained(compiled):
        trainer = Trainer()
        does = {
            "looks": lambda: trainer.seen.append(trainer.net.weight.sum().item()),
            "tells": lambda: trainer.seen.append(trainer.name),
            "loads": lambda: trainer.seen.append(trainer.data[0].tolist()),
        }[what]
        server = Server(does)

        def step(x):
            ends = wakes(does) if wakes is begins_before else lambda: wakes(server)
            loss = trainer.net(x).square().mean()
            trainer.optimizer.zero_grad()
            loss.backward()
            trainer.optimizer.step()
            ends()
            return loss.detach()

        run = stowage.compile(step) if compiled else step
        data = torch.Generator().manual_seed(1)
        losses = [run(torch.randn(3, 4, generator=data)).item() for _ in range(10)]
        return (losses, trainer.seen), run

    expected, _ = trained(False)
    got, step = trained(True)
    assert got == expected
    assert (step.stats()["planned_steps"] >= 4) == (what != "looks"), step.refusal


@pytest.mark.filterwarnings("ignore:stowage")
@pytest.mark.parametrize("served", [False, True])
def test_a_simple_queue(served):
    """What is put there cannot be seen: it matters where another thread may come to the queue."""

    def trained(compiled):
        trainer, told, answers = Trainer(), queue.SimpleQueue(), queue.SimpleQueue()

        def serve():
            while (value := told.get()) is not None:
                answers.put(number(value))

        if served:
            threading.Thread(target=serve, daemon=True).start()

        def step(x):
            loss = trainer.net(x).square().mean()
            trainer.optimizer.zero_grad()
            loss.backward()
            trainer.optimizer.step()
            told.put(loss.detach() if served else 1)
            trainer.seen.append(answers.get(timeout=20) if served else told.qsize())
            return loss.detach()

        run = stowage.compile(step) if compiled else step
        data = torch.Generator().manual_seed(1)
        losses = [run(torch.randn(3, 4, generator=data)).item() for _ in range(10)]
        told.put(None)
        return (losses, trainer.seen), run

    expected, _ = trained(False)
    got, step = trained(True)
    assert got == expected
    assert (step.stats()["planned_steps"] >= 4) != served, step.refusal


# ---- What is looked at, and how


class Hostile:
    """Nothing of it may run while it is looked at."""

    def __init__(self, trainer):
        object.__setattr__(self, "name", "a name")
        object.__setattr__(self, "ran", trainer.seen)

    def __getattribute__(self, name):
        object.__getattribute__(self, "ran").append(name)
        return object.__getattribute__(self, name)

    def __getattr__(self, name):
        object.__getattribute__(self, "ran").append(name)
        raise AttributeError(name)

    def __iter__(self):
        object.__getattribute__(self, "ran").append("iter")
        return iter(())

    def __eq__(self, other):
        object.__getattribute__(self, "ran").append("eq")
        return True

    __hash__ = object.__hash__


class HostileList(list):
    def __iter__(self):
        raise RuntimeError("asked")


class HostileDict(dict):
    def values(self):
        raise RuntimeError("asked")


def test_nothing_runs_that_is_looked_at():
    trainer = Trainer()
    values = [
        Hostile(trainer),
        HostileList([Hostile(trainer)]),
        HostileDict(a=Hostile(trainer)),
        unittest.mock.MagicMock(),
    ]
    assert tensors_within_reach(values) == []
    assert trainer.seen == []
    assert tensors_within_reach([weakref.proxy(values[0])]) is None  # it does not tell what it stands for
    assert trainer.seen == []


@pytest.mark.filterwarnings("ignore:stowage")
@pytest.mark.parametrize("optimizer_too", [False, True])
def test_a_checkpoint_of_many_tensors_of_which_the_last_are_trained(optimizer_too):
    def trained(compiled):
        torch.manual_seed(0)
        net = nn.Sequential(*(nn.Linear(2, 2) for _ in range(300)))
        for p in net[:-1].parameters():
            p.requires_grad_(False)
        optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], 0.1)
        pool, saved = concurrent.futures.ThreadPoolExecutor(1), []

        def save(state):
            saved.append([t.tolist() for t in list(state["net"].values())[-2:]])

        def step(x):
            loss = net[-1](x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            state = {"net": net.state_dict()}
            if optimizer_too:
                state["optimizer"] = optimizer.state_dict()
            pool.submit(save, state).result()
            return loss.detach()

        run = stowage.compile(step) if compiled else step
        data = torch.Generator().manual_seed(1)
        losses = [run(torch.randn(3, 2, generator=data)).item() for _ in range(8)]
        pool.shutdown()
        return losses, saved

    assert trained(True) == trained(False)


class Unreadable:
    def __getattribute__(self, name):
        raise RuntimeError("not bound")

    @property
    def __dict__(self):
        raise RuntimeError("not bound")


@pytest.mark.filterwarnings("ignore:stowage")
def test_what_cannot_be_looked_into_raises_nothing():
    def trained(compiled):
        torch.manual_seed(0)
        net, told, held = nn.Linear(4, 1), queue.Queue(), Unreadable()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)

        def step(x):
            loss = net(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            told.put((held, 1))
            return loss.detach()

        run = stowage.compile(step) if compiled else step
        data = torch.Generator().manual_seed(1)
        return [run(torch.randn(3, 4, generator=data)).item() for _ in range(8)], told.qsize()

    assert trained(True) == trained(False)


class Loader:
    """Loads what comes next, from much that is of one kind."""

    def __init__(self):
        self.rows = [(i, f"row {i}", torch.full((4,), float(i % 7))) for i in range(20_000)]
        self.lengths = {i: str(i) for i in range(100_000)}
        self.ready = queue.Queue(2)
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        for row in itertools.cycle(self.rows):
            self.ready.put((row[2], len(self.lengths)))


class Logger:
    def __init__(self):
        self.told, self.rows = queue.Queue(), []
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            self.rows.append(self.told.get())
            self.told.task_done()


@pytest.mark.filterwarnings("ignore:stowage")
def test_loops_with_a_loader_and_a_logger_are_planned():
    def trained(compiled):
        trainer = Trainer()
        trainer.loader, trainer.logger = Loader(), Logger()
        trainer.history = [{"call": i, "losses": [float(i)] * 3} for i in range(20_000)]

        def step():
            row, _ = trainer.loader.ready.get()
            loss = trainer.net(row).square().mean()
            trainer.optimizer.zero_grad()
            loss.backward()
            trainer.optimizer.step()
            trainer.logger.told.put({"loss": loss.item(), "name": trainer.name})
            return loss.detach()

        run = stowage.compile(step) if compiled else step
        losses = [run().item() for _ in range(12)]
        trainer.logger.told.join()
        return (losses, trainer.logger.rows), run

    expected, _ = trained(False)
    got, step = trained(True)
    assert got == expected
    assert step.stats()["planned_steps"] >= 4, step.refusal

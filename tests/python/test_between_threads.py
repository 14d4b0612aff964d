"""A step that shows its tensors to other threads, or waits for what they read, gives them eager's numbers: it is not planned. One that
tells them numbers is."""

from __future__ import annotations

import concurrent.futures
import functools
import itertools
import queue
import threading

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

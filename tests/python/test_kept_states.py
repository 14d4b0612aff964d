"""Recurrent states that a step keeps with their autograd graph, in attributes, buffers, lists and closures, and finds again
in the next call: planned with the bits of eager, and what is kept requires grad as in eager."""

import pytest
import torch
from torch import nn

import stowage

CALLS, BATCH, WIDTH = 14, 3, 4


class Net(nn.Module):
    def __init__(self, in_buffer):
        super().__init__()
        self.cell, self.long_cell, self.out = nn.GRUCell(WIDTH, WIDTH), nn.LSTMCell(WIDTH, WIDTH), nn.Linear(WIDTH, 2)
        if in_buffer:
            self.register_buffer("h", torch.zeros(BATCH, WIDTH), persistent=False)
        else:
            self.h = torch.zeros(BATCH, WIDTH)
        self.pair = torch.zeros(BATCH, WIDTH), torch.zeros(BATCH, WIDTH)
        self.list = [torch.zeros(BATCH, WIDTH)]


def detached(net, x):
    net.h = net.cell(x, net.h.detach())
    return net.h


def detached_before(net, x):
    net.h = net.h.detach()
    net.h = net.cell(x, net.h)
    return net.h


def detached_in_place(net, x):
    net.h.detach_()
    net.h = net.cell(x, net.h)
    return net.h


def made_anew(net, x):
    """As spiking networks begin each sequence."""
    net.h = torch.zeros_like(net.h)
    for _ in range(3):
        net.h = net.cell(x, net.h)
    return net.h


def by_data(net, x):
    net.h = net.cell(x, net.h.data)
    return net.h


def read_without_gradients(net, x):
    with torch.no_grad():
        before = net.h * 0.5
    net.h = net.cell(x, before)
    return net.h


def running_mean(net, x):
    net.h = 0.9 * net.h.detach() + 0.1 * net.cell(x, torch.zeros(BATCH, WIDTH))
    return net.h


def only_its_shape(net, x):
    net.h = net.cell(x, torch.ones(net.h.shape)) if net.h.requires_grad else net.cell(x)
    return net.h


def a_pair(net, x):
    net.pair = tuple(t.detach() for t in net.pair)
    net.pair = net.long_cell(x, net.pair)
    return net.pair[0]


def a_list(net, x):
    net.list.append(net.cell(x, net.list[-1].detach()))
    del net.list[:-2]
    return net.list[-1]


WAYS = [
    detached,
    detached_before,
    detached_in_place,
    made_anew,
    by_data,
    read_without_gradients,
    running_mean,
    only_its_shape,
    a_pair,
    a_list,
]


def trained(way, in_buffer, compiled=None, **options):
    torch.manual_seed(0)
    net = Net(in_buffer)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)

    def step(x):
        optimizer.zero_grad()
        loss = net.out(way(net, x)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = compiled(step, **options) if compiled else step
    left = []
    for call in range(CALLS):
        if call == CALLS - 3:  # the caller ends a sequence
            net.h = torch.zeros(BATCH, WIDTH)
        left += [run(torch.randn(BATCH, WIDTH)), net.h.detach().clone()]
    left += [*(p.detach() for p in net.parameters()), *(t.detach() for t in (*net.pair, *net.list))]
    return left, net.h.requires_grad, run


@pytest.mark.parametrize("options", [{}, {"budget": "1MiB"}], ids=["planned", "within a budget"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("in_buffer", [False, True], ids=["attribute", "buffer"])
def test_states_with_their_graph(way, in_buffer, options, capfd):
    eager, requires_grad, _ = trained(way, in_buffer)
    planned, also, step = trained(way, in_buffer, stowage.compile, **options)
    assert "XXX lineno" not in capfd.readouterr().err  # as Python's interpreter says where it has lost its way
    assert all(map(torch.equal, eager, planned))
    assert also == requires_grad
    assert step.stats()["planned_steps"] >= 5, step.refusal


def test_backward_into_the_graph_of_the_call_before():
    """With retain_graph=True each call goes further back than the one before it: never planned, always right."""

    def trained(compiled):
        torch.manual_seed(0)
        net = Net(True)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

        def step(x):
            optimizer.zero_grad()
            net.h = net.h * 0.5 + net.out.weight.sum() * x
            net.h.square().mean().backward(retain_graph=True)
            optimizer.step()

        run = stowage.compile(step) if compiled else step
        for _ in range(CALLS):
            run(torch.randn(BATCH, WIDTH))
        return [p.detach().clone() for p in net.parameters()], run

    eager, _ = trained(False)
    planned, _ = trained(True)
    assert all(map(torch.equal, eager, planned))

"""What a step's Python asks of a tensor that it only holds: between two calls the caller changes the tensor, or puts another in
its place. In each row: what makes the tensor, what the step asks, what the caller does to the list that holds it."""

import struct
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import stowage

CALLS, AT = 14, 9


def ones(*shape, **options):
    return torch.ones(*shape, **options)


def of_graph():
    return ones(1, requires_grad=True) * 1


def put(make):
    def change(held):
        held[0] = make()

    return change


def no_leaf_in(held):
    held[0].detach_()


def an_array_beside(held):
    held[1].fill(7.0)


def bytes_beside(held):
    struct.pack_into("f", held[1], 0, 7.0)


def array_and_tensor():
    array = np.ones(2, dtype=np.float32)
    return [torch.from_numpy(array), array]


def bytes_and_tensor():
    data = bytearray(struct.pack("f", 1.0))
    return [torch.frombuffer(data, dtype=torch.float32), data]


def with_attribute(value):
    t = ones(1)
    t.weight = value
    return t


ASKED = {
    "requires_grad": (lambda: ones(1), lambda t: t.requires_grad, lambda h: h[0].requires_grad_()),
    "is_leaf": (of_graph, lambda t: t.is_leaf, no_leaf_in),
    "grad_fn": (of_graph, lambda t: t.grad_fn is None, no_leaf_in),
    "retains_grad": (of_graph, lambda t: t.retains_grad, lambda h: h[0].retain_grad()),
    "grad": (lambda: ones(1), lambda t: t.grad is None, lambda h: setattr(h[0], "grad", ones(1))),
    "hooks": (
        lambda: ones(1, requires_grad=True),
        lambda t: len(t._backward_hooks or ()),
        lambda h: h[0].register_hook(lambda g: g),
    ),
    "version": (lambda: ones(1), lambda t: t._version, lambda h: h[0].add_(1)),
    "is_shared()": (lambda: ones(1), lambda t: t.is_shared(), lambda h: h[0].share_memory_()),
    "class": (lambda: ones(1), lambda t: type(t) is nn.Parameter, lambda h: setattr(h[0], "__class__", nn.Parameter)),
    "an attribute": (lambda: with_attribute(1.0), lambda t: t.weight, lambda h: setattr(h[0], "weight", 2.0)),
    "shape": (lambda: ones(1), lambda t: t.shape[0], lambda h: h[0].resize_(3)),
    "numel()": (lambda: ones(1), lambda t: t.numel(), lambda h: setattr(h[0], "data", ones(3))),
    "len()": (lambda: ones(1), len, put(lambda: ones(3))),
    "stride()": (lambda: ones(4, 2), lambda t: t.stride()[0], lambda h: h[0].t_()),
    "storage_offset()": (
        lambda: ones(2)[:1],
        lambda t: t.storage_offset(),
        lambda h: h[0].set_(h[0].untyped_storage(), 1, (1,), (1,)),
    ),
    "element_size()": (lambda: ones(1), lambda t: t.element_size(), put(lambda: ones(1, dtype=torch.float64))),
    "is_conj()": (
        lambda: ones(1, dtype=torch.complex64),
        lambda t: t.is_conj(),
        lambda h: h.__setitem__(0, h[0].conj()),
    ),
    "_base": (lambda: ones(4)[:2], lambda t: t._base.numel(), put(lambda: ones(6)[:2])),
    "item()": (lambda: ones(1), lambda t: t.item(), lambda h: h[0].fill_(7)),
    "item() of .data": (lambda: ones(1), lambda t: t.item(), lambda h: setattr(h[0], "data", 7 * ones(1))),
    "item() of set_()": (lambda: ones(1), lambda t: t.item(), lambda h: h[0].set_(7 * ones(1))),
    "bool()": (lambda: ones(1), bool, lambda h: h[0].zero_()),
    "index": (lambda: torch.tensor(1), lambda t: [2.0, 3.0, 5.0][t], lambda h: h[0].fill_(2)),
    "tolist()": (lambda: ones(3), lambda t: sum(t.tolist()), lambda h: h[0].fill_(7)),
    "numpy()": (lambda: ones(3), lambda t: float(t.numpy().sum()), lambda h: h[0].fill_(7)),
    "iteration": (lambda: ones(3), lambda t: sum(int(x) for x in t), lambda h: h[0].fill_(7)),
    "in": (lambda: torch.arange(3), lambda t: 1 in t, lambda h: h[0].fill_(7)),
    "a format": (lambda: torch.tensor(1.0), lambda t: float(f"{t:.3f}"), lambda h: h[0].fill_(7)),
    "repr()": (lambda: ones(1), lambda t: len(repr(t)), lambda h: h[0].fill_(1e9)),
    "q_scale()": (
        lambda: torch.quantize_per_tensor(ones(2), 0.1, 0, torch.qint8),
        lambda t: t.q_scale(),
        put(lambda: torch.quantize_per_tensor(ones(2), 0.5, 0, torch.qint8)),
    ),
    "_nnz()": (lambda: ones(2).to_sparse(), lambda t: t._nnz(), put(lambda: torch.tensor([1.0, 0.0]).to_sparse())),
    "an array over it": (array_and_tensor, lambda t: float(t.sum()), an_array_beside),
    "bytes under it": (bytes_and_tensor, lambda t: t.item(), bytes_beside),
}

NEVER_PLANNED = {"q_scale()", "_nnz()"}  # quantized and sparse tensors


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("check", ["auto", "never"])
@pytest.mark.parametrize("name", ASKED)
def test_what_python_asks_of_a_tensor(name, check):
    make, ask, change = ASKED[name]

    def program():
        torch.manual_seed(0)
        net, made = nn.Linear(4, 3), make()
        held = made if isinstance(made, list) else [made]
        return held, lambda x: net(x).sum().detach() * (1.0 + float(ask(held[0])))

    (theirs, eager), (ours, step) = program(), program()
    planned = stowage.compile(step, check=check)
    generator = torch.Generator().manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call in range(CALLS):
            if call == AT:
                before = float(ask(ours[0]))
                change(theirs)
                change(ours)
                assert float(ask(ours[0])) != before, "a change that nobody can see tests nothing"
            x = torch.randn(5, 4, generator=generator)
            assert torch.equal(eager(x), planned(x)), f"call {call}"
    assert planned.stats()["planned_steps"] > 3 or name in NEVER_PLANNED

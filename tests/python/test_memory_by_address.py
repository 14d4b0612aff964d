"""Memory of tensors that a step's Python reaches past PyTorch: by ctypes, by pointers and arrays that it has kept, by
iterators of NumPy. What the step has written is not there yet where its Python runs over shells, so such a step gives
eager's numbers, or is refused by its true reason, which gives them, too.

In each row: what is made before the step, and what the step does after its update. ``n`` is the net, ``heard`` what is
compared; the rows of PLANNED reach no memory of tensors."""

import ctypes
import functools
import struct

import numpy as np
import pytest
import torch
from torch import nn

import stowage

CALLS = 12
POINTER = "ptr = n.weight.data_ptr()"
ARRAY = "a = n.weight.detach().numpy()"
KEPT = "k = ctypes.cast(n.weight.data_ptr(), ctypes.POINTER(ctypes.c_float))"
LIBRARY = "lib = ctypes.CDLL(None); room = (ctypes.c_float * 4)(); "

REACHED = {
    "an array of ctypes": ("k = (ctypes.c_float * 16).from_address(n.weight.data_ptr())", "heard.append(k[0])"),
    "written by ctypes": ("k = (ctypes.c_float * 16).from_address(n.weight.data_ptr())", "k[0] = 7.0"),
    "from_address": (POINTER, "heard.append(ctypes.c_float.from_address(ptr).value)"),
    "string_at": (POINTER, "heard.append(ctypes.string_at(ptr, 8))"),
    "string_at by another name": ("from ctypes import string_at as look; " + POINTER, "heard.append(look(ptr, 8))"),
    "memmove": (POINTER + "; room = (ctypes.c_float * 16)()", "ctypes.memmove(room, ptr, 64); heard.append(room[3])"),
    "memset": (POINTER, "ctypes.memset(ptr, 0, 4)"),
    "a pointer": (KEPT, "heard.append(k[2])"),
    "a pointer, written": (KEPT, "k[2] = 3.0"),
    "a function of C": (LIBRARY + POINTER, "lib.memcpy(room, ctypes.c_void_p(ptr), 16); heard.append(room[1])"),
    "a kept function of C": (
        LIBRARY + POINTER + "; f = lib.memcpy",
        "f(room, ctypes.c_void_p(ptr), 16); heard.append(room[1])",
    ),
    "a function of C found inside": (
        POINTER,
        LIBRARY + "lib.memcpy(room, ctypes.c_void_p(ptr), 16); heard.append(room[1])",
    ),
    "imported inside": (POINTER, "import ctypes as c; heard.append(c.string_at(ptr, 8))"),
    "taken from an import inside": (
        POINTER,
        "from ctypes import memmove as f; r = (ctypes.c_float * 4)(); f(r, ptr, 16); heard.append(r[1])",
    ),
    "of another name": ("global c; c = ctypes; " + POINTER, "r = bytearray(8); heard.append(c.string_at(ptr, 8))"),
    "asked where it lies": ("", "heard.append(ctypes.c_float.from_address(n.weight.data_ptr()).value)"),
    "asked where an argument lies": ("", "x.mul_(2); heard.append(ctypes.c_float.from_address(x.data_ptr()).value)"),
    "struct": (ARRAY + "; m = memoryview(a).cast('B')", "heard.append(struct.unpack_from('f', m, 4)[0])"),
    "flat": (ARRAY + "; flat = a.flat", "heard.append(float(flat[2]))"),
    "nditer": (ARRAY + "; it = np.nditer(a)", "it.reset(); heard.append(float(it[0]))"),
    "broadcast": (ARRAY + "; b = np.broadcast(a, np.ones((4, 4)))", "b.reset(); heard.append(float(next(b)[0]))"),
    "a bound method": (ARRAY + "; f = a.item", "heard.append(f(3))"),
    "a partial": (ARRAY + "; f = functools.partial(np.sum, a)", "heard.append(float(f()))"),
    "a masked array": (ARRAY + "; m = np.ma.array(a, copy=False)", "heard.append(float(m[0, 0]))"),
    "other bytes of it": (ARRAY + "; v = a.view(np.uint8)", "heard.append(int(v[0, 0]))"),
    "dlpack": ("a = np.from_dlpack(n.weight.detach())", "heard.append(float(a[0, 0]))"),
    "a storage": ("s = n.weight.untyped_storage()", "heard.append(s.tolist()[:4])"),
    "a buffer's": ("a = n.seen.numpy()", "heard.append(float(a[0]))"),
}
PLANNED = {
    "a counter of ctypes": ("c = ctypes.c_int(0)", "c.value += 1; heard.append(c.value)"),
    "where it lies": (
        "places = set()",
        "places.add(n.bias.data_ptr()) if not heard else None; heard.append(len(places))",
    ),
}
# Without a name, as they have none here: arrays of ctypes are then of no module.
MODULES = {"ctypes": ctypes, "functools": functools, "np": np, "struct": struct, "torch": torch}
SOURCE = """
def make(n, optimizer, heard):
    {before}
    def step(x):
        n.seen.add_(1)
        loss = n(x).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        {after}
        return loss.detach()
    return step
"""


def trained(row, compiled, **options):
    torch.manual_seed(0)
    before, after = row
    net, heard, names = nn.Linear(4, 4), [], dict(MODULES)
    net.register_buffer("seen", torch.zeros(3))
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    exec(SOURCE.format(before=before or "pass", after=after), names)
    step = names["make"](net, optimizer, heard)
    run = stowage.compile(step, **options) if compiled else step
    data = torch.Generator().manual_seed(1)
    losses = [run(torch.randn(2, 4, generator=data)).item() for _ in range(CALLS)]
    return (losses, heard, net.weight.tolist()), run


@pytest.mark.filterwarnings("ignore:stowage")
@pytest.mark.parametrize("check", ["auto", "always", "never"])
@pytest.mark.parametrize("name", REACHED)
def test_numbers_are_eagers(name, check):
    expected, _ = trained(REACHED[name], False)
    got, _ = trained(REACHED[name], True, check=check)
    assert got == expected


@pytest.mark.parametrize("name", PLANNED)
def test_what_reaches_no_memory_is_planned(name):
    expected, _ = trained(PLANNED[name], False)
    got, step = trained(PLANNED[name], True)
    assert got == expected
    assert step.stats()["planned_steps"] > 4, step.refusal


LIBRARY_OF_C = ctypes.CDLL(None)
LIBRARY_OF_C.memcpy.restype = ctypes.c_void_p


@torch.library.custom_op("by_address::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    """A kernel that finds its tensors by their addresses, as kernels do."""
    made = torch.empty_like(x)
    LIBRARY_OF_C.memcpy(ctypes.c_void_p(made.data_ptr()), ctypes.c_void_p(x.data_ptr()), ctypes.c_size_t(x.nbytes))
    return made.mul_(2)


@doubled.register_fake
def _(x):
    return torch.empty_like(x)


def run_doubled(compiled, check):
    torch.manual_seed(0)
    net = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)

    def step(x):
        optimizer.zero_grad()
        loss = (net(x) * doubled(net(x).detach())).square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = stowage.compile(step, check=check) if compiled else step
    data = torch.Generator().manual_seed(1)
    return [run(torch.randn(2, 4, generator=data)).item() for _ in range(CALLS)], run


@pytest.mark.parametrize("check", ["auto", "always"])
def test_kernels_may_use_addresses(check):
    expected, _ = run_doubled(False, check)
    got, step = run_doubled(True, check)
    assert got == expected
    assert step.stats()["planned_steps"] > 4, step.refusal

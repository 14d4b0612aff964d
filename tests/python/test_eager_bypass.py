"""Reads past the dispatcher under stowage.budget: the tensor is brought back first, or an error names it; never other
bytes."""

from __future__ import annotations

import copy
import ctypes
import io
import pickle

import numpy
import pytest
import torch

import stowage
from stowage._torch.private import address

EXPECTED = torch.arange(4096, dtype=torch.float32)


def evicted(b, how: str) -> torch.Tensor:
    """A tensor that has left, recomputable or on the host."""
    tensor = (
        torch.arange(8192, dtype=torch.float32)[:4096].clone()
        if how == "swap"
        else torch.arange(4096, dtype=torch.float32)
    )
    state = b._runtime.evict(address(tensor), how == "drop")
    assert state == {"drop": "dropped", "swap": "swapped"}[how]
    return tensor


def read_storage(tensor):
    return torch.tensor(tensor.untyped_storage().tolist(), dtype=torch.uint8).view(torch.float32)


def read_pointer(tensor):
    return torch.frombuffer(bytearray(ctypes.string_at(tensor.data_ptr(), tensor.nbytes)), dtype=torch.float32)


def save(tensor):
    file = io.BytesIO()
    torch.save({"a": tensor, "view": tensor[5:]}, file)
    file.seek(0)
    return torch.load(file)["a"]


READS = {
    "numpy": lambda t: torch.from_numpy(t.numpy().copy()),
    "view.numpy": lambda t: torch.cat([torch.zeros(1), torch.from_numpy(t[1:].numpy().copy())]),
    "asarray": lambda t: torch.from_numpy(numpy.asarray(t).copy()),
    "data_ptr": read_pointer,
    "dlpack": lambda t: torch.from_numpy(numpy.from_dlpack(t).copy()),
    "torch.from_dlpack": lambda t: torch.from_dlpack(t).clone(),
    "tolist": lambda t: torch.tensor(t.tolist()),
    "storage": read_storage,
    "torch.save": save,
    "pickle": lambda t: pickle.loads(pickle.dumps(t)),
    "deepcopy": copy.deepcopy,
    "item": lambda t: torch.tensor([t[i].item() for i in range(len(t))]),
    "repr": lambda t: t.clone() if "4.0950e+03" in repr(t) else None,
    "iteration": lambda t: torch.stack(list(t)),
    "share_memory_": lambda t: t.share_memory_(),
    "buffer": lambda t: torch.frombuffer(bytearray(memoryview(t.numpy())), dtype=torch.float32),
}


@pytest.mark.parametrize("how", ["drop", "swap"])
@pytest.mark.parametrize("read", READS)
def test_the_tensor_is_back_first(read, how):
    with stowage.budget("64MiB", debug=True) as b:
        tensor = evicted(b, how)
        assert torch.equal(READS[read](tensor), EXPECTED)
    assert torch.equal(tensor, EXPECTED)


def test_an_array_that_the_program_keeps_stays_valid():
    """It holds the address: the tensor must never leave again, and what it was when others read it counts for those."""
    with stowage.budget("1MiB", release="both", debug=True) as b:
        tensor = torch.arange(4096, dtype=torch.float32)
        doubled = tensor * 2
        b._runtime.evict(address(doubled), True)
        array = tensor.numpy()
        for i in range(60):
            torch.full((1 << 15,), float(i)) + 1
        assert b._runtime.evict(address(tensor), False) == "kept"
        assert numpy.array_equal(array, EXPECTED.numpy())
        array[:] = 7  # unseen by the dispatcher
        assert torch.equal(doubled, EXPECTED * 2)
        after = tensor + 1
        assert b._runtime.evict(address(after), True) == "swapped"  # no recipe: it may change unseen
        array[:] = 9
        assert bool((after == 8).all())


def test_an_array_made_before_the_block_stays_valid():
    tensor = torch.arange(4096, dtype=torch.float32)
    array = tensor.numpy()
    with stowage.budget("1MiB", debug=True) as b:
        doubled = tensor * 2
        assert b._runtime.evict(address(tensor), False) == "kept"
        assert b._runtime.evict(address(doubled), True) == "swapped"  # no recipe: the array may change unseen
        for i in range(60):
            torch.full((1 << 15,), float(i)) + 1
        array[:] = 7
        assert torch.equal(doubled, EXPECTED * 2)
        assert bool((tensor == 7).all())


@pytest.mark.parametrize("count", [4096, 16])
@pytest.mark.parametrize("export", [lambda t: t.numpy(), lambda t: numpy.from_dlpack(t)], ids=["numpy", "dlpack"])
def test_in_place_ops_do_not_end_that_an_address_is_known(count, export):
    """Neither on a large tensor, which could leave, nor on a small one, which others could be made from."""
    with stowage.budget("1MiB", debug=True) as b:
        tensor = torch.zeros(count)
        array = export(tensor)
        tensor.add_(1)
        assert b._runtime.evict(address(tensor), False) == "kept"
        large = tensor.repeat(8192 // count)
        assert b._runtime.evict(address(large), True) == "swapped"
        assert numpy.array_equal(array, numpy.ones(count, dtype=numpy.float32))
        if array.flags.writeable:
            array[:] = 3
            assert bool((tensor == 3).all())
        assert bool((large == 1).all())


@pytest.mark.parametrize("how", ["drop", "swap"])
def test_any_other_read_is_an_error_that_names_the_tensor(how):
    with stowage.budget("64MiB") as b:
        tensor = evicted(b, how)
        with pytest.raises(
            RuntimeError, match=r"stowage: a result of aten::\w+.* \(16384 bytes\) is not in memory now"
        ):
            torch._C._to_dlpack(tensor)
        assert torch.equal(b.restore(tensor), EXPECTED)
        torch._C._to_dlpack(tensor)


def test_memory_of_others_is_never_a_recipe():
    """NumPy can change it unseen, so what was computed from it is copied, not computed again."""
    array = numpy.ones(4096, dtype=numpy.float32)
    with stowage.budget("64MiB", debug=True) as b:
        plus = torch.from_numpy(array) + 1
        assert b._runtime.evict(address(plus), True) == "swapped"
        array[:] = 5
        assert bool((plus == 2).all())

"""All that Python can ask of a tensor: each method and attribute of torch.Tensor and of its storage, each function of torch
that takes one tensor, and functions of Python and NumPy. For test_asked_of_made.py.

    questions()      their names
    function_of(q)   asks one of them of a tensor
    kept(answer)     what a step keeps of what it hears
    shown(kept)      as a value that can be compared
"""

from __future__ import annotations

import copy
import ctypes
import io
import json
import pickle
import struct
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

# They answer with what is of the process or of the memory, or end the process themselves.
_OTHERWISE = {"__delitem__", "__class__", "__dir__", "__hash__", "__init_subclass__", "__new__", "__sizeof__", "__subclasshook__", "_cdata", "_expired",
              "_fix_weakref", "_free_weak_ref", "_make_dtensor", "_make_subclass", "_make_wrapper_subclass", "_new_shared_fd_cpu",
              "_new_shared_filename_cpu", "_new_using_fd_cpu", "_new_using_filename_cpu", "_new_with_weak_ptr", "_release_ipc_counter_cuda",
              "_set_from_file", "_shared_decref", "_shared_incref", "_weak_ref", "_write_file", "const_data_ptr", "data_ptr",
              "from_buffer", "from_file", "mutable_data_ptr", "__weakref__", "_share_fd_cpu_", "_share_filename_cpu_", "_shared_fd_cpu",
              "__getattribute__", "__setattr__", "__delattr__", "as_subclass", "_set_cdata"}  # fmt: skip
_PLAIN = (int, float, bool, complex, bytes, str, type(None), torch.dtype, torch.device)
_UNDEFINED = ("empty", "resize", "dropout", "set_")  # what these leave is in no order of calls
_ARGUMENTS: tuple[Callable[[torch.Tensor], tuple], ...] = (
    lambda t: (),
    lambda t: (0,),
    lambda t: (torch.float64,),
    lambda t: (t.detach().clone(),),
    lambda t: ((t.numel(),),),
    lambda t: (0, 1),
    lambda t: (0.5, 1.5),
    lambda t: ("cpu",),
    lambda t: (lambda *a: None,),
)


def python_functions() -> dict[str, Callable[[torch.Tensor], Any]]:
    from torch.utils import dlpack

    return {
        "bool": lambda t: bool(t.sum()),
        "float": lambda t: float(t.sum()),
        "int": lambda t: int(t.sum()),
        "complex": lambda t: complex(t.sum()),
        "index": lambda t: list(range(99))[t.sum().long().clamp(0, 9)],
        "len": len,
        "iter": lambda t: [float(v) for row in t for v in row],
        "in": lambda t: 0.25 in t,
        "str": str,
        "repr": repr,
        "format": lambda t: f"{t.sum():.4f}",
        "percent": lambda t: "%s %.3f" % (t, t.sum()),  # noqa: UP031
        "hasattr": lambda t: [
            hasattr(t, n) for n in ("is_shared", "grad", "real", "none_such", "__cuda_array_interface__")
        ],
        "sizeof": sys.getsizeof,
        "copy": lambda t: copy.copy(t.detach()),
        "deepcopy": lambda t: copy.deepcopy(t.detach()),
        "deepcopy of a dict": lambda t: copy.deepcopy({"a": t.detach(), "b": [t.detach()]}),
        "pickle": lambda t: pickle.loads(pickle.dumps(t.detach())),
        "save": lambda t: _saved(t.detach()),
        "json": lambda t: json.dumps(t.tolist()),
        "struct": lambda t: struct.pack("f", t.sum()),
        "array": lambda t: np.array(t.detach()),
        "asarray": lambda t: np.asarray(t.detach()),
        "asarray of a list": lambda t: np.asarray([t.sum().detach(), t.sum().detach()]),
        "numpy of force": lambda t: t.numpy(force=True),
        "sum of numpy": lambda t: np.sum(t.detach()),
        "ufunc": lambda t: np.square(t.detach()),
        "to_dlpack": lambda t: torch.from_dlpack(dlpack.to_dlpack(t.detach())).clone(),
        "a capsule": lambda t: repr(dlpack.to_dlpack(t.detach()))[:22],
        "a versioned capsule": lambda t: repr(t.detach().__dlpack__(max_version=(1, 0)))[:22],
        "from_dlpack": lambda t: torch.from_dlpack(t.detach()).clone(),
        "numpy from_dlpack": lambda t: np.from_dlpack(t.detach()).copy(),
        "as_tensor": lambda t: torch.as_tensor(t),
        "asarray of torch": lambda t: torch.asarray(t.detach()),
        "tensor of a list": lambda t: torch.tensor([v.item() for v in t.flatten()[:3]]),
        "tensor of numbers": lambda t: torch.tensor([[t.sum(), 1.0], [2.0, t.max()]]),
        "frombuffer": lambda t: torch.frombuffer(bytearray(t.detach().numpy().tobytes()), dtype=torch.float32),
        "memory of ctypes": lambda t: list((ctypes.c_float * 4).from_address(t.data_ptr())),
        "bytes of storage": lambda t: bytes(t.untyped_storage()),
        "list of storage": lambda t: list(t.untyped_storage())[:8],
        "slice of storage": lambda t: t.untyped_storage()[0],
        "typed storage": lambda t: t.storage().tolist(),
        "pointer of storage": lambda t: t.untyped_storage().data_ptr() == t.data_ptr(),
        "equal": lambda t: torch.equal(t, t.clone()),
        "allclose": lambda t: torch.allclose(t, t + 1e-9),
        "assert_close": lambda t: torch.testing.assert_close(t.detach(), t.detach() + 1),
        "sorted": lambda t: sorted(t.flatten()[:4]) == [],
        "max of Python": lambda t: max(t.flatten()[:4]),
        "min of rows": lambda t: min(float(r.sum()) for r in t),
        "tuple": lambda t: tuple(t),
        "unpacked": lambda t: [v.sum() for v in t.unbind()],
        "match": lambda t: _matched(t.sum() > 0),
        "setattr": lambda t: _with_attribute(t),
        "data": lambda t: t.data,
        "grad_fn": lambda t: t.grad_fn and t.grad_fn.name(),
        "next functions": lambda t: t.grad_fn and [f and f.name() for f, _ in t.grad_fn.next_functions],
        "is": lambda t: [t.detach() is t, t.view_as(t) is t, t.contiguous() is t, t.float() is t],
        "nonzero": lambda t: (t > 0).nonzero(),
        "mask": lambda t: t[t > 0],
        "unique": lambda t: t.round().unique(),
        "chunk by a number": lambda t: t[: int(t.abs().max().clamp(1, 2))],
    }


def questions() -> list[str]:
    """Their names."""
    found = [f"python: {name}" for name in python_functions()]
    for kind, owner in (("tensor", torch.Tensor), ("storage", torch.UntypedStorage), ("torch", torch)):
        for name in sorted(dir(owner)):
            if name in _OTHERWISE or any(word in name for word in _UNDEFINED):
                continue
            of_torch = not name.startswith(("_", "set_", "sym_", "from_")) and callable(getattr(torch, name, None))
            if kind != "torch" or (of_torch and isinstance(getattr(torch, name), types.BuiltinFunctionType)):
                found.append(f"{kind}: {name}")
    return found


def function_of(question: str) -> Callable[[torch.Tensor], Any]:
    """Of a float32 tensor of two dimensions. What takes arguments gets the first that PyTorch accepts."""
    kind, name = question.split(": ", 1)
    if kind == "python":
        return python_functions()[name]

    def ask(t: torch.Tensor, arguments: Callable[[torch.Tensor], tuple]) -> Any:
        owner = torch if kind == "torch" else t if kind == "tensor" else t.untyped_storage()
        value = getattr(owner, name)
        given = ((t,) if kind == "torch" else ()) + arguments(t)
        return value(*given) if callable(value) else value

    state = torch.get_rng_state()
    chosen = next((a for a in _ARGUMENTS if _accepted(ask, a)), _ARGUMENTS[0])
    torch.set_rng_state(state)
    return lambda t: ask(t, chosen)


def _accepted(ask: Callable[..., Any], arguments: Callable[[torch.Tensor], tuple]) -> bool:
    try:
        ask(torch.ones(4, 4, requires_grad=True) * 1, arguments)
    except Exception:
        return False
    return True


def kept(value: Any, depth: int = 0) -> Any:
    """What a step keeps of it: copies of tensors."""
    if isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_meta:
        return value.detach().clone()
    if isinstance(value, (list, tuple)) and depth < 3:
        return [kept(v, depth + 1) for v in value]
    return value if isinstance(value, (*_PLAIN, np.ndarray)) else type(value).__name__


def shown(value: Any, depth: int = 0) -> Any:
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_meta:
            return (str(value.layout), str(value.device), tuple(value.shape))
        plain = value.detach()
        return (
            type(value).__name__,
            value.dtype,
            tuple(value.shape),
            value.stride(),
            value.requires_grad,
            bytes(plain.resolve_conj().resolve_neg().contiguous().clone().untyped_storage()),
        )
    if isinstance(value, np.ndarray):
        return ("ndarray", value.dtype.name, value.shape, value.tobytes())
    if isinstance(value, (torch.UntypedStorage, torch.TypedStorage)):
        return (type(value).__name__, value.nbytes())
    if isinstance(value, (list, tuple)) and depth < 3:
        return [shown(v, depth + 1) for v in value]
    if isinstance(value, _PLAIN):
        return repr(value) if " at 0x" not in repr(value) else type(value).__name__
    return type(value).__name__


def _saved(t: torch.Tensor) -> Any:
    file = io.BytesIO()
    torch.save(t, file)
    file.seek(0)
    return torch.load(file)


def _matched(condition: torch.Tensor) -> str:
    match bool(condition):
        case True:
            return "positive"
        case _:
            return "not positive"


def _with_attribute(t: torch.Tensor) -> Any:
    t.scale = 2.0
    return t.scale

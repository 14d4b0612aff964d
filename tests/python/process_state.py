"""What Stowage may leave in a process while a call or a block goes on, and must not leave there afterwards."""

import sys

import torch

from stowage import _runtime
from stowage._torch import optimizer_steps


def left_over() -> list[str]:
    """Names what is there, in words; empty when no recording, matching or budget goes on, or listens."""
    patched = [name for name in dir(torch.Tensor) if _of_stowage(getattr(torch.Tensor, name, None))]
    modes = [type(torch._C._get_function_stack_at(i)) for i in range(torch._C._len_torch_function_stack())]
    found = {
        "a budget is active": _runtime.budget_active(),
        "operators are intercepted": _runtime.intercepting(),
        "somebody listens to optimizers": bool(optimizer_steps._listening),
        f"function modes: {modes}": bool(modes),
        "a dispatch mode": torch._C._len_torch_dispatch_stack() > 0,
        "a profile function": sys.getprofile() is not None,
        f"methods of torch.Tensor: {patched}": bool(patched),
    }
    return [what for what, there in found.items() if there]


def _of_stowage(method: object) -> bool:
    code = getattr(method, "__code__", None)
    return code is not None and "stowage" in code.co_filename.replace("\\", "/").split("/")[-2:-1]

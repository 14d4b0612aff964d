"""What a sharded step may not do to a DTensor, as no operator says so, and what is said in another way.

t.data = u                       a DTensor would keep what it has                refused
gru(x, ..., batch_first=True)    turns its result in place (transpose_),         gru of x.transpose(0, 1), whose result is turned: the
                                 which a DTensor cannot                          same kernels on the same numbers
torch.tensor(1.0)                an empty tensor that the host fills             only the operator that brings it into the step is
                                                                                 recorded
t.tolist(), t.numpy()            a DTensor has no content of its own             of the whole tensor; arrays are not written to
with torch.inference_mode()      no views of a DTensor; composite operators       as torch.no_grad(): the same numbers, in tensors that autograd
                                 come whole, and write unsaid                    may use
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode

from stowage._torch.fakes import is_fake
from stowage._torch.private import hook_open
from stowage.errors import Unsupported
from stowage.sharding.stand_in import StandIn, stood_for
from stowage.step.guards.reads import is_library

_SET_DATA: Any = vars(torch._C.TensorBase)["data"].__set__
_TURN_IN_PLACE = (torch._VF.gru, torch._VF.rnn_tanh, torch._VF.rnn_relu)
_FROM_PYTHON = (torch.tensor, torch.as_tensor, torch.asarray)
_CONTENT = (torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.__format__)
_ADDRESS = torch.Tensor.data_ptr
_ARGUMENTS = 9  # of those, where sequences are not packed; the last is batch_first


class PastTheDispatcher(TorchFunctionMode):
    def __init__(self, read: Callable[[Any, tuple, dict], Any]):
        """read(function, args, kwargs): calls a function that asks for the content of a tensor that has none of its own."""
        super().__init__()
        self._read = read

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if torch.is_inference_mode_enabled():
            with without_inference():
                return self.__torch_function__(func, types, args, kwargs)
        if any(issubclass(t, StandIn) for t in types):
            args, kwargs = stood_for(args), stood_for(kwargs or {})
        if func == _SET_DATA and (is_fake(args[0]) or isinstance(args[0], DTensor)):  # our own parts are plain tensors
            raise Unsupported(
                "the step sets the .data of a tensor (t.data = u): write t.copy_(u) instead, under torch.no_grad()"
            )
        if func == _ADDRESS and not is_library(sys._getframe(1).f_code):
            raise Unsupported("the step asks where a tensor lies in memory, which is another place on each rank")
        if func in _TURN_IN_PLACE and len(args) == _ARGUMENTS and args[-1] is True:
            output, hidden = func(args[0].transpose(0, 1), *args[1:-1], False)
            return output.transpose(0, 1), hidden
        if func in _CONTENT and (is_fake(args[0]) or isinstance(args[0], DTensor)):
            return self._read(func, args, kwargs or {})
        if func in _FROM_PYTHON:
            with hook_open(False):
                made = func(*args, **(kwargs or {}))
            # As torch.tensor() has done within: a call that is compared with the recording shows it
            return made.detach_() if func is torch.tensor and not made.requires_grad else made
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def without_inference() -> Iterator[None]:
    """Within torch.inference_mode(), as within torch.no_grad(); else nothing."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


def read_whole(func: Any, args: tuple, kwargs: dict) -> Any:
    """Of a DTensor."""
    found = func(args[0].full_tensor(), *args[1:], **kwargs)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(found, numpy.ndarray):
        found.flags.writeable = False  # it would not reach the parts
    return found

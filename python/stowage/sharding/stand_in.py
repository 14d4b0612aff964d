"""What a program holds of a parameter or a buffer by itself, once that is cut: it stands for what the model holds.

    before the cut    params = list(model.parameters())       model.weight ──► p ◄── params[0]
    from then on      model.weight ──► DTensor ◄── p ◄── params[0]      p is empty, and what is done to it is done to the DTensor

The object is the same, so that lists, closures and optimizers of the user's own go on; its class is one whose functions
(__torch_function__) and attributes are those of the tensor that it stands for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import torch

from stowage._torch.private import tree_map
from stowage.errors import Unsupported

_NAME = "_stowage_stands_for"


class StandIn(torch.Tensor):
    def __getattr__(self, name: str) -> Any:
        """What a DTensor has, and a plain tensor has not."""
        if name == _NAME:
            raise AttributeError(name)
        return getattr(self.__dict__[_NAME], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "data":
            raise Unsupported(
                "p.data = u of a parameter that was cut: write p.copy_(u) instead, under torch.no_grad(), in the step; between calls, of "
                "u = distribute_tensor(u, p.device_mesh, p.placements)"
            )
        setattr(self.__dict__[_NAME], name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.__dict__[_NAME], name)

    def __repr__(self) -> str:  # type: ignore[override]
        return repr(self.__dict__[_NAME])

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Between calls; within, PastTheDispatcher comes first."""
        if func is torch.Tensor.__setitem__ and any(not p.is_replicate() for p in stood_for(args[0]).placements):
            raise Unsupported(
                "p[i] = u of a tensor that was cut would be lost: PyTorch writes to a copy. Do it in the step"
            )
        return func(*stood_for(args), **stood_for(kwargs or {}))


class _OfParameter(StandIn, torch.nn.Parameter):
    pass


class _OfTensor(StandIn):
    pass


_CLASSES: dict[Any, Any] = {torch.nn.Parameter: _OfParameter, torch.Tensor: _OfTensor}
_ORIGINALS = {made: original for original, made in _CLASSES.items()}


def stood_for(tree: Any) -> Any:
    """The same with tensors in the place of what stands for them."""
    return tree_map(lambda t: t.__dict__[_NAME] if isinstance(t, StandIn) else t, tree)


def can_stand_in(p: torch.Tensor) -> bool:
    return type(p) in _CLASSES or isinstance(p, StandIn)


def hang_over(a: torch.Tensor, b: torch.Tensor) -> None:
    """What the program has hung on the first as attributes (``p.no_decay = True``) is on the second, too."""
    theirs = {name: value for name, value in a.__dict__.items() if not name.startswith(("_stowage", "_is_param"))}
    b.__dict__.update({name: value for name, value in theirs.items() if name not in b.__dict__})


def stand_in(p: torch.Tensor, tensor: torch.Tensor) -> None:
    """``p`` stands for ``tensor`` from now on; what it held is let go, and what hangs on it is to hang on that (hang_over())."""
    p.grad = None
    p.data = torch.empty(0, dtype=p.dtype, device=p.device)
    p.__dict__.clear()
    _become(p, tensor)


def hold_again(p: torch.Tensor, content: torch.Tensor) -> None:
    """``p`` stands for nothing any more, and has this content."""
    tensor = p.__dict__[_NAME]
    _be_itself(p)
    hang_over(tensor, p)
    p.data = content


@contextlib.contextmanager
def standing_in(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]):
    """While open, the first of each pair stands for the second; afterwards for what it stood for before."""
    before: list[tuple[torch.Tensor, torch.Tensor | None]] = []
    try:
        for p, tensor in pairs:
            before.append((p, p.__dict__.get(_NAME)))
            _become(p, tensor)
        yield
    finally:
        for p, tensor_before in before:
            if tensor_before is None:
                _be_itself(p)
            else:
                p.__dict__[_NAME] = tensor_before


@contextlib.contextmanager
def what_is_held_explained():
    """Functions of C that ask nobody meet the empty tensor, and say so in words of their own."""
    try:
        yield
    except RuntimeError as error:
        if "compatible with [0]" not in str(error):
            raise
        raise Unsupported(
            "an autograd.Function, a reentrant checkpoint or torch.func is given a parameter that the program holds by itself: give it the "
            f"model's own (model.get_parameter(name)): {error}"
        ) from error


def _become(p: torch.Tensor, tensor: torch.Tensor) -> None:
    p.__dict__[_NAME] = tensor
    if not isinstance(p, StandIn):
        p.__class__ = _CLASSES[type(p)]


def _be_itself(p: torch.Tensor) -> None:
    object.__setattr__(p, "__class__", _ORIGINALS[type(p)])
    del p.__dict__[_NAME]

"""make_step: the function by which a user tells what is trained, so that it can be built at any size without its memory.

    def make_step(batch_size=8, length=512):            # one of them, both or none; any other parameter needs a default
        model, optimizer = ...                          # all of it is built in here
        def train_step(tokens): ...
        return train_step, torch.zeros(batch_size, length, dtype=torch.long)

It runs under FakeTensorMode, so its tensors have shapes and no memory. What goes wrong in it is told by the user's own line."""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from stowage._torch.fakes import DATA_DEPENDENT, constant_of, is_fake
from stowage._torch.private import flatten
from stowage.errors import Error, Unsupported
from stowage.step.reach.world import World
from stowage.step.record.recording import LIBRARY_FOLDERS
from stowage.step.signature.signature import objects_of

SIZES = ("batch_size", "length")
_MIXED = ("convert all Tensors to FakeTensors", "Mixing fake modes", "FakeTensor mode must be")
# PyTorch's words where content is asked for that nothing has here, and what to do.
_WITHOUT_CONTENT = {
    "numpy() is not supported for tensor subclasses": "an array of a tensor that has no memory here: do that outside of the step",
    "Creating a new Tensor subclass UninitializedParameter": "a lazy module, whose sizes are not known yet: say them (Linear, not LazyLinear)",
    "WeakValueDictionary.__init__": "a tensor that has no memory here is pickled or copied: do that outside of the step",
}


class MakeStep:
    """A make_step of the user's, and which sizes it takes. ``defaults``: those that it says itself.

    asks: a size that it must take, by its name, or as its first parameter where that has another."""

    def __init__(self, function: Callable[..., Any], asks: str | None = None):
        if not callable(function):
            raise TypeError(f"make_step must be a function, not {type(function).__name__}")
        self._function = function
        self.name = getattr(function, "__name__", type(function).__name__)
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            raise TypeError(f"{self.name}: its parameters cannot be told; write it with def") from None
        self.takes = tuple(p.name for p in parameters if p.name in SIZES and p.kind is not p.POSITIONAL_ONLY)
        self._first = ""  # the size that is handed over by position
        if asks and asks not in self.takes:
            parameters = self._without_first(parameters, asks)
        self.defaults: dict[str, int] = {}
        for p in parameters:
            if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                continue
            if p.name in self.takes and p.default is not p.empty:
                self.defaults[p.name] = check_size(f"{self.name}({p.name}=...)", p.default)
            elif p.name not in self.takes and p.default is p.empty:
                raise TypeError(
                    f"{self.name}() needs '{p.name}': it can take batch_size and length; give any other parameter a default"
                )

    def _without_first(self, parameters: list[inspect.Parameter], asks: str) -> list[inspect.Parameter]:
        kinds = (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            inspect.Parameter.VAR_POSITIONAL,
        )
        if not parameters or parameters[0].kind not in kinds or parameters[0].name in SIZES:
            raise TypeError(f"{self.name}() needs a parameter '{asks}', which is asked for")
        self._first = asks
        self.takes += (asks,)
        return parameters[1:]

    def sizes(self, asked: Mapping[str, int | None]) -> dict[str, int]:
        """All sizes that it takes: as asked for, else its own defaults, else 1."""
        for name, size in asked.items():
            if size is not None:
                check_size(name, size)
                if name not in self.takes:
                    raise TypeError(f"{self.name}() does not take '{name}'")
        return {name: asked.get(name) or self.defaults.get(name, 1) for name in SIZES if name in self.takes}

    def __call__(self, sizes: dict[str, int]) -> tuple[Callable, tuple]:
        """The step and its arguments at these sizes. Within FakeTensorMode."""
        first = [sizes[self._first]] if self._first else []
        made = self._function(*first, **{name: size for name, size in sizes.items() if name != self._first})
        if not isinstance(made, tuple) or len(made) != 2 or not callable(made[0]):
            raise TypeError(f"{self.name}() must return (train_step, arguments), not {_described(made)}")
        train_step, arguments = made
        arguments = arguments if isinstance(arguments, tuple) else (arguments,)
        refuse_real(train_step, arguments)
        return train_step, arguments


def check_size(what: str, size: Any) -> int:
    if not isinstance(size, int) or isinstance(size, bool):
        raise TypeError(f"{what} must be an int, not {type(size).__name__}")
    if size < 1:
        raise ValueError(f"{what} must be at least 1: {size}")
    return size


def _described(made: Any) -> str:
    if isinstance(made, tuple):
        return (
            f"a tuple of {len(made)}" if len(made) != 2 else f"({type(made[0]).__name__}, ...), which cannot be called"
        )
    if isinstance(made, torch.Tensor):
        return "a tensor"
    return "None: is a return missing?" if made is None else f"a {type(made).__name__}"


def load(where: str) -> MakeStep:
    """The function that "script.py:make_step" names. The script runs as a module: what stands under
    ``if __name__ == "__main__"`` does not. Raises Error with one line that names the file and what to do."""
    path, colon, name = where.rpartition(":")
    if not colon or not path or not name.isidentifier():
        raise Error(f"'{where}': say which function of which file, as script.py:make_step")
    if not os.path.isfile(path):
        raise Error(f"{path}: no such file")
    spec = importlib.util.spec_from_file_location("stowage_model_from", path)
    if spec is None or spec.loader is None:
        raise Error(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        functions = [n for n, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__]
        raise Error(f"{path}: has no '{name}'" + (f"; it has {', '.join(functions)}" if functions else ""))
    return MakeStep(getattr(module, name))


@contextmanager
def told_by_line() -> Iterator[None]:
    """What a step on tensors without memory cannot do is told with the user's line, and what to write instead."""
    try:
        yield
    except DATA_DEPENDENT as error:
        raise Unsupported(
            f"{user_line(error)}: numbers that depend on data ({error}); nothing is computed here, so return tensors "
            "instead of reading them (loss, not loss.item())"
        ) from None
    except (AssertionError, RuntimeError, AttributeError) as error:
        if any(words in str(error) for words in _MIXED):
            raise Error(
                f"{user_line(error)}: a tensor that was made before make_step() meets one made in it: build the model, the "
                "optimizer and the arguments inside"
            ) from None
        for words, what in _WITHOUT_CONTENT.items():
            if words in str(error):
                raise Unsupported(f"{user_line(error)}: {what}") from None
        raise


def user_line(error: BaseException) -> str:
    """The innermost line of the user's own code."""
    return innermost_line(traceback.extract_tb(error.__traceback__))


def innermost_line(frames: traceback.StackSummary) -> str:
    """Of the user's own code."""
    own = [f for f in frames if not f.filename.startswith(tuple(LIBRARY_FOLDERS))]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else "the step"


def refuse_real(train_step: Callable, arguments: tuple) -> None:
    """A tensor made before make_step() has memory, and cannot be mixed with those that have none."""
    world = World(train_step, objects_of(arguments, {}))
    named: list[tuple[str, torch.Tensor]]
    named = [(f"{path}.{name}", p) for path, module in world.modules for name, p in module.named_parameters()]
    named += world.tensors + [("the batch", leaf) for leaf in flatten(arguments)[0]]
    made = [*(t for _, t in named), *(b for _, module in world.modules for b in module.buffers())]
    constants = {id(constant_of(t)) for t in made if isinstance(t, torch.Tensor)}
    for name, tensor in named:
        if isinstance(tensor, torch.Tensor) and not is_fake(tensor) and id(tensor) not in constants:
            raise Error(
                f"'{name}' was not made inside make_step(): build the model, the optimizer and the batch there, for each batch size"
            )

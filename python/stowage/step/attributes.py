"""A compiled step's attributes are those of its function, so that guards see them where they see the function's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any


class FunctionAttributes:
    """``_fn``: the function. What is set before ``_own`` is there, and what the class has, stays the step's own."""

    if not TYPE_CHECKING:  # a name that is misspelt is still an error to those who look at types

        def __getattr__(self, name: str) -> Any:
            fn = self.__dict__.get("_fn")
            if fn is None or (name.startswith("__") and name.endswith("__")):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return getattr(fn, name)

        def __setattr__(self, name: str, value: Any) -> None:
            if name in self.__dict__.get("_own", (name,)) or hasattr(type(self), name):
                object.__setattr__(self, name, value)
                return
            try:
                setattr(self._fn, name, value)
            except AttributeError:  # a bound method can have none
                object.__setattr__(self, name, value)

        def __delattr__(self, name: str) -> None:
            if name in self.__dict__:
                object.__delattr__(self, name)
            else:
                delattr(self._fn, name)


__all__ = ["FunctionAttributes"]

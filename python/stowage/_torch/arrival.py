"""Calls a function as soon as a module has been imported; at once where it already is. Does not import it.

import stowage ──► a finder in front of sys.meta_path
import torch   ──► the finder leaves, lets the others find torch, and calls the function when its module has run
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from typing import Any


def when_imported(module: str, then: Callable[[], None]) -> None:
    if sys.modules.get(module) is not None:
        then()
    else:
        sys.meta_path.insert(0, _Finder(module, then))


class _Finder(MetaPathFinder):
    def __init__(self, module: str, then: Callable[[], None]):
        self._module = module
        self._then = then

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != self._module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._then)
        return spec


class _Loader(Loader):
    """Loads as the true loader does, and is gone once the module runs."""

    def __init__(self, loader: Any, then: Callable[[], None]):
        self._loader = loader
        self._then = then

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._then()

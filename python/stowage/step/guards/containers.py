"""Containers: their elements by identity, and what these hold.

    list, dict, deque, set    which elements they have is compared in each call
    tuple, frozenset          never change; what they hold may

Of containers of more than LARGE elements none is entered, and lists of more than _MOST_POINTERS elements together are not
compared: the guard is blind then. O(elements)."""

from __future__ import annotations

import collections
import gc
from typing import Any

from stowage.step.guards.graph import IMMUTABLE, LARGE, Graph

_MOST_POINTERS = 16_384  # of the lists that are compared element by element


def enter_tuple(graph: Graph, i: int, value: tuple | list, path: str, trusted: bool) -> None:
    for at, item in enumerate(tuple(value[:LARGE])):
        graph.reach(i, None, item, f"{path}[{at}]", trusted)
    _too_large(graph, i, value, path)


def enter_list(graph: Graph, i: int, value: list, path: str, trusted: bool) -> None:
    graph.pointers += len(value)
    if graph.pointers > _MOST_POINTERS and len(value) > 64:
        graph.add(i, graph.guard.size(value, path), trusted)
        if not trusted:
            graph.hidden[i] = f"'{path}' has {len(value)} elements, too many to compare in each call"
    else:
        graph.add(i, graph.guard.list(value, path), trusted)
    enter_tuple(graph, i, value, path, trusted)


def enter_dict(graph: Graph, i: int, value: dict, path: str, trusted: bool) -> None:
    graph.add(i, graph.guard.dict(value, False, trusted, path), trusted)
    if isinstance(value, collections.OrderedDict) and len(value) > 1:
        graph.add(i, graph.guard.elements(value, path), trusted)
    if isinstance(value, collections.defaultdict):
        graph.reach(i, None, value.default_factory, path, trusted)
    if len(value) <= LARGE:
        for key, item in list(value.items()):
            graph.reach(
                i,
                None,
                item,
                f"{path}.{key}" if type(key) is str else f"{path}[{key!r}]" if type(key) is int else f"{path}[...]",
                trusted,
            )
            graph.reach(i, None, key, f"a key of {path}", trusted)
    _too_large(graph, i, value, path)


def enter_elements(graph: Graph, i: int, value: Any, path: str, trusted: bool) -> None:
    if not isinstance(value, frozenset):
        if len(value) > _MOST_POINTERS:
            graph.hidden[i] = f"'{path}' has {len(value)} elements, too many to compare in each call"
            graph.add(i, graph.guard.size(value, path), trusted)
        else:
            graph.add(i, graph.guard.elements(value, path), trusted)
    if len(value) <= LARGE:
        for item in list(value):
            graph.reach(i, None, item, f"an element of {path}", trusted)
    _too_large(graph, i, value, path)


def _too_large(graph: Graph, i: int, value: Any, path: str) -> None:
    if len(value) > LARGE and i not in graph.hidden:
        items = value.values() if isinstance(value, dict) else value
        if any(type(item) not in IMMUTABLE for item in items):
            graph.hidden[i] = f"'{path}' has {len(value)} elements, which are not looked into"


def enter_mapping_proxy(graph: Graph, i: int, value: Any, path: str, trusted: bool) -> None:
    for inner in gc.get_referents(value):
        graph.reach(i, None, inner, path, trusted)


__all__ = ["enter_dict", "enter_elements", "enter_list", "enter_mapping_proxy", "enter_tuple"]

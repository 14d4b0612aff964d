"""Objects that are compared by their bytes: arrays, and what C keeps of an object.

    buffer protocol (arrays, bytearrays)    all bytes, of up to _MOST_BYTES together; looked at before and after the recorded
                                            call, too, so that an array which the step itself changes is found
    object of a C class                     the numbers in its fixed part, but for its dict and its weak references
    of a C extension that is not known      the same, and the guard is blind: such objects keep more elsewhere

O(bytes)."""

from __future__ import annotations

import gc
import types
from typing import Any

from stowage._core import buffer_digest, buffer_memory
from stowage.step.guards.blind import REACHES_MEMORY, is_quiet, module_of, stands_for_memory, type_name
from stowage.step.guards.graph import LARGE, Graph

_MOST_BYTES = 1 << 18  # of all arrays that are compared
_MOST_DIGESTED = 1 << 28  # of those that are looked at before and after the recorded call
HEAD_BYTES = object.__basicsize__


def enter_buffer(graph: Graph, i: int, value: Any, path: str, trusted: bool) -> None:
    try:
        size = memoryview(value).nbytes
    except (TypeError, ValueError, BufferError):
        opaque(graph, i, value, type(value), path, trusted)
        return
    note_memory(graph, i, value, path)
    graph.bytes += size
    if graph.bytes > _MOST_BYTES and size > 4096:
        graph.hidden[i] = f"'{path}' is an array of {size} bytes, too many to compare in each call"
        return
    graph.add(i, graph.guard.buffer(value, path), trusted)
    if getattr(value, "dtype", None) is not None and value.dtype.hasobject:
        for at, item in enumerate(value.ravel().tolist()[:LARGE]):
            graph.reach(i, None, item, f"{path}[{at}]", trusted)


def note_memory(graph: Graph, i: int, value: Any, path: str) -> None:
    """Of the buffer protocol: as it is now, unless it is large, or a file."""
    begin, end = buffer_memory(value)
    graph.digested += end - begin
    if end > begin:
        known = graph.digested <= _MOST_DIGESTED and type(value).__name__ not in ("memmap", "mmap")
        graph.memories.append((i, path, value, buffer_digest(value) if known else None))


def memory(graph: Graph, i: int, value: Any, cls: type, what: str, trusted: bool) -> None:
    """The numbers in the fixed part of a C object, but for its dict and its weak references."""
    cuts = sorted(o for o in (cls.__dictoffset__, cls.__weakrefoffset__) if o > 0)
    begin = HEAD_BYTES
    for cut in [*cuts, cls.__basicsize__]:
        if cut > begin:
            graph.add(i, graph.guard.memory(value, begin, cut, trusted, what), trusted)
        begin = cut + 8


def opaque(graph: Graph, i: int, value: Any, cls: type, path: str, trusted: bool) -> None:
    if is_quiet(cls) or trusted:
        return
    note_memory(graph, i, value, path)
    if cls.__basicsize__ > HEAD_BYTES:
        memory(graph, i, value, cls, f"'{path}'", trusted)
    known = type_name(cls).startswith(("itertools.", "builtins.")) or module_of(cls) == "builtins"
    if stands_for_memory(value, cls):
        graph.by_address[i] = f"{REACHES_MEMORY} ('{path}')"
    if not known:
        graph.hidden[i] = f"'{path}' is a {type_name(cls)}, which keeps its state to itself"
    for inner in gc.get_referents(value) if gc.is_tracked(value) else ():
        if inner is not type(value) and not isinstance(inner, types.ModuleType):
            graph.reach(i, None, inner, path, trusted)


__all__ = ["HEAD_BYTES", "enter_buffer", "memory", "note_memory", "opaque"]

"""Plans kept on disk, so that the second start of a training job plans nothing.

    plans/KEY.plan      KEY: digest of the planner, of the graph without its names and costs, and of the options

An entry holds a plan, its summary and the costs that it was made with. Without a budget costs decide nothing, and any
entry serves; with one the costs must be the same. Measured costs differ from process to process, so whoever measures
them asks first what the kept plan was made with (``kept_costs``), and takes those where they are near.

Entries are written as a whole, and carry a digest of themselves; several processes may share the directory. What is
damaged, forged or of another kind (no plain file, too large, too deep) is ignored with a warning and replaced, and
whatever is loaded must pass the checker. STOWAGE_PLAN_CACHE bounds their size ("1GiB"; default 256 MiB), the least
recently used leave first; "off" keeps none. A directory that others may write to is not used (directory.py).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import stat
import zlib
from pathlib import Path
from typing import Any

from stowage import _core
from stowage._core import Graph
from stowage.cache.directory import Folder, Refused, cache_directory, opened
from stowage.errors import warn

_MAGIC = b"stowage-plan 1 "
_DEFAULT_BYTES = 256 << 20
_NEAR = 1 / 2  # of two cost vectors: sum |a - b| / sum (a + b); a half when all ops cost three times as much
_LEAST_UNPACKED = 16 << 20  # bytes of an entry that are unpacked for any graph,
_UNPACKED_EACH = 4096  # and for each op and buffer
_MOST_NUMBER = 1 << 62
_MANY = 256  # entries
_spare_bytes: dict[
    tuple[str, int], int
] = {}  # by directory and limit: what may still be written until all are looked at again
_WARNED: set[tuple] = set()  # of an entry, or of the directory, once


@dataclasses.dataclass
class Entry:
    """``provisional``: made with guessed costs, for a graph that the rehearsal then replaced by another; good enough
    for a rehearsal."""

    plan: _core.Plan
    summary: dict
    costs_ns: list[int]
    provisional: bool = False


def find(graph: Graph, options: dict[str, Any]) -> Entry | None:
    """The kept plan of this graph, checked; None where there is none, or one that was made with other costs and they
    matter."""
    entry = _load(graph, options)
    if entry is None or (options["budget_bytes"] is not None and entry.costs_ns != graph.costs_ns):
        return None
    return entry


def kept_costs(graph: Graph, options: dict[str, Any], measured: bool) -> tuple[list[int], bool] | None:
    """Costs of the ops that the kept plan was made with, and whether it is provisional; None where they are far from
    the graph's. measured: the graph's costs are, and a provisional plan serves whatever its costs, as it is only
    rehearsed."""
    entry = _load(graph, options)
    if entry is None:
        return None
    if not (entry.provisional and measured):
        apart = sum(abs(a - b) for a, b in zip(entry.costs_ns, graph.costs_ns))
        if apart > _NEAR * sum(a + b for a, b in zip(entry.costs_ns, graph.costs_ns)):
            return None
    return entry.costs_ns, entry.provisional


def keep(graph: Graph, options: dict[str, Any], entry: Entry) -> None:
    """Writes it in place of what was kept. Without a writable directory nothing is kept."""
    most = limit_bytes()
    if most == 0:
        return
    key = _key(graph, options)
    head = {"key": key, "summary": entry.summary, "costs_ns": entry.costs_ns, "provisional": entry.provisional}
    body = zlib.compress(json.dumps(head).encode() + b"\n" + entry.plan.to_json().encode(), 1)
    content = _MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body
    if len(content) > most:
        return
    try:
        with opened(cache_directory(), "plans", make=True) as folder:
            if folder.replace(_name(key), content):
                _make_room(folder, most, len(content))
    except (OSError, Refused) as error:
        _warn_refused(error)


def limit_bytes() -> int:
    """Of all entries together; 0 when the cache is off."""
    named = os.environ.get("STOWAGE_PLAN_CACHE", "")
    if named == "off":
        return 0
    return _core.parse_bytes(named) if named else _DEFAULT_BYTES


def _load(graph: Graph, options: dict[str, Any]) -> Entry | None:
    if limit_bytes() == 0:
        return None
    key = _key(graph, options)
    name = _name(key)
    try:
        with opened(cache_directory(), "plans") as folder:
            try:
                entry = _read(folder.read(name, limit_bytes()), key, graph, options["budget_bytes"])
            except FileNotFoundError:
                return None
            except Exception as error:  # whatever its bytes make a reader do
                info = os.stat(name, dir_fd=folder.descriptor, follow_symlinks=False)
                why = (
                    str(error)
                    if isinstance(error, (ValueError, _core.Error))
                    else f"it is damaged ({type(error).__name__})"
                )
                _warn_once(
                    (name, info.st_ino, info.st_mtime_ns), f"the kept plan '{folder.path / name}' is ignored: {why}"
                )
                return None
            folder.used_now(name)
            return entry
    except (OSError, Refused) as error:
        _warn_refused(error)
        return None


def _warn_refused(error: Exception) -> None:
    """Where there is no directory, or none can be made, nothing is kept, and that is all."""
    if isinstance(error, Refused):
        _warn_once(("refused", str(error)), f"no plans are kept: {error}")


def _warn_once(what: tuple, message: str) -> None:
    if what not in _WARNED:
        _WARNED.add(what)
        warn(message)


def _read(content: bytes, key: str, graph: Graph, budget_bytes: int | None) -> Entry:
    head_line, separator, body = content.partition(b"\n")
    if not head_line.startswith(_MAGIC) or not separator:
        raise ValueError("it is no plan of this version")
    if head_line[len(_MAGIC) :].decode() != hashlib.sha256(body).hexdigest():
        raise ValueError("it is damaged")
    head_json, _, plan_json = _unpacked(body, _LEAST_UNPACKED + _UNPACKED_EACH * (graph.ops + graph.buffers)).partition(
        b"\n"
    )
    head = json.loads(head_json)
    if head["key"] != key:
        raise ValueError("it is of another graph, or made with other options")
    plan = _core.Plan.parse(plan_json.decode()).of_graph(graph)
    summary, costs_ns = head["summary"], head["costs_ns"]
    if (
        not _is_summary(summary)
        or _core.check(graph, plan) != summary["peak_bytes"]
        or not _agrees(summary, graph, plan, budget_bytes)
    ):
        raise ValueError("its summary is not that of its plan")
    if budget_bytes is not None and plan.resident_bytes(graph) + plan.arena_bytes > budget_bytes:
        raise ValueError("it does not fit the budget")
    if not isinstance(costs_ns, list) or len(costs_ns) != graph.ops or not all(map(_is_count, costs_ns)):
        raise ValueError("its costs are not those of the graph's ops")
    return Entry(plan, summary, costs_ns, head["provisional"] is True)


def _unpacked(body: bytes, most_bytes: int) -> bytes:
    unpacker = zlib.decompressobj()
    text = unpacker.decompress(body, most_bytes)
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError(f"it is damaged, or unpacked larger than {most_bytes} bytes")
    return text


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MOST_NUMBER


# Of each field, what `stowage._core.plan` may put there.
_SUMMARY = {
    "outcome": lambda v: v in ("optimal", "feasible"),
    **dict.fromkeys(
        (
            "ops",
            "buffers",
            "resident_bytes",
            "program_peak_bytes",
            "peak_bytes",
            "lower_bound_bytes",
            "arena_bytes",
            "recomputed_ops",
            "recompute_ns",
            "swapped_bytes",
            "step_ns",
            "program_step_ns",
        ),
        _is_count,
    ),
    **dict.fromkeys(("budget_bytes", "step_bound_ns"), lambda v: v is None or _is_count(v)),
    "gap": lambda v: type(v) in (int, float) and v == v,
    "seconds": lambda v: type(v) is dict and all(type(s) in (int, float) for s in v.values()),
}


def _is_summary(value: Any) -> bool:
    return type(value) is dict and all(name in value and fits(value[name]) for name, fits in _SUMMARY.items())


def _key(graph: Graph, options: dict[str, Any]) -> str:
    return hashlib.sha256(
        json.dumps([_planner(), graph.structure_sha256, options], sort_keys=True).encode()
    ).hexdigest()


@functools.cache
def _planner() -> str:
    """Digest of the compiled planner: another one may plan otherwise."""
    digest = hashlib.sha256(_core.version.encode())
    for path in (Path(_core.__file__), Path(_core.__file__).parent / "lib" / "libstowage_core.so"):
        if path.exists():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _agrees(summary: dict, graph: Graph, plan: _core.Plan, budget_bytes: int | None) -> bool:
    """With what is known of the graph; what only a search could tell is believed."""
    known = {
        "ops": graph.ops,
        "buffers": graph.buffers,
        "resident_bytes": plan.resident_bytes(graph),
        "program_peak_bytes": graph.program_peak_bytes,
        "arena_bytes": plan.arena_bytes,
        "budget_bytes": budget_bytes,
    }
    return all(summary[name] == value for name, value in known.items())


def _name(key: str) -> str:
    return f"{key[:32]}.plan"


def _make_room(folder: Folder, most: int, written: int) -> None:
    """Looks at all entries only where those that this process has written since it last looked may have filled half of what was
    free: others write, too. O(1) but for that."""
    place = (str(folder.path), most)
    spare = _spare_bytes.get(place, 0) - written
    _spare_bytes[place] = spare if spare >= 0 else (most - _evict(folder, most)) // 2


def _evict(folder: Folder, most: int) -> int:
    """Returns the bytes of all that stay. What lies there under the name of an entry and is no file counts as nothing, and stays
    until it is replaced."""
    folder.tidy()
    found = [
        (i.st_mtime_ns, i.st_size, name)
        for name, i in folder.entries()
        if name.endswith(".plan") and stat.S_ISREG(i.st_mode)
    ]
    total = sum(size for _, size, _ in found)
    kept = most - most // 8 if total > most and len(found) >= _MANY else most  # room for many, so that it lasts
    for _, size, name in sorted(found):
        if total <= kept:
            break
        folder.remove(name)
        total -= size
    return total


__all__ = ["Entry", "find", "keep", "kept_costs", "limit_bytes"]

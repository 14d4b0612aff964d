"""Plans kept on disk, so that the second start of a training job plans nothing.

    plans/KEY.plan      KEY: digest of the planner, of the graph without its names and costs, and of the options

An entry holds a plan, its summary and the costs that it was made with. Without a budget costs decide nothing, and any entry serves; with
one the costs must be the same. Measured costs differ from process to process, so whoever measures them asks first what the kept plan
was made with (``kept_costs``), and takes those where they are near.

Entries are written as a whole, and carry a digest of themselves; several processes may share the directory. What is damaged or of
another kind is ignored with a warning and replaced, and whatever is loaded must pass the checker. STOWAGE_PLAN_CACHE bounds their size
("1GiB"; default 256 MiB), the least recently used leave first; "off" keeps none.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import time
import warnings
import zlib
from pathlib import Path
from typing import Any

from stowage import _core
from stowage._core import Graph
from stowage.cache_directory import cache_directory, replace_file

_MAGIC = b"stowage-plan 1 "
_DEFAULT_BYTES = 256 << 20
_NEAR = 1 / 2  # of two cost vectors: sum |a - b| / sum (a + b); a half when all ops cost three times as much
_STALE_S = 3600  # half-written files of processes that were killed


@dataclasses.dataclass
class Entry:
    """``provisional``: made with guessed costs, for a graph that the rehearsal then replaced by another; good enough for a rehearsal."""

    plan: _core.Plan
    summary: dict
    costs_ns: list[int]
    provisional: bool = False


def find(graph: Graph, options: dict[str, Any]) -> Entry | None:
    """The kept plan of this graph, checked; None where there is none, or one that was made with other costs and they matter."""
    entry = _load(graph, options)
    if entry is None or (options["budget_bytes"] is not None and entry.costs_ns != graph.costs_ns):
        return None
    return entry


def kept_costs(graph: Graph, options: dict[str, Any], measured: bool) -> tuple[list[int], bool] | None:
    """Costs of the ops that the kept plan was made with, and whether it is provisional; None where they are far from the graph's.
    measured: the graph's costs are, and a provisional plan serves whatever its costs, as it is only rehearsed."""
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
    if len(content) <= most and replace_file(_path(key), content):
        _evict(most)


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
    path = _path(key)
    try:
        content = path.read_bytes()
    except OSError:
        return None
    try:
        entry = _read(content, key, graph)
    except (ValueError, KeyError, TypeError, zlib.error, _core.Error) as error:
        warnings.warn(f"stowage: the kept plan '{path}' is ignored: {error}", stacklevel=4)
        return None
    try:
        os.utime(path)  # used now
    except OSError:
        pass
    return entry


def _read(content: bytes, key: str, graph: Graph) -> Entry:
    head_line, separator, body = content.partition(b"\n")
    if not head_line.startswith(_MAGIC) or not separator:
        raise ValueError("it is no plan of this version")
    if head_line[len(_MAGIC) :].decode() != hashlib.sha256(body).hexdigest():
        raise ValueError("it is damaged")
    head_json, _, plan_json = zlib.decompress(body).partition(b"\n")
    head = json.loads(head_json)
    if head["key"] != key:
        raise ValueError("it is of another graph, or made with other options")
    plan = _core.Plan.parse(plan_json.decode()).of_graph(graph)
    if _core.check(graph, plan) != head["summary"]["peak_bytes"]:
        raise ValueError("its peak is not what it says")
    return Entry(plan, dict(head["summary"]), list(head["costs_ns"]), bool(head["provisional"]))


def _key(graph: Graph, options: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps([_planner(), graph.structure_sha256, options], sort_keys=True).encode()).hexdigest()


@functools.cache
def _planner() -> str:
    """Digest of the compiled planner: another one may plan otherwise."""
    digest = hashlib.sha256(_core.version.encode())
    for path in (Path(_core.__file__), Path(_core.__file__).parent / "lib" / "libstowage_core.so"):
        if path.exists():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _path(key: str) -> Path:
    return cache_directory() / "plans" / f"{key[:32]}.plan"


def _evict(most: int) -> None:
    found = []
    try:
        with os.scandir(cache_directory() / "plans") as entries:
            for item in entries:
                info = item.stat()
                if item.name.endswith(".plan"):
                    found.append((info.st_mtime_ns, info.st_size, item.path))
                elif info.st_mtime < time.time() - _STALE_S:
                    os.unlink(item.path)
    except OSError:
        return  # another process tidies up too
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= most:
            break
        Path(path).unlink(missing_ok=True)
        total -= size


__all__ = ["Entry", "find", "keep", "kept_costs", "limit_bytes"]

"""What ops cost on this machine, measured in planned steps and kept in a file of the user's cache directory.

    recorded step        costs with page faults and Python in them: a first guess, the median over ops of equal key
    rehearsal            each op timed in the arena
    first planned steps  timed too; then the file is written, or at the end of the program

One file for each torch version, CPU model and number of threads. It is replaced as a whole, so several processes may
share it; what cannot be read (damaged, forged, no plain file, too large or deep) is ignored with a warning, and written
anew. A directory that others may write to is not used (directory.py).
"""

from __future__ import annotations

import atexit
import hashlib
import json
import platform
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from stowage.cache.directory import Refused, cache_directory, opened
from stowage.errors import warn

_VERSION = 1
_KEPT = 8  # samples of a key, the newest
# Those measured last: steps of ever new shapes would make the file ever longer, and each save costs what it is long
_MOST_KEYS = 8192
_ENOUGH = 4
_MOST_BYTES = 64 << 20  # of the file
_MOST_NS = 1 << 53
_MOST_GBPS = 1e6
_TRIAL_BYTES = 64 << 20  # of the device, for a trial of its link
_REST = 50  # so many times as long as a save has taken, none follows
_FILES: dict[Path, CostFile] = {}


class CostFile:
    """Costs by key, on disk and in memory."""

    def __init__(self, path: Path, machine: dict):
        self.path = path
        self.machine = machine
        self.ops: dict[str, list[int]] = {}
        self.link_gbps: dict[str, float] = {}
        self._fresh: set[str] = set()  # keys measured here since the last save
        self._refused = False
        self._rests_until = 0.0  # on the monotonic clock
        self._saves_at_end = False
        self._load(self.ops, self.link_gbps)

    def _load(self, ops: dict, link_gbps: dict) -> None:
        try:
            with opened(self.path.parent) as folder:
                data = json.loads(folder.read(self.path.name, _MOST_BYTES))
            if data["format"] != "stowage-costs" or data["version"] != _VERSION or data["machine"] != self.machine:
                raise ValueError("made by another version")
            read_ops = {key: _samples(values) for key, values in data["ops"].items() if values}
            read_link = {key: _gbps(value) for key, value in data["link_gbps"].items()}
        except (OSError, Refused) as error:  # none yet
            if isinstance(error, Refused) and not self._refused:
                self._refused = True
                warn(f"no costs are kept: {error}")
            return
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
            why = str(error) if isinstance(error, ValueError) else f"damaged ({type(error).__name__})"
            warn(f"costs in '{self.path}' are ignored: {why}")
            return
        ops.update(read_ops)
        link_gbps.update(read_link)

    def cost_ns(self, key: str) -> int | None:
        samples = self.ops.get(key)
        return _median(samples) if samples else None

    def price(self, tape) -> float:
        """Sets the tape's costs: what is known of a key, else the median over its ops of what the tape says. Returns
        the share of the latter in the whole."""
        keys, recorded = tape.cost_keys(), tape.costs_ns
        seen = defaultdict(list)
        for key, ns in zip(keys, recorded):
            seen[key].append(ns)
        guesses = {key: _median(values) for key, values in seen.items()}
        known = {key: ns for key in guesses if (ns := self.cost_ns(key)) is not None}
        tape.costs_ns = costs = [known.get(key, guesses[key]) for key in keys]
        guessed = sum(ns for key, ns in zip(keys, costs) if key and key not in known)
        return guessed / max(1, sum(costs))

    def lane_gbps(self, host, store: str, device: str = "cpu", room_bytes: int = _TRIAL_BYTES) -> float | None:
        """What each lane between a device and the host store moves, measured once; None where it cannot be.
        ``room_bytes``: what the trial may take of the device; with less than it wants it tells less, and is not kept."""
        kind = store if device == "cpu" else f"{device} {store}"
        if kind not in self.link_gbps:
            gbps = host.measure_gbps(device, room_bytes)
            if gbps <= 0:
                return None
            if room_bytes < _TRIAL_BYTES:
                return gbps
            self.link_gbps[kind] = gbps
            self.save()
        return self.link_gbps[kind]

    def is_new(self, keys: Iterable[str]) -> bool:
        """Some of them have not been measured often."""
        return any(len(self.ops.get(key, ())) < _ENOUGH for key in keys)

    def add(self, samples: Iterable[tuple[str, int]]) -> None:
        """Samples of one step: each key gets one more, the median of its ops."""
        by_key = defaultdict(list)
        for key, ns in samples:
            by_key[key].append(ns)
        for key, values in by_key.items():
            self.ops[key] = [*self.ops.pop(key, [])[-_KEPT + 1 :], _median(values)]  # the last of all
            self._fresh.add(key)

    def save_in_time(self) -> None:
        """save(), where few were of late; else at the end of the program. A step that is planned often would wait for it
        each time."""
        began = time.monotonic()
        if began >= self._rests_until:
            self.save()
            end = time.monotonic()
            self._rests_until = end + _REST * (end - began)
        elif not self._saves_at_end:
            self._saves_at_end = True
            atexit.register(self.save)

    def save(self) -> None:
        """Merges with what other processes have written, and replaces the file. Without a writable directory nothing is
        kept."""
        others: dict[str, list[int]] = {}
        link: dict[str, float] = {}
        self._load(others, link)
        new = set(self._fresh)
        fresh = {key: samples for key, samples in dict(self.ops).items() if key in new}  # a copy: other threads may add
        merged = [*((key, samples) for key, samples in others.items() if key not in fresh), *fresh.items()]
        ops = dict(merged[-_MOST_KEYS:])
        data = {
            "format": "stowage-costs", "version": _VERSION, "machine": self.machine,
            "ops": ops, "link_gbps": {**link, **self.link_gbps},
        }  # fmt: skip
        try:
            with opened(self.path.parent, make=True) as folder:
                if folder.replace(self.path.name, json.dumps(data).encode()):
                    self._fresh -= new
                folder.tidy()
        except (OSError, Refused):
            pass  # said when it was to be read


def cost_file(threads: int) -> CostFile:
    """That of this machine, torch and number of threads."""
    machine = {"torch": torch.__version__, "cpu": _cpu_model(), "threads": threads}
    name = hashlib.sha256(json.dumps(machine).encode()).hexdigest()[:16]
    path = cache_directory() / f"costs-{name}.json"
    if path not in _FILES:
        _FILES[path] = CostFile(path, machine)
    return _FILES[path]


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _samples(values: Any) -> list[int]:
    if type(values) is not list or not all(type(ns) is int and 0 <= ns <= _MOST_NS for ns in values):
        raise ValueError("a cost is no number of nanoseconds")
    return values[-_KEPT:]


def _gbps(value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value <= _MOST_GBPS:
        raise ValueError("a link's speed is no number of 10^9 bytes a second")
    return float(value)


def _median(values: list[int]) -> int:
    return sorted(values)[len(values) // 2]

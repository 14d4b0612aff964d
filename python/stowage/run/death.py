"""A script that died of memory: what the watch has seen, as the doctor's moment.

    the exception   what was asked for, what was left, the user's line        sys.last_value, as Python itself tells it
    the watch       live bytes by line and phase, and what each kept from step to step
    the frames      which variables keep tensors, and autograd's graphs on them        holders.py
          └──────────► Moment ──► doctor: causes, and the smallest change that fits

How much is missing is known where the error says what was left. On the host it does not: there it is what the machine and
the process's own limit leave now, less what has been let go since."""

from __future__ import annotations

import dataclasses
import re
import resource
import sys
import traceback
from types import TracebackType
from typing import Any

import torch

from stowage import _runtime
from stowage.doctor.causes import diagnose
from stowage.doctor.moment import ACTIVATIONS, GRADIENTS, OTHER, PARAMETERS, STATE, UPDATE, Block, Moment, is_loss
from stowage.doctor.snapshot import is_own, kind_of, line_of
from stowage.doctor.text import as_text
from stowage.run import holders
from stowage.run.screen import Ending, place, source_of

_HOST = re.compile(r"(?:can't allocate memory|not enough memory): you tried to allocate (\d+) bytes")
_DEVICE = re.compile(r"[Tt]ried to allocate ([\d.]+ [KMGT]?i?B)")
_LEFT = re.compile(r"of which ([\d.]+ [KMGT]?i?B|[\d.]+ bytes) (?:is|are) free")
_NUMPY = re.compile(r"Unable to allocate ([\d.]+ [KMGTPE]?i?B)")
_UNITS = {"b": 1, "B": 1} | {unit: 1024**power for power, unit in enumerate("KMGTPE", start=1)}
_STEPS_KEPT = 3


def last_error() -> BaseException | None:
    """What has ended the script, once Python has printed it."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return error if isinstance(error, BaseException) else None


def asked_bytes(error: BaseException) -> int | None:
    """What was asked for when memory ran out: 0 where the error does not say it, None where it is of another kind."""
    text = str(error)
    if found := _HOST.search(text):
        return int(found[1])
    for pattern in (_DEVICE, _NUMPY):
        if found := pattern.search(text):
            return _in_bytes(found[1])
    return 0 if isinstance(error, (torch.OutOfMemoryError, MemoryError)) else None


def _in_bytes(text: str) -> int:
    """Of what an allocator prints: "7.45 GiB", "512 bytes"."""
    number, unit = text.split()
    return int(float(number) * _UNITS[unit[0]])


def told(ending: Ending, script: str, on_host: bool) -> str:
    """The doctor's screen, or "" where the script did not die of memory."""
    error = last_error()
    asked = asked_bytes(error) if error is not None else None
    if error is None or asked is None or not ending.peak["held"]:
        return ""
    if ending.limit_bytes is not None and ending.needed_bytes:  # our own: the limit was short, not the memory
        asked = ending.needed_bytes - ending.limit_bytes
    left = _LEFT.search(str(error))
    left_bytes = _in_bytes(left[1]) if left else 0
    if on_host and ending.limit_bytes is None:
        left_bytes = min(_left_on_host(ending.peak["bytes"]), max(asked - 1, 0))
    moment = moment_of(ending.peak, asked, left_bytes, _frames(error.__traceback__), on_host)
    trace = error.__traceback__
    held = holders.of_traceback(trace, is_own)
    moment = dataclasses.replace(
        moment,
        holder=held[0] if held else None,
        evaluating=holders.evaluates(trace, is_own),
        largest_gradient_bytes=holders.largest_gradient_bytes(trace),
    )
    return as_text(diagnose(moment, script, ending.limit_bytes))


def _left_on_host(peak_bytes: int) -> int:
    """When the request failed, as far as it is known now."""
    let_go = peak_bytes - _runtime.live_bytes("cpu")
    with open("/proc/meminfo") as file:
        sizes = {line.split(":")[0]: int(line.split()[1]) << 10 for line in file}
    left = sizes["MemAvailable"] + sizes["SwapFree"]
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most != resource.RLIM_INFINITY:
        with open("/proc/self/statm") as file:
            left = min(left, most - int(file.read().split()[0]) * resource.getpagesize())
    return max(left - max(let_go, 0), 0)


def _frames(trace: TracebackType | None) -> list[dict]:
    """Innermost first, as snapshots have them."""
    found = traceback.walk_tb(trace)
    return [
        {"filename": f.f_code.co_filename, "line": line, "name": f.f_code.co_name} for f, line in reversed([*found])
    ]


def moment_of(peak: dict[str, Any], asked_bytes: int, left_bytes: int, frames: list[dict], on_host: bool) -> Moment:
    """peak: of _runtime.owners_peak(). frames: of the failed request, innermost first."""
    blocks, kept = [], ("", 0)
    for held in peak["held"]:
        line = place(held["file"], held["line"]) or "no line is known"
        kinds = _kinds(held, peak["update"])
        blocks += [Block(size, line, kind, _of_loss(held)) for kind, size in kinds if size > 0]
        leaks = held["phase"] == "forward" and held["grown"] >= _STEPS_KEPT
        if leaks and held["between_bytes"] > kept[1]:
            kept = (line, min(held["between_bytes"], held["bytes"]))
    rest = peak["bytes"] - sum(held["bytes"] for held in peak["held"])
    if rest > 0:
        blocks.append(Block(rest, "small tensors, and what no line is known of", PARAMETERS, False))
    kind = kind_of(frames)
    of_loss = any(is_loss(frame["name"]) for frame in frames)
    return Moment(
        request_bytes=asked_bytes,
        request_line=place(*line_of(frames).rsplit(":", 1)) if frames else "",
        request_kind=ACTIVATIONS if kind == OTHER else kind,
        request_of_loss=of_loss or (kind == GRADIENTS and peak["phase"] == "backward" and _of_loss(peak)),
        device_free_bytes=left_bytes,
        reserved_bytes=0,
        blocks=tuple(blocks),
        free_blocks=(),
        empty_segments_bytes=0,
        in_forward=kind not in (GRADIENTS, UPDATE, STATE) and peak["phase"] in ("set-up", "forward"),
        kept=kept,
        on_host=on_host,
    )


def _kinds(held: dict[str, Any], updates: int) -> list[tuple[str, int]]:
    """What one line held in one phase, by what it was for."""
    size, between = held["bytes"], min(held["between_bytes"], held["bytes"])
    if held["phase"] == "set-up":
        return [(PARAMETERS, size)]
    if held["phase"] == "forward":
        return [(ACTIVATIONS, size)]
    if held["phase"] == "backward":
        return [(GRADIENTS, size)]
    # What an update leaves behind is state; before the first one has ended nobody knows
    return [(STATE, between), (UPDATE, size - between)] if updates else [(STATE, size)]


def _of_loss(held: dict[str, Any]) -> bool:
    return re.search(r"cross_entropy|CrossEntropy|nll_loss|log_softmax|one_hot|criterion", source_of(held)) is not None


__all__ = ["asked_bytes", "last_error", "moment_of", "told"]

"""What a GPU held when it ran out of memory, out of a snapshot of torch.cuda.memory.

    segments + blocks, as they were when the file was written
        │  the trace, backwards: an allocation is taken away, a free is given back
        ▼
    the moment of the last "oom" entry; without one, the moment with the most live bytes

Snapshots are pickles: this reader accepts plain data alone (dict, list, tuple, str, int, float, bool, None), so that a
file from a stranger runs nothing. O(entries of the trace + blocks)."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from stowage.doctor.moment import ACTIVATIONS, GRADIENTS, OTHER, PARAMETERS, STATE, UPDATE, Block, Moment, is_loss
from stowage.errors import Error

_IN_USE = ("active_allocated", "active_pending_free", "active_awaiting_free")
_NO_PYTHON = (".cpp", ".cc", ".c", ".cu", ".h", ".hpp", "??", ">")
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "/torch/")
_STEPS_KEPT = 3


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise Error(f"it asks for the Python object {module}.{name}, and a snapshot holds plain data alone")

    def persistent_load(self, number: Any) -> Any:
        raise Error("it refers to objects outside the file")


def read(path: str | Path) -> Moment:
    """The moment when memory ran out. Error, with one line, for what is no snapshot."""
    try:
        with open(path, "rb") as file:
            data = _Plain(file).load()
        return _moment(data)
    except OSError as error:
        raise Error(f"'{path}' cannot be read: {error.strerror}") from None
    except Error as error:
        raise Error(f"'{path}' is no snapshot of torch.cuda.memory: {error}") from None
    except (pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError,
            MemoryError, RecursionError, ImportError) as error:  # fmt: skip
        what = "the pickle is broken" if not isinstance(error, KeyError) else f"the field {error} is missing"
        raise Error(f"'{path}' is no snapshot of torch.cuda.memory: {what}") from None


def _moment(data: Any) -> Moment:
    if not isinstance(data, dict) or not isinstance(data.get("segments"), list):
        raise Error("the field 'segments' is missing")
    traces = data.get("device_traces", [])
    if not isinstance(traces, list) or not all(isinstance(trace, list) for trace in traces):
        raise Error("the field 'device_traces' is no list of lists")
    failed = [n for n, trace in enumerate(traces) if any(entry["action"] == "oom" for entry in trace)]
    held: dict[int, int] = {}  # by device, without a failure: the fullest one
    for segment in data["segments"]:
        held[segment["device"]] = held.get(segment["device"], 0) + _size(segment["allocated_size"])
    device = failed[-1] if failed else max(held, key=lambda n: held[n]) if held else 0
    segments = [segment for segment in data["segments"] if segment["device"] == device]
    return _Rewound(segments, traces[device] if device < len(traces) else []).moment()


def _size(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise Error(f"a size is {value!r}")
    return value


class _Rewound:
    """The state of one device, taken back entry by entry."""

    def __init__(self, segments: list[dict], trace: list[dict]):
        self.trace = trace
        self.live: dict[int, tuple[int, list, int]] = {}  # address -> bytes, frames, index of the allocation
        self.segments = {_size(s["address"]): _size(s["total_size"]) for s in segments}
        self.made: dict[int, list[int]] = {}  # address -> indices of its allocations
        for index, entry in enumerate(trace):
            if entry["action"] == "alloc":
                self.made.setdefault(entry["addr"], []).append(index)
        for segment in segments:
            at = segment["address"]
            for block in segment["blocks"]:
                address = block.get("address", at)
                if block["state"] in _IN_USE:
                    self.live[address] = self._made(address, len(trace), block)
                at = address + _size(block["size"])

    def _made(self, address: int, before: int, fallback: dict) -> tuple[int, list, int]:
        index = next((i for i in reversed(self.made.get(address, [])) if i < before), -1)
        frames = fallback.get("frames") or (self.trace[index].get("frames") if index >= 0 else []) or []
        return _size(fallback["size"]), frames, index

    def moment(self) -> Moment:
        failed = next((i for i in reversed(range(len(self.trace))) if self.trace[i]["action"] == "oom"), None)
        self._back_to(self._fullest() if failed is None else failed)
        entry = self.trace[failed] if failed is not None else {}
        steps, in_forward = self._steps(failed if failed is not None else len(self.trace))
        blocks, step_of = [], []
        for size, frames, index in self.live.values():
            blocks.append(Block(size, line_of(frames), kind_of(frames), _of_loss(frames)))
            step_of.append(steps[index] if index >= 0 else 0)
        holes, empty = self._holes()
        request_frames = entry.get("frames") or []
        return Moment(
            request_bytes=_size(entry.get("size", 0)),
            request_line=line_of(request_frames) if request_frames else "",
            request_kind=kind_of(request_frames),
            request_of_loss=_of_loss(request_frames),
            device_free_bytes=_size(entry.get("device_free", 0)),
            reserved_bytes=sum(self.segments.values()),
            blocks=tuple(blocks),
            free_blocks=tuple(holes),
            empty_segments_bytes=empty,
            in_forward=in_forward,
            kept=_kept(blocks, step_of),
            largest_gradient_bytes=max((b.bytes for b in blocks if b.kind == GRADIENTS), default=0),
        )

    def _back_to(self, index: int) -> None:
        for i in reversed(range(index + 1, len(self.trace))):
            entry = self.trace[i]
            action: str = entry["action"]
            address: int = entry.get("addr", 0)
            if action == "alloc":
                self.live.pop(address, None)
            elif action == "free_completed":
                self.live[address] = self._made(address, i, {"size": entry["size"]})
            elif action in ("segment_alloc", "segment_map"):
                self.segments.pop(address, None)
            elif action in ("segment_free", "segment_unmap"):
                self.segments[address] = _size(entry["size"])

    def _fullest(self) -> int:
        """The entry after which most was live."""
        live = most = sum(size for size, _, _ in self.live.values())
        best = len(self.trace) - 1
        for i in reversed(range(len(self.trace))):
            if live > most:
                most, best = live, i
            action = self.trace[i]["action"]
            live += {"alloc": -1, "free_completed": 1}.get(action, 0) * _size(self.trace[i].get("size", 0))
        return best

    def _steps(self, end: int) -> tuple[list[int], bool]:
        """Of each entry, the training step that it belongs to: one ends where forward work follows backward or update."""
        steps, step, late, forward = [], 1, False, True
        for entry in self.trace[:end]:
            if entry["action"] == "alloc":
                kind = kind_of(entry.get("frames") or [])
                if kind in (GRADIENTS, UPDATE, STATE):
                    late, forward = True, False
                elif kind == ACTIVATIONS:
                    step += late
                    late, forward = False, True
            steps.append(step)
        return steps + [step] * (len(self.trace) - len(steps)), forward

    def _holes(self) -> tuple[list[int], int]:
        holes, empty = [], 0
        addresses = sorted(self.live)
        at = 0
        for start in sorted(self.segments):
            end, position = start + self.segments[start], start
            while at < len(addresses) and addresses[at] < start:
                at += 1
            while at < len(addresses) and addresses[at] < end:
                if addresses[at] > position:
                    holes.append(addresses[at] - position)
                position = max(position, addresses[at] + self.live[addresses[at]][0])
                at += 1
            if position == start:
                empty += end - start
            elif position < end:
                holes.append(end - position)
        return holes, empty


def _kept(blocks: list[Block], step_of: list[int]) -> tuple[str, int]:
    """step_of: which of the training steps in the trace made each block, 0 for all before the trace."""
    steps: dict[str, dict[int, int]] = {}
    for block, step in zip(blocks, step_of):
        if block.kind in (ACTIVATIONS, OTHER) and step > 0:
            of_line = steps.setdefault(block.line, {})
            of_line[step] = of_line.get(step, 0) + block.bytes
    latest = max(step_of, default=0)
    most = ("", 0)
    for line, of_step in steps.items():
        over = sum(size for step, size in of_step.items() if step < latest)
        if len(of_step) >= _STEPS_KEPT and over > most[1]:
            most = (line, over)
    return most


# ---- Frames: innermost first, each with filename, line and name


def _python_frames(frames: list) -> list[dict]:
    return [f for f in frames if not str(f.get("filename", "??")).endswith(_NO_PYTHON)]


def line_of(frames: list) -> str:
    """The innermost line that is the user's own, else the innermost one."""
    python = _python_frames(frames)
    own = [f for f in python if is_own(f["filename"])]
    for frame in own or python:
        return f"{frame['filename']}:{frame.get('line', 0)}"
    return "no line is known"


def is_own(file: str) -> bool:
    """Whether it is the user's, no library's."""
    return not any(part in file for part in _LIBRARIES)


def kind_of(frames: list) -> str:
    """By the functions of PyTorch that were at work."""
    python = _python_frames(frames)
    calls = [(f["filename"], str(f.get("name", ""))) for f in python]
    if any(("/optim/" in file and not file.endswith("/swa_utils.py")) or "/optimizer" in file for file, _ in calls):
        return STATE if any(name in ("_init_group", "init_state") for _, name in calls) else UPDATE
    if any(name == "_engine_run_backward" or (name == "backward" and "/torch/" in file) for file, name in calls):
        return GRADIENTS
    names = {name for file, name in calls if "/torch/nn/modules/" in file}
    if names & {"_apply", "convert", "__init__", "reset_parameters"} or any(
        name in ("from_pretrained", "load_state_dict") for _, name in calls
    ):
        return PARAMETERS
    if names & {"_call_impl", "_wrapped_call_impl", "forward"} or any("/nn/functional.py" in file for file, _ in calls):
        return ACTIVATIONS
    return OTHER


def _of_loss(frames: list) -> bool:
    return any(is_loss(str(f.get("name", ""))) for f in frames)


__all__ = ["is_own", "kind_of", "line_of", "read"]

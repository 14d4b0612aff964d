"""Ranks in step: small agreements on the host, so that who does something else is told, and nobody waits for ever."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import operator
import threading
import zlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C import TensorBase

from stowage._torch.distributed import group_timeout, set_group_timeout
from stowage._torch.private import unseen
from stowage.errors import Error, Infeasible

_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # renamed in PyTorch 2.13


def as_mesh(mesh):
    """A DeviceMesh, or sizes, that all ranks are on."""
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

    if isinstance(mesh, DeviceMesh):
        sizes = tuple(mesh.size(i) for i in range(mesh.ndim))
    else:
        sizes = (mesh,) if isinstance(mesh, int) else tuple(int(n) for n in mesh)
    devices = 1
    for n in sizes:
        devices *= n
    if min(sizes, default=0) < 1 or devices != dist.get_world_size():
        raise Error(f"mesh {sizes} has {devices} devices, but there are {dist.get_world_size()} ranks")
    if isinstance(mesh, DeviceMesh):
        return mesh
    made = init_device_mesh("cuda" if dist.get_backend() == "nccl" else "cpu", sizes)
    for group in made.get_all_groups():
        set_group_timeout(group, group_timeout(dist.group.WORLD))
    return made


_PURPOSES = ("step", "flag", "same", "work", "moment")
_WORKING, _DONE, _FAILED = range(3)
_BEAT_SECONDS = 1.0
_FLAGS = 62  # in one number of a message


class Ranks:
    """The ranks of the mesh, by a group of their own on the host."""

    def __init__(self, mesh: Any):
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._group = dist.new_group(backend="gloo", timeout=group_timeout(dist.group.WORLD))
        self._calls = 0
        self.apart = False  # in this call the ranks have found that they do different things
        self._digests: dict[Any, int] = {}

    def agree(self, wish: int, key: Any) -> list[int]:
        """The wishes of all ranks. Raises Error when they are at different calls, or have arguments of other
        shapes."""
        self._calls += 1
        self.apart = False
        if key not in self._digests:
            self._digests[key] = zlib.crc32(repr(key).encode())
        rows = self._gather("step", wish, self._digests[key], self._calls)
        if any(row[2] != self._calls for row in rows):
            raise Error(f"rank {self.rank}: the ranks are at different calls: {[row[2] for row in rows]}")
        if any(row[1] != self._digests[key] for row in rows):
            raise Error(f"rank {self.rank}: the ranks disagree: their arguments differ in shape, type or flags")
        return [row[0] for row in rows]

    def at_moment(self, moment: int, *numbers: int) -> list[list[int]]:
        """Of a call: the moment to which each rank has come, and its numbers, up to two."""
        return self._gather("moment", moment, *numbers)

    def differ(self, how: str) -> Error:
        self.apart = True
        return Error(f"rank {self.rank}: {how}")

    def must_end(self, error: Exception) -> bool:
        """The call, by this error: no operator can run otherwise instead."""
        return self.apart or isinstance(error, Error) or is_communication_error(error)

    def any(self, flag: bool) -> bool:
        return any(row[0] for row in self._gather("flag", int(flag)))

    def in_all(self, *flags: list[bool]) -> list[list[bool]]:
        """Of up to three lists, each as long on every rank: what is set on all ranks."""
        found: list[list[bool]] = [[] for _ in flags]
        for begin in range(0, len(flags[0]), _FLAGS):
            mine = [sum(1 << i for i, flag in enumerate(each[begin : begin + _FLAGS]) if flag) for each in flags]
            rows = self._gather("flag", *mine)
            for position, each in enumerate(flags):
                common = functools.reduce(operator.and_, (row[position] for row in rows))
                found[position] += [bool(common >> i & 1) for i in range(len(each[begin : begin + _FLAGS]))]
        return found

    def most(self, number: int) -> int:
        """The largest of all ranks."""
        return max(row[0] for row in self._gather("flag", number))

    def same(self, text: str, otherwise: str) -> None:
        """Raises Error unless all ranks have the same text."""
        digest = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "little")
        rows = self._gather("same", digest)
        if any(row[0] != digest for row in rows):
            raise Error(f"rank {self.rank}: {otherwise}")

    def same_tensors(self, tensors: list[torch.Tensor], otherwise: str) -> None:
        digest = hashlib.blake2b()
        for t in tensors:
            digest.update(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        self.same(digest.hexdigest(), otherwise)

    def from_first(self, make: Callable[[], str]) -> str:
        """What rank 0 makes, on all ranks; its error, if it has one."""
        box: list[Any] = [None, "", None]
        failure = None
        with self.together():
            if self.rank == 0:
                try:
                    box[0] = make()
                except Exception as error:  # goes to all ranks
                    box[1], failure = f"{type(error).__name__}: {error}", error
                    if isinstance(error, Infeasible):
                        box[2] = str(error), error.smallest_bytes, error.bound_bytes
        dist.broadcast_object_list(box, src=0, group=self._group)
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # whose traceback holds this frame
        if box[2] is not None:
            raise Infeasible(*box[2])
        if box[1]:
            raise Error(f"rank 0 could not plan: {box[1]}")
        self.same(box[0], "the plan did not arrive as it was sent")
        return box[0]

    @contextlib.contextmanager
    def together(self):
        """Work that takes ranks different times, without collectives: all leave when the last is done, and when one
        fails all raise. While they wait, ranks tell each other every second that they are there, so that no wait is as
        long as the group's timeout.

            rank 0   work ........................ done         a thread beats for each rank: (working, working, done, ...)
            rank 1   work ... done, waits ─────────┘             until no rank is at work
        """
        beat = _Beat(self._gather)
        try:
            yield
        except BaseException:
            beat.stop(_FAILED)
            raise
        states = beat.stop(_DONE)
        if _FAILED in states:
            raise Error(f"rank {self.rank}: rank {states.index(_FAILED)} failed")

    @contextlib.contextmanager
    def explained(self):
        """Errors of the process group say what they mean."""
        try:
            yield
        except Error:
            raise
        except RuntimeError as error:
            if is_communication_error(error):
                raise Error(
                    f"rank {self.rank}: a collective failed; another rank has died, or is doing something else: {first_line(error)}"
                ) from error
            raise

    def _gather(self, purpose: str, *values: int) -> list[list[int]]:
        """Up to three numbers of each rank. Messages are all of one size and say what they are for: ranks that are at
        different places find out, instead of taking each other's numbers for something else."""
        with unseen():  # a step that is recorded may be under way
            mine = torch.zeros(4, dtype=torch.int64, device="cpu")
            mine[0] = _PURPOSES.index(purpose)
            for i, value in enumerate(values):
                mine[1 + i] = value
            all_ranks = torch.empty(self.size * 4, dtype=torch.int64, device="cpu")
            _all_gather(all_ranks, mine, group=self._group)
            rows = TensorBase.tolist(
                all_ranks.view(self.size, 4)
            )  # not the step's own, which may be replaced meanwhile
        at = [_PURPOSES[row[0]] for row in rows]
        if any(p != purpose for p in at):
            raise self.differ(
                f"the ranks differ in what they do: their arguments or their Python differ ({', '.join(at)})"
            )
        return [row[1:] for row in rows]


class _Beat:
    """A thread that tells the other ranks what this one is doing, until none is at work. Meanwhile nobody else may use
    the group."""

    def __init__(self, gather: Callable[..., list[list[int]]]):
        self._gather = gather
        self._state = _WORKING
        self._states = [_WORKING]
        self._changed = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="stowage-beat", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while _WORKING in self._states:
                self._changed.wait(_BEAT_SECONDS)
                self._states = [row[0] for row in self._gather("work", self._state)]
        except Exception as error:  # raised by stop(), on the thread that works
            self._error = error

    def stop(self, state: int) -> list[int]:
        """How it went on each rank. Raises what the collectives raised, unless this rank has failed itself."""
        self._state = state
        self._changed.set()
        self._thread.join()
        if self._error is not None and state != _FAILED:
            raise self._error
        return self._states


def is_communication_error(error: Exception) -> bool:
    text = str(error)
    return isinstance(error, dist.DistError) or any(
        s in text for s in ("gloo", "NCCL", "Connection", "imed out", "process group")
    )


def first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__

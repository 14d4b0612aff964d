"""stowage.budget: a byte limit around any training loop, without capture or change of code.

    with stowage.budget("2GiB") as b:
        for batch in loader:
            loss = model(batch).mean(); loss.backward(); optimizer.step(); optimizer.zero_grad()
    print(b.stats())

Before live tensor bytes would pass the limit, tensors leave: they are dropped, to be computed again, or copied to the
host; and they are back before anything reads them. The numbers are, bit for bit, those of a run without a limit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import site
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch

from stowage import _runtime, compiled_regions
from stowage._torch import collector, optimizer_steps
from stowage._torch.private import address, generated_code, is_leaf
from stowage.errors import PACKAGE_FOLDER, Error
from stowage.eviction.out_of_memory import OutOfMemory
from stowage.eviction.packing import SeenHooks
from stowage.eviction.reads import Reads, bring
from stowage.report.notebook import budget_html
from stowage.report.progress import Report, shown, visible
from stowage.report.reports import write_report
from stowage.sizes import parse_bytes


@dataclasses.dataclass(frozen=True)
class HostRoom:
    """Where a block's tensors wait. ``host``: in its file; None: in memory. ``soft``: the limit is passed where it cannot
    be kept."""

    host: _runtime.Host | None
    soft: bool = False


_RELEASES = ("both", "recompute", "swap")


def _know_whose_lines() -> None:
    """Bytes are counted by the user's own lines, and those of packages but PyTorch and what it has generated."""
    torchs = os.path.dirname(torch.__file__)
    packages = {os.path.dirname(torchs), *site.getsitepackages(), site.getusersitepackages()}
    hidden = [torchs + os.sep, os.path.dirname(os.__file__) + os.sep, PACKAGE_FOLDER, *generated_code()]
    _runtime.hide_lines(hidden, [folder + os.sep for folder in packages])


_know_whose_lines()


class budget(_runtime.Block):
    """Context manager that keeps every live tensor byte handed out since ``import stowage`` within ``limit``.

    The limit is hard. When the block is left, by an exception too, every tensor is back. One block at a time in a
    process. Other threads that compute on the loop's tensors do so in ``with b.attach():``.

    Reads past the dispatcher that go through torch.Tensor (numpy, data_ptr, tolist, DLPack, pickling, copying) bring
    their tensor back; any other raises an error that names it. NumPy arrays that were made of a tensor before the block
    are seen, and the tensor stays where it is. A bare data_ptr() that was taken before it leaves no trace: call
    restore(tensor), which keeps it there.

    Args:
        limit: bytes, or a string such as "2GiB". Parameters, gradients, optimizer state and what kernels allocate
            inside count.
        policy: which tensors leave, and how: "default" (learns the order of accesses from earlier iterations), "delta",
            "dtr", "capuchin", "lru", "size", "random".
        release: "both", "recompute" (nothing goes to the host) or "swap" (nothing is computed again).
        link_gbps: bandwidth of the link to the host in 10^9 bytes a second each way: copies are held to it. None: as
            fast as memory is; of an accelerator, what is measured once (a number only replaces the measurement there).
        prefetch: bring copies back ahead of use, beside the kernels.
        debug: fill memory that is let go, so that a stale read shows at once.
        seed: of the policy "random".
        progress: None: a line with the live bytes and what the limit costs is shown while the block runs, where stderr
            is a terminal. A callable gets (what, None) after optimizer steps instead. False keeps silent.
        device: whose memory is limited, such as "cuda:1" or "cpu". None: the current accelerator's, where PyTorch finds
            one, else the host's.

    Raises:
        OutOfMemory: the limit cannot be met; it says what is pinned, and by how much the limit is short.
        ValueError: an argument that is none of those above.
        Error: another block is open, or PyTorch finds no such device.
    """

    def __init__(
        self,
        limit: int | str,
        policy: str = "default",
        release: str = "both",
        link_gbps: float | None = None,
        *,
        prefetch: bool = True,
        debug: bool = False,
        seed: int = 0,
        progress: Callable | bool | None = None,
        device: torch.device | str | None = None,
        _replay_generator: bool = True,
        _room: HostRoom | None = None,
    ):
        super().__init__()
        limit_bytes = parse_bytes(limit)
        if limit_bytes is None or limit_bytes <= 0:
            raise ValueError(f"budget() needs a limit of at least one byte, not {limit!r}")
        self.limit_bytes = limit_bytes
        if policy not in _runtime.budget_policies():
            raise ValueError(f"unknown policy '{policy}': one of {', '.join(_runtime.budget_policies())}")
        if release not in _RELEASES:
            raise ValueError(f"unknown release '{release}': one of {', '.join(_RELEASES)}")
        if link_gbps is not None and link_gbps <= 0:
            raise ValueError(f"link_gbps must be above 0: {link_gbps}")
        self.policy = policy
        self.release = release
        self.device = _the_device(device)
        room = _room or HostRoom(_host_of_environment(self.device))
        self._runtime = _runtime.Budget(
            self.limit_bytes, policy, release, link_gbps or 0.0, prefetch, debug, _replay_generator, 0, seed,
            str(self.device), room.host, room.soft,
        )  # fmt: skip
        self._used = False
        self._of_calls = False  # of a compiled step, which knows of it
        # Where not all fits within the limit when the block ends, these may lie in the host's file from then on
        self._may_stay: Callable[[], list[torch.Tensor]] = list
        # What exists already when it begins
        self._may_make_room: Callable[[], Iterable[torch.Tensor]] = existing_tensors
        self._reads = Reads(self._runtime, self.device)
        self._hooks = SeenHooks()
        runtime = self._runtime
        self._after_step: list[Callable] = [lambda optimizer, *_: runtime.end_update(id(optimizer))]
        self._progress = progress
        self._while_it_watches = contextlib.ExitStack()

    def _may_begin(self) -> None:
        if self._used:
            raise Error("a stowage.budget is entered once: make another one")
        _runtime.require_allocator()

    def _begin(self) -> None:
        if self._of_calls:
            self._enter()
            return
        _runtime.tell_cannot_replay(
            "a stowage.budget block inside the step, which a plan would not keep: put it around the calls, or give compile() a budget"
        )
        with _runtime.Turn() as turn:
            turn.alone()  # planned steps of other threads use tensors that may have to make room
            everybody_makes_way()
            self._enter()

    def _enter(self) -> None:
        self._runtime.enter(self.limit_bytes)
        self._used = True
        optimizer_steps.listen(self, lambda optimizer, *_: self._runtime.begin_update(id(optimizer)), self._stepped)
        self._reads.apply()
        self._hooks.apply()
        self._while_it_watches.enter_context(compiled_regions.seen_by_budgets())
        try:
            if callable(self._progress) or (self._progress is not False and visible()):
                tell = _Telling(self, self._while_it_watches.enter_context(shown("budget", self._progress)))
                self._after_step.append(tell)
            # What a compiled step lets go of may have to leave before any op has touched it
            if self._of_calls or _runtime.live_bytes(str(self.device)) > self.limit_bytes // 2:
                for tensor in self._may_make_room():
                    self._runtime.adopt(address(tensor))
            self._runtime.shrink()
        except MemoryError as error:
            raise OutOfMemory(str(error)) from None

    def _again(self, limit_bytes: int) -> budget:
        """The same block once more, with another limit and what it has learnt: for the calls of a compiled step."""
        self.limit_bytes, self._used, self._of_calls = limit_bytes, False, True
        return self

    def _end(self) -> None:
        self._while_it_watches.close()
        optimizer_steps.forget(self)
        self._hooks.undo()
        self._reads.undo()
        del self._after_step[1:]
        self._runtime.leave([address(t) for t in self._may_stay()])

    def _stepped(self, *of: Any) -> None:
        for call in self._after_step:
            call(*of)

    def _ended(self, error: BaseException | None) -> None:
        lost = self._runtime.leave()  # again, which says the same
        if (
            isinstance(error, (torch.OutOfMemoryError, MemoryError))
            and "stowage: " in str(error)
            and not isinstance(error, OutOfMemory)
        ):
            raise OutOfMemory(_first_line(error)) from error
        if lost:
            raise Error(f"not every tensor could be brought back: {lost}") from error

    @contextlib.contextmanager
    def attach(self):
        """Context manager for a thread that was started inside the block and works on its tensors.

        Raises:
            Error: outside the block.
        """
        if not self._runtime.active:
            raise Error("attach() works inside the block")
        seen_already = _runtime.thread_attached()
        self._runtime.attach()
        try:
            yield self
        finally:
            if not seen_already:
                self._runtime.detach()

    def restore(self, tensor: torch.Tensor) -> torch.Tensor:
        """Brings the tensor back and keeps it there until the block ends: for code that takes its address past the
        dispatcher."""
        bring(self._runtime.restore, tensor)
        return tensor

    def stats(self) -> dict:
        """Figures of the block so far, or of all of it. Names that end in ``_bytes`` are bytes, in ``_ns`` sums in
        nanoseconds; ``policy`` holds the policy's own counters."""
        return {
            "limit_bytes": self.limit_bytes,
            **self._runtime.stats(),
            "policy": {"name": self.policy, **self._runtime.counters()},
        }

    def timeline(self) -> list[dict]:
        """What happened, in order: {"t_ns", "event", "bytes", "op"}. Event "live" tells the live bytes after an op; the
        others are drop, swap_out, recompute, swap_in and fetch, with the bytes moved. At most 65,536 entries: long runs
        are thinned."""
        return self._runtime.timeline()

    def report(self, path: str) -> None:
        """Writes the timeline as one page.

        Args:
            path: the page, ``.html``.
        """
        write_report(path, timeline=self.timeline(), limit_bytes=self.limit_bytes)

    def _repr_html_(self) -> str:
        return budget_html(self)

    def alive(self) -> dict:
        """What the runtime holds: all zero once the block has been left."""
        return self._runtime.alive()


class GivesWay(Protocol):
    """Holds memory that it uses now and then."""

    def make_way(self) -> None: ...


_GIVE_WAY: weakref.WeakSet[GivesWay] = weakref.WeakSet()


def gives_way(holder: GivesWay) -> None:
    """Where a block begins, from now on, as long as it lives."""
    _GIVE_WAY.add(holder)


def everybody_makes_way() -> None:
    """While no planned step runs."""
    for holder in list(_GIVE_WAY):
        holder.make_way()


def host_settings() -> tuple[str, int]:
    """What the environment says of the host store: its directory, "" for memory; the bytes that it may take, 0 for any."""
    return os.environ.get("STOWAGE_HOST_STORE", ""), parse_bytes(os.environ.get("STOWAGE_HOST_LIMIT") or None) or 0


def _host_of_environment(device: torch.device) -> _runtime.Host | None:
    """None where the environment names no directory, and for an accelerator, which copies to pinned memory alone."""
    directory, limit_bytes = host_settings()
    return _runtime.Host(directory, limit_bytes) if directory and device.type == "cpu" else None


def _the_device(device: torch.device | str | None) -> torch.device:
    """With an index, but the host. Raises Error where PyTorch has no such accelerator."""
    there = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    found = torch.device(device) if device is not None else there or torch.device("cpu")
    if found.type == "cpu":
        return torch.device("cpu")
    if there is None or found.type != there.type:
        raise Error(f"budget(device={device!r}): PyTorch finds no {found.type} here; device='cpu' limits host memory")
    return found if found.index is not None else torch.device(found.type, torch.accelerator.current_device_index())


def _first_line(error: BaseException) -> str:
    text = str(error)
    return text[text.index("stowage: ") + len("stowage: ") :].splitlines()[0]


def existing_tensors() -> list[torch.Tensor]:
    """All of the program's, and what their gradients are."""
    found = _runtime.of_types(collector.get_objects(), (torch.Tensor, torch.nn.Parameter))
    return found + [t.grad for t in found if is_leaf(t) and t.grad is not None]


class _Telling:
    """The progress line, after an optimizer's step."""

    EVERY_S = 0.2

    def __init__(self, block: budget, report: Report):
        self._block, self._report = block, report
        self._begin_s = self._last_s = time.monotonic()

    def __call__(self, *_: Any) -> None:
        now_s = time.monotonic()
        if now_s - self._last_s < self.EVERY_S and not callable(self._block._progress):
            return
        self._last_s = now_s
        stats = self._block._runtime.stats()
        live, limit = (
            f"{bytes_ / 2**20:,.0f}"
            for bytes_ in (_runtime.live_bytes(str(self._block.device)), self._block.limit_bytes)
        )
        share = (stats["recompute_ns"] + stats["stall_ns"] + stats["evict_ns"]) / 1e9 / max(now_s - self._begin_s, 1e-9)
        self._report(f"{live} of {limit} MiB, {stats['evictions']:,} let go, {share:.0%} of the time for that", None)

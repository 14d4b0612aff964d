"""What ``stowage run`` does in a process that has imported torch: the limit or the watching begins, each optimizer step
is a beat, and the end is told.

Nothing of it ever leaves the block: what is away when the process ends need not come back, and the script's own
handlers and destructors, which may look at tensors, run within it."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

import torch

from stowage import _runtime
from stowage._torch import optimizer_steps
from stowage.eviction.budget import budget
from stowage.report.reports import write_report
from stowage.run import death
from stowage.run.screen import Ending, LiveLine, brief, screen

_around: _Around | None = None


def begin(settings: dict) -> None:
    """Once in a process."""
    global _around
    _around = _Around(settings)
    _around.begin()


def end() -> None:
    if _around is not None:
        _around.end()


class _Around:
    def __init__(self, settings: dict):
        self._settings = settings
        self._limit_bytes: int | None = settings["budget_bytes"]
        self._budget: budget | None = None
        self._device: torch.device | None = None  # whose tensors are limited or watched; None: it is not known yet
        self._pid = os.getpid()
        self._begun_ns = time.monotonic_ns()
        self._rank = 0
        self._steps = 0
        self._told_of_device = False
        self._ended = False
        self._line = LiveLine()

    def begin(self) -> None:
        _runtime.install_allocator()
        optimizer_steps.listen(self, self._before_step, self._after_step)
        if self._limit_bytes is not None:
            self._meet_threads()
        if torch.accelerator.is_available():
            self._wait_for_a_model()
        else:
            self._begin_on(torch.device("cpu"))

    def _begin_on(self, device: torch.device) -> None:
        self._device = device
        if self._limit_bytes is None:
            _runtime.begin_owners(str(device))
        else:  # the budget does
            self._limit()

    def _wait_for_a_model(self) -> None:
        """Which accelerator a process trains on is known when its model runs; until then none is touched, as helpers and
        launchers touch none."""

        def model_runs(module: torch.nn.Module, *_: Any) -> None:
            tensor = next(module.parameters(), None)
            if tensor is None or tensor.device.type == "meta":
                return
            waiting.remove()
            if self._device is None:
                self._begin_on(tensor.device)

        waiting = torch.nn.modules.module.register_module_forward_pre_hook(model_runs)

    def _limit(self) -> None:
        assert self._limit_bytes is not None
        self._budget = budget(self._limit_bytes, progress=False, device=self._device)
        self._budget.__enter__()
        self._budget._runtime.live_on()

    @staticmethod
    def _meet_threads() -> None:
        """Threads of the script see its tensors, so their operators are the budget's business, too."""
        bootstrap = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

        def attached_first(thread: threading.Thread) -> None:
            if _runtime.budget_active():
                _runtime.Budget.expect_thread()
            bootstrap(thread)

        threading.Thread._bootstrap_inner = attached_first  # type: ignore[attr-defined]

    # ---- Optimizer steps

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        if os.getpid() != self._pid:
            self._take_up_child()
        if self._budget is None:
            _runtime.update_begins(id(optimizer))

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if self._budget is None:
            _runtime.update_ends(id(optimizer))
        self._steps += 1
        if not self._told_of_device:
            self._tell_of_device(optimizer)
        if self._line.due() and self._is_first():
            self._line.draw(
                self._device, self._steps, self._limit_bytes, *self._cost(), time.monotonic_ns() - self._begun_ns
            )

    def _take_up_child(self) -> None:
        """A child made by fork() trains: it is held to a limit of its own from its first step on. Children that only
        load data are not, and end as they would without us."""
        from multiprocessing import util

        self._pid = os.getpid()
        self._begun_ns = time.monotonic_ns()
        self._steps, self._ended = 0, False
        _runtime.forget_owners()
        if self._budget is not None:
            self._budget.__exit__(None, None, None)
            self._limit()
        util.Finalize(None, self.end, exitpriority=-1000)

    def _tell_of_device(self, optimizer: Any) -> None:
        self._told_of_device = True
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            self._rank = distributed.get_rank()
        if self._device is None:
            return
        elsewhere = sorted(
            {p.device.type for g in optimizer.param_groups for p in g["params"]} - {self._device.type, "meta"}
        )
        if elsewhere and self._is_first():
            what = "limited" if self._limit_bytes is not None else "watched"
            _say(
                f"stowage run: the script trains on {' and '.join(elsewhere)}: only tensors on {self._device} are {what}\n"
            )

    def _is_first(self) -> bool:
        return self._rank == 0 and os.environ.get("RANK", "0") == "0" and _child_name() == ""

    def _cost(self) -> tuple[int, int]:
        """(tensors that were let go, nanoseconds for that)."""
        if self._budget is None:
            return 0, 0
        stats = self._budget.stats()
        return stats["evictions"], stats["recompute_ns"] + stats["stall_ns"] + stats["evict_ns"]

    # ---- The end

    def end(self) -> None:
        if self._ended or os.getpid() != self._pid:
            return
        self._ended = True
        took_ns = time.monotonic_ns() - self._begun_ns
        self._line.erase()
        if self._device is not None:
            _runtime.end_owners()
        if self._steps == 0 and not (self._settings["script"] and self._settings["pid"] == self._pid):
            return  # a launcher, or a helper of the script
        ending = self._ending(took_ns)
        if self._rank > 0:
            _say(brief(ending))
            return
        report = self._write_report(ending)
        _say(screen(ending) + report + self._why_it_died(ending))

    def _why_it_died(self, ending: Ending) -> str:
        try:
            on_host = self._device is None or self._device.type == "cpu"
            why = death.told(ending, os.path.basename(sys.argv[0]), on_host)
        except Exception as error:  # the script has ended: nothing of ours may change how
            return f"stowage run: why it ran out of memory cannot be told: {error!r}\n"
        return f"\n{why}" if why else ""

    def _ending(self, took_ns: int) -> Ending:
        evictions, cost_ns = self._cost()
        stats = self._budget.stats() if self._budget is not None else {}
        peak = _runtime.owners_peak()
        return Ending(
            peak=peak,
            peak_bytes=max(peak["bytes"], stats.get("peak_bytes", 0)),
            limit_bytes=self._limit_bytes,
            needed_bytes=self._limit_bytes + stats["short_bytes"]
            if self._limit_bytes and stats.get("short_bytes")
            else 0,
            steps=self._steps,
            took_ns=took_ns,
            evictions=evictions,
            cost_ns=cost_ns,
            who=f"rank {self._rank}" if self._distributed() else _child_name(),
        )

    def _distributed(self) -> bool:
        return self._rank > 0 or int(os.environ.get("WORLD_SIZE", "1") or 1) > 1

    def _write_report(self, ending: Ending) -> str:
        path = self._settings["report"]
        if not path:
            return ""
        if name := _child_name():
            stem, end = os.path.splitext(path)
            path = f"{stem}.{name}{end}"
        try:
            if path.endswith(".json"):
                with open(path, "w") as file:
                    json.dump(ending.as_json(), file, indent=1)
                    file.write("\n")
            else:
                write_report(path, timeline=self._timeline(), limit_bytes=self._limit_bytes, holders=ending.rows())
        except Exception as error:
            return f"stowage run: the report cannot be written: {error}\n"
        return f"report: {path}\n"

    def _timeline(self) -> list[dict]:
        entries = [
            {"t_ns": at_ns - self._begun_ns, "event": "live", "bytes": live, "op": ""}
            for at_ns, live in _runtime.owners_curve()
        ]
        if self._budget is not None:
            entries += [entry for entry in self._budget.timeline() if entry["event"] != "live"]
        return entries


def _child_name() -> str:
    """Of a process that multiprocessing has made, else ""."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is None or multiprocessing.parent_process() is None:
        return ""
    return multiprocessing.current_process().name


def _say(text: str) -> None:
    """To where stderr is, whatever the script has made of sys.stderr."""
    try:
        os.write(2, text.encode(errors="replace"))
    except OSError:
        pass


__all__ = ["begin", "end"]

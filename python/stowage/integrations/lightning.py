"""stowage.lightning.Stowage: a callback that lets Lightning's own Trainer run its batches as planned steps.

    trainer = Trainer(callbacks=[stowage.lightning.Stowage(budget="4GiB")], ...)
    trainer.fit(module, loader)

Lightning has one method that does all that a batch needs; from on_train_start to on_train_end it is compiled:

    for batch in loader:
        on_train_batch_start
        automatic_optimization.run ──▶ one compiled step   training_step, zero_grad, backward, clipping, optimizer.step,
        │                                                  with every hook between them, of modules and of callbacks
        └ self.log(...)  ┄┄ kept till the step is over ┄┄▶ the loop's results
        on_train_batch_end, schedules, validation, checkpoints: Lightning's own

All of that Python, Lightning's and the module's, runs in every call (check="always"), so hooks, counters and what they
read are as without Stowage. Two things differ while a step runs. The optimizer's closure (forward and backward) is
called just before optimizer.step() instead of by it; optimizers for which this is not the same are refused. And what
self.log() hands over is added up when the step is over, in the same order: sums over an epoch begin anew now and then,
and would be another step each time.

What cannot be planned runs as Lightning alone, within a stowage.budget block for each batch where there is a budget,
and a warning says why."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from typing import Any

from stowage.errors import Error, UnsupportedWarning, warn
from stowage.eviction.budget import budget as eager_budget
from stowage.integrations.closures import why_not_after_closure
from stowage.integrations.lightning_logs import Postponed
from stowage.integrations.telling import LOG, in_a_line, scalars
from stowage.sizes import parse_bytes
from stowage.step.compile import compile
from stowage.step.compiled import CompiledStep

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
_OPTIONS = ("link_gbps", "strict", "in_place_reuse")
_LATE = 32  # batches after which one should have been planned


def _base_classes() -> tuple[type, ...]:
    """The Callback of each of the two packages that is imported already; else of the first that there is."""
    loaded = [sys.modules[name] for name in _PACKAGES if name in sys.modules]
    if not loaded:
        there = [name for name in _PACKAGES if importlib.util.find_spec(name.split(".")[0]) is not None]
        if not there:
            raise ImportError("stowage.lightning needs Lightning: pip install lightning")
        loaded = [importlib.import_module(there[0])]
    return tuple(module.Callback for module in loaded)


class Stowage(*_base_classes()):  # type: ignore[misc]
    """A callback for Trainer(callbacks=[...]), of ``lightning`` and of ``pytorch_lightning``.

    budget: bytes that parameters, optimizer state, batch and arena may take while a batch is trained on, or "4GiB".
    keep_gradients: what Lightning leaves in .grad after an update is there, and takes its bytes until the next one.
        False: gradients go when the optimizer has stepped, which needs less memory; only code that reads .grad between
        two batches sees it.
    log: the figures of the plan go to the Trainer's loggers every log_every_n_steps, as stowage/peak_bytes and so on.
    options: link_gbps, strict and in_place_reuse, as for stowage.compile.

    Numbers are those of Lightning without it, bit for bit. What cannot be planned runs as it would without a plan, and
    a warning says why; ``refusal`` keeps it. With a budget such batches run within it, as in a stowage.budget block."""

    def __init__(
        self, budget: int | str | None = None, *, keep_gradients: bool = True, log: bool = True, **options: Any
    ):
        unknown = [name for name in options if name not in _OPTIONS]
        if unknown:
            raise TypeError(
                f"Stowage() knows {', '.join(_OPTIONS)} besides budget, keep_gradients and log, not {unknown[0]}"
            )
        self._budget_bytes = parse_bytes(budget)
        self._keep_gradients = keep_gradients
        self._log = log
        self._options = options
        self._undo: list[Callable[[], None]] = []
        self._refused = ""
        self._batches = 0
        self._block: eager_budget | None = None
        self.step: CompiledStep | None = None

    @property
    def refusal(self) -> str:
        """Why batches are not planned; "" when they are."""
        return self._refused or (self.step.refusal if self.step is not None else "")

    def stats(self) -> dict:
        """Of the compiled step, see CompiledStep.stats(); empty where none was made."""
        return self.step.stats() if self.step is not None else {}

    # ---- Called by the Trainer

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._restore()
        self.step = None
        self._batches = 0
        self._refused = _why_not(trainer)
        loop = trainer.fit_loop.epoch_loop
        if self._refused:
            warn(f"this training runs eagerly: {self._refused}", UnsupportedWarning)
            if self._budget_bytes is not None:
                self._block = eager_budget(self._budget_bytes, progress=False)
                for part in (loop.automatic_optimization, loop.manual_optimization):
                    self._replace(part, "run", self._within_the_budget(part.run))
            return
        postponed = Postponed(trainer)
        self._step_after_closure(trainer.precision_plugin)
        if pl_module.automatic_optimization:
            self._serve_automatic(trainer, loop, postponed)
        else:
            self._serve_manual(loop, postponed)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._batches += 1
        if self._batches == _LATE and self.step is not None:
            self._tell_if_none_is_planned(self.step)
        every = trainer.log_every_n_steps
        if self._log and self.step is not None and every > 0 and trainer.global_step % every == 0:
            for logger in trainer.loggers:
                logger.log_metrics(scalars(self.step), step=trainer.global_step)

    @staticmethod
    def _tell_if_none_is_planned(step: CompiledStep) -> None:
        stats = step.stats()
        if stats["eager_steps"] and not stats["planned_steps"] and not step.refusal:
            changes = step._latest_difference() or "it is recorded again each time"
            warn(f"none of {_LATE} batches was planned, as each does something else: {changes}", UnsupportedWarning)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        text = in_a_line(self.step, self._refused)
        LOG.info("Lightning's training: %s", text)
        for logger in trainer.loggers if self._log else ():
            add_text = getattr(getattr(logger, "experiment", None), "add_text", None)
            if add_text is not None:  # TensorBoard's
                add_text("stowage", text, trainer.global_step)
        self._restore()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._restore()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._restore()

    # ---- What stands in for the loop's own methods

    def _serve_automatic(self, trainer: Any, loop: Any, postponed: Postponed) -> None:
        part, optimizer = loop.automatic_optimization, trainer.optimizers[0]
        run, keep_gradients = part.run, self._keep_gradients

        def update(batch_idx, kwargs, first, last):
            postponed.begin()
            output = run(optimizer, batch_idx, kwargs)
            if last and not keep_gradients:
                optimizer.zero_grad()
            return output, postponed.values()

        self.step = step = self._compiled(update)

        def run_planned(optimizer, batch_idx, kwargs):
            first = batch_idx % trainer.accumulate_grad_batches == 0
            with postponed:
                output, values = step(batch_idx, kwargs, first, not loop._should_accumulate())
                postponed.end(values)
            return output

        self._replace(part, "run", run_planned)

    def _serve_manual(self, loop: Any, postponed: Postponed) -> None:
        part = loop.manual_optimization
        run = part.run

        def update(kwargs):
            postponed.begin()
            return run(kwargs), postponed.values()

        self.step = step = self._compiled(update)

        def run_planned(kwargs):
            with postponed:
                output, values = step(kwargs)
                postponed.end(values)
            return output

        self._replace(part, "run", run_planned)

    def _compiled(self, update: Callable) -> CompiledStep:
        return compile(update, self._budget_bytes, check="always", **self._options)

    def _within_the_budget(self, run: Callable) -> Callable:
        def run_limited(*args, **kwargs):
            assert self._block is not None and self._budget_bytes is not None
            with self._block._again(self._budget_bytes):
                return run(*args, **kwargs)

        return run_limited

    def _step_after_closure(self, precision: Any) -> None:
        """A step with a closure would be an optimizer's loop around the model; forward and backward come first here."""

        def optimizer_step(optimizer, model, closure, **kwargs):
            result = precision._wrap_closure(model, optimizer, closure)
            optimizer.step(**kwargs)
            return result

        self._replace(precision, "optimizer_step", optimizer_step)

    def _replace(self, owner: Any, name: str, function: Any) -> None:
        if name in vars(owner):
            raise Error(f"{type(owner).__name__}.{name} is replaced already: one Stowage callback is enough")
        setattr(owner, name, function)
        self._undo.append(lambda: delattr(owner, name))

    def _restore(self) -> None:
        while self._undo:
            self._undo.pop()()


# ---- What is refused


def _why_not(trainer: Any) -> str:
    """Why this training cannot be planned, or ""."""
    module, strategy = trainer.lightning_module, trainer.strategy
    if trainer.world_size > 1:
        return f"{trainer.world_size} processes ({type(strategy).__name__}); stowage.shard splits a step over ranks"
    if type(strategy).__name__ != "SingleDeviceStrategy":
        return f"the strategy {type(strategy).__name__}: only one device is planned for"
    if getattr(trainer.precision_plugin, "scaler", None) is not None:
        return f"precision='{trainer.precision_plugin.precision}' scales gradients: whether an update happens depends on data; use bf16-mixed"
    own = type(trainer.precision_plugin).optimizer_step
    if not own.__module__.endswith(("plugins.precision.precision", "plugins.precision.amp")):
        return f"the precision plugin {type(trainer.precision_plugin).__name__} steps the optimizer in its own way"
    if "dataloader_iter" in inspect.signature(module.training_step).parameters:
        return "training_step(dataloader_iter) takes its batches by itself"
    if module.automatic_optimization and not trainer.optimizers:
        return "there is no optimizer"
    for optimizer in trainer.optimizers:
        if module.automatic_optimization and (reason := why_not_after_closure(optimizer)):
            return reason
    return ""


__all__ = ["Stowage"]

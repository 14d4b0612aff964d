"""One recorded call: which optimizers and schedulers ran, in which order, and what their steps saw."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from stowage._torch import optimizer_steps
from stowage._torch.private import address, addresses
from stowage.step.reach.world import World
from stowage.step.record.calls_of_step import CallsOfStep
from stowage.step.record.declared import declare_optimizer


@dataclass
class OptimizerEvent:
    """One call of optimizer.step(). ``gradients``: parameter -> slot of the .grad it saw, for those that the step
    makes. ``absent``: parameters that had none then, but had one as the step
    began. ``moved``: parameters that the step itself made out of the model's, and their slots."""

    optimizer: torch.optim.Optimizer
    section: int
    gradients: list[tuple[torch.Tensor, int]] = field(default_factory=list)
    absent: list[torch.Tensor] = field(default_factory=list)
    moved: list[tuple[torch.Tensor, int]] = field(default_factory=list)


@dataclass
class SchedulerEvent:
    """One call of scheduler.step()."""

    scheduler: Any
    args: tuple
    kwargs: dict


class Session:
    """One recorded call: hooks on optimizers and schedulers, and the order in which they ran."""

    def __init__(self, recorder, world: World, calls: CallsOfStep, with_gradients: Iterable[torch.Tensor] = ()):
        """with_gradients: the parameters that have one as the step begins."""
        self._calls = calls
        self._given = {id(p) for p in with_gradients}
        self._thread = threading.get_ident()  # the hooks on optimizers hear those of other threads, too
        self.recorder = recorder
        self.world = world
        self.events: list = []
        self._hyperparameters = {id(o): _hyperparameters_of(o) for o in world.optimizers}
        self.takes_number = False  # a scheduler: it may depend on data
        self.operates = False  # a scheduler: a function of the user's in it calls operators
        self.calls_closure = False  # an optimizer
        self._closure = False  # the one that is at work
        self._optimizer_depth = 0
        self._scheduler_depth = 0
        self._watches = False

    def before_optimizer(self, optimizer, args, kwargs):
        if threading.get_ident() != self._thread or not self._watches:
            return
        self._calls.note_step()
        self._optimizer_depth += 1
        if self._optimizer_depth > 1:  # a subclass that calls its parent's step()
            return
        self._closure = any(v is not None and v is not optimizer for v in (*args, *kwargs.values()))
        if self._closure and self.world.distributed:
            self.recorder.refuse("optimizer.step() with a closure")
        if id(optimizer) not in self._hyperparameters:  # found late, by the walk or by its step
            if not any(optimizer is known for known in self.world.optimizers):
                self.world.optimizers.append(optimizer)
            self._hyperparameters[id(optimizer)] = _hyperparameters_of(optimizer)
            declare_optimizer(self.recorder, optimizer)
        if self._closure:  # forward and backward are in it: it is no part of its own
            self.calls_closure = True
            return
        self.world.enter_optimizer(optimizer)
        self.recorder.begin_section(addresses(p.grad for p in self.world.parameters()))
        event = OptimizerEvent(optimizer, sum(isinstance(e, OptimizerEvent) for e in self.events))
        for p in self.world.parameters():
            if p.grad is None and id(p) in self._given:
                event.absent.append(p)
            elif p.grad is not None and (self.world.distributed or self.recorder.made_in_step(address(p.grad))):
                event.gradients.append((p, self.recorder.slot_of(address(p.grad))))
        event.moved = [(p, self.recorder.slot_of(address(p))) for p in self.world.moved_parameters(optimizer)]
        self.events.append(event)
        self.world.pause()

    def after_optimizer(self, optimizer, args, kwargs):
        if threading.get_ident() != self._thread or not self._watches:
            return
        self._optimizer_depth -= 1
        if self._optimizer_depth == 0 and not self._closure:
            self._calls.note_draws()
            self.world.resume()
            self.recorder.end_section()
            self.world.leave_optimizer(optimizer)

    def watch(self) -> None:
        self._watches = True
        optimizer_steps.listen(self, self.before_optimizer, self.after_optimizer)
        for scheduler in self.world.schedulers:
            scheduler.__dict__["step"] = self._watched(scheduler, scheduler.step)

    def unwatch(self) -> None:
        """However far watch() has come."""
        self._watches = False
        optimizer_steps.forget(self)
        for scheduler in self.world.schedulers:
            scheduler.__dict__.pop("step", None)

    def sets_hyperparameters(self) -> bool:
        """The step does, by itself: no scheduler of its does."""
        known = [o for o in self.world.optimizers if id(o) in self._hyperparameters]
        changed = any(_hyperparameters_of(o) != self._hyperparameters[id(o)] for o in known)
        return changed and not any(isinstance(e, SchedulerEvent) for e in self.events)

    def _watched(self, scheduler, step):
        def watched_step(*args, **kwargs):
            self._calls.note_step()
            if self._scheduler_depth == 0:
                if not all(isinstance(v, (int, type(None))) for v in (*args, *kwargs.values())):
                    self.takes_number = True
                self.events.append(SchedulerEvent(scheduler, args, kwargs))
            self._scheduler_depth += 1
            self.world.pause()
            before = self.recorder.ops
            try:
                return step(*args, **kwargs)
            finally:
                self.operates = self.operates or self.recorder.ops != before
                self.world.resume()
                self._scheduler_depth -= 1

        return watched_step


def _hyperparameters_of(optimizer) -> list[dict]:
    return [
        {k: v for k, v in g.items() if k != "params" and not isinstance(v, torch.Tensor)}
        for g in optimizer.param_groups
    ]


__all__ = ["OptimizerEvent", "SchedulerEvent", "Session"]

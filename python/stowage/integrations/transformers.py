"""stowage.hf.plan(trainer): a transformers Trainer whose updates are planned steps.

    trainer = Trainer(model=model, args=args, train_dataset=data)
    stowage.hf.plan(trainer, budget="2GiB")        # the one added line
    trainer.train()

The Trainer's inner loop is no function that could be compiled: it calls training_step() for each micro-batch, clips,
steps the optimizer and zeroes the gradients. While it trains, its own methods are therefore served from one compiled
function:

    the loop calls           get_batch_samples   training_step × n                    _clip_grad_norm   optimizer.step   zero_grad
                                   │               │ first: the whole update runs          │                 │              │
    one compiled function    (remembered)          forward, backward × n, clip, step, zero_grad              │              │
                                                   └─▶ each gets its loss             its norm          done already    done already

The learning-rate schedule, logging, evaluation and checkpoints stay the Trainer's. Losses, gradient norms and
parameters are those of the unplanned Trainer, bit for bit. What cannot be kept so is refused by name when training
begins.

    Trainer(..., callbacks=[stowage.hf.StowageCallback("2GiB")])      the same, where the Trainer is not at hand
    STOWAGE_BUDGET=2GiB python train.py                               the same for each Trainer, after `import stowage.hf`"""

from __future__ import annotations

import functools
import json
import os
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

from transformers import Trainer, TrainerCallback
from transformers import trainer as trainer_module

from stowage.errors import Error, Unsupported
from stowage.integrations.telling import LOG, in_a_line, scalars
from stowage.step.compile import compile
from stowage.step.compiled import CompiledStep
from stowage.step.reach.world import is_plain

# Called between parts of an update that run as one: a callback that acts there would see another state than it expects.
_WITHIN_THE_UPDATE = ("on_pre_optimizer_step", "on_optimizer_step", "on_substep_end")
# What the Trainer itself changes from step to step; no part of the step reads it.
_ITS_OWN = ("state", "control", "current_flos")
_COUNTERS = {
    "current_flos",
    "current_gradient_accumulation_steps",
    "_globalstep_last_logged",
    "_total_loss_scalar",
    "_initial_global_step",
    "_initial_num_input_tokens_seen",
}


class _Opaque:
    """Holds what must not be watched; stowage does not look into its own objects."""

    def __init__(self, **held: Any):
        self.__dict__.update(held)


class PlannedTraining(TrainerCallback):
    """What plan() returns: the compiled step of the current training, once it has begun."""

    def __init__(self, trainer: Trainer | None, options: dict):
        self._trainer = trainer
        self._options = options
        self._undo: list = []
        self._batches: list = []
        self._losses: list = []
        self._grad_norm: Any = None
        self.step: CompiledStep | None = None

    @property
    def _trainer(self) -> Any:
        """Which holds this callback, and is not held by it: no cycle keeps a model until a collection comes."""
        return self._held() if self._held is not None else None

    @_trainer.setter
    def _trainer(self, trainer: Trainer | None) -> None:
        self._held = weakref.ref(trainer) if trainer is not None else None

    def __getstate__(self) -> dict:  # searches of hyperparameters copy Trainers, and send them to other processes
        return {**self.__dict__, "_held": self._trainer}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self._trainer = state["_held"]

    # ---- Called by the Trainer

    def on_train_begin(self, args, state, control, **kwargs):
        self._restore()
        _refuse(self._trainer)
        self.step = compile(self._update_function(), **self._options)
        self._serve()

    def on_log(self, args, state, control, **kwargs):
        """To those that report_to names, and to no callback of the user's, nor to the Trainer's own history."""
        if self.step is None or not self._undo:
            return
        for callback in self._trainer.callback_handler.callbacks:
            if any(c.__module__.startswith("transformers.integrations") for c in type(callback).__mro__):
                callback.on_log(args, state, control, **{**kwargs, "logs": scalars(self.step)})

    def on_train_end(self, args, state, control, **kwargs):
        LOG.info("transformers' training: %s", in_a_line(self.step))
        self._restore()

    # ---- One update

    def _update_function(self):
        trainer = self._trainer
        model, optimizer = trainer.model_wrapped, trainer.optimizer.optimizer
        own = _Opaque(
            training_step=_weakly(trainer.training_step, trainer),
            clip=_weakly(trainer._clip_grad_norm, trainer),
            norm=_weakly(trainer._get_grad_norm, trainer),
        )
        written_by_user = _overridden(trainer)  # watched: what they read of their globals and closures

        def update(batches, num_items, clipping, facts):
            assert written_by_user is not None
            losses = []
            for inputs in batches:
                losses.append(own.training_step()(model, inputs, num_items))
            grad_norm = own.norm()(model, grad_norm=own.clip()(model) if clipping else None)
            optimizer.step()
            model.zero_grad()
            return losses, grad_norm

        return update

    def _serve(self) -> None:
        trainer = self._trainer
        fetch = trainer.get_batch_samples

        def get_batch_samples(*args, **kwargs):
            self._batches, num_items = fetch(*args, **kwargs)
            self._losses = []
            return self._batches, num_items

        def training_step(model, inputs, num_items_in_batch=None):
            if not self._losses:
                clipping = trainer.args.max_grad_norm > 0
                losses, self._grad_norm = self.step(list(self._batches), num_items_in_batch, clipping, _facts(trainer))
                self._losses = list(losses)
            return self._losses.pop(0)

        self._replace(trainer, "get_batch_samples", get_batch_samples)
        self._replace(trainer, "training_step", training_step)
        self._replace(trainer, "_clip_grad_norm", lambda model: self._grad_norm)
        self._replace(trainer, "_get_grad_norm", lambda model, grad_norm=None: self._grad_norm)
        optimizer = trainer.optimizer
        assert optimizer is not None

        @functools.wraps(optimizer.step)  # with the marks that schedulers look for
        def stepped_already(closure=None):
            optimizer._opt_called = True

        self._replace(optimizer, "step", stepped_already)

    def _replace(self, owner: Any, name: str, function: Any) -> None:
        had = name in vars(owner)
        before = vars(owner).get(name)
        setattr(owner, name, function)
        self._undo.append(lambda: setattr(owner, name, before) if had else delattr(owner, name))

    def _restore(self) -> None:
        while self._undo:
            self._undo.pop()()


def _weakly(method: Any, trainer: Trainer) -> Callable[[], Any]:
    """Returns the method, as long as the Trainer is there. One that a program has put there may be any function."""
    return weakref.WeakMethod(method) if getattr(method, "__self__", None) is trainer else lambda: method


def _facts(trainer: Trainer) -> tuple:
    """The plain values that the Trainer's methods can read: a change of one records anew."""
    own = tuple((k, v) for k, v in sorted(vars(trainer).items()) if k not in _COUNTERS and is_plain(v))
    arguments = tuple((k, v) for k, v in sorted(vars(trainer.args).items()) if is_plain(v))
    return own, arguments, trainer.current_gradient_accumulation_steps


def _overridden(trainer: Trainer) -> list:
    """The user's own code in the step: methods of a subclass, and the function that computes the loss."""
    names = ("training_step", "compute_loss", "_prepare_inputs", "_clip_grad_norm", "_get_grad_norm")
    functions = [
        getattr(type(trainer), name) for name in names if getattr(type(trainer), name) is not getattr(Trainer, name)
    ]
    return functions + ([trainer.compute_loss_func] if trainer.compute_loss_func is not None else [])


def _refuse(trainer: Trainer) -> None:
    """Raises Unsupported for what one planned step cannot stand for."""
    accelerator = trainer.accelerator
    if accelerator.num_processes > 1 or accelerator.distributed_type.value != "NO":
        raise Unsupported(f"a Trainer of several processes ({accelerator.distributed_type.value})")
    if getattr(accelerator, "scaler", None) is not None:
        raise Unsupported(
            "a Trainer with fp16 and a gradient scaler: whether an update happens depends on data; use bf16"
        )
    for callback in trainer.callback_handler.callbacks:
        for name in _WITHIN_THE_UPDATE:
            if getattr(type(callback), name) is not getattr(TrainerCallback, name):
                raise Unsupported(
                    f"the callback {type(callback).__name__}: {name}() acts within the update, which runs as one planned step"
                )
    for function in _overridden(trainer):
        code = getattr(function, "__code__", None)
        if code is None:
            continue
        read = [name for name in _ITS_OWN if name in code.co_names]
        if read:
            raise Unsupported(
                f"{code.co_filename}:{code.co_firstlineno}: {function.__name__} reads '{read[0]}' of the Trainer, which changes in each step"
            )


class StowageCallback(PlannedTraining):
    """plan() as a callback: Trainer(callbacks=[StowageCallback("2GiB")]), or the class itself, with STOWAGE_BUDGET.

    budget and options: as for plan(). ``step`` is the CompiledStep of the training, once it has begun."""

    def __init__(self, budget: int | str | None = None, **options: Any):
        super().__init__(None, {"budget": _or_of_environment(budget), **options})

    def on_init_end(self, args, state, control, **kwargs):
        self._trainer = _trainer_that_calls(self)

    def on_train_begin(self, args, state, control, **kwargs):
        self._trainer = _trainer_that_calls(self)
        super().on_train_begin(args, state, control, **kwargs)


class _OfEnvironment(StowageCallback):
    """Of each Trainer where STOWAGE_BUDGET is set, but of those that are planned by name."""

    def on_train_begin(self, args, state, control, **kwargs):
        trainer = _trainer_that_calls(self)
        if not any(_is_planned_by(callback) for callback in trainer.callback_handler.callbacks):
            super().on_train_begin(args, state, control, **kwargs)

    def on_train_end(self, args, state, control, **kwargs):
        if self.step is not None:
            super().on_train_end(args, state, control, **kwargs)


def _is_planned_by(callback: TrainerCallback) -> bool:
    return isinstance(callback, PlannedTraining) and not isinstance(callback, _OfEnvironment)


def _trainer_that_calls(callback: TrainerCallback) -> Trainer:
    """A callback is not told whose it is. The Trainer that calls one holds it."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, Trainer) and any(c is callback for c in caller.callback_handler.callbacks):
            return caller
        frame = frame.f_back
    raise Unsupported(
        f"{type(callback).__name__} is called by no transformers Trainer that holds it: use stowage.hf.plan(trainer)"
    )


def _or_of_environment(budget: int | str | None) -> int | str | None:
    return budget if budget is not None else os.environ.get("STOWAGE_BUDGET") or None


def _limited_already() -> bool:
    """``stowage run`` keeps this process within STOWAGE_BUDGET."""
    return json.loads(os.environ.get("STOWAGE_RUN", "{}")).get("budget_bytes") is not None


def _plan_each_trainer() -> None:
    """Once, when this is imported."""
    if os.environ.get("STOWAGE_BUDGET") and not _limited_already():
        trainer_module.DEFAULT_CALLBACKS.append(_OfEnvironment)  # type: ignore[arg-type]


_plan_each_trainer()


def plan(trainer: Trainer, budget: int | str | None = None, **options: Any) -> PlannedTraining:
    """Lets ``trainer.train()`` run its updates as planned steps.

    An update is all micro-batches of gradient_accumulation_steps, clipping, the optimizer's step and zero_grad. What
    report_to names gets the plan's figures with each of the Trainer's logs.

    Args:
        trainer: a transformers.Trainer.
        budget: what residents and arena together may take, in bytes or as "2GiB"; None: STOWAGE_BUDGET of the environment,
            else no limit.
        options: those of stowage.compile (check_every, link_gbps, strict, in_place_reuse).

    Returns:
        A PlannedTraining, whose ``step`` is the CompiledStep of the training (stats(), explain(), plan), once it has
        begun.

    Raises:
        Unsupported: when training begins, for what cannot be planned: several processes, a gradient scaler, callbacks
            that act within the update, a subclass's loss that reads the Trainer's state.
    """
    if not isinstance(trainer, Trainer):
        raise TypeError(f"plan() needs a transformers Trainer, not {type(trainer).__name__}")
    if any(_is_planned_by(c) for c in trainer.callback_handler.callbacks):
        raise Error("this Trainer is planned already")
    planned = PlannedTraining(trainer, {"budget": _or_of_environment(budget), **options})
    trainer.add_callback(planned)
    return planned


__all__ = ["PlannedTraining", "StowageCallback", "plan"]

"""A training loop (api_loop.py) twice, compiled and eagerly, and whether both are the same: every tensor bit for bit,
every number.

    pair = Pair(config)
    pair.both(lambda side: ...)       a change, made to both
    pair.call("train", batch)         a call of the compiled step, then of the eager one; same result or same error, same state
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import pathlib
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

import stowage
from stowage.step.compiled import CompiledStep

_LOOP = pathlib.Path(__file__).with_name("api_loop.py")
_PATIENCE_S = 120


class Wrong(AssertionError):
    pass


def bits(value: Any) -> Any:
    """Equal for equal bits, shape, strides and dtype."""
    if isinstance(value, torch.Tensor):
        plain = value.detach().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        return str(value.dtype), tuple(value.shape), value.stride(), bytes(plain.numpy())
    if isinstance(value, (list, tuple)):
        return [bits(v) for v in value]
    return repr(value)


class Side:
    def __init__(self, name: str, config: dict):
        spec = importlib.util.spec_from_file_location(name, _LOOP)
        self.globals = importlib.util.module_from_spec(spec)
        sys.modules[name] = self.globals
        spec.loader.exec_module(self.globals)
        torch.manual_seed(config["seed"])
        self.loop = self.globals.Loop(config)
        self.generator = torch.get_rng_state()
        self.kept: list[torch.Tensor] = []  # by the user, across calls

    @contextlib.contextmanager
    def its_generator(self):
        torch.set_rng_state(self.generator)
        try:
            yield
        finally:
            self.generator = torch.get_rng_state()

    def step(self, name: str) -> Callable:
        return getattr(self.loop, name)

    def gradients(self) -> dict[str, Any]:
        return {name: bits(p.grad) for name, p in self.loop.model.named_parameters()}

    def state(self) -> dict[str, Any]:
        """Everything but the gradients."""
        loop = self.loop
        found: dict[str, Any] = {k: bits(v) for k, v in loop.model.state_dict().items()}
        found |= {f"{k} requires grad": p.requires_grad for k, p in loop.model.named_parameters()}
        for o, optimizer in enumerate(loop.optimizers):
            for g, group in enumerate(optimizer.param_groups):
                found |= {f"optimizer {o}, group {g}, {k}": bits(v) for k, v in group.items() if k != "params"}
                for i, p in enumerate(group["params"]):
                    found |= {
                        f"optimizer {o}, parameter {g}.{i}, {k}": bits(v) for k, v in optimizer.state.get(p, {}).items()
                    }
        if loop.scheduler is not None:
            found |= {f"scheduler {k}": repr(v) for k, v in loop.scheduler.state_dict().items() if k != "lr_lambdas"}
        found |= {f"kept {i}": bits(t) for i, t in enumerate(self.kept)}
        return found | {"seen": repr(loop.seen), "generator": bits(self.generator)}

    def adopt(self, other: Side) -> None:
        """Becomes as the other one is."""
        mine, its = self.loop, other.loop
        for a, b in zip(mine.model.parameters(), its.model.parameters(), strict=True):
            a.data.copy_(b.data)
            a.grad = None if b.grad is None else b.grad.clone()
        for a, b in zip(mine.model.buffers(), its.model.buffers(), strict=True):
            a.copy_(b)
        for a, b in zip(mine.optimizers, its.optimizers, strict=True):
            a.state.clear()
            for to, group in zip(a.param_groups, b.param_groups, strict=True):
                to.update({k: copy.deepcopy(v) for k, v in group.items() if k != "params"})
                for p, q in zip(to["params"], group["params"], strict=True):
                    if q in b.state:
                        a.state[p] = copy.deepcopy(b.state[q])
        if mine.scheduler is not None:
            mine.scheduler.load_state_dict(copy.deepcopy(its.scheduler.state_dict()))
        self.kept.clear()
        mine.seen, self.generator = list(its.seen), other.generator.clone()


def first_difference(a: dict[str, Any], b: dict[str, Any]) -> str:
    if a.keys() != b.keys():
        return f"names {sorted(a.keys() ^ b.keys())[:3]}"
    return next((k for k in a if a[k] != b[k]), "")


Outcome = tuple[Any, BaseException | None]


def kind(error: BaseException | None) -> str:
    return type(error).__name__


def attempt(call: Callable[[], Any]) -> Outcome:
    try:
        return call(), None
    except Wrong:
        raise
    except BaseException as error:
        return None, error


def in_thread(call: Callable[[], Any]) -> Callable[[], Any]:
    """call() in a thread of its own, which is waited for."""

    def run() -> Any:
        found: list[Outcome] = []
        thread = threading.Thread(target=lambda: found.append(attempt(call)), daemon=True)
        thread.start()
        thread.join(_PATIENCE_S)
        if not found:
            raise Wrong("the thread does not end")
        if found[0][1] is not None:
            raise found[0][1]
        return found[0][0]

    return run


class Pair:
    STEPS = ("train", "accumulate")

    def __init__(self, config: dict, name: str = "main"):
        self.planned, self.eager = Side(f"api_loop_{name}_planned", config), Side(f"api_loop_{name}_eager", config)
        self.sides = self.planned, self.eager
        self.results: list[tuple[Any, Any]] = []  # the last ones, and what they were: no later call may write into them
        self.calls = self.planned_calls = self.raised = self.before = 0
        self.compiled: dict[str, CompiledStep] = {}
        self.compile({})

    def compile(self, options: dict) -> None:
        """Anew. ``share``: the budget is the residents and that share of the program's peak, where known; where residents
        may leave, that share of both together."""
        options = dict(options)
        share, graph = options.pop("share", None), self.compiled["train"].graph if self.compiled else None
        leaving = "residents" in options
        if share is not None and graph is None:
            parameters = sum(p.nbytes for p in self.planned.loop.model.parameters())
            options["budget"] = int(share * 5 * parameters) if leaving else "1GiB"
        elif share is not None:
            stays = int(share * graph.resident_bytes) if leaving else graph.resident_bytes
            options["budget"] = stays + int(share * graph.program_peak_bytes) + 4096
        self.options = options
        self.planned_calls += sum(step.stats()["planned_steps"] for step in self.compiled.values())
        self.compiled = {name: stowage.compile(self.planned.step(name), **options) for name in self.STEPS}

    def both(self, change: Callable[[Side], Any]) -> None:
        outcomes = []
        for side in self.sides:
            with side.its_generator():
                outcomes.append(attempt(lambda: change(side)))
        if kind(outcomes[0][1]) != kind(outcomes[1][1]):
            raise Wrong(f"a change raises {outcomes[0][1]!r}, of eager's {outcomes[1][1]!r}")
        self.same("a change")

    def same(self, after: str) -> None:
        what = first_difference(self.planned.state(), self.eager.state()) or first_difference(
            self.planned.gradients(), self.eager.gradients()
        )
        if what:
            raise Wrong(f"{what} differs after {after}")
        for value, was in self.results:
            if bits(tree_flatten(value)[0]) != was:
                raise Wrong(f"an earlier result has changed after {after}")

    # ---- A call

    def call(
        self,
        name: str,
        batch: Callable[[Side], tuple],
        wrap: Callable = lambda call: call,
        planned_wrap: Callable | None = None,
    ) -> BaseException | None:
        """What the compiled step raised. ``wrap``: around the call, on both sides; ``planned_wrap``: of the compiled
        one instead."""
        settle = self.begin(name, lambda side, step: wrap(lambda: step(*batch(side))))
        with self.planned.its_generator():
            outcome = attempt((planned_wrap or wrap)(lambda: self.compiled[name](*batch(self.planned))))
        return settle(outcome)

    def begin(
        self, name: str, eagerly: Callable[[Side, Callable], Callable[[], Any]]
    ) -> Callable[[Outcome], BaseException | None]:
        """Before the call; what it returns is to be called after it."""
        self.calls += 1
        before, gradients, plain = self.planned.state(), self.planned.gradients(), self._plain_runs(name)
        planned = self._planned(name)

        def settle(outcome: Outcome) -> BaseException | None:
            result, error = outcome
            if error is None:
                self._finished(name, result, eagerly)
                return None
            self.raised += 1
            self._stopped(name, error, eagerly, before, gradients, plain, planned)
            return error

        return settle

    def _eagerly(self, name: str, eagerly: Callable) -> Outcome:
        with self.eager.its_generator():
            return attempt(eagerly(self.eager, self.eager.step(name)))

    def _finished(self, name: str, result: Any, eagerly: Callable) -> None:
        expected, error = self._eagerly(name, eagerly)
        if error is not None:
            raise Wrong(f"{name} goes through where eager raises {error!r}") from error
        (leaves, tree), (others, other_tree) = tree_flatten(result), tree_flatten(expected)
        if tree != other_tree or bits(leaves) != bits(others):
            raise Wrong(f"the result of {name} differs: {result!r}, not {expected!r}")
        self.same(name)
        self.results = [*self.results[-5:], (result, bits(leaves))]

    def _stopped(
        self,
        name: str,
        error: BaseException,
        eagerly: Callable,
        before: dict,
        gradients: dict,
        plain: Any,
        planned: int,
    ) -> None:
        """As before the call, or as after it (after the same error, for one of the user's Python); never between."""
        now, now_gradients = self.planned.state(), self.planned.gradients()
        ours = isinstance(error, (stowage.OutOfMemory, stowage.Infeasible)) and "budget" in self.options
        interrupt = isinstance(error, KeyboardInterrupt)
        for state in (before, now) if interrupt else ():
            state.pop("seen")  # the user's own list: what Python has appended stays
        what = first_difference(before, now)
        as_before = not what and all(now_gradients[k] in (gradients[k], "None") for k in now_gradients)
        if as_before and (ours or interrupt):
            self.before += 1
        elif ours:
            raise Wrong(f"{what or 'a gradient'} is not as before {name}, which raised {error!r}") from error
        else:
            _, expected = self._eagerly(name, eagerly)
            if not interrupt and kind(expected) != kind(error):
                raise Wrong(f"{name} raises {error!r}, eager {expected!r}") from error
            other = first_difference({k: v for k, v in self.eager.state().items() if k in now}, now) or (
                "" if self.eager.gradients() == now_gradients else "a gradient"
            )
            plainly = interrupt and self._plain_runs(name) != plain  # or a first call that keeps no copy of all state
            plainly = plainly or (interrupt and "residents" in self.options and self._planned(name) == planned)
            if other and not as_before and not plainly:
                notes = getattr(error, "__notes__", [])
                raise Wrong(
                    f"after {name} raised {error!r} {notes}: not as before ({what or 'a gradient'}), nor as after ({other})"
                ) from error
        self.resync()
        if ours:
            known = getattr(error, "smallest_bytes", 0) or getattr(error, "bound_bytes", 0) or "1GiB"
            self.compile({"budget": known} | {k: v for k, v in self.options.items() if k == "residents"})

    def resync(self) -> None:
        """After a call that only one of them has made, or not to its end."""
        if self.planned.state() != self.eager.state() or self.planned.gradients() != self.eager.gradients():
            self.planned.kept.clear()  # whose they are is not known of the twin
            self.eager.adopt(self.planned)
        self.same("a call that raised")

    def _planned(self, name: str) -> int:
        return self.compiled[name].stats()["planned_steps"]

    def _plain_runs(self, name: str) -> Any:
        """Changes when the function runs without recording or plan: then an interrupt stops it between, as in eager."""
        step = self.compiled[name]
        return step.plain_calls if hasattr(step, "plain_calls") else 0, {
            id(r): r.matcher.plain_runs for e in step._entries.values() for r in e.replays
        }


def count_plain_calls() -> None:
    original = CompiledStep._eager

    def counted(self, *args, **kwargs):
        self.plain_calls = getattr(self, "plain_calls", 0) + 1
        return original(self, *args, **kwargs)

    CompiledStep._eager = counted

"""What Lightning's self.log() hands over within a planned step is added up when the step is over.

    self.log(name, value) ──checked by Lightning, value copied──▶ results.log(...)  ┄┄ kept ┄┄▶ the same call, after the step
                                                                  results.reset(...)             with the step's numbers

Sums over an epoch begin anew now and then, and would be other tensors in each step. Order and arguments stay. The
batch is out of the results' sight meanwhile, as it is an argument of the step; metrics() adds up at once what is kept,
so that a step which asks for metrics gets them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from stowage.errors import Error


class Postponed:
    """Of one training: `with postponed:` around each step, begin() and values() within it, end(values) after it."""

    def __init__(self, trainer: Any):
        self._results = trainer.fit_loop.epoch_loop._results
        self._calls: list[tuple[Callable, tuple, dict]] = []
        self._ran = False
        of_class = type(self._results)
        self._own = {name: getattr(of_class, name) for name in ("log", "reset", "metrics")}
        self._ours = {"log": self._keep("log"), "reset": self._keep("reset"), "metrics": self._metrics}

    def __enter__(self) -> Postponed:
        """The batch is a step's argument; it is out of the results' sight meanwhile."""
        self._calls, self._ran = [], False
        self._batch, self._results.batch = self._results.batch, None
        for name, function in self._ours.items():
            setattr(self._results, name, function)
        return self

    def __exit__(self, *_: Any) -> None:
        self._hand_back()
        self._results.batch = self._batch
        self._batch = None

    def begin(self) -> None:
        self._calls, self._ran = [], True

    def values(self) -> list[torch.Tensor]:
        """Of what was logged in this call: results of the step."""
        return [value for _, args, _ in self._calls for value in args if isinstance(value, torch.Tensor)]

    def end(self, values: list[torch.Tensor]) -> None:
        """Adds up, with the numbers that the step has given."""
        if not self._ran:
            raise Error("the Python of a Lightning batch has not run: what it logs is lost")
        self._hand_back()
        self._results.batch = self._batch
        given = iter(values)
        for function, args, kwargs in self._calls:
            function(self._results, *(next(given) if isinstance(a, torch.Tensor) else a for a in args), **kwargs)
        self._calls = []

    def _keep(self, name: str) -> Callable:
        own = self._own[name]

        def kept(*args, **kwargs):
            if any(isinstance(value, torch.Tensor) for value in kwargs.values()):
                raise Error(f"Lightning hands a tensor to {name}() by name, which Stowage does not know")
            self._calls.append((own, args, kwargs))
            if not self._results:  # with nothing in it, nobody would ask it for metrics
                self._add_up()

        return kept

    def _metrics(self, *args: Any, **kwargs: Any) -> Any:
        self._add_up()
        return self._own["metrics"](self._results, *args, **kwargs)

    def _add_up(self) -> None:
        """At once."""
        self._results.batch = self._batch
        for function, args, kwargs in self._calls:
            function(self._results, *args, **kwargs)
        self._results.batch, self._calls = None, []

    def _hand_back(self) -> None:
        for name in self._ours:
            vars(self._results).pop(name, None)


__all__ = ["Postponed"]

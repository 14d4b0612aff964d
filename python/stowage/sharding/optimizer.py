"""An optimizer that works on parts.

    between steps   param_groups: DTensors of the model     state: DTensors        zero_grad(), clipping, state_dict() are the model's
    during step()   param_groups: this rank's parts         state: plain tensors   the optimizer's own step(), as it is

That is right for every optimizer that works element by element (element_by_element.py refuses the others), and needs nothing of
DTensor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
from torch.optim import Optimizer

from stowage.sharding.parts import Part


class SplitOptimizer:
    def __init__(self, optimizer: Optimizer, parts: dict[int, Part], replaced: dict[int, torch.nn.Parameter]):
        """Takes its parameters and state apart. ``parts``: by id of the DTensor; ``replaced``: the DTensor, by id of
        what it replaces."""
        self.optimizer = optimizer
        self.groups: list[list[Part]] = []
        self.state: dict = {}  # of the parts
        self._shown: dict = {}  # the same, as the optimizer holds it between its steps
        before = dict(optimizer.state)
        for group in optimizer.param_groups:
            mine = [parts[id(replaced[id(p)])] for p in group["params"]]
            self.groups.append(mine)
            for p, part in zip(group["params"], mine):
                if p in before:
                    self.state[part.worked] = {k: part.cut_state(v) for k, v in before[p].items()}
            group["params"] = [part.parameter for part in mine]
        self._show()
        self._hold(self._shown)

    def put_together(self, whole_ones: dict[int, torch.nn.Parameter], dense: Callable) -> None:
        """The optimizer works on whole parameters again. ``whole_ones``: by id of the DTensor; ``dense``: a tensor of the
        state as a whole one."""
        state = {
            whole_ones[id(p)]: {key: dense(value) for key, value in shown.items()} for p, shown in self._shown.items()
        }
        for group, parts in zip(self.optimizer.param_groups, self.groups, strict=True):
            group["params"] = [whole_ones[id(part.parameter)] for part in parts]
        self._hold(state)

    def parts(self) -> list[Part]:
        return [part for group in self.groups for part in group]

    @contextlib.contextmanager
    def working(self):
        """While open, the optimizer holds the parts."""
        self.open()
        try:
            yield
        finally:
            self.close()

    def open(self) -> None:
        self._hold(self.state)
        for group, parts in zip(self.optimizer.param_groups, self.groups, strict=True):
            group["params"] = [part.worked for part in parts]

    def close(self) -> None:
        for group, parts in zip(self.optimizer.param_groups, self.groups, strict=True):
            group["params"] = [part.parameter for part in parts]
        if not _same(self.optimizer.state, self.state):
            self.state = {p: dict(state) for p, state in self.optimizer.state.items()}
            self._show()
        self._hold(self._shown)

    def _hold(self, state: dict) -> None:
        self.optimizer.state.clear()
        self.optimizer.state.update(state)

    def _show(self) -> None:
        self._shown = {
            part.parameter: {k: part.shown_state(v) for k, v in self.state[part.worked].items()}
            for part in self.parts()
            if part.worked in self.state
        }


def _same(a: dict, b: dict) -> bool:
    """The same tensors and values."""
    if len(a) != len(b):
        return False
    for key, x in a.items():
        y = b.get(key)
        if y is None or len(x) != len(y) or any(v is not y.get(k) for k, v in x.items()):
            return False
    return True

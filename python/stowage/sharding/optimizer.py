"""An optimizer that works on parts.

    between steps   param_groups: DTensors of the model     state: DTensors        zero_grad(), clipping, state_dict() are the model's
    during step()   param_groups: this rank's parts         state: plain tensors   the optimizer's own step(), as it is

That is right for every optimizer that works element by element (element_by_element.py refuses the others), and needs nothing of
DTensor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

import torch
from torch.optim import Optimizer

from stowage.errors import Unsupported
from stowage.sharding.parts import Part


class SplitOptimizer:
    def __init__(self, optimizer: Optimizer, parts: dict[int, Part], replaced: dict[int, torch.nn.Parameter]):
        """Takes its parameters and state apart. ``parts``: by id of the DTensor; ``replaced``: the DTensor, by id of
        what it replaces."""
        self.optimizer = optimizer
        self.groups: list[list[Part]] = []
        self.state: dict = {}  # of the parts
        self._shown: dict = {}  # the same, as the optimizer holds it between its steps
        # What the optimizer holds between its steps: the same lists and dicts always, so that nothing is found changed
        self._params: list[list] = []
        self._held: dict[torch.Tensor, dict] = {}  # a second copy of _shown: what the program puts into it is seen
        self._worked: dict[int, torch.Tensor] = {}  # of the parts, by id of what is shown
        before = dict(optimizer.state)
        for group in optimizer.param_groups:
            mine = [parts[id(replaced[id(p)])] for p in group["params"]]
            self.groups.append(mine)
            for p, part in zip(group["params"], mine):
                if p in before:
                    self.state[part.worked] = {k: part.cut_state(v) for k, v in before[p].items()}
            group["params"] = [part.parameter for part in mine]
            self._params.append(group["params"])
        self._show()
        self._hold(self._held)

    def put_together(self, whole_ones: Mapping[int, torch.Tensor], dense: Callable) -> None:
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
        self._hold({p: dict(values) for p, values in self.state.items()})  # what the step puts into it is seen
        for group, parts in zip(self.optimizer.param_groups, self.groups, strict=True):
            group["params"] = [part.worked for part in parts]

    def close(self) -> None:
        for group, params in zip(self.optimizer.param_groups, self._params, strict=True):
            group["params"] = params
        if not _same(self.optimizer.state, self.state):
            self.state = {p: dict(state) for p, state in self.optimizer.state.items()}
            self._show()
        self._hold(self._held)

    # ---- What the program does to it between steps

    def is_as_left(self) -> bool:
        """Nobody has put other state into it, or other parameters."""
        return self._has_its_parameters() and _same(self.optimizer.state, self._shown)

    def adopt(self) -> None:
        """The state that the program has put there (load_state_dict(), state.clear()) is that of the parts from now on. A
        collective where tensors come at other placements. Raises Unsupported for other parameters."""
        if not self._has_its_parameters():
            raise Unsupported(
                f"the parameters of {type(self.optimizer).__name__} were changed after its step was sharded (add_param_group): give it all "
                "of them before the first call"
            )
        by_id = {id(part.parameter): part for part in self.parts()}
        self.state = {}
        for p, state in self.optimizer.state.items():
            if (part := by_id.get(id(p))) is None:
                raise Unsupported(
                    f"{type(self.optimizer).__name__} has state of a tensor that is none of its parameters"
                )
            known = {id(shown): self._worked[id(shown)] for shown in state.values() if id(shown) in self._worked}
            self.state[part.worked] = {
                k: known[id(v)] if id(v) in known else part.cut_state(v) for k, v in state.items()
            }
        self._show()
        self._hold(self._held)

    def _has_its_parameters(self) -> bool:
        groups = self.optimizer.param_groups
        return len(groups) == len(self.groups) and all(
            len(group["params"]) == len(parts) and all(p is part.parameter for p, part in zip(group["params"], parts))
            for group, parts in zip(groups, self.groups)
        )

    def _hold(self, state: dict) -> None:
        self.optimizer.state.clear()
        self.optimizer.state.update(state)

    def _show(self) -> None:
        self._shown = {
            part.parameter: {k: part.shown_state(v) for k, v in self.state[part.worked].items()}
            for part in self.parts()
            if part.worked in self.state
        }
        self._held = {p: dict(shown) for p, shown in self._shown.items()}
        self._worked = {
            id(shown): self.state[part.worked][key]
            for part in self.parts()
            for key, shown in self._shown.get(part.parameter, {}).items()
            if isinstance(shown, torch.Tensor)
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

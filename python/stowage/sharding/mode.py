"""Running a step once on DTensors, each op on the placements that the plan gives it.

    op k of the program ──► op k of the step:   inputs ─redistribute─► planned placements ─► kernel on the parts (recorded)
                                                                                         └─► outputs ─redistribute─► where they live

The mode sees the user's ops about in the order in which the capture saw them; what the ops do inside (collectives,
local kernels) goes to the dispatcher's hook, which records the rank's own tape. Ops that the program does not have
(models look at real masks, and not at fake ones; steps go by numbers) run by DTensor's rules. Where there is none, or none that
is right, where a kernel cannot run on its part, and for random numbers, the op runs on whole tensors on every rank: right, at
the price of memory, and listed.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor.experimental import implicit_replication
from torch.utils._python_dispatch import TorchDispatchMode

from stowage._torch.distributed import (
    counting_unseen,
    dtensor_of,
    dtensor_spec,
    local_shape,
    rules_alone,
    waiting_collectives,
)
from stowage._torch.private import hook_open, local_tensor, tree_map
from stowage.sharding.aliases import Aliases, stale
from stowage.sharding.group import Ranks
from stowage.sharding.kernel import Moved, laid_out_as_asked, run_local, run_on_parts
from stowage.sharding.moves import brought, plain_sum
from stowage.sharding.old_gradients import OldGradients
from stowage.sharding.past_the_dispatcher import PastTheDispatcher, read_whole
from stowage.sharding.program import Program, is_passed_over, tensor_ids
from stowage.sharding.schema import Schema, schema

_EMPTIES = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted")
_WINDOW = 256  # ops before and after the latest one that was sure


def parse_placement(text: str) -> tuple:
    """ "S0,R" of the plan's JSON as DTensor's placements."""
    parts: list[Placement] = []
    for part in text.split(","):
        if part[0] == "S":
            parts.append(Shard(int(part[1:])))
        else:
            parts.append(
                {"R": Replicate(), "Psum": Partial("sum"), "Pavg": Partial("avg"), "Pmax": Partial("max")}[part]
            )
    return tuple(parts)


class OpPlan:
    """The ops of a program outside the optimizer, and where the plan wants their tensors.

    An op of the step is the next of its name in the program, on tensors of its shapes that has not come yet, and whose
    tensors are those that the program has there, as far as they are known:

        program   k-1: view(7) -> 8     k: add(8, 3) -> 9       step   add(a, b), a made by op k-1, b unknown      is k
    """

    def __init__(self, program: Program, planned: list[dict | None]):
        roots = [t.get("alias_of", i) for i, t in enumerate(program.tensors)]
        self._in_optimizer = [op["phase"] == "optimizer" for op in program.ops]
        self._planned = [
            None if p is None else PlacedOp(program, op, p, roots) for op, p in zip(program.ops, planned, strict=True)
        ]
        self._roots = [tuple(roots[i] for i in tensor_ids(op)) for op in program.ops]
        self._places: dict[tuple, list[int]] = {}  # by name and shapes, outside the optimizer
        for k, op in enumerate(program.ops):
            if not self._in_optimizer[k]:
                self._places.setdefault((op["target"], _shapes_in(program, op)), []).append(k)
        self._program = program
        self.stale = None if program.guessed else stale(program)
        self.restart()

    def restart(self) -> None:
        self._at = 0
        self._done = bytearray(len(self._planned))
        self.unplaced: list[str] = []  # ops of the step that the program does not have

    def begin(self, parameters: list[tuple[str, torch.nn.Parameter]], inputs: list[torch.Tensor]) -> None:
        """What is known when the step begins."""
        for name, p in parameters:
            _remember(p, self._program.parameters[name])
        for t, i in zip(inputs, self._program.inputs, strict=True):
            _remember(t, i)

    def next(self, func, args: tuple, kwargs: dict) -> PlacedOp | None:
        """The plan of the op that comes now, None for one that the program does not have."""
        said = schema(func)
        tensors = list(said.tensors(args, kwargs))
        known = [getattr(t, _NAME, None) for t in tensors]
        for k in self._places.get((said.text, _shapes(said, tensors, args, kwargs)), ()):
            if self._done[k] or abs(k - self._at) > _WINDOW:
                continue
            if any(mine is not None and mine != theirs for mine, theirs in zip(known, self._roots[k])):
                continue
            self._done[k] = True
            if any(mine is not None for mine in known):
                self._at = max(self._at, k)
            return self._planned[k]
        self.unplaced.append(said.text)
        return None

    def pass_optimizer(self) -> None:
        """After one call of optimizer.step()."""
        at = self._at
        while at < len(self._in_optimizer) and not self._in_optimizer[at]:
            at += 1
        while at < len(self._in_optimizer) and self._in_optimizer[at]:
            at += 1
        self._at = at


_NAME = "_stowage_root"  # of a DTensor: the program's tensor whose storage it is in


def _remember(t: Any, root: int | None) -> None:
    if isinstance(t, DTensor) and root is not None:
        setattr(t, _NAME, root)


def _draws(func, args: tuple, kwargs: dict) -> bool:
    """Random numbers. Attention kernels say that they might; without dropout they do not."""
    said = schema(func)
    return said.draws and dict(said.arguments(args, kwargs)).get("dropout_p", 1.0) > 0


def _writes_plain(func, args: tuple, kwargs: dict) -> bool:
    """To a tensor that is no DTensor: of the step's own, and whole on every rank."""
    return any(not isinstance(t, DTensor) for t in schema(func).written(args, kwargs))


def _writes_summands(func, args: tuple, kwargs: dict) -> bool:
    """Of what is written, each rank has a summand: DTensor would fill each of them with the same number."""
    return any(
        isinstance(t, DTensor) and any(p.is_partial() for p in t.placements) for t in schema(func).written(args, kwargs)
    )


def _shapes_in(program: Program, op: dict) -> tuple:
    sizes = sorted((k, tuple(v)) for k, v in op.get("attributes", {}).items() if isinstance(v, list))
    return tuple(tuple(program.tensors[i]["shape"]) for i in tensor_ids(op)), tuple(sizes)


def _shapes(said: Schema, tensors: list[torch.Tensor], args: tuple, kwargs: dict) -> tuple:
    """Of all tensors of all arguments, in schema order; and the lists of numbers among the arguments (two views differ
    by them)."""
    sizes = [
        (name, tuple(value))
        for name, value in said.arguments(args, kwargs)
        if isinstance(value, (list, tuple)) and all(isinstance(v, (bool, int)) for v in value)
    ]
    return tuple(tuple(t.shape) for t in tensors), tuple(sorted(sizes))


class PlacedOp:
    """How one op runs: where its inputs are brought, what the kernel leaves of each output, and where that goes."""

    def __init__(self, program: Program, op: dict, planned: dict, roots: list[int]):
        places = [
            None if p is None else parse_placement(p) for key in ("inputs", "computed", "outputs") for p in planned[key]
        ]
        n, m = len(planned["inputs"]), len(planned["computed"])
        self.inputs, self.computed, self.outputs = places[:n], places[n : n + m], places[n + m :]
        self.is_empty = op["target"].split(".")[1] in _EMPTIES
        if self.is_empty:
            self.computed = self.outputs  # nothing is in it that could be moved
        self.recipe = planned.get("recipe", "")
        self.shapes = [None if o is None else tuple(program.tensors[o]["shape"]) for o in op["outputs"]]
        self.strides = [None if o is None else program.strides[o] for o in op["outputs"]]
        self.roots = [None if o is None else roots[o] for o in op["outputs"]]
        self.works: bool | None = None  # on parts, on every rank; None: not tried yet
        self._parts: list[tuple | None] | None = None
        self._specs: dict[tuple[int, torch.dtype], Any] = {}

    def parts(self, mesh) -> list[tuple | None]:
        """Shapes of this rank's parts of the results, before they go to where they live."""
        if self._parts is None:
            pairs = zip(self.shapes, self.computed, strict=True)
            self._parts = [None if shape is None else local_shape(shape, mesh, at) for shape, at in pairs]
        return self._parts

    def output(self, i: int, part: torch.Tensor, mesh) -> DTensor:
        key = i, part.dtype
        if key not in self._specs:
            self._specs[key] = dtensor_spec(mesh, self.computed[i], self.shapes[i], self.strides[i], part.dtype)
        return dtensor_of(part, self._specs[key])


class PlacedMode(TorchDispatchMode):
    def __init__(self, mesh, plan: OpPlan, ranks: Ranks, old_gradients: OldGradients):
        super().__init__()
        self.old_gradients = old_gradients
        self._mesh = mesh
        self._ranks = ranks
        self._plan = plan
        self._inside = False
        self._paused = False
        self.replicated: list[str] = []  # ops that ran on whole tensors because DTensor could not otherwise
        self._aliases = Aliases(plan.stale, _NAME, ranks.in_all)
        plan.restart()

    @property
    def uses_old_gradients(self) -> bool:
        return self.old_gradients.used

    @contextlib.contextmanager
    def running(self):
        """The step runs in here."""
        of_dtensor = (implicit_replication(), waiting_collectives(), rules_alone(), counting_unseen())
        with contextlib.ExitStack() as block:
            for each in (*of_dtensor, PastTheDispatcher(read_whole), self):
                block.enter_context(each)
            yield

    @contextlib.contextmanager
    def aside(self):
        """What happens in here is none of the step's ops."""
        before, self._inside = self._inside, True
        try:
            yield
        finally:
            self._inside = before

    def pause(self) -> None:
        """An optimizer's step begins: it works on plain tensors, and its ops are not placed one by one."""
        self._paused = True

    def pass_optimizer(self) -> None:
        """It has ended."""
        self._paused = False
        self._plan.pass_optimizer()

    # ---- One op

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        # Modes of functions hear what the step asks, and not what an operator does
        with torch._C.DisableTorchFunction():
            return self._op(func, types, args, kwargs or {})

    def _op(self, func, types, args: tuple, kwargs: dict) -> Any:
        passed_over = is_passed_over(func)
        counts = not (self._inside or self._paused or passed_over)
        placed = self._plan.next(func, args, kwargs) if counts else None
        if not self._inside and not self._paused:
            self.old_gradients.op(func, args, kwargs)
        if not any(issubclass(t, DTensor) for t in types):
            with hook_open():
                return func(*args, **kwargs)
        if self._inside:
            return NotImplemented  # DTensor's turn
        self._inside = True
        try:
            result = self._run(func, args, kwargs, placed)
            if not self._paused:
                with hook_open(False):
                    self._aliases.op_made_views(func, args, kwargs, result)
                    updates = self._aliases.op_wrote(func, args, kwargs)
                if updates:
                    with self:
                        for update in updates:
                            update.run()
        finally:
            self._inside = False
        if placed is not None:
            self._name_results(func, result, placed)
        elif passed_over and isinstance(result, DTensor):
            _remember(result, getattr(args[0], _NAME, None))
        return result

    def _name_results(self, func, result: Any, placed: PlacedOp) -> None:
        """So that the ops that read them are known by them."""
        if schema(func).leaf_is_new:
            leaves = result if isinstance(result, (tuple, list)) else (result,)
            for t, root in zip((t for t in leaves if t is None or isinstance(t, torch.Tensor)), placed.roots):
                _remember(t, root)

    def _run(self, func, args: tuple, kwargs: dict, placed: PlacedOp | None) -> Any:
        if _draws(func, args, kwargs) or _writes_plain(func, args, kwargs):
            return self._run_whole(func, args, kwargs)
        if placed is not None:
            result = self._run_placed(func, args, kwargs, placed)
            if placed.is_empty and self._is_written_by_parts(placed):
                with hook_open():
                    local_tensor(result).zero_()
            return result
        if schema(func).is_kept_from_dtensor or _writes_summands(func, args, kwargs):
            return self._run_whole(func, args, kwargs)
        try:
            with self:  # the mode stays on: it opens the hook for what DTensor calls
                return laid_out_as_asked(func, args, kwargs, tree_map(plain_sum, func(*args, **kwargs)))
        except Exception as reason:  # DTensor raises what it likes; what is wrong with the op itself raises again
            if self._ranks.must_end(reason):
                raise
            return self._run_whole(func, args, kwargs)

    def _is_written_by_parts(self, placed: PlacedOp) -> bool:
        """What is there then goes from one copy of it to the other before it is all written: no kernel may read what none has
        filled."""
        needed = self._plan.stale
        return needed is None or any(root in needed for root in placed.roots)

    def _run_placed(self, func, args: tuple, kwargs: dict, placed: PlacedOp) -> Any:
        """The kernel on the parts, as the plan has it. What one rank's part is too small for runs whole, on all
        ranks."""
        if placed.works is False:
            return self._run_whole(func, args, kwargs)
        moved = Moved(func, args, kwargs, self._mesh, self)
        moved.bring(placed.inputs)
        failed = False
        try:
            result = run_on_parts(func, moved, placed, self._mesh, self)
        except (NotImplementedError, RuntimeError, ValueError) as reason:
            if placed.works or self._ranks.must_end(reason):
                raise
            result, failed = None, True
        if placed.works is None:
            placed.works = not self._ranks.any(failed)
            if not placed.works:
                return self._run_whole(func, args, kwargs)
        return self._settle(func, moved.take_back(result), placed)

    def _settle(self, func, result: Any, placed: PlacedOp) -> Any:
        """Results go at once to where they live."""
        if not schema(func).leaf_is_new:
            return result  # an argument, which lives where it does
        wanted = iter(placed.outputs)

        def settle(t: Any) -> Any:
            if t is not None and not isinstance(t, torch.Tensor):
                return t
            at = next(wanted, None)
            if not isinstance(t, DTensor) or at is None or t.placements == at:
                return t
            with self:
                return brought(t, at)

        if isinstance(result, (tuple, list)):
            return type(result)(settle(t) for t in result)
        return settle(result)

    def _run_whole(self, func, args: tuple, kwargs: dict) -> Any:
        self.replicated.append(str(func))
        moved = Moved(func, args, kwargs, self._mesh)
        draws = _draws(func, args, kwargs)
        with self:
            moved.bring([(Replicate(),) * self._mesh.ndim] * moved.count, laid_out=draws)
            # DTensor would draw other numbers on every rank, and would wrap what is written to
            if not (draws or schema(func).is_kept_from_dtensor or _writes_plain(func, args, kwargs)):
                try:
                    return moved.take_back(func(*moved.args, **moved.kwargs))
                except Exception as reason:
                    if self._ranks.must_end(reason):
                        raise
            return moved.take_back(run_local(func, moved, self._mesh))

"""A model and its optimizers whose parameters are split over ranks.

    model     p  = Parameter(DTensor)        each rank holds its part, at the placement of the parameter
    optimizer p' = Parameter(local part)     at the placement of the optimizer's state; where both are equal, p' is p's own memory

The optimizer's own step() runs on plain tensors: the parts. That is right for every optimizer that works element by element, and needs
nothing of DTensor. Between its steps it holds the DTensors, so that zero_grad(), clipping and state_dict() are those of the model.

    backward ─► p.grad ──redistribute──► p'.grad ─► step() ─► p' ──gather and copy──► p       (the last only where the two differ)
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from stowage.errors import Unsupported
from stowage.torch_private import is_shell, local_shape, local_tensor, make_dtensor, redistribute, storage_address
from stowage.world import World

Placements = tuple  # of DTensor placements, one per axis of the mesh


@dataclass
class StatePlacement:
    """Where a parameter, its gradient and its optimizer state live."""

    parameter: Placements
    gradient: Placements
    state: Placements


@dataclass
class _Part:
    """One parameter: the DTensor of the model and the plain tensor that the optimizer works on."""

    name: str
    parameter: torch.nn.Parameter  # DTensor
    worked: torch.nn.Parameter  # plain
    at: StatePlacement
    shape: torch.Size
    stride: tuple

    @property
    def shared(self) -> bool:
        """The optimizer works on the parameter's own memory."""
        return self.at.parameter == self.at.state


@dataclass
class _Views:
    """What an optimizer holds between its steps, and during them."""

    whole: list[list[torch.nn.Parameter]]
    parts: list[list[torch.nn.Parameter]]
    state: dict = field(default_factory=dict)  # by worked tensor
    shown: dict = field(default_factory=dict)  # the same, as the optimizer holds it between its steps


class ShardedState:
    """Takes a model's parameters, buffers and optimizer state apart, in place, once."""

    def __init__(self, world: World, mesh, placements: dict[str, StatePlacement], buffers: dict[str, Placements]):
        self.mesh = mesh
        self.parts: dict[int, _Part] = {}  # by id of the DTensor parameter
        self.mode = None  # the PlacedMode of the step that is running
        self.gradient_bytes = 0  # held when the latest optimizer.step() began
        self._world = world
        self._stepped = False
        self._views: dict[int, _Views] = {}
        replaced: dict[int, torch.nn.Parameter] = {}
        for name, p in named_parameters(world):
            part = self._split(name, p, placements[name])
            replaced[id(p)] = part.parameter
            self.parts[id(part.parameter)] = part
        _refuse_other_holders(world, replaced)
        with torch.no_grad():
            for path, module in world.modules:
                places = {id(b): buffers[name] for name, b in module.named_buffers(prefix=path) if name in buffers}
                _rebind(module, replaced, lambda b: b if isinstance(b, DTensor) else self.cut(b, places[id(b)]) if id(b) in places else self.whole(b))
        for optimizer in world.optimizers:
            self._adopt(optimizer, replaced)

    # ---- Taking apart

    def whole(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor that every rank holds, as a DTensor."""
        return make_dtensor(tensor.detach(), self.mesh, [Replicate()] * self.mesh.ndim, tensor.shape, tensor.stride())

    def cut(self, tensor: torch.Tensor, placements: Placements) -> torch.Tensor:
        """This rank's part of a tensor that every rank holds, as a DTensor with memory of its own."""
        with torch.no_grad():
            dense = tensor.detach().contiguous()
            d = redistribute(self.whole(dense), placements)
            local = d._local_tensor
            return make_dtensor(local.clone(memory_format=torch.contiguous_format), self.mesh, placements, dense.shape, dense.stride())

    def _split(self, name: str, p: torch.nn.Parameter, at: StatePlacement) -> _Part:
        dtensor = torch.nn.Parameter(self.cut(p, at.parameter), requires_grad=p.requires_grad)
        worked = local_tensor(dtensor) if at.parameter == at.state else self.cut(p, at.state)._local_tensor
        part = _Part(name, dtensor, torch.nn.Parameter(worked.detach(), requires_grad=p.requires_grad), at, p.shape, p.contiguous().stride())
        if not part.shared:
            part.worked.data = torch.empty(0, dtype=p.dtype)
        if p.grad is not None:
            dtensor.grad = self.cut(p.grad, at.gradient)
        dtensor.register_post_accumulate_grad_hook(self._settle_gradient) if p.requires_grad else None
        return part

    def _settle_gradient(self, p: torch.nn.Parameter) -> None:
        """Backward is done with a gradient: it goes to its placement at once."""
        part = self.parts[id(p)]
        with self._aside():
            grad = p.grad if p.grad.placements == part.at.gradient else redistribute(p.grad, part.at.gradient)
            p.grad = self._compact(grad)

    def _compact(self, tensor: torch.Tensor) -> torch.Tensor:
        """A part that lies in a larger storage gets one of its own size."""
        local = tensor._local_tensor
        if local.untyped_storage().nbytes() == local.numel() * local.element_size():
            return tensor
        return make_dtensor(local.clone(memory_format=torch.contiguous_format), self.mesh, tensor.placements, tensor.shape, tensor.stride())

    def _aside(self):
        return contextlib.nullcontext() if self.mode is None else self.mode.aside()

    def _adopt(self, optimizer: Optimizer, replaced: dict[int, torch.nn.Parameter]) -> None:
        old_state = dict(optimizer.state)
        views = _Views([], [])
        for group in optimizer.param_groups:
            whole = [replaced[id(p)] for p in group["params"]]
            views.whole.append(whole)
            views.parts.append([self.parts[id(p)].worked for p in whole])
            for old, p in zip(group["params"], whole):
                if old in old_state:
                    part = self.parts[id(p)]
                    views.state[part.worked] = {k: self._part_of_state(v, part) for k, v in old_state[old].items()}
            group["params"] = whole
        self._views[id(optimizer)] = views
        self._show(views)
        optimizer.state.clear()
        optimizer.state.update(views.shown)

    def _part_of_state(self, value: Any, part: _Part) -> Any:
        if isinstance(value, torch.Tensor) and value.shape == part.shape:
            return local_tensor(self.cut(value, part.at.state))
        return value

    # ---- The two views of an optimizer

    @contextlib.contextmanager
    def working(self, optimizer: Optimizer):
        """While open, the optimizer holds the parts."""
        self.open(optimizer)
        try:
            yield
        finally:
            self.close(optimizer)

    def open(self, optimizer: Optimizer) -> None:
        views = self._views.get(id(optimizer))
        if views is None:
            raise Unsupported("an optimizer that was not reachable from the step when it was sharded")
        optimizer.state.clear()
        optimizer.state.update(views.state)
        for group, parts in zip(optimizer.param_groups, views.parts, strict=True):
            group["params"] = parts

    def close(self, optimizer: Optimizer) -> None:
        views = self._views[id(optimizer)]
        for group, whole in zip(optimizer.param_groups, views.whole, strict=True):
            group["params"] = whole
        if not _same(optimizer.state, views.state):
            views.state = {p: dict(state) for p, state in optimizer.state.items()}
            self._show(views)
        optimizer.state.clear()
        optimizer.state.update(views.shown)

    def _show(self, views: _Views) -> None:
        """The parts of the state as DTensors of the parameters."""
        views.shown = {}
        for whole, parts in zip(views.whole, views.parts):
            for p, worked in zip(whole, parts):
                if worked in views.state:
                    part = self.parts[id(p)]
                    views.shown[p] = {k: self._shown(v, part) for k, v in views.state[worked].items()}

    def _shown(self, value: Any, part: _Part) -> Any:
        if isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape == local_shape(part.shape, self.mesh, part.at.state):
            return make_dtensor(value, self.mesh, part.at.state, part.shape, part.stride)
        return value

    # ---- Around optimizer.step()

    def enter(self, optimizer: Optimizer) -> None:
        """Gradients, and parameters where they live elsewhere, come to where the optimizer's state is."""
        self.gradient_bytes = _storage_bytes(local_tensor(p.grad) for p in self.parameters() if p.grad is not None)
        with torch.no_grad(), self._aside():
            for whole in self._views[id(optimizer)].whole if id(optimizer) in self._views else ():
                for p in whole:
                    self._bring(self.parts[id(p)])
        self.open(optimizer)
        if self.mode is not None:
            self.mode.pause()

    def _bring(self, part: _Part) -> None:
        if part.parameter.grad is None:
            return
        grad = part.parameter.grad
        if not part.shared:
            moved = redistribute(part.parameter.detach(), part.at.state)
            part.worked.data = moved._local_tensor
        part.worked.grad = local_tensor(grad if grad.placements == part.at.state else redistribute(grad, part.at.state))

    def leave(self, optimizer: Optimizer) -> None:
        if self.mode is not None:
            self.mode.pass_optimizer()
        self.close(optimizer)
        self._stepped = True
        with torch.no_grad(), self._aside():
            for whole in self._views[id(optimizer)].whole:
                for p in whole:
                    self._take_back(self.parts[id(p)])

    def _take_back(self, part: _Part) -> None:
        if part.worked.grad is not None and not part.shared:
            updated = make_dtensor(part.worked.detach(), self.mesh, part.at.state, part.shape, part.stride)
            local_tensor(part.parameter).copy_(redistribute(updated, part.at.parameter)._local_tensor)
            part.worked.data = torch.empty(0, dtype=part.worked.dtype)
        part.worked.grad = None

    # ---- What is there

    @contextlib.contextmanager
    def watching(self):
        """While open, the optimizers' steps run on the parts."""
        depth = [0]

        def before(optimizer, args, kwargs):
            depth[0] += 1
            if depth[0] == 1:
                self.enter(optimizer)

        def after(optimizer, args, kwargs):
            depth[0] -= 1
            if depth[0] == 0:
                self.leave(optimizer)

        handles = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def gathered(self, value: Any) -> Any:
        """A result of the step as a whole tensor."""
        if not isinstance(value, DTensor):
            return value
        return redistribute(value.detach(), [Replicate()] * self.mesh.ndim)._local_tensor

    def has_optimizer_state(self) -> bool:
        return self._stepped or any(views.state for views in self._views.values())

    def names(self) -> list[tuple[str, torch.nn.Parameter]]:
        return [(part.name, part.parameter) for part in self.parts.values()]

    def fixed(self, program) -> dict[str, str]:
        """Placements that a plan for other arguments must keep."""
        found = {}
        for part in self.parts.values():
            found[str(program.parameters[part.name])] = to_text(part.at.parameter)
            if part.name in program.gradients:
                found[str(program.gradients[part.name])] = to_text(part.at.gradient)
            for (owner, _), t in program.states.items():
                if owner == part.name and program.tensors[t]["shape"]:
                    found[str(t)] = to_text(part.at.state)
        return found

    def measured_bytes(self) -> dict[str, int]:
        """What this rank holds between steps, each storage once; gradients: when the optimizer last began."""
        states = [v for views in self._views.values() for s in views.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
        buffers = [local_tensor(b) for _, module in self._world.modules for b in module.buffers()]
        held = [local_tensor(p) for p in self.parameters()] + [part.worked for part in self.parts.values() if not is_shell(part.worked)]
        return {"parameters": _storage_bytes(held), "gradients": self.gradient_bytes, "optimizer_state": _storage_bytes(states),
                "buffers": _storage_bytes(buffers)}

    # ---- Checkpoints

    def state_dict(self) -> dict[str, Any]:
        model: dict[str, Any] = {part.name: part.parameter.detach() for part in self.parts.values()}
        for path, module in self._world.modules:
            model.update({name: b.detach() for name, b in module.named_buffers(prefix=path)})
        optimizers = {}
        for i, optimizer in enumerate(self._world.optimizers):
            groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
            state = {self.parts[id(p)].name: dict(s) for p, s in optimizer.state.items()}
            optimizers[str(i)] = {"groups": {str(g): group for g, group in enumerate(groups)}, "state": state}
        schedulers = {str(i): s.state_dict() for i, s in enumerate(self._world.schedulers)}
        return {"model": model, "optimizers": optimizers, "schedulers": schedulers}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Tensors that are the step's own (of state_dict()) already hold what was loaded."""
        mine = self.state_dict()
        for name, tensor in mine["model"].items():
            _take(tensor, saved["model"][name])
        for i, optimizer in enumerate(self._world.optimizers):
            for g, group in enumerate(optimizer.param_groups):
                group.update(saved["optimizers"][str(i)]["groups"][str(g)])
            for p, state in optimizer.state.items():
                for key, value in saved["optimizers"][str(i)]["state"][self.parts[id(p)].name].items():
                    if isinstance(state.get(key), torch.Tensor):
                        _take(state[key], value)
                    else:
                        state[key] = value
        for i, scheduler in enumerate(self._world.schedulers):
            scheduler.load_state_dict(saved["schedulers"][str(i)])

    def make_optimizer_state(self) -> None:
        """For loading: an optimizer that has not stepped makes its state by a step that changes nothing."""
        for optimizer in self._world.optimizers:
            if optimizer.state:
                continue
            groups = [dict(g) for g in optimizer.param_groups]
            try:
                for group in optimizer.param_groups:
                    group.update({k: 0.0 for k in ("lr", "weight_decay") if isinstance(group.get(k), float)})
                    for p in group["params"]:
                        part = self.parts[id(p)]
                        p.grad = self.cut(torch.zeros(part.shape, dtype=p.dtype), part.at.gradient)
                with self.watching():
                    optimizer.step()
            finally:
                for group, before in zip(optimizer.param_groups, groups):
                    group.update(before)
                    for p in group["params"]:
                        p.grad = None

    def parameters(self) -> list[torch.nn.Parameter]:
        return [part.parameter for part in self.parts.values()]

    def worked(self) -> list[torch.nn.Parameter]:
        return [part.worked for part in self.parts.values()]


class ShardedWorld(World):
    """What a sharded step sees."""

    distributed = True

    def __init__(self, fn: Any, state: ShardedState):
        super().__init__(fn)
        self.sharded = state

    def parameters(self) -> list[torch.nn.Parameter]:
        return self.sharded.worked()

    def model_parameters(self) -> list[torch.nn.Parameter]:
        return self.sharded.parameters()

    def owned(self) -> list[tuple[str, str, torch.Tensor]]:
        found = [("parameter", part.name, part.worked) for part in self.sharded.parts.values() if part.shared]
        for optimizer in self.optimizers:
            for i, state in enumerate(self.sharded._views[id(optimizer)].state.values()):
                found += [("optimizer_state", f"state.{i}.{k}", v) for k, v in state.items() if isinstance(v, torch.Tensor)]
        return found

    def enter_optimizer(self, optimizer: Optimizer) -> None:
        self.sharded.enter(optimizer)

    def leave_optimizer(self, optimizer: Optimizer) -> None:
        self.sharded.leave(optimizer)

    def moved_parameters(self, optimizer: Optimizer) -> list[torch.Tensor]:
        parts = [self.sharded.parts[id(p)] for group in self.sharded._views[id(optimizer)].whole for p in group]
        return [part.worked for part in parts if not part.shared and part.worked.grad is not None]

    def optimizer_view(self, optimizer: Optimizer):
        return self.sharded.working(optimizer)


# ---- The user's objects


def to_text(placements: Placements) -> str:
    """As the plan's JSON has it: "S0,R"."""
    return ",".join(f"S{p.dim}" if p.is_shard() else "R" if p.is_replicate() else "Psum" for p in placements)


def _storage_bytes(tensors) -> int:
    return sum({storage_address(t): t.untyped_storage().nbytes() for t in tensors}.values())


def _take(into: torch.Tensor, value: torch.Tensor) -> None:
    """Copies unless both are the same memory."""
    if isinstance(into, DTensor) and isinstance(value, DTensor) and value.placements != into.placements:
        value = redistribute(value, into.placements)
    a, b = local_tensor(into), local_tensor(value)
    if a.data_ptr() != b.data_ptr() or a is b:
        a.copy_(b)


def _same(a: dict, b: dict) -> bool:
    """The same tensors and values."""
    if len(a) != len(b):
        return False
    for key, x in a.items():
        y = b.get(key)
        if y is None or len(x) != len(y) or any(v is not y.get(k) for k, v in x.items()):
            return False
    return True


def named_parameters(world: World) -> list[tuple[str, torch.nn.Parameter]]:
    """Each parameter once, by the first name that it has."""
    found: dict[int, tuple[str, torch.nn.Parameter]] = {}
    for path, module in world.modules:
        for name, p in module.named_parameters(prefix=path):
            found.setdefault(id(p), (name, p))
    for o, optimizer in enumerate(world.optimizers):
        for g, group in enumerate(optimizer.param_groups):
            for i, p in enumerate(group["params"]):
                found.setdefault(id(p), (f"optimizer.{o}.{g}.{i}", p))
    return list(found.values())


def _refuse_other_holders(world: World, replaced: dict[int, torch.nn.Parameter]) -> None:
    for path, tensor in world.tensors:
        if id(tensor) in replaced:
            raise Unsupported(f"the step holds a parameter by itself ('{path}'); reach it through its module, which will hold its part")


def _rebind(root: torch.nn.Module, replaced: dict[int, torch.nn.Parameter], buffer) -> None:
    for module in root.modules():
        for name, p in module._parameters.items():
            if p is not None and id(p) in replaced:
                module._parameters[name] = replaced[id(p)]
        for name, b in module._buffers.items():
            if b is not None:
                module._buffers[name] = buffer(b)

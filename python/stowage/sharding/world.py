"""A model and its optimizers whose parameters are split over ranks.

user's modules ──_rebind──► DTensor parameters (Part) and buffers     optimizers ──► SplitOptimizer
                                 └─ a hook settles each gradient when backward is done with it
                                 └─ hooks around optimizer.step() bring gradients to the state, and parameters back
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.distributed.tensor import DTensor, Replicate
from torch.optim import Optimizer

from stowage._torch import optimizer_steps
from stowage._torch.distributed import redistribute
from stowage._torch.private import is_shell, local_tensor, shell_address, storage_address, storage_bytes
from stowage.errors import Unsupported
from stowage.sharding.optimizer import SplitOptimizer
from stowage.sharding.parts import Part, Placements, StatePlacement, cut, settle_gradient, to_text, whole
from stowage.sharding.past_the_dispatcher import without_inference
from stowage.sharding.stand_in import can_stand_in, hold_again, stand_in
from stowage.step.reach.world import World

if TYPE_CHECKING:
    from stowage.sharding.mode import PlacedMode


class ShardedState:
    """Takes a model's parameters, buffers and optimizer state apart, in place, once."""

    def __init__(self, world: World, mesh, placements: dict[str, StatePlacement], buffers: dict[str, Placements]):
        self.mesh = mesh
        self.world = world
        self.mode: PlacedMode | None = None  # of the step that is running
        self._gradient_bytes = 0  # held when the latest optimizer.step() began
        self._stepped = False
        self._parts: dict[int, Part] = {}  # by id of the DTensor parameter
        self._originals: dict[int, torch.Tensor] = {}  # by the same: what the program held before
        # By id of the DTensor: it, what was held before, and its shell_address()
        self._buffers: dict[int, tuple[torch.Tensor, torch.Tensor, int]] = {}
        replaced: dict[int, torch.nn.Parameter] = {}
        for name, p in named_parameters(world):
            part = Part(name, p, placements[name], mesh)
            self._parts[id(part.parameter)] = part
            replaced[id(p)] = part.parameter
            self._originals[id(part.parameter)] = p
            if p.requires_grad:
                part.parameter.register_post_accumulate_grad_hook(self._settling(part))
        _refuse_other_holders(world, replaced)
        with torch.no_grad():
            for path, module in world.modules:
                places = {id(b): buffers[name] for name, b in module.named_buffers(prefix=path) if name in buffers}
                _rebind(module, replaced, lambda b: self._split_buffer(b, places.get(id(b))))
        self._optimizers = {id(o): SplitOptimizer(o, self._parts, replaced) for o in world.optimizers}
        for original, parameter in self.stand_ins():
            stand_in(original, parameter)

    def put_together(self) -> None:
        """Takes it back: modules and optimizers hold whole tensors, on every rank, as before the split."""
        with torch.no_grad():
            whole_ones: dict[int, torch.Tensor] = {}
            for b, original, _ in self._buffers.values():
                if can_stand_in(original):
                    hold_again(original, self._dense(b))
                    whole_ones[id(b)] = original
            for part in self.parts():
                p, content = self._originals[id(part.parameter)], self._dense(part.parameter)
                if can_stand_in(p):
                    hold_again(p, content)
                else:
                    p = torch.nn.Parameter(content)
                p.requires_grad_(part.parameter.requires_grad)
                p.grad = None if part.parameter.grad is None else self._dense(part.parameter.grad)
                whole_ones[id(part.parameter)] = p
            for _, module in self.world.modules:
                _rebind(module, whole_ones, lambda b: whole_ones[id(b)] if id(b) in whole_ones else self._dense(b))
            for split in self._optimizers.values():
                split.put_together(whole_ones, self._dense)

    def _dense(self, value: Any) -> Any:
        if not isinstance(value, DTensor):
            return value
        return self.gathered(value).clone(memory_format=torch.contiguous_format)

    def _split_buffer(self, buffer: torch.Tensor, placements: Placements | None) -> torch.Tensor:
        """Those that the step does not read have no placement, and stay whole. Each once, however many modules have it."""
        if isinstance(buffer, DTensor):
            return buffer
        for split, original, _ in self._buffers.values():
            if original is buffer:
                return split
        split = whole(buffer, self.mesh) if placements is None else cut(buffer, self.mesh, placements)
        self._buffers[id(split)] = split, buffer, shell_address(split)
        return split

    def _settling(self, part: Part) -> Callable[[torch.nn.Parameter], None]:
        """A hook of its parameter. It holds nothing that holds the parameter: PyTorch shows no collector what hooks of this kind
        hold, so that a cycle would stay for ever."""
        mesh, placements, held = part.mesh, part.at.gradient, weakref.ref(self)

        def settle(p: torch.nn.Parameter) -> None:
            state = held()
            with contextlib.nullcontext() if state is None else state._aside():
                settle_gradient(p, mesh, placements)

        return settle

    def _aside(self):
        return contextlib.nullcontext() if self.mode is None else self.mode.aside()

    # ---- Around optimizer.step()

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

        with optimizer_steps.heard(before, after):
            yield

    def enter(self, optimizer: Optimizer) -> None:
        split = self.split(optimizer)
        self._gradient_bytes = _storage_bytes(local_tensor(p.grad) for p in self.parameters() if p.grad is not None)
        if self.mode is not None and self.mode.old_gradients is not None:
            self.mode.old_gradients.optimizer([part.parameter for part in split.parts()])
        with without_inference(), torch.no_grad(), self._aside():
            for part in split.parts():
                part.bring()
        split.open()
        if self.mode is not None:
            self.mode.pause()

    def leave(self, optimizer: Optimizer) -> None:
        if self.mode is not None:
            self.mode.pass_optimizer()
        split = self.split(optimizer)
        self._stepped = True
        with without_inference(), torch.no_grad(), self._aside():
            split.close()
            for part in split.parts():
                part.take_back()

    # ---- What is there

    def split(self, optimizer: Optimizer) -> SplitOptimizer:
        split = self._optimizers.get(id(optimizer))
        if split is None:
            raise Unsupported("an optimizer that was not reachable from the step when it was sharded")
        return split

    def optimizers(self) -> list[SplitOptimizer]:
        return list(self._optimizers.values())

    def parts(self) -> list[Part]:
        return list(self._parts.values())

    def part(self, p: torch.Tensor) -> Part:
        return self._parts[id(p)]

    def parameters(self) -> list[torch.nn.Parameter]:
        return [part.parameter for part in self._parts.values()]

    def stand_ins(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """What the program may hold of a parameter or a buffer, and the DTensor that it stands for."""
        pairs: list[tuple[torch.Tensor, torch.Tensor]]
        pairs = [(self._originals[i], part.parameter) for i, part in self._parts.items()]
        pairs += [(original, split) for split, original, _ in self._buffers.values()]
        return [(held, tensor) for held, tensor in pairs if can_stand_in(held)]

    def names(self) -> list[tuple[str, torch.nn.Parameter]]:
        return [(part.name, part.parameter) for part in self._parts.values()]

    def adopt_changes(self) -> bool:
        """Takes over what the program has done to its optimizers since the latest step. True where there was something. Raises
        Unsupported for what cannot be taken over."""
        for part in self._parts.values():
            part.refuse_other_data()
        if any(shell_address(split) != address for split, _, address in self._buffers.values()):
            raise Unsupported(
                "the program has set the .data of a buffer, which a tensor in parts does not take: give the module another buffer instead "
                "(module.name = u)"
            )
        changed = [split for split in self._optimizers.values() if not split.is_as_left()]
        with torch.no_grad():
            for split in changed:
                split.adopt()
        if changed:
            self._stepped = False
        return bool(changed)

    def has_optimizer_state(self) -> bool:
        return self._stepped or not self._optimizers or any(split.state for split in self._optimizers.values())

    def gathered(self, value: Any) -> Any:
        """A result of the step as a whole tensor."""
        if not isinstance(value, DTensor):
            return value
        return local_tensor(redistribute(value.detach(), [Replicate()] * self.mesh.ndim))

    def fixed(self, program) -> dict[str, str]:
        """Placements that a plan for other arguments must keep."""
        found = {}
        for part in self._parts.values():
            found[str(program.parameters[part.name])] = to_text(part.at.parameter)
            if part.name in program.gradients:
                found[str(program.gradients[part.name])] = to_text(part.at.gradient)
            for (owner, _), t in program.states.items():
                if owner == part.name and program.tensors[t]["shape"]:
                    found[str(t)] = to_text(part.at.state)
        return found

    def measured_bytes(self) -> dict[str, int]:
        """What this rank holds between steps, each storage once; gradients: when the optimizer last began."""
        states = [
            v
            for split in self._optimizers.values()
            for s in split.state.values()
            for v in s.values()
            if isinstance(v, torch.Tensor)
        ]
        buffers = [local_tensor(b) for _, module in self.world.modules for b in module.buffers()]
        held = [local_tensor(p) for p in self.parameters()] + [
            part.worked for part in self._parts.values() if not is_shell(part.worked)
        ]
        return {
            "parameters": _storage_bytes(held),
            "gradients": self._gradient_bytes,
            "optimizer_state": _storage_bytes(states),
            "buffers": _storage_bytes(buffers),
        }


class ShardedWorld(World):
    """What a sharded step sees."""

    distributed = True
    deaf = (*World.deaf, DTensor)

    def __init__(self, fn: Any, state: ShardedState):
        super().__init__(fn)
        self.sharded = state

    def names_of_gone(self) -> list[str]:
        """It does not fade."""
        return []

    def parameters(self) -> list[torch.nn.Parameter]:
        return [part.worked for part in self.sharded.parts()]

    def model_parameters(self) -> list[torch.nn.Parameter]:
        return self.sharded.parameters()

    def owned(self) -> list[tuple[str, str, torch.Tensor]]:
        found: list[tuple[str, str, torch.Tensor]]
        found = [("parameter", part.name, part.worked) for part in self.sharded.parts() if part.shared]
        for optimizer in self.optimizers:
            for i, state in enumerate(self.sharded.split(optimizer).state.values()):
                found += [
                    ("optimizer_state", f"state.{i}.{k}", v) for k, v in state.items() if isinstance(v, torch.Tensor)
                ]
        return found

    def enter_optimizer(self, optimizer: Optimizer) -> None:
        self.sharded.enter(optimizer)

    def leave_optimizer(self, optimizer: Optimizer) -> None:
        self.sharded.leave(optimizer)

    def moved_parameters(self, optimizer: Optimizer) -> list[torch.Tensor]:
        return [
            part.worked
            for part in self.sharded.split(optimizer).parts()
            if not part.shared and part.worked.grad is not None
        ]

    def optimizer_view(self, optimizer: Optimizer):
        return self.sharded.split(optimizer).working()


# ---- The user's objects


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


def is_parts(tensor: Any) -> bool:
    return isinstance(tensor, DTensor)


def refuse_what_cannot_be_cut(world: World, names: list[tuple[str, torch.nn.Parameter]]) -> None:
    """Before anything is planned."""
    buffers = [each for path, module in world.modules for each in module.named_buffers(prefix=path)]
    _refuse_overlaps([*names, *buffers])
    for name, p in names:
        if isinstance(p, DTensor):
            raise Unsupported(
                f"'{name}' is in parts already: another step over this model has been sharded. One step has a model; let it "
                "evaluate as well, by an argument that says so"
            )
        if p._backward_hooks or p._post_accumulate_grad_hooks:
            raise Unsupported(
                f"'{name}' has hooks of its own (register_hook, register_post_accumulate_grad_hook), and will be replaced by a "
                "tensor in parts: change gradients in the step, between backward() and optimizer.step()"
            )


def _refuse_overlaps(names: Sequence[tuple[str, torch.Tensor]]) -> None:
    """Two that look at the same memory: each will have its own."""
    spans = []
    for name, t in {id(t): (name, t) for name, t in names if not is_parts(t) and t.numel()}.values():
        begin = t.storage_offset() * t.element_size()
        numel = 1 + sum((n - 1) * step for n, step in zip(t.shape, t.stride()))
        spans.append((storage_address(t), begin, begin + numel * t.element_size(), name))
    spans.sort()
    for (storage, _, end, name), (other_storage, begin, _, other) in itertools.pairwise(spans):
        if storage == other_storage and begin < end:
            raise Unsupported(
                f"'{name}' and '{other}' look at the same memory, and will have memory of their own: keep one of them"
            )


def flat_weights(module: torch.nn.Module) -> dict[str, Any]:
    """What else of a module holds its parameters: recurrent ones have a list of them."""
    if not isinstance(module, torch.nn.RNNBase):
        return {}
    return {"_flat_weights": [getattr(module, name, None) for name in module._flat_weights_names]}


def _storage_bytes(tensors) -> int:
    return sum({storage_address(t): storage_bytes(t) for t in tensors}.values())


def _refuse_other_holders(world: World, replaced: dict[int, torch.nn.Parameter]) -> None:
    flat = {
        id(p)
        for _, root in world.modules
        for module in root.modules()
        for p in flat_weights(module).get("_flat_weights", ())
    }
    for path, tensor in world.tensors:
        if id(tensor) in replaced and id(tensor) not in flat and not can_stand_in(tensor):
            raise Unsupported(
                f"the step holds a parameter by itself ('{path}'), of a class of its own ({type(tensor).__name__}); reach it through "
                "its module, which will hold its part"
            )


def _rebind(root: torch.nn.Module, replaced: Mapping[int, torch.Tensor], buffer) -> None:
    for module in root.modules():
        for name, p in module._parameters.items():
            if p is not None and id(p) in replaced:
                module._parameters[name] = cast(torch.nn.Parameter, replaced[id(p)])
        module.__dict__.update(flat_weights(module))
        for name, b in module._buffers.items():
            if b is not None:
                module._buffers[name] = buffer(b)

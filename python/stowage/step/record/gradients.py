"""What a step does with the .grad of its parameters: which it finds, adds to, makes, lets go of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch

from stowage._torch.distributed import dtensor_like
from stowage._torch.private import address, storage_address, storage_bytes
from stowage.step.guards.found import Fading
from stowage.step.reach.parts import metadata, parts
from stowage.step.reach.world import World


@dataclass
class Gradients:
    """What a step does with the .grad of its parameters. A parameter can be in several lists.

    given: those that the step works with as it finds them (adds to, scales, reads); they come with each call like
    arguments. absent: None when the step began: it makes one, and may let go of it, or no other call may find one, as
    an optimizer would use it. cleared: set to None, or replaced, by the step without a look at it.
    returned: the step leaves one that it has made; ``slots``: its position among all that the step returns; ``forms``: what
    makes the .grad of the tensor that a plan hands out.
    gone: None when the step ends, a tensor when it began. lasting: the .grad lies in memory that the step also reaches
    otherwise, such as one flat buffer for all gradients: that tensor is needed. present: a tensor when the step began, which
    no operator reads: known where the user's Python may have asked whether there is one. dropped: positions of inputs, the
    .grad of ``cleared`` whose memory nobody else has: where no part of a planned call runs before they are gone, they take
    no room in it. until_next: of ``returned``, those of a sharded step that are gone before any part of the next planned call
    runs; of others, the recorder sees it.
    """

    given: list[tuple[torch.Tensor, tuple]] = field(default_factory=list)  # and what the .grad looked like
    absent: list[torch.Tensor] = field(default_factory=list)
    cleared: list[torch.Tensor] = field(default_factory=list)
    returned: list[torch.Tensor] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    forms: list[Callable[[torch.Tensor], torch.Tensor]] = field(default_factory=list)
    gone: list[torch.Tensor] = field(default_factory=list)
    lasting: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)  # and its .grad
    present: list[torch.Tensor] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    until_next: list[int] = field(default_factory=list)
    set_by_python: bool = False  # some .grad, to a tensor that no operator of the step has made
    # Whose .grad come after the arguments; None: any tensor will do
    inputs: list[torch.Tensor | None] = field(default_factory=list)
    # After fade(), of absent and present: parameters that the program may let go of
    absent_elsewhere: Sequence[torch.Tensor] = ()
    present_elsewhere: Sequence[torch.Tensor] = ()

    def fade(self, used: Iterable[torch.Tensor]) -> None:
        """Once all is recorded. ``used``: parameters that the step's optimizers update."""
        known = (*used, *self.returned, *self.gone, *self.cleared, *(p for p, _ in (*self.given, *self.lasting)))
        own = {id(p) for p in known}
        self.absent_elsewhere = Fading([p for p in self.absent if id(p) not in own])
        self.present_elsewhere = Fading([p for p in self.present if id(p) not in own])
        self.absent = [p for p in self.absent if id(p) in own]
        self.present = [p for p in self.present if id(p) in own]


def declare_gradients(recorder, world: World, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The parameters that have a .grad: it comes after the arguments, as an input."""
    if world.distributed:
        return []
    given = [(p, p.grad) for p in world.model_parameters() if p.grad is not None]
    for i, (p, grad) in enumerate(given, start=len(inputs)):
        recorder.declare_input(address(grad), "gradient", f"grad_{i - len(inputs)}", i, *_span(grad))
        recorder.declare_gradient(address(p), i)
    return [p for p, _ in given]


def _span(t: torch.Tensor) -> tuple[int, int]:
    part = parts([t])[0] if t.layout == torch.strided else None
    return (part.start_bytes, part.end_bytes) if part is not None else (0, 0)


def sort_gradients(
    recorder,
    world: World,
    inputs: int,
    before: list[tuple],
    given: list[torch.Tensor],
) -> Gradients:
    """What has become of each .grad. ``inputs``: how many tensors come before those of ``given``; ``before``: each
    parameter and its .grad when the step began."""
    found = Gradients()
    touched = recorder.touched_inputs()
    position = {id(p): i for i, p in enumerate(given, start=inputs)}
    used = {key: i in touched for key, i in position.items()}
    let_go = recorder.let_go()
    sharing = Counter(storage_address(grad) for _, grad in before if grad is not None and grad.layout == torch.strided)
    for p, grad in before:
        made = p.grad is not None and recorder.made_in_step(address(p.grad))
        if used.get(id(p)):
            found.given.append((p, metadata(grad)))
        elif grad is None:
            found.absent.append(p)
        else:
            lasting = recorder.lasts(address(grad)) and recorder.touches(address(grad))
            if lasting:
                found.lasting.append((p, grad))
            if p.grad is not grad:
                found.cleared.append(p)
                if made and world.distributed:
                    found.until_next.append(len(found.returned))
                if position.get(id(p)) in let_go and not lasting and _alone_in_its_storage(grad, sharing):
                    found.dropped.append(position[id(p)])
            found.present.append(p)
        if made:
            found.returned.append(p)
            found.forms.append(dtensor_like(p.grad))
        elif p.grad is None and grad is not None:
            found.gone.append(p)
        elif p.grad is not None and p.grad is not grad:
            found.set_by_python = True
    found.inputs = [p if used[id(p)] else None for p in given]
    return found


def _alone_in_its_storage(grad: torch.Tensor, sharing: Counter) -> bool:
    return grad.layout == torch.strided and storage_bytes(grad) == grad.nbytes and sharing[storage_address(grad)] == 1


__all__ = ["Gradients", "declare_gradients", "sort_gradients"]

"""One parameter whose numbers are split over ranks: what the model holds of it, and what the optimizer works on.

model      p  = Parameter(DTensor)       this rank's part, at the placement of the parameter
optimizer  p' = Parameter(local part)    at the placement of the optimizer's state; where both are equal, p' is p's own memory

backward ─► p.grad ──settle──► at its placement ──bring──► p'.grad ─► step() ─► p' ──take_back──► p    (the last where the two differ)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate

from stowage._torch.distributed import local_shape, make_dtensor, redistribute
from stowage._torch.private import local_tensor, shell_address
from stowage.errors import Unsupported
from stowage.sharding.moves import compact
from stowage.sharding.stand_in import hang_over

Placements = tuple  # of DTensor placements, one per axis of the mesh


@dataclass
class StatePlacement:
    """Where a parameter, its gradient and its optimizer state live."""

    parameter: Placements
    gradient: Placements
    state: Placements


def whole(tensor: torch.Tensor, mesh) -> DTensor:
    """A tensor that every rank holds, as a DTensor."""
    return make_dtensor(tensor.detach(), mesh, [Replicate()] * mesh.ndim, tensor.shape, tensor.stride())


def cut(tensor: torch.Tensor, mesh, placements: Placements) -> DTensor:
    """This rank's part of a tensor that every rank holds, as a DTensor with memory of its own."""
    with torch.no_grad():
        dense = tensor.detach().contiguous()
        local = local_tensor(redistribute(whole(dense, mesh), placements))
        return make_dtensor(
            local.clone(memory_format=torch.contiguous_format), mesh, placements, dense.shape, dense.stride()
        )


def to_text(placements: Placements) -> str:
    """As the plan's JSON has it: "S0,R"."""
    return ",".join(f"S{p.dim}" if p.is_shard() else "R" if p.is_replicate() else "Psum" for p in placements)


def settle_gradient(p: torch.nn.Parameter, mesh, placements) -> None:
    """Backward is done with the gradient: it goes to its placement at once."""
    grad = p.grad
    assert grad is not None
    if not isinstance(grad, DTensor):  # by way of a tensor of the step's own, which is whole
        grad = whole(grad, mesh)
    p.grad = compact(grad if grad.placements == placements else redistribute(grad, placements))


class Part:
    def __init__(self, name: str, p: torch.nn.Parameter, at: StatePlacement, mesh):
        self.name = name
        self.at = at
        self.mesh = mesh
        self.shape, self.stride = p.shape, p.contiguous().stride()
        self.parameter = torch.nn.Parameter(cut(p, mesh, at.parameter), requires_grad=p.requires_grad)
        self._nothing = torch.empty(0, dtype=p.dtype, device=p.device)  # what the optimizer's has between its steps
        worked = local_tensor(self.parameter) if self.shared else self._nothing
        self.worked = torch.nn.Parameter(worked.detach(), requires_grad=p.requires_grad)
        self._shell = shell_address(self.parameter)  # of the DTensor itself, which has no memory
        hang_over(p, self.parameter)
        hang_over(p, self.worked)
        if p.grad is not None:
            self.parameter.grad = cut(p.grad, mesh, at.gradient)

    def refuse_other_data(self) -> None:
        """A DTensor keeps its part where the program sets its data, and shows nothing of it."""
        if shell_address(self.parameter) != self._shell:
            raise Unsupported(
                f"the program has set the .data of '{self.name}', which a tensor in parts does not take: write p.copy_(u) instead, under "
                "torch.no_grad(), in the step; between calls, of u = distribute_tensor(u, p.device_mesh, p.placements)"
            )

    @property
    def shared(self) -> bool:
        """The optimizer works on the parameter's own memory."""
        return self.at.parameter == self.at.state

    # ---- Around optimizer.step()

    def bring(self) -> None:
        """The gradient, and the parameter where it lives elsewhere, come to where the optimizer's state is."""
        grad = self.parameter.grad
        if grad is None:
            return
        assert isinstance(grad, DTensor)
        if not self.shared:
            self.worked.data = local_tensor(redistribute(self.parameter.detach(), self.at.state))
        self.worked.grad = local_tensor(grad if grad.placements == self.at.state else redistribute(grad, self.at.state))

    def take_back(self) -> None:
        if self.worked.grad is not None and not self.shared:
            updated = make_dtensor(self.worked.detach(), self.mesh, self.at.state, self.shape, self.stride)
            local_tensor(self.parameter).copy_(local_tensor(redistribute(updated, self.at.parameter)))
            self.worked.data = self._nothing
        self.worked.grad = None

    # ---- The optimizer's state of it

    def cut_state(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.shape != self.shape:
            return value
        if isinstance(value, DTensor):
            return local_tensor(compact(redistribute(value.detach(), self.at.state))).clone()
        return local_tensor(cut(value, self.mesh, self.at.state))

    def shown_state(self, value: Any) -> Any:
        """What cut_state() gave, as a DTensor."""
        if (
            isinstance(value, torch.Tensor)
            and value.dim() > 0
            and value.shape == local_shape(self.shape, self.mesh, self.at.state)
        ):
            return make_dtensor(value, self.mesh, self.at.state, self.shape, self.stride)
        return value

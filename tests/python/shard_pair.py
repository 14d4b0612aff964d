"""What the cases on ranks share: plans made by hand, a training alone and sharded, a small model."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable

import torch
from torch import nn

import stowage


def zero_plan(program, mesh) -> str:
    """Everything that lives between steps is cut along its first dimension; the ops as DTensor runs them."""
    return _cut_along(program, mesh, lambda shape: 0)


def columns_plan(program, mesh) -> str:
    """The same along its last dimension."""
    return _cut_along(program, mesh, lambda shape: len(shape) - 1)


def _cut_along(program, mesh, dimension: Callable) -> str:
    cut = ("parameter", "gradient", "optimizer_state")
    places = [f"S{dimension(t['shape'])}" if t["kind"] in cut and t["shape"] else "R" for t in program.tensors]
    tensors = [{"placement": ",".join([place] + ["R"] * (mesh.ndim - 1))} for place in places]
    return json.dumps({"tensors": tensors, "ops": [None] * len(program.ops)})


def optimizer_apart_plan(program, mesh) -> str:
    """ZeRO-1: whole parameters, gradients and states in parts."""
    cut = ("gradient", "optimizer_state")
    tensors = [{"placement": "S0" if t["kind"] in cut and t["shape"] else "R"} for t in program.tensors]
    return json.dumps({"tensors": tensors, "ops": [None] * len(program.ops)})


_BY_VOCABULARY = {  # inputs, computed, recipe; results live as they are computed, summands whole
    "aten.embedding.default": (["S0", "R"], ["Psum"], "rows_of_part"),
    "aten.embedding_dense_backward.default": (["R", "R"], ["S0"], "rows_of_part"),
    "aten._log_softmax.default": (["S1"], ["S1"], "softmax_of_parts"),
    "aten._log_softmax_backward_data.default": (["S1", "S1"], ["S1"], "softmax_of_parts"),
    "aten.nll_loss_forward.default": (["S1", "R"], ["R", "R"], "sum_over_total"),
    "aten.nll_loss_backward.default": (["R", "S1", "R", "R"], ["S1"], "classes_of_part"),
}


def vocabulary_plan(program, mesh) -> str:
    """As Megatron-LM splits them: the rows of embeddings, and the classes of the loss. All state in parts."""
    document = json.loads(zero_plan(program, mesh))
    for k, op in enumerate(program.ops):
        if op["target"] in _BY_VOCABULARY:
            inputs, computed, recipe = _BY_VOCABULARY[op["target"]]
            outputs = ["R" if place == "Psum" else place for place in computed]
            document["ops"][k] = {"inputs": inputs, "computed": computed, "outputs": outputs, "recipe": recipe}
    return json.dumps(document)


def batch_norm_plan(program, mesh) -> str:
    """Batch norm over rows that are cut, convolutions whole. All state in parts."""
    document = json.loads(zero_plan(program, mesh))
    rows = ("input", "grad_out")
    for k, op in enumerate(program.ops):
        count = sum(len(a) if isinstance(a, list) else 1 for a in op["args"].values())
        if "batch_norm" in op["target"]:
            results = ["S0", "R", "R"]
            document["ops"][k] = {
                "inputs": ["S0" if name in rows else "R" for name in op["args"]],
                "computed": results,
                "outputs": results,
                "recipe": "statistics_of_parts",
            }
        elif "convolution" in op["target"]:
            whole = [None if t is None else "R" for t in op["outputs"]]
            document["ops"][k] = {"inputs": ["R"] * count, "computed": whole, "outputs": whole}
    return json.dumps(document)


class Pair:
    """The same training twice: alone on this rank, and sharded over all."""

    def __init__(self, make: Callable, batches: list, mesh, plan=None, **options):
        self.alone, self.alone_optimizer, self.alone_step = make()
        self.model, self.optimizer, step = make()
        self.batches = batches
        self.step = stowage.shard(step, mesh, plan=plan, strict=True, **options)

    def run(self, tolerance: float, steps: int | None = None) -> None:
        """Results of all steps, gradients of those that leave them, parameters and buffers at the end."""
        gradients = 0
        for i, batch in enumerate(self.batches[:steps]):
            for a, b in zip(_listed(self.alone_step(*batch)), _listed(self.step(*batch)), strict=True):
                assert (a - b).abs().max().item() <= tolerance * max(1.0, a.abs().max().item()), (
                    f"step {i}: {a} and {b}"
                )
            gradients += self.compare_gradients(tolerance)
        assert gradients > 0
        for (name, p), (_, q) in zip(self.alone.named_parameters(), self.model.named_parameters(), strict=True):
            assert (p - q.full_tensor()).abs().max().item() <= tolerance, name
        for (name, p), (_, q) in zip(self.alone.named_buffers(), self.model.named_buffers(), strict=True):
            assert torch.allclose(p, getattr(q, "full_tensor", lambda q=q: q)(), tolerance, tolerance), name

    def compare_gradients(self, tolerance: float) -> int:
        """How many there are."""
        found = 0
        for (name, p), (_, q) in zip(self.alone.named_parameters(), self.model.named_parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None), name + ".grad"
            if p.grad is not None and q.grad is not None:
                assert (p.grad - q.grad.full_tensor()).abs().max().item() <= tolerance, name + ".grad"
                found += 1
        return found

    def check_planned(self) -> None:
        stats = self.step.stats()
        assert self.step.refusal == "", self.step.refusal
        assert stats["planned_steps"] >= 2, stats
        assert stats["misses"] == 0, stats
        assert stats["measured_peak_bytes"] <= stats["planned_peak_bytes"] <= stats["arena_bytes"], stats

    def check_ledger(self) -> None:
        mesh = self.step.mesh
        ledger = self.step.plan.local_bytes(mesh.get_coordinate(), [mesh.size(i) for i in range(mesh.ndim)])
        assert self.step.measured_bytes() == ledger, f"measured {self.step.measured_bytes()}, ledger {ledger}"


def _listed(result) -> tuple:
    return result if isinstance(result, tuple) else (result,)


def step_of(loss_of: Callable, optimizer):
    """The plainest step of ``loss_of``(*batch)."""

    def train_step(*batch):
        optimizer.zero_grad()
        loss = loss_of(*batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return train_step


def make_mlp(dtype=torch.float64, widths=(7, 33, 5), clip=0.5, schedule=True, optimizer="adamw"):
    def make():
        torch.manual_seed(0)
        layers = []
        for a, b in itertools.pairwise(widths):
            layers += [nn.Linear(a, b), nn.GELU()]
        model = nn.Sequential(*layers[:-1]).to(dtype)
        if optimizer == "sgd":
            opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
        else:
            opt = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=optimizer == "fused")
        scheduler = torch.optim.lr_scheduler.StepLR(opt, 2, 0.5)

        def train_step(x, y):
            opt.zero_grad()
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            opt.step()
            if schedule:
                scheduler.step()
            return loss.detach()

        return model, opt, train_step

    return make


def mlp_batches(count=8, dtype=torch.float64, rows=6, widths=(7, 5)):
    generator = torch.Generator().manual_seed(5)
    return [tuple(torch.randn(rows, w, generator=generator, dtype=dtype) for w in widths) for _ in range(count)]

"""What the ranks of test_shard.py do. Each case runs on all ranks; names say what must hold."""

from __future__ import annotations

import json
from typing import Callable

import torch
from torch import nn

import stowage
from shard_models import training


def zero_plan(program, mesh) -> str:
    """Everything that lives between steps is cut along its first dimension; the ops as DTensor runs them."""
    cut = ("parameter", "gradient", "optimizer_state")
    tensors = [{"placement": ",".join(["S0" if t["kind"] in cut and t["shape"] else "R"] + ["R"] * (mesh.ndim - 1))} for t in program.tensors]
    return json.dumps({"tensors": tensors, "ops": [None] * len(program.ops)})


def optimizer_apart_plan(program, mesh) -> str:
    """ZeRO-1: whole parameters, gradients and states in parts."""
    cut = ("gradient", "optimizer_state")
    tensors = [{"placement": "S0" if t["kind"] in cut and t["shape"] else "R"} for t in program.tensors]
    return json.dumps({"tensors": tensors, "ops": [None] * len(program.ops)})


class Pair:
    """The same training twice: alone on this rank, and sharded over all."""

    def __init__(self, make: Callable, batches: list, mesh, plan=None, **options):
        self.alone, self.alone_optimizer, self.alone_step = make()
        self.model, self.optimizer, step = make()
        self.batches = batches
        self.step = stowage.shard(step, mesh, plan=plan, strict=True, **options)

    def run(self, tolerance: float, steps: int | None = None) -> None:
        for i, batch in enumerate(self.batches[:steps]):
            a, b = self.alone_step(*batch), self.step(*batch)
            assert (a - b).abs().max().item() <= tolerance * max(1.0, a.abs().max().item()), f"step {i}: {a} and {b}"
        self.compare(tolerance)

    def compare(self, tolerance: float) -> None:
        for (name, p), (_, q) in zip(self.alone.named_parameters(), self.model.named_parameters(), strict=True):
            assert (p - q.full_tensor()).abs().max().item() <= tolerance, name
            if p.grad is not None and q.grad is not None:
                assert (p.grad - q.grad.full_tensor()).abs().max().item() <= tolerance, name + ".grad"

    def check_planned(self) -> None:
        stats = self.step.stats()
        assert self.step.refusal == "", self.step.refusal
        assert stats["planned_steps"] >= 2, stats
        assert stats["misses"] == 0, stats
        assert stats["measured_peak_bytes"] <= stats["planned_peak_bytes"] <= stats["arena_bytes"], stats

    def check_ledger(self) -> None:
        mesh = self.step.mesh
        ledger = self.step.plan.local_bytes(mesh.get_coordinate(), [mesh.size(i) for i in range(mesh.ndim)])
        assert self.step.measured_bytes() == ledger


def make_mlp(dtype=torch.float64, widths=(7, 33, 5), clip=0.5, schedule=True, optimizer="adamw"):
    def make():
        torch.manual_seed(0)
        layers = []
        for a, b in zip(widths, widths[1:]):
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


# ---- Cases


def mlp_cut_unevenly_with_clipping_and_schedule(rank, size):
    pair = Pair(make_mlp(), mlp_batches(), (size,), zero_plan)
    pair.run(1e-12)
    pair.check_planned()
    pair.check_ledger()


def mlp_with_the_optimizer_apart(rank, size):
    pair = Pair(make_mlp(), mlp_batches(), (size,), optimizer_apart_plan)
    pair.run(1e-12)
    pair.check_planned()
    pair.check_ledger()


def mlp_with_momentum(rank, size):
    pair = Pair(make_mlp(optimizer="sgd", clip=0), mlp_batches(), (size,), optimizer_apart_plan)
    pair.run(1e-12)
    pair.check_planned()


def mlp_with_a_fused_optimizer(rank, size):
    pair = Pair(make_mlp(torch.float32, optimizer="fused"), mlp_batches(dtype=torch.float32), (size,), zero_plan)
    pair.run(1e-5)
    pair.check_planned()


def _model(name: str, size: int, dtype=torch.float64, tolerance: float = 1e-9, plan=zero_plan, mesh=None) -> None:
    make, batches = training(name, dtype)
    pair = Pair(make, batches, mesh or (size,), plan)
    pair.run(tolerance)
    pair.check_planned()
    pair.check_ledger()


def gpt2_tied(rank, size):
    _model("gpt2", size)


def bert(rank, size):
    _model("bert", size)


def vit(rank, size):
    _model("vit", size)


def mixture_of_experts(rank, size):
    _model("moe", size)


def conv_net(rank, size):
    _model("convnet", size)


def a_mesh_of_the_wrong_size(rank, size):
    try:
        stowage.shard(make_mlp()()[2], (size + 1,))
    except stowage.Error as error:
        assert f"has {size + 1} devices, but there are {size} ranks" in str(error)
    else:
        raise AssertionError("no error")


def ranks_with_other_batches(rank, size):
    step = stowage.shard(make_mlp()()[2], (size,), plan=zero_plan)
    step(*mlp_batches()[0])
    try:
        step(*mlp_batches(rows=6 + rank)[0])
    except stowage.Error as error:
        assert "differ" in str(error), error
    else:
        raise AssertionError("no error")


def ranks_with_other_models(rank, size):
    model, _, step = make_mlp()()
    with torch.no_grad():
        next(model.parameters()).add_(rank)
    try:
        stowage.shard(step, (size,), plan=zero_plan)(*mlp_batches()[0])
    except stowage.Error as error:
        assert "parameters differ" in str(error), error
    else:
        raise AssertionError("no error")


def a_step_that_reads_its_data(rank, size):
    model, opt, _ = make_mlp()()

    def train_step(x, y):
        loss = ((model(x) - y) ** 2).mean()
        if loss.item() > 0:
            loss.backward()
        return loss.detach()

    try:
        stowage.shard(train_step, (size,), plan=zero_plan)(*mlp_batches()[0])
    except stowage.Unsupported as error:
        assert "depend on data" in str(error), error
    else:
        raise AssertionError("no error")

"""Steps with kernels that do not repeat their bits, as those that add in any order do. Here they are told apart by numbers
that nobody can foresee: a kernel that adds none of them where PyTorch's deterministic algorithms are on."""

import json
import os
import struct
import warnings

import pytest
import torch
from mean_square import mean_square_step
from torch import nn

import stowage
from stowage.step.replay.repetition import Repetition, Stage


def _noise() -> float:
    """So large that two losses with it have the same bits by chance in none of a million runs."""
    return struct.unpack("<I", os.urandom(4))[0] / 2**32


@torch.library.custom_op("repetition::sum_rows", mutates_args=())
def sum_rows(x: torch.Tensor) -> torch.Tensor:
    out = x.sum(1)
    return out if torch.are_deterministic_algorithms_enabled() else out * (1 + _noise())


@sum_rows.register_fake
def _(x):
    return x.new_empty(x.shape[0])


sum_rows.register_autograd(
    lambda ctx, g: g[:, None].expand(ctx.shape),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "shape", inputs[0].shape),
)


@torch.library.custom_op("repetition::never", mutates_args=())
def never(x: torch.Tensor) -> torch.Tensor:
    return x * (1 + _noise())


@never.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("repetition::has_none", mutates_args=())
def has_none(x: torch.Tensor) -> torch.Tensor:
    if torch.are_deterministic_algorithms_enabled():
        raise RuntimeError("has_none does not have a deterministic implementation")
    return x * (1 + _noise())


@has_none.register_fake
def _(x):
    return torch.empty_like(x)


def stepped(op, dropout=0.0, **options):
    """(model, compiled step)"""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Dropout(dropout), nn.Linear(32, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(x):
        y = model(x)
        loss = y.square().mean() + op(y.detach()).sum() * 0 + op(y.detach()).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return model, stowage.compile(step, **options)


def told(run):
    """What run() returns, and its warnings."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        result = run()
    return result, [str(w.message) for w in seen if "stowage" in str(w.message)]


def test_a_step_is_planned_though_a_kernel_does_not_repeat_its_bits():
    _, compiled = stepped(sum_rows, dropout=0.1)
    _, said = told(lambda: [compiled(torch.randn(16, 8)) for _ in range(14)])
    assert compiled.refusal == "" and compiled.stats()["planned_steps"] >= 4
    [words] = said
    assert "repetition::sum_rows" in words and "does not repeat its bits" in words
    assert not torch.are_deterministic_algorithms_enabled()


def test_all_else_has_eagers_bits():
    """The kernel's result decides nothing but the loss: parameters are as without a plan."""
    x = [torch.randn(16, 8, generator=torch.Generator().manual_seed(i)) for i in range(14)]

    def parameters(planned):
        model, compiled = stepped(sum_rows)
        run = compiled if planned else compiled.__wrapped__
        told(lambda: [run(each) for each in x])
        assert not planned or compiled.stats()["planned_steps"] >= 4
        return [p.detach().clone() for p in model.parameters()]

    assert all(map(torch.equal, parameters(True), parameters(False)))


@pytest.mark.parametrize("op", [never, has_none], ids=lambda op: op._name)
def test_one_that_cannot_be_told_to_repeat_is_refused(op):
    _, compiled = stepped(op)
    losses, _ = told(lambda: [compiled(torch.randn(16, 8)) for _ in range(14)])
    assert compiled.stats()["planned_steps"] == 0
    assert f"repetition::{op._name}" in compiled.refusal and "torch.use_deterministic_algorithms" in compiled.refusal
    assert all(map(torch.isfinite, losses))
    assert not torch.are_deterministic_algorithms_enabled()


@torch.library.custom_op("repetition::wave", mutates_args=())
def wave(x: torch.Tensor) -> torch.Tensor:
    return x.sin() if torch.are_deterministic_algorithms_enabled() else x.sin() * (1 + _noise())


@wave.register_fake
def _(x):
    return torch.empty_like(x)


wave.register_autograd(
    lambda ctx, g: g * ctx.saved_tensors[0].cos(),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0], output),
)


class Waves(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            x = wave(layer(x)) * x
        return x


def waves(**options):
    torch.manual_seed(0)
    model = Waves()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    step = mean_square_step(model, optimizer)
    compiled = stowage.compile(step, **options)
    generator = torch.Generator().manual_seed(1)
    told(lambda: [compiled(torch.randn(512, 64, generator=generator)) for _ in range(16)])
    return compiled


def made_again(compiled):
    """The targets of what the plan makes again."""
    ops = json.loads(compiled.graph.to_json())["ops"]
    runs = [step["op"] for step in json.loads(compiled.plan._plan.to_json())["steps"] if "op" in step]
    return {ops[k]["target"] for k in runs if runs.count(k) > 1}


def once(compiled):
    """The targets of what must not be made again; all ops of such a target are."""
    ops = json.loads(compiled.graph.to_json())["ops"]
    found = {op["target"] for op in ops if "once" in op.get("traits", [])}
    assert all("once" in op.get("traits", []) for op in ops if op["target"] in found)
    return found


@pytest.fixture(scope="module")
def free():
    """Without a limit."""
    compiled = waves(link_gbps=0)
    assert compiled.refusal == "" and compiled.stats()["planned_steps"] >= 4
    assert compiled.stats()["recomputed_ops"] == 0
    return compiled


def least_arena(graph, **options):
    with pytest.raises(stowage.Infeasible) as told:
        stowage.plan(graph, graph.resident_bytes, link_gbps=0, **options)
    return told.value.smallest_bytes - graph.resident_bytes


def without_waves_again(graph):
    as_json = json.loads(graph.to_json())
    for op in as_json["ops"]:
        if op["target"] == "repetition::wave":
            op["traits"] = ["once"]
    return stowage.Graph.parse(json.dumps(as_json), "once")


def test_what_does_not_repeat_is_not_made_again(free):
    """Eager's backward pass sees the numbers of its own forward pass; a plan that makes them anew would show it others."""
    budget = free.stats()["resident_bytes"] + least_arena(without_waves_again(free.graph))
    torch.use_deterministic_algorithms(True)
    try:
        repeats = waves(link_gbps=0, budget=budget)
    finally:
        torch.use_deterministic_algorithms(False)
    assert repeats.refusal == "" and "repetition::wave" in made_again(repeats), "it is worth making again"
    tight = waves(link_gbps=0, budget=budget)
    assert tight.refusal == "" and tight.stats()["planned_steps"] >= 4
    assert once(tight) == {"repetition::wave"}, "what follows from it is not to blame"
    assert made_again(tight) and not made_again(tight) & once(tight)
    assert tight.stats()["resident_bytes"] + tight.stats()["measured_peak_bytes"] <= budget
    assert tight.stats()["unrepeatable_op"].startswith("repetition::wave")


def test_where_no_plan_does_without_the_step_is_refused(free):
    least, least_without = least_arena(free.graph), least_arena(without_waves_again(free.graph))
    assert least < least_without
    tight = waves(link_gbps=0, budget=free.stats()["resident_bytes"] + (least + least_without) // 2)
    assert tight.stats()["planned_steps"] == 0
    assert "repetition::wave" in tight.refusal and "is made again, and does not repeat its bits" in tight.refusal
    assert "the smallest that works" in tight.refusal


def test_pytorchs_own_kernels_of_the_cpu_are_not_suspected():
    """They repeat their bits there; where they differ, the plan is to blame, whatever deterministic algorithms give."""
    repetition = Repetition()
    repetition.suspects("aten::mm (train.py:3)", "cpu")
    assert repetition.stage is Stage.USUAL
    repetition.suspects("aten::mm (train.py:3)", "cuda:0")
    assert repetition.told


def test_strict_wants_eagers_bits():
    _, compiled = stepped(sum_rows, strict=True)
    with pytest.raises(stowage.Error, match="repetition::sum_rows"):
        for _ in range(14):
            compiled(torch.randn(16, 8))


def test_what_the_user_has_set_stays():
    _, compiled = stepped(sum_rows)
    torch.use_deterministic_algorithms(False)
    before = torch.get_deterministic_debug_mode(), os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    told(lambda: [compiled(torch.randn(16, 8)) for _ in range(8)])
    assert (torch.get_deterministic_debug_mode(), os.environ.get("CUBLAS_WORKSPACE_CONFIG")) == before
    assert torch.utils.deterministic.fill_uninitialized_memory

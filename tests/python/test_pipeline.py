"""Pipelines over 2 and 4 gloo ranks give the numbers of one process (fp64, 1e-9) and hold what the ledger says; on paper
they are planned by the same layers."""

import json
import subprocess
import sys

import pipeline_cases
import pytest
import ranks
import torch
from torch import nn

import stowage
from stowage.sharding import layer_costs
from stowage.sharding.layer_costs import measured, modelled

CASES = ranks.cases_of(pipeline_cases)
ON_FOUR = [
    f"pipeline_cases.{name}"
    for name in (
        "one_forward_one_backward",
        "interleaved",
        "zero_bubble",
        "zero_bubble_in_a_v",
        "a_cut_that_is_given",
        "a_head_tied_to_the_embedding",
        "gradients_clipped_by_the_norm_of_all",
        "layers_that_share_parameters_at_random",
        "replicas_of_a_pipeline",
    )
]


@pytest.fixture(scope="module")
def two(request, tmp_path_factory):
    return ranks.run_chosen(request, tmp_path_factory, 2, CASES)


@pytest.fixture(scope="module")
def four(request, tmp_path_factory):
    return ranks.run_chosen(request, tmp_path_factory, 4, ON_FOUR)


@pytest.mark.parametrize("case", CASES)
def test_two_ranks(two, case):
    assert two[case] == [""] * 2, "\n".join(two[case])


@pytest.mark.parametrize("case", ON_FOUR)
def test_four_ranks(four, case):
    assert four[case] == [""] * 4, "\n".join(four[case])


def test_on_paper():
    chain, batch = pipeline_cases._chain(4), pipeline_cases._batches(1)[0]
    plan = stowage.shard_plan(chain, batch, mesh=(2,), pipeline=4)
    summary = plan.summary()
    assert summary["outcome"] == "optimal" and len(summary["ranks"]) == 2
    assert summary["stages"][0]["first"] == 0 and summary["stages"][-1]["end"] == len(chain.layers)
    with pytest.raises(stowage.Infeasible) as told:
        stowage.shard_plan(chain, batch, mesh=(2,), pipeline=4, memory_limit=100)
    smallest = told.value.smallest_bytes
    assert smallest == told.value.bound_bytes
    fitting = stowage.shard_plan(chain, batch, mesh=(2,), pipeline=4, memory_limit=smallest)
    assert max(r["peak"] for r in fitting.summary()["ranks"]) <= smallest
    with pytest.raises(TypeError, match=r"needs a stowage.Chain"):
        stowage.shard_plan(lambda x: x, batch, mesh=(2,), pipeline=4)


def test_a_tie_is_held_by_each_rank_that_has_a_layer_of_it():
    chain, batch = pipeline_cases._chain(4), pipeline_cases._batches(1)[0]
    apart = stowage.shard_plan(chain, batch, mesh=(2,), pipeline={"micro_batches": 4, "schedules": ["1f1b"]})
    chain.layers[-1].weight = chain.layers[0].weight
    tied = stowage.shard_plan(chain, batch, mesh=(2,), pipeline={"micro_batches": 4, "schedules": ["1f1b"]})
    size = chain.layers[0].weight.nbytes
    assert tied.problem["ties"] == [
        {"layers": [0, 3], "parameter_bytes": size, "gradient_bytes": size, "optimizer_bytes": 2 * size + 4}
    ]
    assert [r["parameters"] for r in tied.summary()["ranks"]] == [r["parameters"] for r in apart.summary()["ranks"]]
    assert tied.summary()["step_ns"] > apart.summary()["step_ns"]


def test_replicas_take_rows_and_add_up_gradients():
    chain, batch = pipeline_cases._chain(4), pipeline_cases._batches(1)[0]
    options = {"micro_batches": 2, "schedules": ["1f1b"]}
    alone = stowage.shard_plan(chain, tuple(t[:4] for t in batch), mesh=(2,), pipeline=options)
    links = {1: {"latency_ns": 1000, "gbps": 1}}
    both = stowage.shard_plan(chain, batch, mesh=(2, 2), pipeline=options, links=links)
    for one, other in zip(alone.problem["layers"], both.problem["layers"], strict=True):
        assert {k: v for k, v in other.items() if k != "update_ns"} == {
            k: v for k, v in one.items() if k != "update_ns"
        }
        assert other["update_ns"] - one["update_ns"] == 2 * 1000 + one["gradient_bytes"]
    other_axis = stowage.shard_plan(chain, batch, mesh=(2, 4), pipeline={**options, "micro_batches": 4, "axis": 1})
    assert len(other_axis.summary()["ranks"]) == 4
    for axis in (2, -1, "pp"):
        with pytest.raises(stowage.Error, match="has no axis"):
            stowage.shard_plan(chain, batch, mesh=(2, 2), pipeline={**options, "axis": axis})


def test_an_optimizer_that_draws_would_part_the_copies():
    noisy = lambda ps: Updates(ps, lambda ps: [p.sub_(p.grad + torch.randn_like(p)) for p in ps])
    chain, batch = pipeline_cases._chain(4, noisy), pipeline_cases._batches(1)[0]
    assert stowage.shard_plan(chain, batch, mesh=(2,), pipeline=4)
    chain.layers[-1].weight = chain.layers[0].weight
    with pytest.raises(stowage.Unsupported, match="draws random numbers"):
        stowage.shard_plan(chain, batch, mesh=(2,), pipeline=4)


@pytest.mark.parametrize("max_norm, error", [(0, ValueError), (-1.0, ValueError), ("1", TypeError), (True, TypeError)])
def test_a_norm_that_is_none(max_norm, error):
    with pytest.raises(error, match="max_norm must be"):
        stowage.Chain([nn.Linear(2, 2)], nn.functional.mse_loss, torch.optim.SGD, max_norm=max_norm)


class Updates(torch.optim.Optimizer):
    """Whose step is ``update(parameters)``."""

    def __init__(self, parameters, update):
        super().__init__(parameters, {})
        self.update = update

    @torch.no_grad()
    def step(self, closure=None):
        self.update([p for group in self.param_groups for p in group["params"]])


def clips_by_the_norm_of_all(ps):
    norm = torch.stack([p.grad.norm() for p in ps]).norm()
    for p in ps:
        p.sub_(p.grad / norm)


def clips_foreach(ps):
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm([p.grad for p in ps])))
    torch._foreach_sub_(ps, torch._foreach_div([p.grad for p in ps], norm))


def follows_another(ps):
    for p in ps:
        p.sub_(p.grad * ps[0].mean())


def by_each_norm(ps):
    norms = torch._foreach_norm([p.grad for p in ps])
    torch._foreach_sub_(ps, torch._foreach_div([p.grad for p in ps], norms))


def _hooked(ps):
    optimizer = torch.optim.SGD(ps, lr=0.1)
    clips = lambda o, a, k: [nn.utils.clip_grad_norm_(o.param_groups[0]["params"], 1.0)].clear()
    optimizer.register_step_pre_hook(clips)
    return optimizer


@pytest.mark.parametrize(
    "optimizer, words",
    [
        (lambda ps: Updates(ps, clips_by_the_norm_of_all), "several layers together"),
        (lambda ps: Updates(ps, clips_foreach), "several layers together"),
        (lambda ps: Updates(ps, follows_another), "several layers together"),
        (_hooked, "several layers together"),
        (lambda ps: Updates(ps, lambda ps: [p.grad.norm().item() for p in ps]), "reads numbers"),
        (lambda ps: torch.optim.SGD([{"params": ps[:2]}, {"params": ps[2:], "lr": 0.5}], lr=0.1), "another 'lr'"),
        (lambda ps: torch.optim.SGD(ps, lr=1 / len(ps)), "another 'lr'"),
    ],
)
def test_optimizers_that_a_stage_would_change_are_refused(optimizer, words):
    chain, batch = pipeline_cases._chain(4, optimizer), pipeline_cases._batches(1)[0]
    with pytest.raises(stowage.Unsupported, match=words):
        stowage.shard_plan(chain, batch, mesh=(2,), pipeline=4)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda ps: torch.optim.AdamW(ps, foreach=True),
        lambda ps: torch.optim.Adam(ps, fused=True),
        lambda ps: torch.optim.NAdam(ps),
        lambda ps: torch.optim.SGD(
            [{"params": [p for p in ps if p.dim() > 1]}, {"params": [p for p in ps if p.dim() <= 1], "lr": 0.5}], lr=0.1
        ),
        lambda ps: Updates(ps, by_each_norm),
        lambda ps: Updates(ps, lambda ps: torch._foreach_sub_(ps, [p.grad for p in ps])),
        lambda ps: Updates(ps, lambda ps: [p.sub_(p.grad / p.grad.norm()) for p in ps]),
    ],
)
def test_optimizers_that_take_each_parameter_alone_are_planned(optimizer):
    chain, batch = pipeline_cases._chain(4, optimizer), pipeline_cases._batches(1)[0]
    assert stowage.shard_plan(chain, batch, mesh=(2,), pipeline=4).stages


class Detaches(nn.Linear):
    def forward(self, x):
        return super().forward(x.detach())


class Dict(nn.Linear):
    def forward(self, x):
        return {"y": super().forward(x)}


@pytest.mark.parametrize(
    "layer, options, words",
    [
        (Detaches, {}, "passes no gradient"),
        (Dict, {}, "returns dict"),
        (lambda *_: pipeline_cases._Twice(), {"schedules": ["zero-bubble", "zbv"]}, "in halves"),
    ],
)
def test_layers_that_no_pipeline_runs_are_refused(layer, options, words):
    width = pipeline_cases.WIDTH
    chain, batch = pipeline_cases._chain(4), pipeline_cases._batches(1)[0]
    chain.layers.insert(2, layer(width, width).double())
    with pytest.raises(stowage.Unsupported, match=words):
        stowage.shard_plan(chain, batch, mesh=(2,), pipeline={"micro_batches": 4, **options})


def test_schedules_that_halve_backward_are_left_out_where_that_cannot_be():
    chain, batch = pipeline_cases._chain(4), pipeline_cases._batches(1)[0]
    chain.layers.insert(2, pipeline_cases._Twice().double())
    tried = stowage.shard_plan(chain, batch, mesh=(2,), pipeline=4).summary()["tried"]
    assert {t["schedule"] for t in tried} <= {"1f1b", "interleaved"}


CE = lambda **more: lambda y, t: nn.functional.cross_entropy(y.flatten(0, 1), t.flatten(), **more)


@pytest.mark.parametrize(
    "loss, uneven, refused",
    [
        (CE(), False, False),
        (CE(reduction="sum"), False, True),
        (CE(ignore_index=0), True, True),
        (CE(ignore_index=0), False, False),
        (CE(weight=torch.arange(1.0, 21, dtype=torch.float64)), True, True),
        (lambda y, t: CE(reduction="none")(y, t).sum() / 5, False, True),
        (lambda y, t: CE()(y, t).sqrt(), False, True),
        (lambda y, t: nn.functional.binary_cross_entropy(y.mean((1, 2)), (t[:, 0] > 9).double()), False, False),
        (lambda y, t: nn.functional.binary_cross_entropy(y.mean((1, 2)), (t[:, 0] > 9).double(), reduction="sum"), False, True),
    ],
)  # fmt: skip
def test_losses_that_are_no_mean_over_the_batch_are_refused(loss, uneven, refused):
    tokens, targets = pipeline_cases._batches(1)[0]
    targets = targets.clamp(min=1)
    if uneven:
        targets[0] = 0
    else:
        targets[:, 0] = 0
    chain = stowage.Chain(pipeline_cases._chain(4).layers, loss, torch.optim.SGD)
    if refused:
        with pytest.raises(stowage.Unsupported, match="no mean over the batch"):
            stowage.shard_plan(chain, (tokens, targets), mesh=(2,), pipeline=4)
    else:
        assert stowage.shard_plan(chain, (tokens, targets), mesh=(2,), pipeline=4).stages


def test_costs_by_either_way_hold_the_same_bytes():
    chain, batch = pipeline_cases._chain(4), pipeline_cases._batches(1)[0]
    bytes_of = lambda costs: [{k: v for k, v in c.items() if k.endswith("_bytes")} for c in costs]
    assert bytes_of(measured(chain, batch)) == bytes_of(modelled(chain, batch))


def test_what_a_layer_saves():
    """A linear layer with a bias keeps its input, which is not counted, its weight, which is not either, and its output
    leaves: 4 x 5 numbers."""
    chain = stowage.Chain([nn.Linear(3, 5), nn.Linear(5, 2)], nn.functional.mse_loss, torch.optim.SGD)
    first = modelled(chain, (torch.zeros(4, 3), torch.zeros(4, 2)))[0]
    assert first["saved_bytes"] == first["sent_bytes"] == 4 * 5 * 4
    assert first["parameter_bytes"] == first["gradient_bytes"] == (3 * 5 + 5) * 4 and first["optimizer_bytes"] == 0


class _Slope(nn.Module):
    """Asks for a gradient in its forward pass, as energies do."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 1))

    def forward(self, x):
        return torch.autograd.grad(self.inner(x).sum(), x, create_graph=True)[0]


def test_what_a_layer_saves_that_has_a_gradient_in_it():
    layer = layer_costs._Layer(_Slope(), None, None, lambda t: t)
    assert layer_costs._held(layer, (torch.zeros(4, 3),))["saved_bytes"] > 4 * 7 * 4


SCRIPT = """
import torch
import stowage

def make_step(batch_size=8):
    layers = [torch.nn.Linear(16, 16) for _ in range(6)]
    chain = stowage.Chain(layers, torch.nn.functional.mse_loss, lambda ps: torch.optim.AdamW(ps))
    return chain, (torch.randn(batch_size, 16), torch.randn(batch_size, 16))
"""


def test_the_verb(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    asked = [sys.executable, "-m", "stowage", "shard", f"--model-from={script}:make_step", "--mesh=2"]
    run = lambda *more: subprocess.run([*asked, *more], capture_output=True, text=True)
    done = run("--pipeline=4", "--json", "-o", str(tmp_path / "plan.json"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["outcome"] == "optimal"
    assert json.loads((tmp_path / "plan.json").read_text())["format"] == "stowage-pipeline-plan"
    told = run("--pipeline=4", "--memory-limit=1KiB")
    assert told.returncode == 4 and "holds" in told.stderr and "Traceback" not in told.stderr
    assert run("--pipeline=3").returncode == 3 and run("--memory-limit=1KiB").returncode == 2


def test_a_schedule_that_stages_rule_out_is_told_why():
    chain, batch = pipeline_cases._chain(4), pipeline_cases._batches(1)[0]
    options = {"micro_batches": 4, "schedules": ["interleaved"], "stages_per_rank": [1]}
    with pytest.raises(stowage.Error, match="interleaved needs 'stages_per_rank' of 2 or more"):
        stowage.shard_plan(chain, batch, mesh=(2,), pipeline=options)

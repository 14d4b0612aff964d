"""Pipelines on ranks against one process, in fp64."""

from __future__ import annotations

import copy
import gc
import json
import os
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import stowage
from stowage import _runtime
from stowage.sharding import layer_costs
from stowage.sharding.pipeline import solve_pipeline

WIDTH, BATCH = 12, 8
layer_costs._Watch.repeats = 1  # the plans need not be good


class _Block(nn.Module):
    """A residual block that passes two tensors on: most stages cut between such."""

    def __init__(self, two: bool):
        super().__init__()
        self.two = two
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x, gate=None):
        y = x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))
        return (y, torch.tanh(y)) if self.two else y + (0 if gate is None else gate)


def _chain(layers: int = 9, optimizer=None) -> stowage.Chain:
    torch.manual_seed(0)
    middle = [_Block(two=i % 3 == 1) for i in range(layers - 2)]
    if middle[-1].two:
        middle[-1].two = False
    modules = [nn.Embedding(20, WIDTH), *middle, nn.Linear(WIDTH, 20)]
    optimizer = optimizer or (lambda ps: torch.optim.AdamW(ps, lr=1e-2))
    return stowage.Chain(
        [m.double() for m in modules], lambda y, t: nn.functional.cross_entropy(y.flatten(0, 1), t.flatten()), optimizer
    )


def _batches(count: int) -> list[tuple]:
    torch.manual_seed(1)
    return [(torch.randint(0, 20, (BATCH, 5)), torch.randint(0, 20, (BATCH, 5))) for _ in range(count)]


def _equal(a: torch.Tensor, b: torch.Tensor) -> None:
    assert a.dtype == b.dtype and a.shape == b.shape
    assert (a - b).abs().max().item() <= 1e-9, (a - b).abs().max().item()


def _runs(size: int, schedule: str, stages: int = 1, made=_chain, mesh=None, axis: int | str = 0) -> stowage.Chain:
    alone = made()
    parts = 4 if mesh is None else min(4, BATCH * (mesh[axis] if isinstance(axis, int) else 2) // size)
    options = {"micro_batches": parts, "schedules": [schedule], "stages_per_rank": [stages], "axis": axis}
    step = stowage.shard(made(), mesh or (size,), pipeline=options)
    for batch in _batches(3):
        _equal(step(*batch), alone(*batch))
    state = step.state_dict()
    for i, layer in enumerate(alone.layers):
        for name, tensor in layer.state_dict().items():
            _equal(state[f"{i}.{name}"], tensor)
    _as_the_ledger_says(step)
    assert step.plan.schedule == schedule and step.stats()["steps"] == 3
    return step


def _as_the_ledger_says(step) -> None:
    ledger = step.plan.document["ranks"][step._place.position]
    assert step.measured_bytes() == {k: ledger[k] for k in ("parameters", "gradients", "optimizer_state")}
    received = 0
    ranks = [s["rank"] for s in step.plan.stages]
    for stage in step._stages:
        s = stage.stage_index
        for neighbour, rows in ((s - 1, stage.args_recv_info), (s + 1, stage.grad_recv_info)):
            if 0 <= neighbour < len(ranks) and ranks[neighbour] != ranks[s]:
                received += sum(i.buffer.nbytes for row in rows.values() for i in row)
    assert received == ledger["buffers"] and (received > 0) == (step._place.positions > 1)


def one_forward_one_backward(rank: int, size: int) -> None:
    _runs(size, "1f1b")


def interleaved(rank: int, size: int) -> None:
    _runs(size, "interleaved", 2)


def zero_bubble(rank: int, size: int) -> None:
    _runs(size, "zero-bubble")


def zero_bubble_of_two_stages(rank: int, size: int) -> None:
    _runs(size, "zero-bubble", 2)


def zero_bubble_in_a_v(rank: int, size: int) -> None:
    _runs(size, "zbv", 2)


def the_best_of_all_schedules(rank: int, size: int) -> None:
    alone, step = _chain(), stowage.shard(_chain(), (size,), pipeline=4)
    for batch in _batches(2):
        _equal(step(*batch), alone(*batch))
    document = step.plan.document
    assert document["outcome"] == "optimal" and document["gap"] == 0
    assert document["step_ns"] == min(t["step_ns"] for t in document["tried"] if t.get("step_ns"))


def a_cut_that_is_given(rank: int, size: int) -> None:
    """Of one's own: every cut of a chain runs, however uneven. By a plan, and by costs."""

    def uneven(layers: list[dict]) -> list[dict]:
        cost = lambda i: 1000 if i == 0 else 1
        return [{**c, "forward_ns": cost(i), "backward_ns": cost(i), "update_ns": 0} for i, c in enumerate(layers)]

    def planned(problem: str) -> str:
        document = json.loads(problem)
        return solve_pipeline(json.dumps({**document, "layers": uneven(document["layers"])}))

    options = {"micro_batches": 4, "schedules": ["1f1b"]}
    costs = uneven(layer_costs.modelled(_chain(), tuple(t[: BATCH // 4] for t in _batches(1)[0])))
    for more in ({"plan": planned, "pipeline": options}, {"pipeline": {**options, "costs": costs}}):
        alone, step = _chain(), stowage.shard(_chain(), (size,), links={0: {"latency_ns": 0}}, **more)
        for batch in _batches(2):
            _equal(step(*batch), alone(*batch))
        assert step.plan.stages[0] == {"rank": 0, "first": 0, "end": 1}


def others_parameters_give_their_memory_back(rank: int, size: int) -> None:
    chain = _chain()
    step = stowage.shard(chain, (size,), pipeline=4)
    step.prepare(*_batches(1)[0])
    held = sum(p.untyped_storage().nbytes() for p in chain.parameters())
    assert held == step.measured_bytes()["parameters"] < sum(p.nbytes for p in _chain().parameters())


def what_is_refused(rank: int, size: int) -> None:
    batch = _batches(1)[0]
    for options, error, words in (
        ({"mesh": (size,), "pipeline": 3}, stowage.Unsupported, "not 3 equal micro-batches"),
        ({"mesh": (size, 1), "pipeline": {"micro_batches": 4, "axis": 2}}, stowage.Error, "no axis 2"),
        ({"mesh": (1, size), "pipeline": {"micro_batches": 4, "axis": "pp"}}, stowage.Error, "no axis 'pp'"),
        ({"mesh": (1, size), "pipeline": {"micro_batches": 4, "axis": 0.5}}, TypeError, "axis is that"),
        ({"mesh": (1, size), "pipeline": 8}, stowage.Unsupported, f"not {8 * size} equal micro-batches"),
        ({"mesh": (size,), "pipeline": 4, "budget": "1GiB"}, stowage.Unsupported, "budget= does not go"),
        ({"mesh": (size,), "pipeline": {"micro_batches": 4, "order": 1}}, TypeError, "has no 'order'"),
        ({"mesh": (size,), "pipeline": 4, "memory_limit": 1000}, stowage.Infeasible, "holds"),
    ):
        try:
            stowage.shard(_chain(), options.pop("mesh"), **options)(*batch)
        except (error, stowage.Error) as told:
            assert words in str(told), told
        else:
            raise AssertionError(words)
    written = _chain()
    for layer in (written.layers[0], written.layers[-1]):
        layer.register_buffer("shared", written.layers[0].weight.detach().clone())
    written.layers[-1].shared = written.layers[0].shared
    try:
        stowage.shard(written, (size,), pipeline=4)(*batch)
    except stowage.Error as told:
        assert "make 1 pieces" in str(told), told
    else:
        raise AssertionError("a shared buffer")


def ranks_with_other_parameters(rank: int, size: int) -> None:
    chain = _chain()
    with torch.no_grad():
        chain.layers[1].up.weight += rank
    try:
        stowage.shard(chain, (size,), pipeline=4)(*_batches(1)[0])
    except stowage.Error as told:
        assert "parameters differ" in str(told)
    else:
        raise AssertionError("not told")


def the_user_s_gradients_and_numbers_stay(rank: int, size: int) -> None:
    """Costs are measured on copies."""
    chain, batch = _chain(), _batches(1)[0]
    before, generator = copy.deepcopy([p.data for p in chain.parameters()]), torch.get_rng_state()
    from stowage.sharding.layer_costs import measured, modelled

    for costs in (measured(chain, batch), modelled(chain, batch)):
        assert len(costs) == len(chain.layers)
        assert all(c["forward_ns"] > 0 and c["backward_ns"] > 0 for c in costs)
    assert all(p.grad is None and torch.equal(p.data, b) for p, b in zip(chain.parameters(), before))
    assert torch.equal(torch.get_rng_state(), generator)


def layers_that_are_frozen(rank: int, size: int) -> None:
    """Some in the middle, whose stage still sends gradients back."""

    def frozen() -> stowage.Chain:
        chain = _chain()
        for layer in chain.layers[3:6]:
            layer.requires_grad_(False)
        return chain

    for schedule in ("1f1b", "zero-bubble", "zbv"):
        alone = frozen()
        step = stowage.shard(frozen(), (size,), pipeline={"micro_batches": 4, "schedules": [schedule]})
        for batch in _batches(2):
            _equal(step(*batch), alone(*batch))
        _as_the_ledger_says(step)


class _Positions(nn.Module):
    """Passes integers on beside the values."""

    def forward(self, x):
        return x, torch.arange(x.shape[1]).expand(x.shape[0], -1)


class _AtPositions(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, at):
        return self.linear(x) + at.unsqueeze(-1)


class _Half(nn.Module):
    """Returns a part of what it makes, and one that nothing trains."""

    def forward(self, x):
        return x[..., : WIDTH // 2], x.detach()[..., WIDTH // 2 :]


class _Joined(nn.Module):
    def forward(self, x, y):
        return torch.cat([x, y], -1)


class _WithInput(nn.Module):
    """A skip connection: the input goes on beside the result."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return torch.tanh(self.linear(x)), x


class _Sum(nn.Module):
    def forward(self, x, y):
        return x + y


class _Twice(nn.Module):
    """A weight that is computed and used twice: PyTorch cannot run its backward in halves."""

    def __init__(self):
        super().__init__()
        self.q, self.r = (nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.2) for _ in range(2))
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        w = self.q @ self.r
        return self.linear(x @ w) @ w.t()


def _layer_kinds() -> dict[str, list[nn.Module]]:
    """What ends in a view, writes to its input, passes integers, has no parameters."""
    linear = lambda: nn.Linear(WIDTH, WIDTH)
    return {
        "views": [linear(), linear(), linear()],
        "in place": [linear(), nn.ReLU(inplace=True), linear(), nn.Hardtanh(inplace=True)],
        "nothing": [nn.Identity(), linear(), nn.Dropout(0.0), nn.Identity()],
        "turned": [nn.Unflatten(2, (2, WIDTH // 2)), nn.Flatten(2), linear()],
        "integers": [linear(), _Positions(), _AtPositions()],
        "parts": [linear(), _Half(), _Joined(), linear()],
        "normed": [linear(), nn.LayerNorm(WIDTH), nn.Tanh(), nn.RMSNorm(WIDTH)],
        "skips": [linear(), _WithInput(), _Sum(), linear()],
        "twice": [linear(), _Twice(), linear()],
        "one layer twice": [linear(), *[nn.Linear(WIDTH, WIDTH)] * 2, linear()],
        "across": [nn.Conv1d(5, 5, 3, padding=1), linear(), nn.MultiheadAttention(WIDTH, 2, batch_first=True)],
    }


class _Attention(nn.Module):
    def __init__(self, inner: nn.MultiheadAttention):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x, x, x, need_weights=False)[0]


def layers_of_each_kind(rank: int, size: int) -> None:
    for kind in _layer_kinds():

        def made(kind: str = kind) -> stowage.Chain:
            torch.manual_seed(2)
            middle = [_Attention(m) if isinstance(m, nn.MultiheadAttention) else m for m in _layer_kinds()[kind]]
            modules = [nn.Embedding(20, WIDTH), *middle, nn.Linear(WIDTH, 20)]
            loss = lambda y, t: nn.functional.cross_entropy(y.flatten(0, 1), t.flatten()).view(())
            return stowage.Chain([m.double() for m in modules], loss, lambda ps: torch.optim.AdamW(ps, lr=1e-2))

        for schedule in ("1f1b",) if "twice" in kind else ("1f1b", "zero-bubble", "zbv"):
            alone = made()
            step = stowage.shard(made(), (size,), pipeline={"micro_batches": 4, "schedules": [schedule]})
            for batch in _batches(2):
                _equal(step(*batch), alone(*batch))


def a_run_that_is_saved_goes_on_on_other_cuts(rank: int, size: int) -> None:
    """With the optimizer's state, and a learning rate that is set from outside."""
    batches = _batches(6)
    alone = _chain()
    losses = []
    for i, batch in enumerate(batches):
        losses.append(alone(*batch))
        for group in alone._made.param_groups:
            group["lr"] = 1e-2 * 0.5 ** (i + 1)
    first = stowage.shard(_chain(), (size,), pipeline={"micro_batches": 4, "schedules": ["1f1b"]})
    second = stowage.shard(_chain(), (size,), pipeline={"micro_batches": 2, "schedules": ["zbv"]})
    for step, of in ((first, range(3)), (second, range(3, 6))):
        if step is second:
            second.prepare(*batches[3])
            second.load_state_dict(first.state_dict(), first.optimizer_state_dict())
        for i in of:
            step.prepare(*batches[i])
            for group in step.optimizer.param_groups:
                group["lr"] = 1e-2 * 0.5**i
            _equal(step(*batches[i]), losses[i])
    state, kept = first.state_dict(), first.optimizer_state_dict()
    for wrong, name in (
        (({k: v for k, v in state.items() if k != "1.up.weight"},), "1.up.weight"),
        (({**state, "nobody": state["0.weight"]},), "nobody"),
        (({**state, "0.weight": state["0.weight"][1:]},), "0.weight"),
        ((state, {**kept, "0.weight": {"exp_avg": state["0.weight"][1:]}}), "0.weight"),
        ((state, {**kept, "nobody": {}}), "nobody"),
    ):
        try:
            second.load_state_dict(*wrong)
        except stowage.Error as told:
            assert name in str(told), told
        else:
            raise AssertionError(name)


def one_parameter_by_two_names_keeps_its_state(rank: int, size: int) -> None:
    def tied() -> stowage.Chain:
        chain = _chain(5)
        chain.layers[1].also = nn.Module()
        chain.layers[1].also.weight = chain.layers[1].up.weight
        return chain

    batches = _batches(4)
    alone = tied()
    losses = [alone(*batch) for batch in batches]
    first, second = (
        stowage.shard(tied(), (size,), pipeline={"micro_batches": 4, "schedules": ["1f1b"]}) for _ in range(2)
    )
    for i in range(2):
        _equal(first(*batches[i]), losses[i])
    second.prepare(*batches[2])
    second.load_state_dict(first.state_dict(), first.optimizer_state_dict())
    for i in range(2, 4):
        _equal(second(*batches[i]), losses[i])


_SCHEDULES = (("1f1b", 1), ("interleaved", 2), ("zero-bubble", 1), ("zbv", 2))


def _copies_are_alike(step) -> None:
    for parameter in step.chain.parameters():
        held: list[bytes | None] = [None] * step.mesh.size()
        dist.all_gather_object(held, parameter.detach().numpy().tobytes())
        assert len({h for h in held if h}) == 1


def a_head_tied_to_the_embedding(rank: int, size: int) -> None:
    def tied() -> stowage.Chain:
        chain = _chain()
        chain.layers[-1].weight = chain.layers[0].weight
        return chain

    for schedule, stages in _SCHEDULES:
        step = _runs(size, schedule, stages, tied)
        _copies_are_alike(step)
        ends = {step.plan.stages[0]["rank"], step.plan.stages[-1]["rank"]}
        assert len(ends) == (1 if schedule == "zbv" else 2)


def gradients_clipped_by_the_norm_of_all(rank: int, size: int) -> None:
    def clipped() -> stowage.Chain:
        chain = _chain(optimizer=lambda ps: torch.optim.SGD(ps, lr=1.0))
        chain.layers[-1].weight = chain.layers[0].weight
        chain.max_norm = 0.02
        return chain

    for schedule, stages in _SCHEDULES:
        _copies_are_alike(_runs(size, schedule, stages, clipped))
    before, after = _chain(), clipped()
    after(*_batches(1)[0])
    moved = [a - b for a, b in zip(after.layers[1].parameters(), before.layers[1].parameters())]
    assert 0 < torch.stack([m.norm() for m in moved]).norm() < 0.02


class _Unused(nn.Module):
    """Has a parameter, and gives it no gradient."""

    def __init__(self, weight: nn.Parameter):
        super().__init__()
        self.weight = weight

    def forward(self, x):
        return x * 2


def layers_that_share_parameters_at_random(rank: int, size: int) -> None:
    """Weights, biases or whole layers, by any of the layers; some are frozen, some of no use to one that has them."""
    seed = int(os.environ.get("STOWAGE_TEST_SEED", "0"))
    for turn in range(8):
        draw = random.Random(f"{seed} {turn}")
        layers, groups = size * 2 + draw.randrange(4), []
        for _ in range(draw.randrange(1, 4)):
            groups.append((draw.choice(["weight", "bias", "all"]), draw.sample(range(layers), draw.randrange(2, 4))))
        unused, frozen = draw.random() < 0.4, draw.random() < 0.3
        kind = draw.choice(
            [lambda ps: torch.optim.AdamW(ps, lr=1e-2), lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9)]
        )
        max_norm = draw.choice([None, 0.05])

        def made() -> stowage.Chain:
            torch.manual_seed(turn)
            middle: list[nn.Module] = [nn.Linear(WIDTH, WIDTH) for _ in range(layers)]
            for what, of in groups:
                for i in of[1:]:
                    if what == "all":
                        middle[i] = middle[of[0]]
                    else:
                        setattr(middle[i], what, getattr(middle[of[0]], what))
            if frozen:
                middle[groups[0][1][0]].weight.requires_grad_(False)
            if unused:
                middle.append(_Unused(middle[0].weight))
            modules = [nn.Embedding(20, WIDTH), *middle, nn.Linear(WIDTH, 20)]
            loss = lambda y, t: nn.functional.cross_entropy(y.flatten(0, 1), t.flatten())
            return stowage.Chain([m.double() for m in modules], loss, kind, max_norm=max_norm)

        try:
            _copies_are_alike(_runs(size, *draw.choice(_SCHEDULES[:2]), made))
        except BaseException as error:
            raise AssertionError(f"STOWAGE_TEST_SEED={seed}, turn {turn}: {groups}, {unused}, {frozen}") from error


def replicas_of_a_pipeline(rank: int, size: int) -> None:
    """Over the other axes, which may be several, before and after that of the stages."""

    def made() -> stowage.Chain:
        chain = _chain()
        chain.layers[-1].weight = chain.layers[0].weight
        chain.layers[4].requires_grad_(False)
        chain.max_norm = 0.05
        return chain

    meshes = [
        ((1, size), 0),
        ((size, 1), 0),
        ((1, size), 1),
        ((size // 2, 2), 0),
        ((2, size // 2), 1),
        ((2, 1, size // 2), 2),
    ]
    for turn, (mesh, axis) in enumerate(meshes):
        schedule, stages = _SCHEDULES[turn % 4] if mesh[axis] > 1 else ("1f1b", 1)
        step = _runs(size, schedule, stages, made, mesh, axis)
        _copies_are_alike(step)
        assert step._place.replicas == size // mesh[axis]
    named = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("dp", "pp"))
    step = _runs(size, "1f1b", 1, made, named, "pp")
    assert len(step.plan.stages) == 2
    losses = [None] * size
    dist.all_gather_object(losses, step(*_batches(1)[0]))
    assert all(torch.equal(loss, losses[0]) for loss in losses)


def nothing_is_left_of_pipelines_that_end(rank: int, size: int) -> None:
    """Beside what a collection finds: PyTorch's schedules are cycles."""
    left = []
    for _ in range(3):
        step = stowage.shard(_chain(), (size,), pipeline={"micro_batches": 4, "schedules": ["1f1b"]})
        for batch in _batches(3):
            step(*batch)
        del step, batch
        gc.collect()
        left.append(_runtime.live_bytes())
    assert left[2] == left[0], left

"""A result that is placed over an input that dies there: every op of the list, compared bit for bit with eager."""

import functools
import json
from collections import Counter

import pytest
import torch
import zoo
from training import assert_planned, assert_same_state, plain_step, train

import stowage
from stowage import _runtime

FLOATS = (torch.float32, torch.bfloat16, torch.float64)
INTS = (torch.int32, torch.int64)
# Below, at and above the width of a vector, and enough for two threads.
SHAPES = ((1,), (7,), (64,), (33, 129), (3, 5, 17))
LARGE, LARGE_ROWS = (70001,), (257, 301)


def of_one(*numbers):
    return 1, lambda x: (x, *numbers)


def of_two(*numbers):
    return 2, lambda x, y: (x, y, *numbers)


def of_three(*numbers):
    return 3, lambda x, y, z: (x, y, z, *numbers)


# name: (number of operands, their place among the arguments), dtypes
CASES = {
    **{
        f"aten::{name}": (of_one(), FLOATS)
        for name in [
            "ceil",
            "cos",
            "elu",
            "erf",
            "erfc",
            "exp",
            "exp2",
            "expm1",
            "floor",
            "gelu",
            "hardsigmoid",
            "hardswish",
            "hardtanh",
            "leaky_relu",
            "log",
            "log10",
            "log1p",
            "log2",
            "mish",
            "reciprocal",
            "round",
            "rsqrt",
            "sigmoid",
            "silu",
            "sin",
            "softplus",
            "sqrt",
            "tan",
            "tanh",
            "trunc",
        ]
    },
    **{f"aten::{name}": (of_one(), FLOATS + INTS) for name in ["abs", "neg", "relu", "sgn", "sign"]},
    "aten::bitwise_not": (of_one(), (*INTS, torch.bool)),
    "aten::logical_not": (of_one(), (torch.bool,)),
    "aten::clamp": (of_one(-1, 1), FLOATS + INTS),
    "aten::clamp_min": (of_one(0), FLOATS + INTS),
    "aten::clamp_max": (of_one(0), FLOATS + INTS),
    "aten::threshold": (of_one(0, 3), FLOATS + INTS),
    "aten::add.Scalar": (of_one(3, 2), FLOATS + INTS),
    "aten::sub.Scalar": (of_one(3, 2), FLOATS + INTS),
    "aten::rsub.Scalar": (of_one(3, 2), FLOATS + INTS),
    "aten::mul.Scalar": (of_one(3), FLOATS + INTS),
    "aten::div.Scalar": (of_one(3), FLOATS),
    "aten::pow.Scalar": ((1, lambda x: (1.5, x)), FLOATS),
    "aten::pow.Tensor_Scalar": (of_one(3), FLOATS + INTS),
    "aten::pow.Tensor_Tensor": (of_two(), FLOATS),
    "aten::add.Tensor": (of_two(), FLOATS + INTS),
    "aten::sub.Tensor": (of_two(), FLOATS + INTS),
    "aten::rsub.Tensor": (of_two(), FLOATS + INTS),
    "aten::mul.Tensor": (of_two(), FLOATS + INTS + (torch.bool,)),
    "aten::div.Tensor": (of_two(), FLOATS),
    "aten::div.Tensor_mode": ((2, lambda x, y: (x, y, {"rounding_mode": "floor"})), FLOATS),
    "aten::maximum": (of_two(), FLOATS + INTS),
    "aten::minimum": (of_two(), FLOATS + INTS),
    "aten::bitwise_and.Tensor": (of_two(), (*INTS, torch.bool)),
    "aten::bitwise_or.Tensor": (of_two(), (*INTS, torch.bool)),
    "aten::logical_and": (of_two(), (torch.bool,)),
    "aten::logical_or": (of_two(), (torch.bool,)),
    "aten::clamp.Tensor": (of_three(), FLOATS + INTS),
    "aten::addcmul": (of_three(), FLOATS),
    "aten::addcdiv": (of_three(), FLOATS),
    "aten::lerp.Scalar": (of_two(0.3), FLOATS),
    "aten::lerp.Tensor": (of_three(), FLOATS),
    "aten::where.self": ((2, lambda x, y: (y > 1, x, y)), FLOATS + INTS),
    "aten::elu_backward": ((2, lambda g, x: (g, 1.0, 1.0, 1.0, False, x)), FLOATS),
    "aten::gelu_backward": (of_two(), FLOATS),
    "aten::hardsigmoid_backward": (of_two(), FLOATS),
    "aten::hardswish_backward": (of_two(), FLOATS),
    "aten::hardtanh_backward": (of_two(-1, 1), FLOATS),
    "aten::leaky_relu_backward": (of_two(0.1, False), FLOATS),
    "aten::mish_backward": (of_two(), FLOATS),
    "aten::sigmoid_backward": (of_two(), FLOATS),
    "aten::silu_backward": (of_two(), FLOATS),
    "aten::softplus_backward": (of_two(1, 20), FLOATS),
    "aten::tanh_backward": (of_two(), FLOATS),
    "aten::threshold_backward": (of_two(0), FLOATS),
    "aten::native_dropout": (of_one(0.3, True), FLOATS),
    "aten::native_dropout_backward": ((1, lambda g: (g, torch.ones_like(g, dtype=torch.bool), 1.5)), FLOATS),
    "aten::_softmax": (of_one(-1, False), FLOATS),
    "aten::_log_softmax": (of_one(-1, False), FLOATS),
    "aten::_softmax_backward_data": ((2, lambda g, y: (g, y, -1, y.dtype)), FLOATS),
    "aten::_log_softmax_backward_data": ((2, lambda g, y: (g, y, -1, y.dtype)), FLOATS),
    **{f"aten::_foreach_{name}": ((1, lambda x: ([x],)), FLOATS) for name in ["neg", "reciprocal", "sqrt"]},
    **{f"aten::_foreach_{name}.Scalar": ((1, lambda x: ([x], 3)), FLOATS) for name in ["add", "sub", "mul", "div"]},
    **{f"aten::_foreach_{name}.List": ((2, lambda x, y: ([x], [y])), FLOATS) for name in ["add", "sub", "mul", "div"]},
}
TANH_GELU = {"aten::gelu": (1, lambda x: (x, {"approximate": "tanh"})),
             "aten::gelu_backward": (2, lambda g, x: (g, x, {"approximate": "tanh"}))}  # fmt: skip
# Computed along rows, or with a result that is contiguous whatever the operand is.
CONTIGUOUS = {
    "aten::pow.Scalar",
    "aten::_softmax",
    "aten::_log_softmax",
    "aten::_softmax_backward_data",
    "aten::_log_softmax_backward_data",
}


def overload(name):
    packet, _, which = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), which or "default")


@functools.lru_cache
def sources(dtypes, contiguous_only, threads):
    """Operands of every dtype and shape, among them a transposed one; some values at the edges."""
    shapes = SHAPES
    if threads > 1:
        shapes += (LARGE_ROWS if contiguous_only else LARGE,)
    generator = torch.Generator().manual_seed(3)
    groups = []
    for dtype in dtypes:
        for shape in shapes:
            group = []
            for _ in range(3):
                if dtype.is_floating_point:
                    x = torch.randn(shape, generator=generator, dtype=torch.float64).mul(2).to(dtype)
                    x.view(-1)[0] = float("inf") if len(group) == 1 else 0.0
                else:
                    x = torch.randint(0, 2 if dtype is torch.bool else 7, shape, generator=generator).to(dtype)
                group.append(x.t() if shape == (33, 129) and not contiguous_only else x)
            groups.append(group)
    return groups


def run_op(name, arity, arguments, operands, dying):
    """The op with operand number ``dying`` made in the step, so that it dies there; the others outlive it."""
    operands = [x.clone() if i == dying else x for i, x in enumerate(operands[:arity])]
    given = arguments(*operands)
    keywords = given[-1] if isinstance(given[-1], dict) else {}
    result = overload(name)(*(given[:-1] if keywords else given), **keywords)
    return list(result) if isinstance(result, (list, tuple)) else [result]


def shared_addresses(step):
    """By target: ops of the plan that may reuse an input in place, and those whose result lies over the input."""
    graph, plan = json.loads(step.graph.to_json()), json.loads(step.plan._plan.to_json())
    at = {p["buffer"]: p for p in plan["placements"]}
    possible, used = Counter(), Counter()
    for s, run in enumerate(plan["steps"]):
        op = graph["ops"][run["op"]]
        pairs = op.get("takeover", [])
        shared = [at[r]["offset"] == at[c]["offset"] and at[r]["to"] == s + 1 and at[c]["from"] == s for r, c in pairs]
        possible[op["target"]] += bool(pairs)
        used[op["target"]] += any(shared)
    return possible, used


def check_op(name, case, dtypes):
    arity, arguments = case
    groups = sources(dtypes, name in CONTIGUOUS, torch.get_num_threads())

    def step(groups):
        results = [
            r for group in groups for dying in range(arity) for r in run_op(name, arity, arguments, group, dying)
        ]
        return torch.cat([r.reshape(-1).view(torch.uint8) for r in results])

    with torch.no_grad():
        planned = stowage.compile(step, strict=True)
        for _ in range(4):
            torch.manual_seed(5)
            got = planned(groups)
        torch.manual_seed(5)
        expected = step(groups)
    assert planned.refusal == "" and planned.stats()["planned_steps"] >= 1
    possible, used = shared_addresses(planned)
    assert used[name] == possible[name] == len(groups) * arity, "not every result was placed over its input"
    assert torch.equal(got, expected)
    stats = planned.stats()
    assert stats["misses"] == 0 and stats["measured_peak_bytes"] == stats["planned_peak_bytes"], stats


def test_the_table_above_is_the_list():
    assert sorted(CASES) == _runtime.in_place_reuse_ops()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", sorted(CASES))
def test_every_listed_op(name, threads):
    torch.set_num_threads(threads)
    check_op(name, *CASES[name])


@pytest.mark.parametrize("name", sorted(TANH_GELU))
def test_gelu_by_tanh(name):
    check_op(name, TANH_GELU[name], FLOATS)


def pairs_of(body, *inputs):
    """Pairs of in-place reuse in the graph of a step that returns body(inputs)."""
    with torch.no_grad():
        graph = json.loads(stowage.capture(lambda *x: body(*x), *inputs).to_json())
    names = [b["name"] for b in graph["buffers"]]
    return [(names[r], names[c]) for op in graph["ops"] for r, c in op.get("takeover", [])]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (lambda a: a.clone().exp(), [("clone", "exp")]),
        (lambda a: a.exp(), []),  # the user's own tensor
        (lambda a: (a.clone() * 2).t().exp(), [("clone", "mul"), ("mul", "exp")]),  # strides follow
        (lambda a: (lambda x: x * x)(a.clone()), [("clone", "mul")]),
        (lambda a: (lambda x: x * x.t())(a.clone()), []),  # looked at twice, differently
        (lambda a: (lambda x: x + x[0])(a.clone()), []),
        (lambda a: a.clone()[:4].exp(), []),  # a part of it
        (lambda a: a[:1].clone().expand(8, 8).exp(), []),  # each element many times
        (lambda a: a.clone() + a[:1].clone(), [("clone", "add")]),  # the other one is broadcast
        (lambda a: a.clone() > 0, []),  # another dtype
        (lambda a: a.clone().to(torch.float64).exp(), [("_to_copy", "exp")]),
        (lambda a: a.clone().softmax(-1), [("clone", "_softmax")]),
        (lambda a: a.clone().softmax(0), []),  # not along rows
        (lambda a: a.clone().flip(0), []),  # not on the list
        (lambda a: a.clone().cumsum(0), []),
    ],
)
def test_which_pairs_are_safe(body, expected):
    assert pairs_of(body, torch.randn(8, 8)) == expected


@pytest.mark.parametrize("name", ["gpt2", "unet", "t5"])
def test_without_in_place_reuse(name):
    eager, planned = train(name), train(name, compiled=True, in_place_reuse=False)
    assert_same_state(eager, planned)
    assert_planned(planned)
    assert sum(shared_addresses(planned.step)[1].values()) == 0


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_in_place_reuse_in_training(name):
    """Results lie over inputs, in an arena full of NaNs, and the peak is below that of the same step without."""

    def between(i, model, optimizer):
        for step in steps:
            step._room.arena.fill(0xFF)

    steps = []

    def make_step(model, optimizer, loss_fn):
        return plain_step(model, optimizer, loss_fn)

    eager = train(name, make_step)
    planned = train(
        name, lambda *a: steps.append(plain_step(*a)) or steps.pop(), compiled=True, count=zoo.STEPS, between=between
    )
    assert_same_state(eager, planned)
    assert_planned(planned)
    _possible, used = shared_addresses(planned.step)
    assert sum(used.values()) > 0  # no more than the peak needs
    without = stowage.plan(planned.step.graph, takeover=False)  # the older name
    assert planned.step.plan.summary()["peak_bytes"] < without.summary()["peak_bytes"]

"""Every sharding rule, run: inputs are cut as the row says, the kernel runs on the parts, and what the parts leave is
put together and compared with the whole."""

from __future__ import annotations

import json
import threading

import pytest
import torch
import torch.nn.functional as F

from stowage import _core
from stowage.sharding.recipes import RECIPES

aten = torch.ops.aten
G = torch.Generator().manual_seed(3)


# Some leave the size as it is, and move all rows
PADS = [
    [0, 2],
    [1, -1],
    [-1, 1],
    [0, 0, 1, -1],
    [0, 0, -1, 3],
    [2, -2, -1, 1],
    [0, 0, 0, 0, -2, 2],
    [1, 0, 0, 0, 1, -1],
    [-1, -1],
]


def rand(*shape):
    return torch.randn(list(shape), generator=G, dtype=torch.float64)


def ints(high, *shape):
    return torch.randint(0, high, shape, generator=G)


def _layer_norm():
    x, w, b = rand(6, 5, 8), rand(8), rand(8)
    _, mean, rstd = aten.native_layer_norm(x, [8], w, b, 1e-5)
    return x, w, b, mean, rstd


def _attention(heads=4, groups=4, mask=False):
    q, k, v = rand(6, heads, 5, 8), rand(6, groups, 5, 8), rand(6, groups, 5, 8)
    out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, not mask, attn_mask=rand(6, 1, 5, 5) if mask else None
    )
    return q, k, v, out, lse


def _pool():
    x = rand(6, 4, 8, 8)
    _, places = aten.max_pool2d_with_indices(x, [2, 2], [2, 2])
    return x, places


def _samples():
    x, w, b, mean, rstd = _layer_norm()
    q, k, v, out, lse = _attention()
    image, places = _pool()
    norm = (rand(6, 4, 3, 3), rand(4), rand(4), rand(4), rand(4).abs())
    stats = aten.native_batch_norm(*norm[:3], norm[3].clone(), norm[4].clone(), True, 0.1, 1e-5)
    logits, target = rand(6, 7).log_softmax(-1), torch.tensor([1, 2, -100, 3, 0, 6])
    _, total = aten.nll_loss_forward(logits, target, None, 1, -100)
    group = aten.native_group_norm(image, rand(4), rand(4), 6, 4, 64, 2, 1e-5)
    return [
        (aten.relu.default, rand(6, 5)),
        (aten.add.Tensor, rand(6, 5), rand(5)),
        (aten.add.Tensor, rand(6, 5), rand(6, 5)),
        (aten.sub.Tensor, rand(6, 5), rand(6, 5)),
        (aten.mul.Tensor, rand(6, 1, 5), rand(6, 4, 1)),
        (aten.mul.Tensor, rand(6, 5), 3.0),
        (aten.div.Tensor, rand(6, 5), rand()),
        (aten.where.self, rand(6, 5) > 0, rand(6, 5), rand()),
        (aten.gelu_backward.default, rand(6, 5), rand(6, 5)),
        (aten.addcmul.default, rand(6, 5), rand(6, 5), rand(6, 5)),
        (aten.div.Tensor_mode, rand(6, 5), 0.3, {"rounding_mode": "floor"}),
        (aten.silu_backward.default, rand(6, 5), rand(6, 5)),
        (aten.clone.default, rand(6, 5)),
        (aten.masked_fill.Scalar, rand(6, 5), rand(6, 5) > 0, 0.0),
        (aten.pow.Tensor_Scalar, rand(6, 5), 2),
        (aten.zeros_like.default, rand(6, 5)),
        (aten.new_zeros.default, rand(2), [6, 5]),
        (aten.full.default, [6, 5], 2.0),
        (aten.view.default, rand(6, 5, 8), [30, 8]),
        (aten.view.default, rand(36, 8), [6, 6, 8]),
        (aten.view.default, rand(6, 24), [6, 12, 2]),
        (aten.view.default, rand(1, 6, 8), [6, 8]),
        (aten.view.default, rand(6, 4, 6), [4, 6, 6]),
        (aten.expand.default, rand(6, 1, 5), [2, 6, 4, 5]),
        (aten.permute.default, rand(6, 4, 5), [2, 0, 1]),
        (aten.transpose.int, rand(6, 4, 5), 1, 2),
        (aten.t.default, rand(6, 5)),
        (aten.unsqueeze.default, rand(6, 5), 1),
        (aten.squeeze.dim, rand(6, 1, 5), 1),
        (aten.select.int, rand(6, 4, 5), 1, 2),
        (aten.slice.Tensor, rand(6, 8), 1, 2, 6),
        (aten.split.Tensor, rand(6, 8), 4, 1),
        (aten.unbind.int, rand(6, 2, 5), 1),
        (aten.cat.default, [rand(6, 4), rand(6, 5)], 1),
        (aten.stack.default, [rand(6, 4), rand(6, 4)], 1),
        (aten.slice_backward.default, rand(6, 4), [6, 8], 1, 2, 6, 1),
        (aten.select_backward.default, rand(6, 5), [6, 4, 5], 1, 2),
        (aten.tril.default, rand(6, 5, 5)),
        *((aten.constant_pad_nd.default, rand(6, 4, 8), pad) for pad in PADS),
        (aten.flip.default, rand(6, 5), [1]),
        (aten.repeat.default, rand(6, 5), [1, 3]),
        (aten.mm.default, rand(6, 5), rand(5, 4)),
        (aten.addmm.default, rand(4), rand(6, 5), rand(5, 4)),
        (aten.addmm.default, rand(6, 4), rand(6, 5), rand(5, 4)),
        (aten.bmm.default, rand(6, 4, 5), rand(6, 5, 3)),
        (aten.baddbmm.default, rand(6, 4, 3), rand(6, 4, 5), rand(6, 5, 3)),
        (aten.addmm.default, rand(1, 4), rand(6, 5), rand(5, 4)),
        (aten.sum.dim_IntList, rand(6, 5, 4), [1], True),
        (aten.sum.dim_IntList, rand(6, 5, 4), [0, 2]),
        (aten.sum.default, rand(6, 5)),
        (aten.mean.dim, rand(6, 5, 4), [-1], True),
        (aten.mean.default, rand(6, 5)),
        (aten.amax.default, rand(6, 5), [1]),
        (aten.amin.default, rand(6, 5), [1]),
        (aten.var.correction, rand(6, 5), [1]),
        (aten.linalg_vector_norm.default, rand(6, 5)),
        (aten.linalg_vector_norm.default, rand(6, 5, 4), 3, [0, 2], True),
        (aten.linalg_vector_norm.default, rand(6, 5), float("inf")),
        (aten.argmax.default, rand(6, 5), 1),
        (aten._softmax.default, rand(6, 5, 4), -1, False),
        (aten._log_softmax.default, rand(6, 5), 1, False),
        (aten._softmax_backward_data.default, rand(6, 5), rand(6, 5), 1, torch.float64),
        (aten.cumsum.default, rand(6, 5), 1),
        (aten.topk.default, rand(6, 5), 2),
        (aten.sort.default, rand(6, 5)),
        (aten.max.dim, rand(6, 5), 1),
        (aten.native_layer_norm.default, x, [8], w, b, 1e-5),
        (aten.native_layer_norm_backward.default, rand(6, 5, 8), x, [8], mean, rstd, w, b, [True, True, True]),
        (aten.native_batch_norm.default, norm[0], norm[1], norm[2], norm[3].clone(), norm[4].clone(), True, 0.1, 1e-5),
        (aten.native_batch_norm.default, norm[0], norm[1], norm[2], norm[3].clone(), norm[4].clone(), False, 0.1, 1e-5),
        (
            aten.native_batch_norm_backward.default,
            rand(6, 4, 3, 3),
            norm[0],
            norm[1],
            norm[3],
            norm[4],
            stats[1],
            stats[2],
            True,
            1e-5,
            [True, True, True],
        ),
        (aten.native_group_norm.default, image, rand(4), rand(4), 6, 4, 64, 2, 1e-5),
        (
            aten.native_group_norm_backward.default,
            rand(6, 4, 8, 8),
            image,
            group[1],
            group[2],
            rand(4),
            6,
            4,
            64,
            2,
            [True, True, True],
        ),
        (aten.embedding.default, rand(9, 4), ints(9, 6, 5)),
        (aten.embedding_dense_backward.default, rand(6, 5, 4), ints(9, 6, 5), 9, -1, False),
        (aten.embedding_dense_backward.default, rand(6, 5, 4), ints(9, 6, 5), 9, -1, True),
        (aten.embedding_dense_backward.default, rand(6, 5, 4), ints(9, 6, 5), 9, 4, False),
        (aten.embedding.default, rand(9, 4), ints(9, 6, 5), 4),
        (aten._log_softmax_backward_data.default, rand(6, 7), rand(6, 7).log_softmax(-1), 1, torch.float64),
        (aten._log_softmax.default, rand(6, 5, 4), 0, False),
        (aten.index_select.default, rand(6, 5), 0, ints(6, 4)),
        (aten.gather.default, rand(6, 5), 1, ints(5, 6, 3)),
        (aten.scatter.value, rand(6, 5), 1, ints(5, 6, 3), 1.0),
        (aten.scatter_add.default, rand(6, 5), 1, ints(5, 6, 3), rand(6, 3)),
        (aten._scaled_dot_product_flash_attention_for_cpu.default, q, k, v, 0.0, True),
        (
            aten._scaled_dot_product_flash_attention_for_cpu.default,
            *_attention(4, 4, True)[:3],
            0.0,
            False,
            {"attn_mask": rand(6, 1, 5, 5)},
        ),
        (
            aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
            rand(6, 4, 5, 8),
            q,
            k,
            v,
            out,
            lse,
            0.0,
            True,
        ),
        (
            aten.convolution.default,
            rand(6, 4, 8, 8),
            rand(6, 4, 3, 3),
            rand(6),
            [1, 1],
            [1, 1],
            [1, 1],
            False,
            [0, 0],
            1,
        ),
        (
            aten.convolution.default,
            rand(6, 4, 8, 8),
            rand(4, 6, 3, 3),
            rand(6),
            [1, 1],
            [1, 1],
            [1, 1],
            True,
            [0, 0],
            1,
        ),
        (aten.convolution.default, rand(6, 4, 8, 8), rand(6, 2, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 2),
        (
            aten.convolution_backward.default,
            rand(6, 6, 8, 8),
            rand(6, 4, 8, 8),
            rand(6, 4, 3, 3),
            [6],
            [1, 1],
            [1, 1],
            [1, 1],
            False,
            [0, 0],
            1,
            [True, True, True],
        ),
        (aten.max_pool2d_with_indices.default, image, [2, 2], [2, 2]),
        (
            aten.max_pool2d_with_indices_backward.default,
            rand(6, 4, 4, 4),
            image,
            [2, 2],
            [2, 2],
            [0, 0],
            [1, 1],
            False,
            places,
        ),
        (aten._adaptive_avg_pool2d.default, image, [1, 1]),
        (aten.avg_pool2d.default, image, [2, 2]),
        (aten.nll_loss_forward.default, logits, target, None, 1, -100),
        (aten.nll_loss_forward.default, logits, target, None, 2, -100),
        (aten.nll_loss_backward.default, rand(), logits, target, None, 1, -100, total),
        (aten.nll_loss_forward.default, logits, target.clamp(0), None, 1, 3),
        (aten.nll_loss_forward.default, logits, target, None, 0, -100),
        (aten.nll_loss_backward.default, rand(), logits, target.clamp(0), None, 2, 3, total),
        (aten.mse_loss.default, rand(6, 5), rand(6, 5)),
        (aten.mse_loss.default, rand(6, 5), rand(6, 5), 2),
        (aten.mse_loss_backward.default, rand(), rand(6, 5), rand(6, 5), 2),
        (aten.mse_loss_backward.default, rand(), rand(6, 5), rand(6, 5), 1),
    ]


SAMPLES = _samples()
# What an op is told of its result's size; on parts it is told the part's.
SIZES = {"view": 1, "expand": 1, "new_zeros": 1, "full": 0, "slice_backward": 1, "select_backward": 1}


def _arguments(op, sample):
    args = list(sample[1:])
    kwargs = args.pop() if args and isinstance(args[-1], dict) else {}
    return args, kwargs


def _program(op, args, kwargs, results):
    tensors, names, others = [], {}, {}

    def add(t, kind):
        tensors.append({"shape": list(t.shape), "item_bytes": t.element_size(), "kind": kind})
        return len(tensors) - 1

    for i, argument in enumerate(op._schema.arguments):
        value = args[i] if i < len(args) else kwargs.get(argument.name, argument.default_value)
        if isinstance(value, torch.Tensor):
            names[argument.name] = add(value, "input")
        elif isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
            names[argument.name] = [add(t, "input") for t in value]
        elif isinstance(value, (bool, int, float, str, list)) and value != float("inf"):
            others[argument.name] = value
    outputs = [add(t, "activation") if isinstance(t, torch.Tensor) else None for t in results]
    entry = {"target": str(op), "args": names, "outputs": outputs, "attributes": others}
    return json.dumps({"format": "stowage-program", "version": 1, "tensors": tensors, "ops": [entry]})


def _listed(result):
    return list(result) if isinstance(result, (tuple, list)) else [result]


def _chunk(t, n, d):
    parts = list(torch.chunk(t, n, d))
    return parts + [t.narrow(d, 0, 0)] * (n - len(parts))


def _parts(t, code, n):
    if code[0] == "S":
        return _chunk(t, n, int(code[1:]))
    if code == "Psum":
        noise = [torch.randn(t.shape, generator=G, dtype=t.dtype) for _ in range(n - 1)]
        return [t - sum(noise), *noise]
    return [t] * n


def _joined(parts, code):
    if code[0] == "S":
        return torch.cat(parts, int(code[1:]))
    if code == "Psum":
        return sum(parts)
    if code == "Pavg":
        return sum(parts) / len(parts)
    if code == "Pmax":
        return torch.stack(parts).amax(0)
    for part in parts[1:]:
        assert torch.equal(part, parts[0]), "said to be whole, but differs between devices"
    return parts[0]


class _ThreadCut:
    """What a recipe asks of the devices along one axis, which are threads here. What one says, all hear."""

    def __init__(self, row, flat, results, n, rank, meeting, said):
        self._row, self._n, self._rank, self._meeting, self._said = row, n, rank, meeting, said
        self._tensors, self._results = flat, results

    def axes(self, tensor, dim):
        return [0] if self._row["inputs"][tensor] == f"S{dim}" else []

    def _begins(self, t, dim):
        return sum(part.shape[dim] for part in _chunk(t, self._n, dim)[: self._rank])

    def start(self, tensor, dim):
        return self._begins(self._tensors[tensor], dim)

    def output_part(self, output, dim):
        return self._begins(self._results[output], dim), _chunk(self._results[output], self._n, dim)[self._rank].shape[
            dim
        ]

    def _all(self, part, axes):
        if not axes:
            return [part]
        self._said[self._rank] = part
        self._meeting.wait()
        heard = list(self._said)
        self._meeting.wait()
        return heard

    def sum(self, part, axes):
        return sum(self._all(part, axes))

    def max(self, part, axes):
        return torch.stack(self._all(part, axes)).amax(0)

    def stack(self, part, axes):
        return torch.stack(self._all(part, axes))


def _run_recipe(op, args, kwargs, row, n, results, cut, flat):
    """Each device's results, by the recipe of the row."""
    names = [a.name for a in op._schema.arguments]
    said, meeting, left = [None] * n, threading.Barrier(n), [None] * n

    def device(rank):
        mine = iter([parts[rank].clone() for parts in cut])
        take = lambda a: (
            next(mine) if isinstance(a, torch.Tensor) else [take(v) for v in a] if isinstance(a, list) else a
        )
        given = {a.name: a.default_value for a in op._schema.arguments} | dict(zip(names, [take(a) for a in args]))
        given |= {k: take(v) for k, v in kwargs.items()}
        try:
            left[rank] = _listed(
                RECIPES[row["recipe"]](op, given, _ThreadCut(row, flat, results, n, rank, meeting, said))
            )
        except BaseException:
            meeting.abort()
            raise

    threads = [threading.Thread(target=device, args=(rank,)) for rank in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert None not in left, f"{op} over {n}: {row}"
    return left


def _run_on_parts(op, args, kwargs, row, n, results):
    name = op._schema.name.removeprefix("aten::")
    flat = [
        t for a in [*args, *kwargs.values()] for t in (a if isinstance(a, list) else [a]) if isinstance(t, torch.Tensor)
    ]
    cut = [_parts(t, code, n) for t, code in zip(flat, row["inputs"], strict=True)]
    left = _run_recipe(op, args, kwargs, row, n, results, cut, flat) if row["recipe"] else []
    for rank in range(n) if not left else ():
        mine = iter([parts[rank].clone() for parts in cut])
        take = lambda a: (
            next(mine) if isinstance(a, torch.Tensor) else [take(v) for v in a] if isinstance(a, list) else a
        )
        local = [take(a) for a in args]
        named = {k: take(v) for k, v in kwargs.items()}
        if name in SIZES:
            shape = list(results[0].shape)
            code = row["outputs"][0]
            if code[0] == "S":
                shape[int(code[1:])] = _chunk(results[0], n, int(code[1:]))[rank].shape[int(code[1:])]
            local[SIZES[name]] = shape
        if name.startswith("native_group_norm"):
            at = [a.name for a in op._schema.arguments].index("N")
            local[at] = local[0].shape[0]
        left.append(_listed(op(*local, **named)))
    return [
        _joined([r[o] for r in left], code) if t is not None else None
        for o, (t, code) in enumerate(zip(results, row["outputs"], strict=True))
    ]


def _has_parts(row, rule, tensors, results, n):
    """Where the rule asks that no device is without a part."""
    cuts = [
        *zip(tensors, row["inputs"], strict=True),
        *((t, c) for t, c in zip(results, row["outputs"], strict=True) if isinstance(t, torch.Tensor)),
    ]
    return not rule["no_empty"] or all(
        c[0] != "S" or -(-t.shape[int(c[1:])] // n) * (n - 1) < t.shape[int(c[1:])] for t, c in cuts
    )


def _is_even(row, rule, tensors, results, n):
    for even in rule["even"]:
        t, code = (
            (results if even["output"] else tensors)[even["index"]],
            row["outputs" if even["output"] else "inputs"][even["index"]],
        )
        if code == f"S{even['dim']}" and t.shape[even["dim"]] % n:
            return False
    return True


@pytest.mark.parametrize("at", range(len(SAMPLES)), ids=lambda i: f"{i}-{SAMPLES[i][0]}")
def test_parts_make_the_whole(at):
    op, *_ = SAMPLES[at]
    args, kwargs = _arguments(op, SAMPLES[at])
    clones = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    results = _listed(op(*clones, **kwargs))
    rule = json.loads(_core.sharding_rules(_program(op, args, kwargs, results)))[0]
    flat = [
        t for a in [*args, *kwargs.values()] for t in (a if isinstance(a, list) else [a]) if isinstance(t, torch.Tensor)
    ]
    assert rule["rows"][0]["outputs"] == ["R"] * len(results)
    assert len(rule["rows"]) > 1 or rule["why"], f"{op}: only whole, and no word why"
    for n in (2, 3, 4):
        for row in rule["rows"]:
            cuts_one = any(c[0] == "S" and t.shape[int(c[1:])] == 1 for t, c in zip(flat, row["inputs"], strict=True))
            if cuts_one or not _has_parts(row, rule, flat, results, n) or not _is_even(row, rule, flat, results, n):
                continue
            for t, made in zip(results, _run_on_parts(op, args, kwargs, row, n, results), strict=True):
                if isinstance(t, torch.Tensor):
                    assert made.shape == t.shape, f"{op} over {n}: {row}"
                    assert torch.allclose(made.double(), t.double(), rtol=1e-9, atol=1e-10), f"{op} over {n}: {row}"


def test_what_draws_random_numbers_stays_whole():
    x = rand(6, 5)
    rule = json.loads(_core.sharding_rules(_program(aten.native_dropout.default, [x, 0.1, True], {}, [x, x])))[0]
    assert len(rule["rows"]) == 1 and "random" in rule["why"]


def test_an_unknown_op_stays_whole_and_is_named():
    x = rand(6, 6)
    rule = json.loads(_core.sharding_rules(_program(aten.linalg_inv_ex.default, [x], {}, [x, ints(2, 1)])))[0]
    assert len(rule["rows"]) == 1 and "linalg_inv_ex" in rule["why"]


def test_programs_that_break_a_rule_are_refused_in_one_line():
    good = {
        "format": "stowage-program",
        "version": 1,
        "tensors": [{"shape": [4], "item_bytes": 4, "kind": "input"}],
        "ops": [{"target": "aten.relu.default", "args": {"self": 0}, "outputs": []}],
    }
    mesh = json.dumps({"axes": [{"size": 2}]})
    for change, word in (
        ({"ops": [{"target": "aten.relu.default", "args": {"self": 7}, "outputs": []}]}, "tensor 7"),
        ({"tensors": [{"shape": [-1], "item_bytes": 4, "kind": "input"}]}, "shape"),
        ({"tensors": [{"shape": [1], "item_bytes": 4, "kind": "thing"}]}, "thing"),
        ({"ops": []}, "no ops"),
        ({"x": 1}, "'x'"),
    ):
        with pytest.raises(_core.Error, match=word) as caught:
            _core.plan_sharding(json.dumps({**good, **change}), mesh)
        assert "\n" not in str(caught.value)
    for bad, word in (
        ({"axes": []}, "axes"),
        ({"axes": [{"size": 0}]}, "size"),
        ({"axes": [{"size": 2, "gbps": 0}]}, "gbps"),
    ):
        with pytest.raises(_core.Error, match=word):
            _core.plan_sharding(json.dumps(good), json.dumps(bad))
    for bad, word in (
        ({"fixed": {"0": "S3"}}, "dimension 3"),
        ({"fixed": {"9": "R"}}, "tensor 9"),
        ({"goal": "speed"}, "speed"),
        ({"eps": -1}, "eps"),
    ):
        with pytest.raises(_core.Error, match=word):
            _core.plan_sharding(json.dumps(good), mesh, json.dumps(bad))


@pytest.mark.parametrize("far", [0.0, 1e6])
def test_statistics_of_parts_are_those_of_the_whole_batch(far):
    """Uneven parts, one of them empty; running statistics; numbers far from 0 lose no digits."""
    x, running = rand(5, 4, 3) + far, (rand(4), rand(4).abs())
    args = [x, rand(4), rand(4), running[0].clone(), running[1].clone(), True, 0.1, 1e-5]
    whole = aten.native_batch_norm(*args)
    cut = [list(x.split([3, 2, 0])), *([t] * 3 for t in (*args[1:3], *running))]
    row = {"inputs": ["S0", "R", "R", "R", "R"], "recipe": "statistics_of_parts"}
    seen = []
    real = RECIPES["statistics_of_parts"]

    def watched(func, arguments, cut):
        left = real(func, arguments, cut)
        seen.append((arguments["running_mean"], arguments["running_var"]))
        return left

    RECIPES["statistics_of_parts"] = watched
    try:
        left = _run_recipe(aten.native_batch_norm.default, args, {}, row, 3, whole, cut, args[:5])
    finally:
        RECIPES["statistics_of_parts"] = real
    tolerance = {"rtol": 1e-9, "atol": 1e-9 * (1 + far)}
    assert torch.allclose(torch.cat([part[0] for part in left]), whole[0], rtol=1e-9, atol=1e-9 if not far else 1e-6)
    for part in left:
        assert torch.allclose(part[1], whole[1], **tolerance) and torch.allclose(part[2], whole[2], rtol=1e-9)
    for mean, var in seen:
        assert torch.allclose(mean, args[3], **tolerance) and torch.allclose(var, args[4], rtol=1e-9)


def test_gradient_through_loss_is_the_whole_one():
    """The recipe of the mean loss and its backward, together: parts with ignored rows."""
    logits, target = rand(6, 7).requires_grad_(), torch.tensor([1, -100, -100, 3, 0, 6])
    (whole,) = torch.autograd.grad(F.cross_entropy(logits, target), logits)
    total = (target != -100).sum().double()
    parts = []
    for part, t in zip(logits.detach().chunk(2), target.chunk(2), strict=True):
        p = part.log_softmax(-1)
        g = aten.nll_loss_backward(torch.ones((), dtype=torch.float64), p, t, None, 1, -100, total)
        parts.append(aten._log_softmax_backward_data(g, p, 1, torch.float64))
    assert torch.allclose(torch.cat(parts), whole, rtol=1e-12)

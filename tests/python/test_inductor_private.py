"""Fails when what the budget inside torch.compile leans on has changed; and how programs are read, without Inductor."""

import json
import re

import inductor_models as m
import pytest
import torch
import torch.nn.functional as F
from inductor_models import compiled_anew, own_inductor_cache  # noqa: F401
from torch import nn

import stowage
from stowage.inductor import order, partitioner, private, reports, scratch
from stowage.inductor.program import Given, Unreadable, read


def test_nothing_is_missing():
    assert private.missing() == ()


def test_each_private_name_does_what_it_did():
    """A trial of a graph, within a compilation: its program, names, origins, strides."""
    seen = {}

    class Look(private.partitioner_base()):
        def uuid(self):
            return None

        def __deepcopy__(self, memo):
            return self

        def __call__(self, gm, inputs, **options):
            forward, backward = private.partition(gm, inputs, None, **options)
            values = [n.meta["val"] for n in forward.graph.find_nodes(op="placeholder")]
            (lowered,) = private.lower(forward, values, [0], False, ())
            names = [n.name for n in forward.graph.nodes]
            saved = [n.name for n in next(iter(forward.graph.find_nodes(op="output"))).args[0][1:]]
            less = private.partition(gm, inputs, saved[:1], **options)
            seen.update(
                lowered=lowered, names=names, less=less, tags=private.user_tags(gm), settings=private.settings()
            )
            return forward, backward

    model, batch = m.make("attention")
    torch.compile(model, options={"custom_partitioner_fn": Look()}, dynamic=False)(batch)
    lowered = seen["lowered"]
    assert "def call" in lowered.code and not seen["tags"] and "cpp.simdlen" in seen["settings"]
    assert any(made.node is not None and made.node.name in seen["names"] for made in lowered.made.values())
    assert any(not made.single and len(made.bytes) == 2 and made.node is not None for made in lowered.made.values())
    assert any(made.reads for made in lowered.made.values())
    assert lowered.output_strides[0] == ()
    forward = seen["less"][0]
    assert len(next(iter(forward.graph.find_nodes(op="output"))).args[0]) < len(lowered.output_strides)


class _Mixed(nn.Module):
    """What reads by index, under a mask, draws, reduces in one, two and three ways, and is half as precise."""

    def __init__(self, width=48):
        super().__init__()
        self.embed, self.norm, self.linear = nn.Embedding(50, width), nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, tokens):
        x = F.pad(self.embed(tokens), (0, 0, 1, 0))[:, :-1]
        x = F.dropout(self.norm(x), 0.2) + torch.softmax(x, -1)
        y = self.linear(x * x.amax(-1, keepdim=True)).bfloat16()
        y = (y.transpose(1, 2).contiguous().transpose(1, 2) * 3).float()
        x = x + torch.tril(y @ y.transpose(1, 2)).logsumexp(-1, keepdim=True) * x.var(1, keepdim=True)
        return F.cross_entropy(x.flatten(0, 1), tokens.flatten() % 48) + x[:, tokens[0] % 8].argmax(-1).float().mean()


@pytest.mark.parametrize("name", ["mixed", *m.MODELS])
def test_a_program_is_the_same_without_the_text_of_its_kernels(name):
    assert private.textless_kernels() is not None
    programs = []

    class Compare(private.partitioner_base()):
        def uuid(self):
            return None

        def __deepcopy__(self, memo):
            return self

        def __call__(self, gm, inputs, **options):
            made = [
                n.name for n in gm.graph.nodes if n.op == "call_function" and isinstance(n.meta["val"], torch.Tensor)
            ]
            for saved in (None, made[:2]):
                for i, graph in enumerate(private.partition(gm, inputs, saved, **options)):
                    values = [n.meta["val"] for n in graph.graph.find_nodes(op="placeholder")]
                    outputs = next(iter(graph.graph.find_nodes(op="output"))).args[0]
                    seen = [k for k, n in enumerate(outputs) if n is not None]
                    programs.append([private.lower(graph, values, seen, i == 1, (), text)[0] for text in (True, False)])
            raise private.infeasible("seen", 0, 0)

    torch.manual_seed(0)
    model, batch = (_Mixed(), torch.randint(0, 50, (4, 16))) if name == "mixed" else m.make(name)
    with pytest.raises(stowage.Infeasible, match="seen"):
        torch.compile(model, options={"custom_partitioner_fn": Compare()}, dynamic=False)(batch)
    assert len(programs) == 4
    for written, textless in programs:
        assert len(textless.code) < len(written.code)
        assert _without_names(textless.code) == _without_names(written.code)
        assert textless.made.keys() == written.made.keys() and textless.output_strides == written.output_strides
        for name in written.made:
            a, b = written.made[name], textless.made[name]
            assert (a.bytes, a.single, a.reads, a.inputs) == (b.bytes, b.single, b.reads, b.inputs)


def _without_names(code):
    """What the program does, in which kernels of one text have one name."""
    return re.sub(r"cpp_fused_\w+", "cpp_fused", code[code.index("def call(") :])


def test_the_order_pass_is_called():
    if private.order_pass() is None:
        pytest.skip("before PyTorch 2.13")
    private._SEEN.clear()
    model, batch = m.make("mlp")
    m.compiled(model, "1GiB")(batch)
    assert private._SEEN


def test_what_a_kernel_has_for_itself_is_counted():
    node = torch.fx.Graph().call_function(torch.ops.aten.softmax.int, ())
    x = torch.empty(1000)
    assert scratch._measured(torch.ops.aten.mul.Tensor, ((x, x), {})) == 0
    sorted_ = scratch._measured(torch.ops.aten.median.default, ((x,), {}))
    assert sorted_ >= 4000  # a copy to sort in
    assert scratch.of(node, "cpp_fused_softmax_0") == 0  # Inductor's own


def test_operators_that_must_not_run_twice():
    assert private.is_random(torch.ops.aten.rand.default) and not private.is_random(torch.ops.aten.mul.Tensor)
    assert private.acts_outside(torch.ops.aten.add_.Tensor) and not private.acts_outside(torch.ops.aten.add.Tensor)


def _read(body, made=None, given=None, reads=None):
    lines = "\n    ".join(body.strip().splitlines())
    sizes = made or {}
    return read(
        f"def call(args):\n    {lines}\n",
        lambda name: sizes.get(name, ((8,), True)),
        lambda name: frozenset((reads or {}).get(name, ())),
        given or {},
    )


def test_a_program_of_allocations_and_kernels():
    program = _read(
        """
x, w = args
args.clear()
buf0 = empty_strided_cpu((4, 8), (8, 1), torch.float32)
extern_kernels.mm(x, w, out=buf0)
del x
buf1 = empty_strided_cpu((4, 8), (16, 1), torch.float64)
cpp_fused_0(buf0, buf1)
del buf0
return (buf1, w, )
"""
    )
    assert program.peak_bytes == 128 + (3 * 16 + 7 + 1) * 8 and program.end_bytes == (3 * 16 + 7 + 1) * 8
    assert [k.target for k in program.kernels] == ["extern_kernels.mm", "cpp_fused_0"]
    assert [program.buffers[b].name for b in program.kernels[1].reads] == ["buf0"]
    assert [program.buffers[b].given for b in program.outputs] == [False, True]


@pytest.mark.parametrize("reads", [True, False])
def test_what_lies_where_another_lay(reads):
    program = _read(
        """
buf0 = empty_strided_cpu((100, ), (1, ), torch.int8)
cpp_fused_0(buf0)
buf1 = reinterpret_tensor(buf0, (10, 10), (10, 1), 0); del buf0  # reuse
cpp_fused_1(buf1)
return (buf1, )
""",
        reads={"buf1": ["buf0"] if reads else []},
    )
    assert program.peak_bytes == program.end_bytes == 100
    assert program.kernels[1].over == ([(0, 1)] if reads else [])


def test_results_of_kernels_and_inputs_that_are_held():
    program = _read(
        """
a, b, c = args
buf0 = torch.ops.aten.some.default(a, b)
buf1 = buf0[1]
del buf0
del a
del b
buf2 = torch.ops.aten.other.default(buf1)
del buf1
return (buf2, )
""",
        made={"buf0": ((10, 20, None), False), "buf2": ((5,), True)},
        given={"a": Given("s", 100), "b": Given("s", 100), "c": Given("t", 7, held=True)},
    )
    assert program.peak_bytes == 100 + 7 + 30 and program.end_bytes == 5 + 7


def test_an_unknown_statement_is_no_guess():
    with pytest.raises(Unreadable, match="while"):
        _read("while True:\n    pass")
    with pytest.raises(Unreadable):
        read("x = 1", lambda name: ((), True), lambda name: frozenset(), {})


def test_random_programs_against_pythons_own_counting():
    """Programs of allocations, reuse and deletions, with a twin that runs them on objects that count themselves."""
    import random

    seed = random.randrange(10**6)
    print("seed", seed)
    for i in range(200):
        body = _random_program(random.Random(seed + i))
        assert _read(body).peak_bytes == _peak_when_run(body), (seed + i, body)


def _random_program(rng):
    lines, live, count = [], [], 0
    for _ in range(rng.randrange(1, 30)):
        what = rng.choice("aaardk")
        if what == "a" or not live:
            lines.append(f"buf{count} = empty_strided_cpu(({rng.randrange(1, 50)}, ), (1, ), torch.int8)")
            live.append(f"buf{count}")
            count += 1
        elif what == "r":
            old = live.pop(rng.randrange(len(live)))
            lines.append(f"cpp_fused_0({old})")
            lines.append(f"buf{count} = {old}; del {old}  # reuse")
            live.append(f"buf{count}")
            count += 1
        elif what == "d":
            lines.append(f"del {live.pop(rng.randrange(len(live)))}")
        else:
            lines.append(f"cpp_fused_1({', '.join(rng.sample(live, rng.randrange(1, len(live) + 1)))})")
    lines.append(f"return ({''.join(f'{n}, ' for n in live)})")
    return "\n".join(lines)


def _peak_when_run(body):
    state = {"live": 0, "peak": 0}

    class Counted:
        def __init__(self, size, stride, dtype):
            self.size = size[0]
            state["live"] += self.size
            state["peak"] = max(state["peak"], state["live"])

        def __del__(self):
            state["live"] -= self.size

    names = {
        "empty_strided_cpu": Counted,
        "cpp_fused_0": lambda *a: None,
        "cpp_fused_1": lambda *a: None,
        "torch": torch,
    }
    lines = "\n    ".join(body.splitlines())
    exec(f"def call(args):\n    {lines}\n", names)
    names["call"]([])
    return state["peak"]


def test_an_order_that_is_not_optimal_is_said(tmp_path):
    """Two chains whose large buffers need not live together."""
    program = _read(
        """
buf0 = empty_strided_cpu((1000, ), (1, ), torch.int8)
cpp_fused_0(buf0)
buf1 = empty_strided_cpu((1000, ), (1, ), torch.int8)
cpp_fused_1(buf1)
buf2 = empty_strided_cpu((8, ), (1, ), torch.int8)
cpp_fused_2(buf0, buf2)
del buf0
buf3 = empty_strided_cpu((8, ), (1, ), torch.int8)
cpp_fused_3(buf1, buf3)
del buf1
return (buf2, buf3, )
"""
    )
    assert program.peak_bytes == 2008
    wanted = order.better(program, {})
    assert wanted is not None and wanted.peak_bytes == 1016
    assert wanted.ranks["buf2"] < wanted.ranks["buf1"] or wanted.ranks["buf3"] < wanted.ranks["buf0"]
    found = order.proof("forward", order.program_text(program, {}))
    assert not found.optimal and found.best_peak_bytes == found.bound_bytes == 1016
    assert "another order" in found.words()


def test_what_waits_for_reuse_counts():
    """The order can be no other; but the dead buffer need not wait for one of its size."""
    program = _read(
        """
buf0 = empty_strided_cpu((1000, ), (1, ), torch.int8)
cpp_fused_0(buf0)
buf1 = empty_strided_cpu((8, ), (1, ), torch.int8)
cpp_fused_1(buf0, buf1)
buf2 = empty_strided_cpu((900, ), (1, ), torch.int8)
cpp_fused_2(buf1, buf2)
buf3 = empty_strided_cpu((16, ), (1, ), torch.int8)
cpp_fused_3(buf2, buf3)
del buf2
buf4 = buf0; del buf0  # reuse
cpp_fused_4(buf3, buf4)
return (buf4, )
"""
    )
    assert program.peak_bytes == 1000 + 8 + 900 + 16
    assert order.better(program, {}) == private.Wanted({}, 1016)


def test_a_kernel_that_changes_what_it_is_given_orders_the_others():
    """cpp_fused_1 makes buf2, and adds to buf0: who reads buf0 later must not come before it."""
    program = read(
        """def call(args):
    buf0 = empty_strided_cpu((1000, ), (1, ), torch.int8)
    cpp_fused_0(buf0)
    buf2 = empty_strided_cpu((8, ), (1, ), torch.int8)
    cpp_fused_1(buf0, buf2)
    buf3 = empty_strided_cpu((8, ), (1, ), torch.int8)
    cpp_fused_2(buf0, buf3)
    return (buf2, buf3, )
""",
        lambda name: ((8,), True), lambda name: frozenset(), {},
        changes=lambda name: frozenset({"buf0"} if name == "buf2" else ()),
    )  # fmt: skip
    assert [kernel.changes for kernel in program.kernels] == [[], [0], []]
    ops = json.loads(order.program_text(program, {}))["ops"]
    assert ops[2]["writes"] == [0] and ops[2]["reads"] == [] and "writes" not in ops[3]


def test_inductor_tells_what_its_kernels_change():
    """A gradient of an embedding is added into a buffer that another kernel has filled."""
    seen = []
    made_of = private._made

    def look(graph):
        seen.append(made_of(graph))
        return seen[-1]

    model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 8))
    with private._swapped(private, "_made", look):
        m.compiled(model, "1GiB")(torch.randint(0, 50, (4, 6)))
    assert any(made.changes for program in seen for made in program.values())


def test_a_partitioner_is_the_same_for_the_same_budget():
    import copy
    import pickle

    a = partitioner.make(100)
    assert pickle.loads(pickle.dumps(a)) == a == copy.deepcopy(a) and a != partitioner.make(101)
    assert a.uuid() == partitioner.make(100).uuid() != partitioner.make(101).uuid()
    assert reports.records_of({"custom_partitioner_fn": a}) == [] and reports.records_of({}) is None
    assert issubclass(private._infeasible_class(), stowage.Infeasible)

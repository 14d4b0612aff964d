"""What the ranks of test_shard.py do. Each case runs on all ranks; names say what must hold."""

from __future__ import annotations

import array
import collections
import itertools
import json
import os
import random
import tempfile
import types
import weakref

import numpy as np
import shard_zoo
import test_element_by_element
import torch
import torch.distributed as dist
from shard_pair import (
    Pair,
    batch_norm_plan,
    make_mlp,
    mlp_batches,
    optimizer_apart_plan,
    vocabulary_plan,
    zero_plan,
)
from shard_zoo import training
from torch import nn

import stowage
from stowage import _runtime
from stowage._torch.private import local_tensor, storage_address


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


def _model(name: str, size: int, dtype=torch.float64, tolerance: float = 1e-9, eps: float = 0.3) -> None:
    """On the solver's plan: on one axis with 2 ranks, on two with 4."""
    make, batches = training(name, dtype)
    pair = Pair(make, batches, (size,) if size < 4 else (2, size // 2), eps=eps, relative_gap=0.2)
    pair.run(tolerance)
    pair.check_planned()
    pair.check_ledger()
    assert pair.step.plan.summary()["redundancy"]["gap"] == 0
    masks = 16 if name == "gpt2" else 0  # GPT-2 looks whether sequences are packed, which fakes cannot know
    # Clipping of DTensors, not of fakes
    unplaced = [op for op in pair.step._latest.ops.unplaced if "_foreach_" not in op]
    assert len(unplaced) <= masks, unplaced


def gpt2_with_tied_embeddings(rank, size):
    _model("gpt2", size)


def gpt2_of_least_redundancy(rank, size):
    _model("gpt2", size, eps=0)


def gpt2_with_all_state_in_parts(rank, size):
    make, batches = training("gpt2")
    pair = Pair(make, batches, (size,), zero_plan)
    pair.run(1e-9)
    pair.check_planned()
    pair.check_ledger()


def gpt2_with_its_vocabulary_in_parts(rank, size):
    make, batches = training("gpt2")
    pair = Pair(make, batches, (size,), vocabulary_plan)
    pair.run(1e-9)
    pair.check_planned()
    pair.check_ledger()
    assert not any(
        name in op for op in pair.step.stats()["replicated_ops"] for name in ("embedding", "nll_loss", "log_softmax")
    )


def bert(rank, size):
    _model("bert", size)


def vit_in_single_precision(rank, size):
    _model("vit", size, torch.float32, 1e-5)


def mixture_of_experts(rank, size):
    _model("moe", size)


def mixture_of_experts_in_single_precision(rank, size):
    _model("moe", size, torch.float32, 1e-5)


def conv_net(rank, size):
    _model("convnet", size)


def conv_net_of_least_redundancy(rank, size):
    _model("convnet", size, eps=0)


def conv_net_with_statistics_of_parts(rank, size):
    """Of 6 images the fourth of four ranks has none."""
    make, batches = training("convnet")
    pair = Pair(make, batches, (size,), batch_norm_plan)
    pair.run(1e-9)
    pair.check_planned()
    pair.check_ledger()
    assert not any("batch_norm" in op for op in pair.step.stats()["replicated_ops"])
    for (name, a), b in zip(pair.alone.named_buffers(), pair.model.buffers(), strict=True):
        whole = b.full_tensor() if hasattr(b, "full_tensor") else b
        assert torch.allclose(a, whole, rtol=1e-9, atol=1e-12), name


class _Kept:
    """Storages that autograd keeps while this is open: those of saved tensors whose graph is still there."""

    def __init__(self) -> None:
        self._boxes: list = []

    def __enter__(self):
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda box: box.tensor)
        self._hooks.__enter__()
        return self

    def __exit__(self, *error) -> None:
        self._hooks.__exit__(*error)

    def _pack(self, tensor):
        box = _Box(tensor)
        self._boxes.append(weakref.ref(box))
        return box

    def bytes(self, other_than: set[int]) -> int:
        tensors = [local_tensor(box().tensor) for box in self._boxes if box() is not None]
        storages = {storage_address(t): t.untyped_storage().nbytes() for t in tensors}
        return sum(n for at, n in storages.items() if at not in other_than)


class _Box:
    def __init__(self, tensor):
        self.tensor = tensor


def saved_bytes_are_those_of_the_ledger(rank, size):
    """What autograd keeps at the end of forward beside parameters, buffers and arguments, on this rank. The ledger has
    the loss's gradient besides, which is made before backward begins; and the step has index tensors of its own."""
    for name, eps in (("gpt2", 0.3), ("vit", 0), ("convnet", 0.3)):
        _, batches = training(name)
        torch.manual_seed(0)
        model, loss_fn, _ = shard_zoo.BUILDERS[name](1, torch.float64)
        model = model.double().train()
        optimizer = torch.optim.AdamW(model.parameters())
        measured = []

        def train_step(*batch):
            optimizer.zero_grad()
            with _Kept() as kept:
                loss = loss_fn(model, *batch)
            state = [local_tensor(t) for t in (*model.parameters(), *model.buffers(), *batch)]
            measured.append(kept.bytes({storage_address(t) for t in state}))
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = stowage.shard(train_step, (size,), eps=eps, relative_gap=0.2)
        step(*batches[0])
        ledger = step.plan.saved_bytes(step.mesh.get_coordinate())
        assert abs(measured[-1] - ledger) <= 160, f"{name}: measured {measured[-1]}, ledger {ledger}"
        assert step.plan.saved_bytes([0]) == step.plan.summary()["bytes"]["saved"], name


def dropout_draws_the_numbers_of_one_process(rank, size):
    def make():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(7, 12), nn.Dropout(0.3), nn.Linear(12, 5)).double()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)

        def train_step(x, y):
            opt.zero_grad()
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
            opt.step()
            return loss.detach()

        return model, opt, train_step

    model, _, step = make()
    torch.manual_seed(3)
    losses = [step(*batch) for batch in mlp_batches()]
    other, _, step = make()
    sharded = stowage.shard(step, (size,), strict=True)
    torch.manual_seed(3)
    for i, (a, batch) in enumerate(zip(losses, mlp_batches())):
        b = sharded(*batch)
        assert abs(a - b) < 1e-12, f"step {i}: {a} and {b}"
    assert sharded.stats()["planned_steps"] >= 2, sharded.refusal
    for p, q in zip(model.parameters(), other.parameters()):
        assert (p - q.full_tensor()).abs().max() < 1e-12


def checkpoint_continues_on_another_mesh(rank, size):
    """Saved by all ranks on one axis, loaded on a mesh of another shape and with another plan."""
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder)
    batches = mlp_batches(12)
    alone = make_mlp()()
    losses = [alone[2](*batch) for batch in batches]
    first = stowage.shard(make_mlp()()[2], (size,), plan=zero_plan)
    for loss, batch in zip(losses[:5], batches[:5]):
        assert abs(loss - first(*batch)) < 1e-12
    first.save(folder[0])
    model, _, step = make_mlp()()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.5)  # what is loaded counts
    second = stowage.shard(
        step,
        (1, size),
        plan=lambda program, mesh: (
            optimizer_apart_plan(program, mesh).replace('"S0"', '"R,S0"').replace('"R"', '"R,R"')
        ),
    )
    second.prepare(*batches[5])
    second.load(folder[0])
    for i, (loss, batch) in enumerate(zip(losses[5:], batches[5:])):
        assert abs(loss - second(*batch)) < 1e-12, i
    assert second.stats()["planned_steps"] >= 2
    for p, q in zip(alone[0].parameters(), model.parameters()):
        assert (p - q.full_tensor()).abs().max() < 1e-12


def a_worse_placement_costs_what_the_ledger_says(rank, size):
    """One matrix whole instead of cut: more bytes predicted, and as many measured."""
    worse_weight = []

    def worse(program, mesh):
        document = json.loads(zero_plan(program, mesh))
        worse_weight.append(program.parameters["model.0.weight"])
        document["tensors"][worse_weight[0]]["placement"] = "R"
        return json.dumps(document)

    cut = stowage.shard(make_mlp()()[2], (size,), plan=zero_plan)
    whole = stowage.shard(make_mlp()()[2], (size,), plan=worse)
    for batch in mlp_batches(3):
        cut(*batch), whole(*batch)
    ledgers = [s.plan.local_bytes([rank], [size])["parameters"] for s in (cut, whole)]
    measured = [s.measured_bytes()["parameters"] for s in (cut, whole)]
    assert measured == ledgers and ledgers[1] > ledgers[0]


def an_op_without_a_rule_runs_whole_and_is_listed(rank, size):
    def make():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(7, 6), nn.Linear(6, 5)).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def train_step(x, y):
            optimizer.zero_grad()
            hidden = model[0](x)
            loss = (
                (model[1](torch.linalg.inv(hidden.T @ hidden / 6 + torch.eye(6, dtype=x.dtype))) - y[:, :5]) ** 2
            ).mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return model, optimizer, train_step

    pair = Pair(make, mlp_batches(), (size,), eps=0.3)
    pair.run(1e-12)
    pair.check_planned()
    listed = pair.step.plan.replicated()
    assert any("linalg_inv_ex" in row["op"] and "linalg_inv_ex" in row["why"] for row in listed), listed


def planned_steps_allocate_on_no_other_thread(rank, size):
    """The allocator counts all threads; the arena lives all the time, so that a planned step adds what it returns."""
    step = stowage.shard(make_mlp()()[2], (size,), plan=zero_plan, strict=True)
    batches = mlp_batches()
    for batch in batches[:-1]:
        step(*batch)
    before = _runtime.live_bytes()
    _runtime.reset_peak()
    result = step(*batches[-1])
    assert step.stats()["planned_steps"] >= 2
    assert _runtime.peak_bytes() - before <= 64 * (1 + result.nbytes), _runtime.peak_bytes() - before


class _Slotted:
    __slots__ = ("number",)


def _counters():
    """By name: what a step does in Python and may compute with, and what is seen of it from outside."""
    holder, items, things, recent, seen = types.SimpleNamespace(k=0), {"k": 0}, [], collections.deque(maxlen=3), set()
    numbers, slotted, generator = np.zeros(2), _Slotted(), random.Random(3)
    bytes_, plain = bytearray(1), array.array("l", [0])
    slotted.number = count = 0

    class Class:
        k = 0

    def in_a_cell():
        nonlocal count
        count += 1
        return count

    def in_a_class():
        Class.k += 1
        return Class.k

    def in_the_environment():
        os.environ["STOWAGE_TEST_COUNT"] = str(int(os.environ.get("STOWAGE_TEST_COUNT", "0")) + 1)
        return int(os.environ["STOWAGE_TEST_COUNT"])

    def of(do, what):
        def both():
            do()
            return what()

        return both

    yield "attribute", of(lambda: setattr(holder, "k", holder.k + 1), lambda: holder.k)
    yield "item", of(lambda: items.update(k=items["k"] + 1), lambda: items["k"])
    yield "list", of(lambda: things.append(1), lambda: len(things))
    yield "deque", of(lambda: recent.append(len(recent)), lambda: sum(recent) + 1)
    yield "set", of(lambda: seen.add(len(seen)), lambda: len(seen))
    yield "array", of(lambda: numbers.__iadd__(1), lambda: float(numbers.sum()))
    yield "bytes", of(lambda: bytes_.__setitem__(0, bytes_[0] + 1), lambda: bytes_[0])
    yield "array of Python", of(lambda: plain.__setitem__(0, plain[0] + 1), lambda: plain[0])
    yield "slot", of(lambda: setattr(slotted, "number", slotted.number + 1), lambda: slotted.number)
    yield "cell", in_a_cell
    yield "class", in_a_class
    yield "environment", in_the_environment
    yield "its own generator", generator.random
    yield "global generators", lambda: random.random() + float(np.random.rand())


def what_python_counts_and_draws(rank, size):
    """As often as in one process: planning runs the step's Python, too, and takes back what it has done."""
    names = [name for name, _ in _counters()]
    for at, name in enumerate(names):
        results = []
        for sharded in (False, True):
            os.environ.pop("STOWAGE_TEST_COUNT", None)
            random.seed(5), np.random.seed(5)
            model, optimizer, _ = make_mlp()()
            count = list(_counters())[at][1]

            def train_step(x, y):
                optimizer.zero_grad()
                loss = ((model(x) - y) ** 2).mean() * count()
                loss.backward()
                optimizer.step()
                return loss.detach()

            step = stowage.shard(train_step, (size,), plan=zero_plan) if sharded else train_step
            results.append([float(step(*batch)) for batch in mlp_batches(6)])
        assert all(abs(a - b) < 1e-9 for a, b in zip(*results)), (name, results)


def what_cannot_be_put_back_is_refused(rank, size):
    _, _, train_step = make_mlp()()
    numbers = itertools.count()
    step = stowage.shard(lambda x, y: train_step(x, y) * next(numbers), (size,), plan=zero_plan)
    try:
        step(*mlp_batches()[0])
    except stowage.Unsupported as error:
        assert "cannot take that back" in str(error)
    else:
        raise AssertionError("no error")


def what_arguments_hold_is_not_changed(rank, size):
    _, _, train_step = make_mlp()()

    def changing(batch):
        batch["seen"] = True
        return train_step(batch["x"], batch["y"])

    x, y = mlp_batches()[0]
    step = stowage.shard(changing, (size,), plan=zero_plan)
    try:
        step({"x": x, "y": y})
    except stowage.Unsupported as error:
        assert "changes what its arguments hold" in str(error)
    else:
        raise AssertionError("no error")


def another_batch_shape_is_planned_too(rank, size):
    """Its ops are tried on their parts before they are recorded."""
    pair = Pair(make_mlp(), [*mlp_batches(5), *mlp_batches(6, rows=9)], (size,), eps=0.3)
    pair.run(1e-12)
    pair.check_planned()
    assert len(pair.step._entries) == 2 and all(any(r.trusted for r in e.replays) for e in pair.step._entries.values())


def every_optimizer_is_planned(rank, size):
    """Those whose numbers are made by torch.tensor() in each step, too."""
    for name, make in test_element_by_element.ELEMENT_WISE.items():

        def trained(make=make):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(7, 9), nn.GELU(), nn.Linear(9, 5)).double()
            optimizer = make(model.parameters())

            def train_step(x, y):
                optimizer.zero_grad()
                loss = (model(x) - y).square().mean() * torch.tensor(0.5, dtype=torch.float64)
                loss.backward()
                optimizer.step()
                return loss.detach()

            return model, optimizer, train_step

        pair = Pair(trained, mlp_batches(10 if name.startswith("RAdam") else 6), (size,), plan=zero_plan)
        pair.run(1e-9)
        assert pair.step.stats()["planned_steps"] >= 1, (name, pair.step.refusal)

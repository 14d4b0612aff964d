"""What the ranks of test_shard.py do wrong, and what each must say. Names say what."""

from __future__ import annotations

import datetime
import os
import threading
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from shard_pair import make_mlp, mlp_batches, step_of, zero_plan
from torch import nn

import stowage
from stowage._torch.fakes import is_fake


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
    with pytest.raises(stowage.Error, match="differ"):
        step(*mlp_batches(rows=6 + rank)[0])


def ranks_with_other_models(rank, size):
    model, _, step = make_mlp()()
    with torch.no_grad():
        next(model.parameters()).add_(rank)
    with pytest.raises(stowage.Error, match="parameters differ"):
        stowage.shard(step, (size,), plan=zero_plan)(*mlp_batches()[0])


def what_cannot_be_split_is_named(rank, size):
    """Sparse gradients, shapes that depend on data, collectives of the step's own: an error on every rank, before
    anything has changed."""
    sparse = nn.Embedding(9, 4, sparse=True)
    optimizer = torch.optim.SGD(sparse.parameters(), lr=0.1)

    def sparse_step(x):
        optimizer.zero_grad()
        sparse(x).sum().backward()
        optimizer.step()

    def shapes_from_data(x):
        return x[x.nonzero()[:, 0]].sum()

    def communicates(x):
        return torch.distributed._functional_collectives.all_reduce(x, "sum", dist.group.WORLD) * 1

    for step, word in (
        (sparse_step, "sparse"),
        (shapes_from_data, "depend on data"),
        (communicates, "communicates by itself"),
    ):
        try:
            stowage.shard(step, (size,), plan=zero_plan)(torch.arange(8))
        except stowage.Error as error:
            assert word in str(error) and "\n" not in str(error), error
        else:
            raise AssertionError(f"{step.__name__}: no error")
    assert type(sparse.weight) is nn.Parameter and type(sparse.weight.data) is torch.Tensor


def labels_out_of_range_are_told_to_all_ranks(rank, size):
    """Whose rows they are in decides nothing: no rank waits for another, and the calls behind are as if there had been none."""
    generator = torch.Generator().manual_seed(0)
    batches = [
        (torch.randint(0, 11, (8, 3), generator=generator), torch.randint(0, 6, (8, 3), generator=generator))
        for _ in range(12)
    ]
    for row, plan in ((0, zero_plan), (7, zero_plan), (0, None), (7, None)):
        results = []
        for sharded in (False, True):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Embedding(11, 4), nn.Linear(4, 6)).double()
            step = step_of(
                lambda x, y, model=model: F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=-1),
                torch.optim.SGD(model.parameters(), lr=0.1),
            )
            step = stowage.shard(step, (size,), plan=plan) if sharded else step
            results.append([])
            for i, (x, y) in enumerate(batches):
                if i in (0, 3, 8):
                    for tokens, labels in (
                        (x, y.clone().index_fill_(0, torch.tensor(row), 6)),
                        (x.clone().index_fill_(0, torch.tensor(row), 11), y),
                    ):
                        with pytest.raises(IndexError):
                            step(tokens, labels)
                y[i % 8, 1] = -1
                results[-1].append(step(x, y))
                y[i % 8, 1] = 1
        for i, (a, b) in enumerate(zip(*results, strict=True)):
            assert abs(a - b).item() < 1e-9, f"call {i}, row {row}"
        assert step.stats()["planned_steps"] >= 2, step.refusal


def a_wait_longer_than_the_timeout(rank, size):
    """Rank 0 plans for longer than the group lets a collective wait."""

    def slow_plan(program, mesh):
        time.sleep(5)
        return zero_plan(program, mesh)

    step = stowage.shard(make_mlp()()[2], (size,), plan=slow_plan)
    step._ranks._group = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=3))
    step.prepare(*mlp_batches()[0])


# ---- In processes of their own


def _fails(rank, calls: Callable) -> None:
    try:
        calls()
    except stowage.Error as error:
        assert "another rank has died" in str(error) and f"rank {rank}" in str(error), error
    else:
        raise AssertionError("no error")


def _a_rank_dies(rank, size):
    step = stowage.shard(make_mlp()()[2], (size,), plan=zero_plan)
    batches = mlp_batches(12)
    for batch in batches[:8]:
        step(*batch)
    assert step.stats()["planned_steps"] >= 1
    if rank == size - 1:
        os._exit(3)
    _fails(rank, lambda: [step(*batch) for batch in batches[8:]])


def _a_rank_dies_while_another_plans(rank, size):
    def plan(program, mesh):
        time.sleep(4)
        return zero_plan(program, mesh)

    step = stowage.shard(make_mlp()()[2], (size,), plan=plan)
    if rank == size - 1:
        threading.Timer(2, os._exit, (3,)).start()
    _fails(rank, lambda: step(*mlp_batches()[0]))


def _a_rank_dies_in_its_first_step(rank, size):
    _model, _, train_step = make_mlp()()

    def dying_step(x, y):
        if rank == size - 1 and not is_fake(x):
            os._exit(3)
        return train_step(x, y)

    _fails(rank, lambda: stowage.shard(dying_step, (size,), plan=zero_plan)(*mlp_batches()[0]))

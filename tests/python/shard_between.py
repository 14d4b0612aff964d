"""What a program does between the calls of a sharded step, and to gradients over calls."""

from __future__ import annotations

import copy
import functools
import itertools
import tempfile

import pytest
import torch
import torch.distributed as dist
from shard_pair import Pair, columns_plan, mlp_batches, step_of, zero_plan
from torch import nn
from torch.utils._pytree import tree_leaves

import stowage
from stowage.errors import UnsupportedWarning


def _make(optimizer=lambda ps: torch.optim.Adam(ps, lr=0.01), every: int = 1):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 9), nn.GELU(), nn.Linear(9, 5)).double()
    made = optimizer(model.parameters())

    def train_step(x, y, last=True):
        loss = (model(x) - y).square().mean()
        loss.backward()
        if last:
            made.step()
            made.zero_grad()
        return loss.detach()

    return model, made, train_step


def _same(size: int, act, calls: int = 10, every: int = 1, **how) -> list:
    """Trains alone and sharded; ``act(i, model, optimizer, notes)`` before each call. The sharded steps."""
    steps = []
    for plan in (zero_plan, None):
        results = []
        for sharded in (False, True):
            model, optimizer, step = _make(**how)
            if sharded:
                step = stowage.shard(step, (size,), plan=plan)
                steps.append(step)
            notes: dict = {}
            losses = []
            for i, batch in enumerate(mlp_batches(calls)):
                act(i, model, optimizer, notes)
                losses.append(step(*batch, i % every == every - 1))
            whole = [p.full_tensor() if sharded else p for p in model.parameters()]
            results.append((losses, [p.detach().clone() for p in whole]))
        for a, b in zip(results[0][0] + results[0][1], results[1][0] + results[1][1], strict=True):
            assert (a - b).abs().max().item() < 1e-9, (plan, results[0][0], results[1][0])
    return steps


def optimizer_state_that_is_cleared(rank, size):
    def act(i, model, optimizer, notes):
        if i == 5:
            optimizer.state.clear()

    steps = _same(size, act, calls=13)
    assert all(step.stats()["planned_steps"] >= 2 for step in steps)


def optimizer_state_that_is_loaded(rank, size):
    """Back to an earlier state, of the model and of the optimizer; and one value alone."""

    def act(i, model, optimizer, notes):
        if i == 3:
            notes["state"] = copy.deepcopy((optimizer.state_dict(), model.state_dict()))
        if i == 6:
            optimizer.load_state_dict(notes["state"][0])
            model.load_state_dict(notes["state"][1])
        if i == 8:
            for state in optimizer.state.values():
                state["exp_avg"] = torch.zeros_like(state["exp_avg"])

    _same(size, act, calls=14)


def gradients_that_are_added_up_over_calls(rank, size):
    _same(size, lambda *_: None, calls=15, every=3)
    _same(size, lambda *_: None, calls=15, every=3, optimizer=lambda ps: torch.optim.SGD(ps, lr=0.1))


def gradients_that_are_put_there_before_the_call(rank, size):
    def act(i, model, optimizer, notes):
        if i in (4, 9):
            for p in model.parameters():
                p.grad = torch.ones_like(p) * 0.1

    _same(size, act, calls=12)


_GRADIENTS = {  # what lets them go: in the step, before or behind it
    "first": lambda o: (lambda: o.zero_grad(), lambda: o.step(), lambda: None),
    "last": lambda o: (lambda: None, lambda: (o.step(), o.zero_grad()), lambda: None),
    "between": lambda o: (lambda: None, lambda: o.step(), lambda: o.zero_grad()),
    "zeros": lambda o: (lambda: o.zero_grad(set_to_none=False), lambda: o.step(), lambda: None),
    "update outside": lambda o: (lambda: o.zero_grad(), lambda: None, lambda: o.step()),
    "all outside": lambda o: (lambda: None, lambda: None, lambda: (o.step(), o.zero_grad())),
}


def steps_that_ask_for_old_gradients(rank, size):
    """Whether there are any decides what the step does: in each call as in one process."""
    results = []
    for sharded in (False, True):
        model, optimizer, _ = _make()

        def train_step(x, y, model=model, optimizer=optimizer):
            first = model[0].weight.grad is None
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean() * (1.0 if first else 2.0)
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = stowage.shard(train_step, (size,), plan=zero_plan) if sharded else train_step
        results.append([])
        for i, batch in enumerate(mlp_batches(12)):
            if i in (6, 9):
                optimizer.zero_grad()
            results[-1].append(step(*batch))
    for i, (a, b) in enumerate(zip(*results, strict=True)):
        assert abs(a - b).item() < 1e-9, f"call {i}"
    assert step.stats()["planned_steps"] >= 2, step.stats()


def _training_with(kind: str, holds: bool, log: list):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 9), nn.GELU(), nn.Linear(9, 5)).double()
    before, behind, between = _GRADIENTS[kind](torch.optim.AdamW(model.parameters(), lr=0.05))

    def train_step(x, y):
        before()
        loss = (model(x) - y).square().mean()
        loss.backward()
        behind()
        return loss.detach()

    def after():
        grads = [p.grad for p in model.parameters()]
        log.append([None if g is None else getattr(g, "full_tensor", lambda g=g: g)().clone() for g in grads])
        if holds and len(log) > 1:
            log[-1] += log[-2][-len(grads) :]  # as they are now
        if holds:
            log[-1] += grads
        between()

    return model, train_step, after


def gradients_are_there_between_the_calls(rank, size):
    """Those of one process, who holds them longer has them, and an optimizer outside of the step finds them."""
    for kind, (holds, plan) in itertools.product(_GRADIENTS, ((False, None), (True, zero_plan))):
        logs, ends = [], []
        for sharded in (False, True):
            logs.append([])
            model, step, after = _training_with(kind, holds, logs[-1])
            if sharded:
                step = stowage.shard(step, (size,), plan=plan)
            for batch in mlp_batches(10):
                step(*batch)
                after()
            ends.append([p.full_tensor() if sharded else p.detach() for p in model.parameters()])
        for i, (a, b) in enumerate(zip([*logs[0], ends[0]], [*logs[1], ends[1]], strict=True)):
            for x, y in zip(a, b, strict=True):
                assert (x is None) == (y is None), f"{kind}, call {i}"
                if x is not None:
                    y = getattr(y, "full_tensor", lambda y=y: y)()
                    assert (x - y).abs().max().item() < 1e-9, f"{kind}, call {i}, {holds=}"
        assert step.stats()["planned_steps"] > 2, f"{kind}, {holds=}: {step.stats()}"


def a_state_that_is_loaded_after_prepare(rank, size):
    step = _make()[2]
    batches = mlp_batches(9)
    losses = [step(*batch) for batch in batches]
    first = stowage.shard(_make()[2], (size,), plan=zero_plan)
    for batch in batches[:4]:
        first(*batch)
    second = stowage.shard(_make()[2], (size,), plan=zero_plan)
    second.prepare(*batches[4])
    second.load_state_dict(first.state_dict())
    for loss, batch in zip(losses[4:], batches[4:]):
        assert abs(loss - second(*batch)).item() < 1e-12


def what_cannot_be_kept_up_is_refused(rank, size):
    batch = mlp_batches()[0]
    model, optimizer, step = _make()
    sharded = stowage.shard(step, (size,), plan=zero_plan)
    sharded(*batch)
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2, dtype=torch.float64))]})
    with pytest.raises(stowage.Unsupported, match="add_param_group"):
        sharded(*batch)
    with pytest.raises(stowage.Unsupported, match="in parts already"):
        stowage.shard(lambda x, y: (model(x) - y).mean(), (size,), plan=zero_plan)(*batch)
    for register in ("register_hook", "register_post_accumulate_grad_hook"):
        model, optimizer, step = _make()
        getattr(model[0].weight, register)(lambda g: None)
        with pytest.raises(stowage.Unsupported, match="has hooks of its own"):
            stowage.shard(step, (size,), plan=zero_plan)(*batch)
        assert type(model[0].weight) is nn.Parameter and type(model[0].weight.data) is torch.Tensor


class _Means(nn.Module):
    """Two modules have one buffer."""

    def __init__(self):
        super().__init__()
        self.into, self.out, self.other = nn.Linear(7, 9), nn.Linear(9, 5), nn.Identity()
        self.register_buffer("mean", torch.zeros(9))
        self.register_buffer("calls", torch.zeros(()))
        self.other.register_buffer("mean", self.mean)

    def forward(self, x):
        h = self.into(x)
        self.mean.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        self.calls.add_(1)
        return self.out(h - self.other.mean)


def buffers_that_the_program_holds(rank, size):
    """They are read and written in the step and between calls, in the name of the model's."""
    for uses, plan in itertools.product(("in", "written in", "between"), (zero_plan, columns_plan, None)):
        ends = []
        for sharded in (False, True):
            torch.manual_seed(0)
            model = _Means().double()
            optimizer, mean, calls, log = torch.optim.AdamW(model.parameters(), lr=0.05), model.mean, model.calls, []

            def loss_of(x, y, model=model, mean=mean, calls=calls, uses=uses):
                loss = (model(x) - y).square().mean()
                if uses == "written in":
                    mean.mul_(0.5)
                    calls.add_(1)
                return loss + (model.into.weight.sum(1) * mean).sum() if uses == "in" else loss

            step = step_of(loss_of, optimizer)
            step = stowage.shard(step, (size,), plan=plan) if sharded else step
            for i, batch in enumerate(mlp_batches(9)):
                log.append(step(*batch))
                log.append(getattr(mean, "full_tensor", lambda mean=mean: mean)().clone())
                log.append(torch.tensor(calls.item()))
                if uses == "between" and i == 5:
                    with torch.no_grad():
                        mean.zero_()
                        calls.fill_(3)
            state = model.state_dict().values()
            ends.append([*log, *(getattr(t, "full_tensor", lambda t=t: t)() for t in state)])
        for a, b in zip(*ends, strict=True):
            assert torch.allclose(a, b, 1e-9, 1e-9), uses
        assert step.stats()["planned_steps"] >= 2, step.refusal


def what_will_not_follow_is_told(rank, size):
    model, _, step = _make()
    step = stowage.shard(step, (size,), plan=zero_plan)
    row = model[0].weight[0]
    with pytest.warns(UnsupportedWarning, match=r"holds a view of 'model.0.weight'.* keeps the numbers"):
        step(*mlp_batches()[0])
    assert row.shape == (7,)
    means = _Means().double()
    step_with_means = stowage.shard(
        step_of(lambda x, y: (means(x) - y).square().mean(), torch.optim.SGD(means.parameters(), 0.1)),
        (size,),
        plan=columns_plan,
    )
    step_with_means(*mlp_batches()[0])
    means.mean.data = torch.ones(9, dtype=torch.float64)
    with pytest.raises(stowage.Unsupported, match="has set the .data of a buffer"):
        step_with_means(*mlp_batches()[0])
    for argument in (model[0].bias, model[0].bias.detach()):
        with pytest.raises(stowage.Unsupported, match="an argument is a tensor in parts"):
            step(argument, mlp_batches()[0][1])


class _Norms(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.batch = nn.Linear(7, 12), nn.BatchNorm1d(12)
        self.instance = nn.InstanceNorm1d(3, affine=True, track_running_stats=True)
        self.mix, self.out = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(12, 5)
        self.register_buffer("mean", torch.zeros(12))

    def forward(self, x):
        h = self.batch(self.into(x.view(-1, 7)))
        self.mean.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        h = self.instance(h.view(-1, 3, 4))
        return self.out((h + self.mix(h, h, h, need_weights=False)[0]).flatten(1) + self.mean.view(-1))


def evaluating_in_inference_mode(rank, size):
    """And an optimizer that steps in it: nothing of what they write is lost."""

    def learn(model, optimizer, x, y):
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss.detach()

    def evaluates(model, optimizer, x, y):
        with torch.inference_mode():
            return (model(x) - y).square().mean() + model.out.weight.detach()[0].sum()

    def both(model, optimizer, x, y):
        loss = learn(model, optimizer, x, y)
        optimizer.step()
        optimizer.zero_grad()
        return loss, evaluates(model, optimizer, x, y), evaluates(model.eval(), optimizer, x, y), model.train() and loss

    def updates(model, optimizer, x, y):
        loss = learn(model, optimizer, x, y)
        with torch.inference_mode():
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            model.out.bias.clamp_(-0.1, 0.1)
        optimizer.zero_grad()
        return loss, norm

    for body, plan in itertools.product((evaluates, both, updates), (zero_plan, columns_plan, None)):
        made = []
        for _ in range(2):
            torch.manual_seed(0)
            model = _Norms().double()
            made.append((model, functools.partial(body, model, torch.optim.SGD(model.parameters(), 0.05))))
        (theirs, alone), (mine, step) = made
        step = stowage.shard(step, (size,), plan=plan)
        for i, batch in enumerate(mlp_batches(7)):
            for a, b in zip(tree_leaves(alone(*batch)), tree_leaves(step(*batch)), strict=True):
                assert abs(a - b).item() < 1e-9, f"{body.__name__}, call {i}"
        for name, a in theirs.state_dict().items():
            b = mine.state_dict()[name]
            assert torch.allclose(a, getattr(b, "full_tensor", lambda b=b: b)(), 1e-9, 1e-9), f"{body.__name__}: {name}"
        assert body is evaluates or step.stats()["planned_steps"] > 1, step.refusal


def recurrent_layers(rank, size):
    """Which hold their parameters in a list as well."""
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        results = []
        for sharded in (False, True):
            torch.manual_seed(0)
            model = nn.ModuleList([kind(7, 6, num_layers=2, batch_first=True), nn.Linear(6, 5)]).double()
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

            def train_step(x, y, model=model, optimizer=optimizer):
                optimizer.zero_grad()
                loss = (model[1](model[0](x.view(2, 3, 7))[0]).flatten(0, 1) - y).square().mean()
                loss.backward()
                optimizer.step()
                return loss.detach()

            step = stowage.shard(train_step, (size,)) if sharded else train_step
            results.append([step(*batch) for batch in mlp_batches(7)])
        assert all(abs(a - b).item() < 1e-9 for a, b in zip(*results)), (kind, results)


def schedulers_that_are_made_of_others(rank, size):
    """Planning runs the step's Python, and takes back what it has done to the inner ones as well."""
    rates = torch.optim.lr_scheduler
    for schedule in (
        lambda o: rates.SequentialLR(o, [rates.ConstantLR(o, 0.5, 2), rates.ExponentialLR(o, 0.9)], [3]),
        lambda o: rates.ChainedScheduler([rates.ConstantLR(o, 0.5, 2), rates.ExponentialLR(o, 0.9)]),
        lambda o: rates.ChainedScheduler([rates.SequentialLR(o, [rates.LinearLR(o), rates.StepLR(o, 2)], [4])]),
        lambda o: rates.CosineAnnealingWarmRestarts(o, 3),
    ):
        results = []
        for sharded in (False, True):
            _, optimizer, step = _make(lambda ps: torch.optim.SGD(ps, lr=0.1))
            scheduler = schedule(optimizer)

            def scheduled(x, y, step=step, scheduler=scheduler):
                loss = step(x, y)
                scheduler.step()
                return loss

            step = stowage.shard(scheduled, (size,), plan=zero_plan) if sharded else scheduled
            results.append([step(*batch) for batch in mlp_batches(9)])
        assert all(abs(a - b).item() < 1e-9 for a, b in zip(*results)), results


def modules_that_stop_training(rank, size):
    """Batch norm by its own statistics, dropout off: planned apart, and back again."""
    results = []
    for sharded in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(7, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5)).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def train_step(x, y, model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = stowage.shard(train_step, (size,)) if sharded else train_step
        losses = []
        for i, batch in enumerate(mlp_batches(14)):
            model[1].train(i not in (4, 5, 9, 10, 11))
            losses.append(step(*batch))
        results.append(losses)
        assert not sharded or step.stats()["planned_steps"] >= 1
    assert all(abs(a - b).item() < 1e-9 for a, b in zip(*results)), results


def memory_that_has_two_names_is_refused(rank, size):
    batch = mlp_batches()[0]

    def refused(words, change=lambda model: None, args=batch, use=lambda model, out: out):
        model, optimizer, _ = _make()
        model.register_buffer("table", torch.ones(4, 5, dtype=torch.float64))
        change(model)

        def train_step(x, y):
            loss = (use(model, model(x)) - y).square().mean() + model.table.sum() * 0
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        with pytest.raises(stowage.Unsupported, match=words):
            stowage.shard(train_step, (size,), plan=zero_plan)(*args)
        assert type(model[0].weight.data) is torch.Tensor

    held: list = []
    refused(
        "made outside of it", lambda m: held.append(m[0].weight.detach()[:2]), use=lambda m, out: out + held[-1].sum()
    )
    refused("made outside of it", lambda m: setattr(m, "row", m.table[1]), use=lambda m, out: out + m.row)
    refused("look at the same memory", lambda m: m.register_buffer("row", m.table[1]))
    refused("an argument requires grad", args=(batch[0].clone().requires_grad_(), batch[1]))


def a_step_that_evaluates_by_an_argument(rank, size):
    """Planned for both."""
    results = []
    for sharded in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(7, 8), nn.Dropout(0.0), nn.ReLU(), nn.Linear(8, 5)).double()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

        def train_step(x, y, train=True, model=model, optimizer=optimizer):
            if not train:
                model.eval()
                with torch.no_grad():
                    loss = (model(x) - y).square().mean()
                model.train()
                return loss
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        step = stowage.shard(train_step, (size,)) if sharded else train_step
        results.append([step(*batch, train=i % 3 != 2) for i, batch in enumerate(mlp_batches(18))])
        assert not sharded or step.stats()["planned_steps"] >= 6, (step.stats()["planned_steps"], step.refusal)
    assert all(abs(a - b).item() < 1e-9 for a, b in zip(*results)), results


def results_that_are_kept_for_the_next_call(rank, size):
    """Which meets ops from its second call on that the first one had not."""
    results = []
    for sharded in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(7, 9), nn.GELU(), nn.Linear(9, 5)).double()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        kept: dict = {"latest": None, "losses": []}

        def train_step(x, y, model=model, optimizer=optimizer, kept=kept):
            optimizer.zero_grad()
            out = model(x)
            loss = (out - y).square().mean()
            if kept["latest"] is not None:
                loss = loss + (out - kept["latest"]).square().mean()
            loss.backward()
            optimizer.step()
            kept["latest"] = out.detach()
            return loss.detach()

        step = stowage.shard(train_step, (size,)) if sharded else train_step
        results.append([step(*batch) for batch in mlp_batches(9)])
    assert all(abs(a - b).item() < 1e-9 for a, b in zip(*results)), results
    assert "allgather" not in step.refusal, step.refusal


def a_file_that_lacks_some_optimizer_state(rank, size):
    """Of a parameter that no gradient has reached; and the file of a step that had not begun."""
    folders = [tempfile.mkdtemp() if rank == 0 else None, tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folders)
    batches = mlp_batches(8)

    def made():
        torch.manual_seed(0)
        model = nn.Module()
        model.used, model.unused = nn.Linear(7, 5).double(), nn.Linear(3, 3).double()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        return step_of(lambda x, y: (model.used(x) - y).square().mean(), optimizer)

    alone = made()
    losses = [alone(*batch) for batch in batches]
    first = stowage.shard(made(), (size,), plan=zero_plan)
    first.prepare(*batches[0])
    first.save(folders[0])
    for loss, batch in zip(losses[:4], batches[:4]):
        assert abs(loss - first(*batch)).item() < 1e-12
    first.save(folders[1])
    second = stowage.shard(made(), (size,), plan=zero_plan)
    second.prepare(*batches[4])
    second.load(folders[1])
    for loss, batch in zip(losses[4:], batches[4:]):
        assert abs(loss - second(*batch)).item() < 1e-12
    second.load(folders[0])
    assert abs(losses[0] - second(*batches[0])).item() < 1e-12


def steps_that_read_what_their_code_does_not_name_are_planned(rank, size):
    """They may read the optimizer's groups and state, which are those of the parts while it works."""

    class Settings:
        def __init__(self):
            self.factor = 2.0

    def make():
        torch.manual_seed(0)
        model, settings = nn.Sequential(nn.Linear(7, 9), nn.GELU(), nn.Linear(9, 5)).double(), Settings()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        name = "fac" + "tor"
        loss_of = lambda x, y: (model(x) - y).square().mean() * getattr(settings, name)
        return model, optimizer, step_of(loss_of, optimizer)

    pair = Pair(make, mlp_batches(8), (size,), plan=zero_plan)
    pair.run(1e-9)
    pair.check_planned()


def a_file_of_another_model_is_refused_and_nothing_changes(rank, size):
    """Named by what differs; the step goes on as it would have without."""
    folders = [tempfile.mkdtemp() if rank == 0 else None for _ in range(2)]
    dist.broadcast_object_list(folders)
    batches = mlp_batches(8)

    def made(width, optimizer_of, layers=2):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(7, width), nn.GELU(), nn.Linear(width, 5), *[nn.Linear(5, 5)] * (layers - 2)
        ).double()
        optimizer = optimizer_of(model.parameters(), lr=0.01)
        return step_of(lambda x, y: (model(x) - y).square().mean(), optimizer)

    adam = torch.optim.AdamW
    alone = made(9, adam)
    losses = [alone(*batch) for batch in batches]
    for width, optimizer_of, layers, words in (
        (8, adam, 2, r"'model.model.0.weight' has the shape \(8, 7\) there, and \(9, 7\) here"),
        (9, torch.optim.SGD, 2, r"has no 'optimizers.0.*': it was saved from another model or optimizer"),
        (9, adam, 3, r"has 'model.model.3.*', which this model has not"),
    ):
        other = stowage.shard(made(width, optimizer_of, layers), (size,), plan=zero_plan)
        other(*batches[0])
        other.save(folders[0])
        for first in (0, 1, 5):  # before a step, after one, and where it is planned
            step = stowage.shard(made(9, adam), (size,), plan=zero_plan)
            step.prepare(*batches[0])
            for loss, batch in zip(losses[:first], batches[:first]):
                assert abs(loss - step(*batch)).item() < 1e-12
            with pytest.raises(stowage.Error, match=words):
                step.load(folders[0])
            with pytest.raises(stowage.Error, match="no checkpoint can be read there"):
                step.load(folders[1])
            for loss, batch in zip(losses[first:], batches[first:]):
                assert abs(loss - step(*batch)).item() < 1e-12

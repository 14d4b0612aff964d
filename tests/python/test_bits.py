"""After some steps, losses, parameters, optimizer state, buffers and generator state equal eager's, bit for bit."""

import pytest
import torch
import zoo
from training import FORMS, OPTIMIZERS, assert_planned, assert_same_state, plain_step, train


def compare(name, make_step=plain_step, optimizer="adamw", form="loop", least_steps=2, count=zoo.STEPS, **options):
    eager = train(name, make_step, optimizer, form, count=count)
    planned = train(name, make_step, optimizer, form, count=count, compiled=True, **options)
    assert_same_state(eager, planned)
    assert_planned(planned, least_steps)
    return planned


@pytest.mark.parametrize("name", list(zoo.BUILDERS))
def test_every_model(name):
    compare(name)


@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize("name", ["gpt2", "unet"])
def test_every_optimizer_and_form(name, optimizer, form):
    compare(name, optimizer=optimizer, form=form)


@pytest.mark.parametrize("form", list(FORMS))
def test_learning_rate_that_changes_every_step(form):
    def make_step(model, optimizer, loss_fn):
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda e: 1 / (1 + e))

        def train_step(batch):
            loss = loss_fn(model, batch)
            loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            return loss.detach()

        return train_step

    compare("gpt2", make_step, form=form)


def test_schedule_outside_the_step():
    schedules = {}

    def between(i, model, optimizer):
        if i == 0:
            schedules[id(optimizer)] = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        else:
            schedules[id(optimizer)].step()

    eager = train("gpt2", between=between)
    planned = train("gpt2", between=between, compiled=True)
    assert_same_state(eager, planned)
    assert_planned(planned)


@pytest.mark.parametrize("foreach", [False, True])
def test_gradient_clipping(foreach):
    def make_step(model, optimizer, loss_fn):
        def train_step(batch):
            optimizer.zero_grad()
            loss = loss_fn(model, batch)
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5, foreach=foreach)
            optimizer.step()
            return torch.stack([loss.detach(), norm])

        return train_step

    compare("gpt2", make_step)


def accumulating(model, optimizer, loss_fn):
    def train_step(batch):
        optimizer.zero_grad()
        halves = batch.chunk(2)
        total = 0.0
        for half in halves:
            loss = loss_fn(model, half) / len(halves)
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        return total

    return train_step


@pytest.mark.parametrize("form", list(FORMS))
def test_two_micro_batches(form):
    compare("gpt2", accumulating, form=form)


@pytest.mark.parametrize("name", ["gpt2", "resnet50"])
def test_bfloat16_autocast(name):
    def make_step(model, optimizer, loss_fn):
        def train_step(batch):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_fn(model, batch)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return train_step

    compare(name, make_step)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_blocks_with_dropout(reentrant):
    def make_step(model, optimizer, loss_fn):
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        return plain_step(model, optimizer, loss_fn)

    compare("gpt2", make_step)


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("at_end", [True, False])
def test_zero_grad_at_either_end(at_end, set_to_none):
    def make_step(model, optimizer, loss_fn):
        def train_step(batch):
            if not at_end:
                optimizer.zero_grad(set_to_none=set_to_none)
            loss = loss_fn(model, batch)
            loss.backward()
            optimizer.step()
            if at_end:
                optimizer.zero_grad(set_to_none=set_to_none)
            return loss.detach()

        return train_step

    compare("gpt2", make_step)


def test_gradients_that_are_zeroed_outside_the_step():
    """The step leaves its gradients; so must the replay."""
    grads = {True: [], False: []}

    def run(compiled):
        def between(i, model, optimizer):
            if i > 0:
                grads[compiled].append([p.grad.clone() for p in model.parameters()])
            optimizer.zero_grad()

        def make_step(model, optimizer, loss_fn):
            def train_step(batch):
                loss = loss_fn(model, batch)
                loss.backward()
                optimizer.step()
                return loss.detach()

            return train_step

        return train("gpt2", make_step, between=between, compiled=compiled)

    eager, planned = run(False), run(True)
    assert_same_state(eager, planned)
    assert_planned(planned)
    for a, b in zip(grads[False], grads[True], strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_optimizer_stepped_inside_backward():
    def make_step(model, optimizer, loss_fn):
        optimizers = {p: torch.optim.AdamW([p], lr=1e-3, foreach=False) for p in model.parameters()}

        def update(p):
            optimizers[p].step()
            optimizers[p].zero_grad()

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(update)

        def train_step(batch):
            loss = loss_fn(model, batch)
            loss.backward()
            return loss.detach()

        train_step.optimizers = optimizers
        return train_step

    compare("gpt2", make_step)


@pytest.mark.parametrize("name", ["gpt2", "resnet50"])
def test_two_threads(name):
    torch.set_num_threads(2)
    compare(name)


def test_poisoned_arena():
    """What was in the arena before a step changes nothing."""

    def run(compiled):
        steps = []

        def make_step(model, optimizer, loss_fn):
            return plain_step(model, optimizer, loss_fn)

        def between(i, model, optimizer):
            if steps:
                steps[0]._room.arena.fill(0xFF)

        model, loss_fn, batches = zoo.make("resnet50", 8)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        step = make_step(model, optimizer, loss_fn)
        if compiled:
            import stowage

            step = stowage.compile(step, strict=True)
            steps.append(step)
        torch.manual_seed(11)
        results = []
        for i, batch in enumerate(batches):
            between(i, model, optimizer)
            results.append(step(batch))
        return results, step

    (eager, _), (planned, step) = run(False), run(True)
    assert all(torch.equal(a, b) for a, b in zip(eager, planned, strict=True))
    assert step.stats()["planned_steps"] >= 4

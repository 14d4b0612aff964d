"""Steps of people's own loops: data that the step fetches by itself: iterators, loaders, windows, lists that it draws from, an
epoch as the step."""

from __future__ import annotations

import collections
import random

import numpy as np
import torch
import torch.nn.functional as F
from job import LONG, STEPS, Job, adamw, case, each_call, generator, net, vectors
from torch import nn


@case("torch", "the step fetches its batch: next(iterator)")
def next_of_iterator(compile) -> Job:
    model = net()
    optimizer = adamw(model)
    batches = iter(vectors(6, 8))

    def train_step():
        x, y = next(batches)
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = compile(train_step)
    return Job(each_call(step, [()] * STEPS), [model], [optimizer])


@case("torch", "the step fetches its batch from a DataLoader, begun anew at its end")
def next_of_loader(compile) -> Job:
    model = net()
    optimizer = adamw(model)
    data = torch.utils.data.TensorDataset(torch.randn(32, 8), torch.randn(32, 4))
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    state = {"iterator": iter(loader)}

    def train_step():
        try:
            x, y = next(state["iterator"])
        except StopIteration:
            state["iterator"] = iter(loader)
            x, y = next(state["iterator"])
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    step = compile(train_step)
    return Job(each_call(step, [()] * 16), [model], [optimizer])


@case("torch", "nanoGPT: get_batch inside the step, windows drawn by randint, torch.stack")
def nanogpt_batch(compile) -> Job:
    text = torch.randint(0, 50, (500,))
    model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 50))
    optimizer = adamw(model)

    def get_batch():
        ix = torch.randint(len(text) - 8, (4,))
        x = torch.stack([text[i : i + 8] for i in ix])
        y = torch.stack([text[i + 1 : i + 9] for i in ix])
        return x, y

    def train_step():
        x, y = get_batch()
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.item()

    return Job(each_call(compile(train_step), [()] * STEPS), [model], [optimizer])


@case("torch", "batches by a permutation: for i in range(0, n, size): indices = permutation[i : i + size]")
def permutation_batches(compile) -> Job:
    model = net()
    optimizer = adamw(model)
    xs, ys = torch.randn(48, 8), torch.randn(48, 4)

    def train_step(indices):
        optimizer.zero_grad()
        loss = F.mse_loss(model(xs[indices]), ys[indices])
        loss.backward()
        optimizer.step()
        return loss.item()

    step = compile(train_step)

    def run(observe) -> None:
        for _ in range(3):
            permutation = torch.randperm(48)
            for i in range(0, 48, 12):
                observe(step(permutation[i : i + 12]))

    return Job(run, [model], [optimizer])


@case("torch", "an epoch is the step: an inner loop over all batches")
def epoch_as_step(compile) -> Job:
    model = net()
    optimizer = adamw(model)
    data = vectors(6, 8, count=3)

    def train_epoch():
        total = 0.0
        for x, y in data:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(x)
        return total / 18

    return Job(each_call(compile(train_epoch), [()] * STEPS), [model], [optimizer])


@case("torch", "a replay buffer: random.sample, torch.tensor of Python lists, smooth L1 (DQN tutorial)")
def replay_buffer(compile) -> Job:
    policy, target = net(4, 2), net(4, 2)
    target.load_state_dict(policy.state_dict())
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3, amsgrad=True)
    Transition = collections.namedtuple("Transition", "state action next_state reward")
    memory: collections.deque = collections.deque(maxlen=64)
    g = generator()

    def remember() -> None:
        last = torch.rand((), generator=g).item() < 0.2
        memory.append(
            Transition(
                torch.randn(1, 4, generator=g),
                torch.randint(0, 2, (1, 1), generator=g),
                None if last else torch.randn(1, 4, generator=g),
                torch.randn(1, generator=g),
            )
        )

    for _ in range(24):
        remember()

    def optimize_model():
        batch = Transition(*zip(*random.sample(memory, 8)))
        mask = torch.tensor(tuple(s is not None for s in batch.next_state), dtype=torch.bool)
        following = torch.cat([s for s in batch.next_state if s is not None])
        state, action, reward = torch.cat(batch.state), torch.cat(batch.action), torch.cat(batch.reward)
        values = policy(state).gather(1, action)
        next_values = torch.zeros(8)
        with torch.no_grad():
            next_values[mask] = target(following).max(1).values
        loss = F.smooth_l1_loss(values, ((next_values * 0.99) + reward).unsqueeze(1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(policy.parameters(), 100)
        optimizer.step()
        with torch.no_grad():
            for a, b in zip(target.parameters(), policy.parameters()):
                a.mul_(0.995).add_(b, alpha=0.005)
        return loss.detach()

    step = compile(optimize_model)

    def run(observe) -> None:
        for _ in range(LONG):
            remember()
            observe(step())

    return Job(run, [policy, target], [optimizer])


@case("torch", "an energy-based model: Langevin steps from a list of earlier samples, random.choices, chunks put back")
def energy_model(compile) -> Job:
    model = nn.Sequential(nn.Linear(2, 32), nn.SiLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.0, 0.999))
    earlier = [torch.rand(1, 2) * 2 - 1 for _ in range(64)]

    def sampled():
        starts = torch.cat([torch.rand(2, 2) * 2 - 1, *random.choices(earlier, k=6)]).detach()
        model.requires_grad_(False)
        starts.requires_grad = True
        for _ in range(5):
            starts.data.add_(torch.randn(8, 2) * 0.005)
            model(starts).sum().neg().backward()
            starts.data.add_(-10 * starts.grad.data.clamp_(-0.03, 0.03))
            starts.grad.detach_()
            starts.grad.zero_()
            starts.data.clamp_(-1, 1)
        model.requires_grad_(True)
        earlier[:] = [*starts.detach().chunk(8), *earlier][:64]
        return starts.detach()

    def train_step(x):
        real, fake = model(torch.cat([x, sampled()])).chunk(2)
        loss = fake.mean() - real.mean() + 0.1 * (real.square() + fake.square()).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        return loss.item()

    batches = [(x,) for x, _ in vectors(8, 2, count=LONG)]
    return Job(each_call(compile(train_step), batches), [model], [optimizer], lambda: {"earlier": torch.cat(earlier)})


@case("torch", "data as a list of rows: zip(xs, ys), indices by NumPy, some of them twice")
def rows_by_indices(compile) -> Job:
    model = net()
    optimizer = adamw(model)
    data = list(zip(torch.randn(40, 8), torch.randn(40, 4)))

    def train_step():
        drawn = [data[i] for i in np.random.randint(0, len(data), 6)]
        x, y = (torch.stack(rows) for rows in zip(*drawn))
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return Job(each_call(compile(train_step), [()] * LONG), [model], [optimizer])


@case("torch", "a trainer that holds cycle(loader): a generator without end")
def cycle_of_loader(compile) -> Job:
    def cycle(loader):
        while True:
            yield from loader

    model = net()
    optimizer = adamw(model)
    data = torch.utils.data.TensorDataset(torch.randn(200, 8), torch.randn(200, 4))
    batches = cycle(torch.utils.data.DataLoader(data, batch_size=8, shuffle=True))

    def train_step():
        total = 0.0
        for _ in range(2):
            x, y = next(batches)
            loss = F.mse_loss(model(x), y) / 2
            total += loss.item()
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return total

    return Job(each_call(compile(train_step), [()] * LONG), [model], [optimizer])

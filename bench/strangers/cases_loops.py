"""Steps of people's own loops: reads on the host amid a step, branches that data or dice decide, shapes that data decide,
queues, mixtures of experts, iterators, dice of Python's."""

from __future__ import annotations

import collections
import copy
import itertools
import math
import random

import torch
import torch.nn.functional as F
from job import STEPS, Job, adamw, case, each_call, generator, pictures, tokens, training, vectors
from torch import nn
from torch.nn.utils.rnn import pad_sequence

LONG = 40  # calls of a step that has several ways


def _net(inputs: int = 8, outputs: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, outputs))


def _classes(*shape: int, classes: int = 4, count: int = STEPS) -> list[tuple]:
    g = generator()
    return [(torch.randn(shape, generator=g), torch.randint(0, classes, shape[:1], generator=g)) for _ in range(count)]


# ---- Data that the step fetches by itself


@case("torch", "the step fetches its batch: next(iterator)")
def next_of_iterator(compile) -> Job:
    model = _net()
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
    model = _net()
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
    model = _net()
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
    model = _net()
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
    policy, target = _net(4, 2), _net(4, 2)
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


# ---- Numbers read amid the step


@case("torch", "running loss: self.total += loss.item()")
def running_loss(compile) -> Job:
    model = _net()
    optimizer = adamw(model)
    seen = {"total": 0.0, "count": 0}

    def train_step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        seen["total"] += loss.item()
        seen["count"] += 1
        return loss.item()

    return Job(each_call(compile(train_step), vectors(6, 8)), [model], [optimizer], lambda: dict(seen))


@case("torch", "accuracy: (pred.argmax(1) == y).sum().item(), a history list")
def accuracy_history(compile) -> Job:
    model = _net()
    optimizer = adamw(model)
    history: list = []

    def train_step(x, y):
        out = model(x)
        loss = F.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append((float(loss), (out.argmax(1) == y).float().mean().item()))
        return history[-1]

    return Job(each_call(compile(train_step), _classes(8, 8)), [model], [optimizer], lambda: {"history": history})


@case("torch", "the loss is skipped when it is high: if loss > x: return")
def skip_high_loss(compile) -> Job:
    model = _net()
    optimizer = adamw(model)

    def train_step(x, y):
        loss = F.mse_loss(model(x), y)
        if loss > 1.0:
            return None
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Job(each_call(compile(train_step), vectors(6, 8, count=LONG)), [model], [optimizer])


@case("torch", "the learning rate falls when the loss does not: a plateau by hand")
def plateau_by_hand(compile) -> Job:
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    best = {"loss": math.inf, "bad": 0}

    def train_step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        now = loss.item()
        if now < best["loss"]:
            best["loss"], best["bad"] = now, 0
        else:
            best["bad"] += 1
        if best["bad"] > 3:
            for group in optimizer.param_groups:
                group["lr"] *= 0.5
            best["bad"] = 0
        return now

    return Job(each_call(compile(train_step), vectors(6, 8, count=LONG)), [model], [optimizer], lambda: dict(best))


@case("torch", "a gradient norm that is logged and clips: if norm > 1.0: scale")
def norm_branch(compile) -> Job:
    model = _net()
    optimizer = adamw(model)
    norms: list = []

    def train_step(x, y):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        total = 0.0
        for p in model.parameters():
            total += p.grad.detach().norm(2).item() ** 2
        norm = total**0.5
        norms.append(norm)
        if norm > 1.2:
            for p in model.parameters():
                p.grad.mul_(1.2 / (norm + 1e-6))
        optimizer.step()
        return norm

    return Job(each_call(compile(train_step), vectors(6, 8, count=LONG)), [model], [optimizer], lambda: {"n": norms})


@case("torch", "REINFORCE: returns summed in Python from rewards.tolist(), torch.tensor of them")
def reinforce_returns(compile) -> Job:
    model = _net(8, 4)
    optimizer = adamw(model)

    def train_step(states, rewards):
        dist = torch.distributions.Categorical(logits=model(states))
        actions = dist.sample()
        returns: collections.deque = collections.deque()
        value = 0.0
        for r in rewards.tolist()[::-1]:
            value = r + 0.9 * value
            returns.appendleft(value)
        targets = torch.tensor(returns)
        targets = (targets - targets.mean()) / (targets.std() + 1e-6)
        loss = sum(-p * r for p, r in zip(dist.log_prob(actions), targets))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item(), sum(returns)

    g = generator()
    batches = [(torch.randn(10, 8, generator=g), torch.randn(10, generator=g)) for _ in range(STEPS)]
    return Job(each_call(compile(train_step), batches), [model], [optimizer])


@case("torch", "an environment in Python: action.item() leads it, ten steps an episode")
def environment_in_step(compile) -> Job:
    model = _net(2, 2)
    optimizer = adamw(model)

    def episode(start):
        state, rewards, logs = [start, 0.0], [], []
        for _ in range(10):
            dist = torch.distributions.Categorical(logits=model(torch.tensor(state)))
            action = dist.sample()
            logs.append(dist.log_prob(action))
            move = 1.0 if action.item() == 1 else -1.0
            state = [state[0] + 0.1 * move, move]
            rewards.append(-abs(state[0]))
        returns, total = [], 0.0
        for r in reversed(rewards):
            total = r + 0.99 * total
            returns.insert(0, total)
        loss = -(torch.stack(logs) * torch.tensor(returns)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach(), sum(rewards)

    return Job(each_call(compile(episode), [(0.1 * i,) for i in range(STEPS)]), [model], [optimizer])


@case("torch", "PPO: epochs and minibatches by np.random.permutation, early stop by approx_kl")
def ppo_minibatches(compile) -> Job:
    import numpy as np

    actor, critic = _net(8, 4), _net(8, 1)
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=3e-3, eps=1e-5)

    def update(states, actions, old_logs, returns, advantages):
        fractions = []
        for _ in range(3):
            order = np.random.permutation(16)
            for start in range(0, 16, 8):
                i = order[start : start + 8]
                dist = torch.distributions.Categorical(logits=actor(states[i]))
                ratio = (dist.log_prob(actions[i]) - old_logs[i]).exp()
                with torch.no_grad():
                    kl = ((ratio - 1) - ratio.log()).mean()
                    fractions.append(((ratio - 1.0).abs() > 0.2).float().mean().item())
                adv = (advantages[i] - advantages[i].mean()) / (advantages[i].std() + 1e-8)
                policy = torch.max(-adv * ratio, -adv * ratio.clamp(0.8, 1.2)).mean()
                value = 0.5 * ((critic(states[i]).view(-1) - returns[i]) ** 2).mean()
                loss = policy + 0.5 * value - 0.01 * dist.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_([*actor.parameters(), *critic.parameters()], 0.5)
                optimizer.step()
            if kl > 0.01:
                break
        return loss.item(), float(np.mean(fractions))

    g = generator()
    batches = []
    for _ in range(LONG):
        states, actions = torch.randn(16, 8, generator=g), torch.randint(0, 4, (16,), generator=g)
        batches.append((states, actions, -torch.rand(16, generator=g) - 1, *torch.randn(2, 16, generator=g)))
    return Job(each_call(compile(update), batches), [actor, critic], [optimizer])


@case("torch", "a metric by NumPy: loss.detach().cpu().numpy(), confusion matrix")
def numpy_metric(compile) -> Job:
    import numpy as np

    model = _net()
    optimizer = adamw(model)
    confusion = np.zeros((4, 4), dtype=np.int64)

    def train_step(x, y):
        out = model(x)
        loss = F.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        np.add.at(confusion, (y.numpy(), out.argmax(1).numpy()), 1)
        return loss.detach().cpu().numpy()

    return Job(each_call(compile(train_step), _classes(8, 8)), [model], [optimizer], lambda: {"c": confusion.tolist()})


# ---- Dice


@case("torch", "mixup or cutmix or neither, by np.random; a box by np.random.randint")
def mixup_cutmix(compile) -> Job:
    import numpy as np

    model = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 10))
    optimizer = adamw(model)

    def box(size, lam):
        cut = int(size * np.sqrt(1.0 - lam))
        cx, cy = np.random.randint(size), np.random.randint(size)
        clip = lambda v: int(np.clip(v, 0, size))
        return clip(cx - cut // 2), clip(cy - cut // 2), clip(cx + cut // 2), clip(cy + cut // 2)

    def train_step(x, y):
        dice = np.random.rand()
        lam, other = 1.0, y
        if dice < 0.4:
            lam = np.random.beta(0.8, 0.8)
            index = torch.randperm(x.size(0))
            x, other = lam * x + (1 - lam) * x[index], y[index]
        elif dice < 0.8:
            index = torch.randperm(x.size(0))
            x1, y1, x2, y2 = box(x.size(2), np.random.beta(1.0, 1.0))
            x = x.clone()
            x[:, :, x1:x2, y1:y2] = x[index, :, x1:x2, y1:y2]
            lam, other = 1 - (x2 - x1) * (y2 - y1) / (x.size(2) * x.size(3)), y[index]
        out = model(x)
        loss = lam * F.cross_entropy(out, y) + (1 - lam) * F.cross_entropy(out, other)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Job(each_call(compile(train_step), pictures(4, 3, 8, 8, count=LONG)), [model], [optimizer])


@case("torch", "mixup with probability one half, by random.random()")
def mixup_sometimes(compile) -> Job:
    model = _net()
    optimizer = adamw(model)

    def train_step(x, y):
        if random.random() < 0.5:
            lam = random.betavariate(0.4, 0.4)
            index = torch.randperm(x.size(0))
            x = lam * x + (1 - lam) * x[index]
            out = model(x)
            loss = lam * F.cross_entropy(out, y) + (1 - lam) * F.cross_entropy(out, y[index])
        else:
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Job(each_call(compile(train_step), _classes(8, 8, count=LONG)), [model], [optimizer])


@case("torch", "augmentation of each picture: flips and crops by random, torch.stack")
def augment_each(compile) -> Job:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 10))
    optimizer = adamw(model)

    def augment(picture):
        if random.random() < 0.5:
            picture = picture.flip(-1)
        picture = F.pad(picture, (1, 1, 1, 1))
        i, j = random.randint(0, 2), random.randint(0, 2)
        return picture[:, i : i + 8, j : j + 8]

    def train_step(x, y):
        x = torch.stack([augment(picture) for picture in x])
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Job(each_call(compile(train_step), pictures(4, 3, 8, 8, count=LONG)), [model], [optimizer])


@case("torch", "one flip of the batch: if torch.rand(1) < 0.5")
def flip_by_torch(compile) -> Job:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 10))
    optimizer = adamw(model)

    def train_step(x, y):
        if torch.rand(1) < 0.5:
            x = torch.flip(x, [3])
        if torch.rand(1) < 0.5:
            x = x + 0.1 * torch.randn_like(x)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Job(each_call(compile(train_step), pictures(4, 3, 8, 8, count=LONG)), [model], [optimizer])


@case("torch", "DropPath of each sample, LayerScale")
def drop_path(compile) -> Job:
    class Block(nn.Module):
        def __init__(self, rate):
            super().__init__()
            self.rate, self.body, self.gamma = rate, _net(8, 8), nn.Parameter(1e-1 * torch.ones(8))

        def forward(self, x):
            y = self.gamma * self.body(x)
            if self.rate == 0.0 or not self.training:
                return x + y
            keep = 1 - self.rate
            mask = x.new_empty((x.shape[0], 1)).bernoulli_(keep)
            return x + y * mask / keep

    model = nn.Sequential(Block(0.0), Block(0.1), Block(0.3), nn.Linear(8, 4))
    return training(compile, model, vectors(6, 8), lambda m, x, y: F.mse_loss(m(x), y))


@case("torch", "stochastic depth: layers are skipped by np.random.uniform(), 4 of them")
def layer_drop(compile) -> Job:
    import numpy as np

    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.head = nn.ModuleList(_net(8, 8) for _ in range(4)), nn.Linear(8, 4)

        def forward(self, x):
            for layer in self.layers:
                if np.random.uniform() < 0.2:
                    continue
                x = x + layer(x)
            return self.head(x)

    return training(compile, Deep(), vectors(6, 8, count=LONG), lambda m, x, y: F.mse_loss(m(x), y))


@case("torch", "scheduled sampling: teacher forcing by random.random() at each position")
def scheduled_sampling(compile) -> Job:
    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.cell, self.head = nn.Embedding(20, 8), nn.GRUCell(8, 8), nn.Linear(8, 20)

        def forward(self, y):
            h, token, out = torch.zeros(y.shape[0], 8), y[:, 0], []
            for t in range(1, y.shape[1]):
                h = self.cell(self.embed(token), h)
                logits = self.head(h)
                out.append(logits)
                token = y[:, t] if random.random() < 0.5 else logits.argmax(1)
            return torch.stack(out, 1)

    batches = [(y,) for (y,) in tokens(20, 4, 6, count=LONG)]
    return training(compile, Decoder(), batches, lambda m, y: F.cross_entropy(m(y).flatten(0, 1), y[:, 1:].flatten()))


@case("torch", "multi-scale training: the size is drawn by random.choice every call")
def multi_scale(compile) -> Job:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10)
    )
    optimizer = adamw(model)

    def train_step(x, y):
        size = random.choice([8, 12, 16])
        x = F.interpolate(x, size=(size, size), mode="bilinear", align_corners=False)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Job(each_call(compile(train_step), pictures(4, 3, 8, 8, count=LONG)), [model], [optimizer])


@case("torch", "masked language model: positions by torch.rand and boolean masks, 80/10/10")
def mlm_masks(compile) -> Job:
    model = nn.Sequential(nn.Embedding(53, 16), nn.Linear(16, 53))
    optimizer = adamw(model)

    def train_step(ids):
        labels, ids = ids.clone(), ids.clone()
        chosen = torch.bernoulli(torch.full(labels.shape, 0.15)).bool()
        labels[~chosen] = -100
        replaced = torch.bernoulli(torch.full(labels.shape, 0.8)).bool() & chosen
        ids[replaced] = 52
        other = torch.bernoulli(torch.full(labels.shape, 0.5)).bool() & chosen & ~replaced
        words = torch.randint(52, labels.shape)
        ids[other] = words[other]
        loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Job(each_call(compile(train_step), tokens(50, 4, 12, count=LONG)), [model], [optimizer])


# ---- Shapes that data decide


@case("torch", "loss over x[mask] with another count in each batch")
def masked_rows(compile) -> Job:
    model = _net()
    optimizer = adamw(model)

    def train_step(x, y):
        mask = y > 0
        out = model(x)
        loss = F.cross_entropy(out[mask], y[mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Job(each_call(compile(train_step), _classes(16, 8, count=LONG)), [model], [optimizer])


@case("torch", "hard examples: losses[losses > losses.mean()].mean()")
def hard_examples(compile) -> Job:
    model = _net()
    optimizer = adamw(model)

    def train_step(x, y):
        losses = F.cross_entropy(model(x), y, reduction="none")
        loss = losses[losses > losses.mean()].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Job(each_call(compile(train_step), _classes(16, 8, count=LONG)), [model], [optimizer])


@case("torch", "batch-hard triplets: a Python loop over unique labels")
def unique_labels(compile) -> Job:
    model = _net()
    optimizer = adamw(model)

    def train_step(x, y):
        out, loss = model(x), 0.0
        for label in torch.unique(y):
            rows = out[y == label]
            loss = loss + (rows - rows.mean(0)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Job(each_call(compile(train_step), _classes(16, 8, count=LONG)), [model], [optimizer])


@case("torch", "detection: objects picked by nonzero, targets assigned by a Python loop")
def detection_targets(compile) -> Job:
    model = nn.Conv2d(3, 6, 3, padding=1)
    optimizer = adamw(model)

    def train_step(x, boxes):
        out = model(x)
        target = torch.zeros(2, 8, 8)
        for b, (i, j, _) in enumerate(boxes.tolist()):
            target[b % 2, int(i), int(j)] = 1.0
        where = target.nonzero(as_tuple=True)
        picked = out[where[0], :, where[1], where[2]]
        wanted = boxes.new_tensor([boxes[k, 2].item() for k in range(len(where[0]))])
        loss = F.binary_cross_entropy_with_logits(out[:, 0], target) + F.mse_loss(picked[:, 1], wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    g = generator()
    batches = [
        (torch.randn(2, 3, 8, 8, generator=g), torch.randint(0, 8, (4, 3), generator=g).float()) for _ in range(LONG)
    ]
    return Job(each_call(compile(train_step), batches), [model], [optimizer])


def _experts(forward) -> type:
    class Mixture(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.experts = nn.Linear(8, 4), nn.ModuleList(_net(8, 8) for _ in range(4))
            self.head = nn.Linear(8, 4)

        def forward(self, x):
            return self.head(forward(self, x))

    return Mixture


@case("torch", "mixture of experts, top 2 of 4 by torch.where and index_add_ (Mixtral)")
def moe_where(compile) -> Job:
    def forward(self, x):
        weights, chosen = torch.topk(self.gate(x).softmax(-1), 2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        mask = F.one_hot(chosen, 4).permute(2, 1, 0)
        for i, expert in enumerate(self.experts):
            k, rows = torch.where(mask[i])
            out.index_add_(0, rows, expert(x[rows]) * weights[rows, k, None])
        return out

    return training(compile, _experts(forward)(), vectors(12, 8, count=LONG), lambda m, x, y: F.mse_loss(m(x), y))


@case("torch", "mixture of experts, top 2 of 4 as lucidrains and nanoMoE do: idle experts are skipped")
def moe_skips(compile) -> Job:
    def forward(self, x):
        weights, chosen = torch.topk(self.gate(x), 2, dim=-1)
        weights = weights.softmax(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows, nth = torch.where(chosen == i)
            if rows.numel() == 0:
                continue
            out[rows] += weights[rows, nth, None] * expert(x[rows])
        return out

    return training(compile, _experts(forward)(), vectors(6, 8, count=LONG), lambda m, x, y: F.mse_loss(m(x), y))


@case("torch", "mixture of experts with capacity: one_hot, cumsum, einsum (Switch)")
def moe_capacity(compile) -> Job:
    def forward(self, x):
        gates = self.gate(x).softmax(-1)
        value, index = gates.max(-1)
        hot = F.one_hot(index, 4).float()
        place = (hot.cumsum(0) - 1) * hot
        hot = hot * (place < 4)
        dispatch = hot[..., None] * F.one_hot(place.sum(-1).long().clamp(max=3), 4).float()[:, None]
        inputs = torch.einsum("nec,nd->ecd", dispatch, x)
        outputs = torch.stack([expert(part) for expert, part in zip(self.experts, inputs)])
        return torch.einsum("nec,ecd->nd", dispatch * value[:, None, None], outputs)

    return training(compile, _experts(forward)(), vectors(12, 8), lambda m, x, y: F.mse_loss(m(x), y))


@case("torch", "mixture of experts, tokens sorted and split by counts.tolist()")
def moe_sorted(compile) -> Job:
    def forward(self, x):
        weight, chosen = self.gate(x).softmax(-1).max(-1)
        order = chosen.argsort(stable=True)
        counts = torch.bincount(chosen, minlength=4)
        parts = [expert(part) for expert, part in zip(self.experts, x[order].split(counts.tolist()))]
        return torch.empty_like(x).index_copy(0, order, torch.cat(parts)) * weight[:, None]

    return training(compile, _experts(forward)(), vectors(12, 8, count=LONG), lambda m, x, y: F.mse_loss(m(x), y))


@case("torch", "sentences of other lengths: pad_sequence of a list, max(len) inside the step")
def pad_in_step(compile) -> Job:
    model = nn.ModuleDict({"e": nn.Embedding(50, 8), "b": nn.GRU(8, 8, batch_first=True), "h": nn.Linear(8, 4)})
    optimizer = adamw(model)

    def train_step(sentences, y):
        x = pad_sequence(sentences, batch_first=True)
        out, _ = model["b"](model["e"](x))
        last = out[torch.arange(len(sentences)), torch.tensor([len(s) - 1 for s in sentences])]
        loss = F.cross_entropy(model["h"](last), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    g = generator()
    batches = [
        (
            [torch.randint(0, 50, (n,), generator=g) for n in torch.randint(4, 7, (3,), generator=g).tolist()],
            torch.randint(0, 4, (3,), generator=g),
        )
        for _ in range(LONG)
    ]
    return Job(each_call(compile(train_step), batches), [model], [optimizer])


@case("torch", "token dropping: attention keeps the topk tokens, x.gather")
def token_dropping(compile) -> Job:
    class Drops(nn.Module):
        def __init__(self):
            super().__init__()
            self.score, self.body, self.head = nn.Linear(8, 1), _net(8, 8), nn.Linear(8, 4)

        def forward(self, x):
            score = self.score(x).squeeze(-1)
            value, index = score.topk(3, dim=1)
            kept = x.gather(1, index[..., None].expand(-1, -1, 8)) * value.sigmoid()[..., None]
            return self.head(self.body(kept).mean(1))

    g = generator()
    batches = [(torch.randn(4, 9, 8, generator=g), torch.randn(4, 4, generator=g)) for _ in range(STEPS)]
    return training(compile, Drops(), batches, lambda m, x, y: F.mse_loss(m(x), y))


# ---- What stays from call to call


@case("torch", "MoCo: a queue of 4 places, ptr in Python, queue[:, ptr : ptr + n] = keys.T")
def moco_python_pointer(compile) -> Job:
    class MoCo(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k = _net(8, 6), _net(8, 6)
            self.k.load_state_dict(self.q.state_dict())
            for p in self.k.parameters():
                p.requires_grad = False
            self.register_buffer("queue", F.normalize(torch.randn(6, 16), dim=0))
            self.register_buffer("ptr", torch.zeros(1, dtype=torch.long))

        @torch.no_grad()
        def enqueue(self, keys):
            ptr = int(self.ptr)
            self.queue[:, ptr : ptr + keys.shape[0]] = keys.T
            self.ptr[0] = (ptr + keys.shape[0]) % 16

        def forward(self, a, b):
            q = F.normalize(self.q(a), dim=1)
            with torch.no_grad():
                for k, p in zip(self.k.parameters(), self.q.parameters()):
                    k.data = k.data * 0.99 + p.data * 0.01
                k = F.normalize(self.k(b), dim=1)
            positive = torch.einsum("nc,nc->n", q, k).unsqueeze(-1)
            negative = torch.einsum("nc,ck->nk", q, self.queue.clone().detach())
            logits = torch.cat([positive, negative], 1) / 0.07
            self.enqueue(k)
            return F.cross_entropy(logits, torch.zeros(logits.shape[0], dtype=torch.long))

    g = generator()
    batches = [tuple(torch.randn(2, 4, 8, generator=g)) for _ in range(LONG)]
    return training(compile, MoCo(), batches, lambda m, a, b: m(a, b))


@case("torch", "a memory bank of all samples: bank[index] = momentum, a Python list of histories")
def memory_bank(compile) -> Job:
    model = _net(8, 6)
    optimizer = adamw(model)
    bank = F.normalize(torch.randn(30, 6), dim=1)

    def train_step(x, index):
        z = F.normalize(model(x), dim=1)
        loss = F.cross_entropy(z @ bank.t() / 0.1, index)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            bank[index] = F.normalize(0.5 * bank[index] + 0.5 * z.detach(), dim=1)
        return loss.detach()

    g = generator()
    batches = [(torch.randn(5, 8, generator=g), torch.randperm(30, generator=g)[:5]) for _ in range(STEPS)]
    return Job(each_call(compile(train_step), batches), [model], [optimizer], lambda: {"bank": bank})


@case("torch", "a queue that is a list: negatives.append(keys); if len > 4: pop(0); torch.cat")
def queue_list(compile) -> Job:
    model = _net(8, 6)
    optimizer = adamw(model)
    negatives: list = []

    def train_step(x, y):
        z = F.normalize(model(x), dim=1)
        loss = F.mse_loss(z[:, :4], y)
        if negatives:
            loss = loss + (z @ torch.cat(negatives).t()).exp().mean()
        negatives.append(z.detach())
        if len(negatives) > 4:
            negatives.pop(0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Job(
        each_call(compile(train_step), vectors(6, 8, count=LONG)), [model], [optimizer], lambda: {"n": negatives}
    )


@case("torch", "EMA teacher that begins after some steps: if step < 5: copy else: lerp_")
def ema_warm_up(compile) -> Job:
    student = _net()
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = adamw(student)
    count = itertools.count()

    def train_step(x, y):
        i = next(count)
        loss = F.mse_loss(student(x), y)
        if i >= 5:
            with torch.no_grad():
                goal = teacher(x)
            loss = loss + min(1.0, i / 20) * F.mse_loss(student(x), goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        alpha = min(1 - 1 / (i + 1), 0.99)
        with torch.no_grad():
            for t, s in zip(teacher.parameters(), student.parameters()):
                t.mul_(alpha).add_(s, alpha=1 - alpha)
        return loss.detach()

    return Job(each_call(compile(train_step), vectors(6, 8, count=24)), [student, teacher], [optimizer])


@case("torch", "FixMatch: pseudo-labels above a threshold by masks, mask.mean().item() logged")
def fix_match(compile) -> Job:
    model = _net()
    optimizer = adamw(model)
    ratio: list = []

    def train_step(x, y, u):
        weak, strong = model(u + 0.01 * torch.randn_like(u)), model(u + 0.3 * torch.randn_like(u))
        probability, label = torch.softmax(weak.detach(), -1).max(-1)
        mask = probability.ge(0.35).float()
        ratio.append(mask.mean().item())
        loss = F.cross_entropy(model(x), y) + (F.cross_entropy(strong, label, reduction="none") * mask).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    g = generator()
    batches = [(x, y, torch.randn(12, 8, generator=g)) for x, y in _classes(6, 8)]
    return Job(each_call(compile(train_step), batches), [model], [optimizer], lambda: {"ratio": ratio})


@case("torch", "VQ-VAE: dead codes are drawn anew, by a mask of the usage")
def vq_dead_codes(compile) -> Job:
    class Quantizer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inward, self.outward = nn.Linear(8, 6), nn.Linear(6, 8)
            self.register_buffer("codes", torch.randn(8, 6))
            self.register_buffer("usage", torch.ones(8))

        def forward(self, x):
            z = self.inward(x)
            index = torch.cdist(z, self.codes).argmin(1)
            q = self.codes[index]
            if self.training:
                with torch.no_grad():
                    hot = F.one_hot(index, 8).float()
                    self.usage.mul_(0.8).add_(hot.sum(0), alpha=0.2)
                    self.codes.lerp_((hot.t() @ z) / hot.sum(0).clamp(min=1)[:, None], 0.1)
                    dead = self.usage < 0.3
                    if dead.any():
                        rows = torch.randint(0, x.shape[0], (int(dead.sum()),))
                        self.codes[dead] = z.detach()[rows]
                        self.usage[dead] = 1.0
            commitment = F.mse_loss(z, q.detach())
            return self.outward(z + (q - z).detach()), commitment

    def loss(m, x, _):
        made, commitment = m(x)
        return F.mse_loss(made, x) + 0.25 * commitment

    return training(compile, Quantizer(), vectors(10, 8, count=LONG), loss)


@case("torch", "hidden states of truncated BPTT kept by the module: self.h = h.detach()")
def kept_hidden(compile) -> Job:
    class Kept(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head, self.h = nn.GRU(8, 8, batch_first=True), nn.Linear(8, 4), None

        def forward(self, x):
            out, h = self.body(x, self.h)
            self.h = h.detach()
            return self.head(out)

    g = generator()
    batches = [(torch.randn(3, 5, 8, generator=g), torch.randn(3, 5, 4, generator=g)) for _ in range(STEPS)]
    return training(compile, Kept(), batches, lambda m, x, y: F.mse_loss(m(x), y))


@case("torch", "Transformer-XL memory: a list of hidden states, torch.cat with the past, detached")
def xl_memory(compile) -> Job:
    model = nn.ModuleDict({"e": nn.Embedding(50, 8), "a": nn.MultiheadAttention(8, 2, batch_first=True),
                           "h": nn.Linear(8, 50)})  # fmt: skip
    optimizer = adamw(model)
    memory: dict = {"past": None}

    def train_step(x):
        h = model["e"](x)
        past = memory["past"]
        context = h if past is None else torch.cat([past, h], 1)
        memory["past"] = h.detach()[:, -4:]
        out = h + model["a"](h, context, context, need_weights=False)[0]
        loss = F.cross_entropy(model["h"](out[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return Job(each_call(compile(train_step), tokens(50, 3, 6)), [model], [optimizer])


# ---- Optimizers and gradients


@case("torch", "SAM with a closure: first_step, second_step by hand, norm over a list")
def sam_by_hand(compile) -> Job:
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def train_step(x, y):
        F.mse_loss(model(x), y).backward()
        norm = torch.norm(torch.stack([p.grad.norm(2) for p in model.parameters()]), 2)
        old = {}
        with torch.no_grad():
            for p in model.parameters():
                old[p] = p.data.clone()
                p.add_(p.grad * (0.05 / (norm + 1e-12)))
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        for p in model.parameters():
            p.data = old[p]
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Job(each_call(compile(train_step), vectors(6, 8)), [model], [optimizer])


@case("torch", "gradient surgery (PCGrad): tasks shuffled by random, conflicts by if dot < 0")
def pcgrad(compile) -> Job:
    body, heads = _net(8, 8), nn.ModuleList(nn.Linear(8, 2) for _ in range(3))
    params = list(body.parameters())
    optimizer = torch.optim.Adam([*params, *heads.parameters()], lr=1e-2)

    def train_step(x, y):
        h = body(x)
        losses = [F.mse_loss(head(h), y[:, :2] * (i + 1)) for i, head in enumerate(heads)]
        optimizer.zero_grad()
        flat = []
        for i, loss in enumerate(losses):
            grads = torch.autograd.grad(loss, [*params, *heads[i].parameters()], retain_graph=True)
            for p, g in zip(heads[i].parameters(), grads[len(params) :]):
                p.grad = g
            flat.append(torch.cat([g.flatten() for g in grads[: len(params)]]))
        mended = [g.clone() for g in flat]
        for g in mended:
            order = list(range(3))
            random.shuffle(order)
            for j in order:
                dot = torch.dot(g, flat[j])
                if dot < 0:
                    g -= dot / flat[j].norm() ** 2 * flat[j]
        merged, at = torch.stack(mended).sum(0), 0
        for p in params:
            p.grad = merged[at : at + p.numel()].view_as(p).clone()
            at += p.numel()
        optimizer.step()
        return torch.stack([loss.detach() for loss in losses])

    return Job(each_call(compile(train_step), vectors(6, 8, count=LONG)), [body, heads], [optimizer])


@case("torch", "LBFGS: optimizer.step(closure)")
def lbfgs_closure(compile) -> Job:
    model = _net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)

    def train_step(x, y):
        def closure():
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            return loss

        return optimizer.step(closure).item()

    return Job(each_call(compile(train_step), vectors(6, 8)), [model], [optimizer])


@case("torch", "Adam by step(closure)")
def adam_closure(compile) -> Job:
    model = _net()
    optimizer = adamw(model)

    def train_step(x, y):
        def closure():
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            return loss

        return optimizer.step(closure).detach()

    return Job(each_call(compile(train_step), vectors(6, 8)), [model], [optimizer])


@case("torch", "sparse embeddings: SparseAdam and a dense optimizer in one step")
def sparse_and_dense(compile) -> Job:
    embed, model = nn.Embedding(50, 8, sparse=True), _net()
    sparse, dense = torch.optim.SparseAdam(embed.parameters(), lr=1e-2), adamw(model)

    def train_step(i, y):
        sparse.zero_grad()
        dense.zero_grad()
        loss = F.mse_loss(model(embed(i).mean(1)), y)
        loss.backward()
        sparse.step()
        dense.step()
        return loss.detach()

    g = generator()
    batches = [(torch.randint(0, 50, (6, 3), generator=g), torch.randn(6, 4, generator=g)) for _ in range(STEPS)]
    return Job(each_call(compile(train_step), batches), [embed, model], [sparse, dense])


@case("torch", "word2vec: EmbeddingBag, negatives by torch.multinomial, SGD with sparse gradients")
def word2vec(compile) -> Job:
    inner, outer = nn.Embedding(40, 8, sparse=True), nn.Embedding(40, 8, sparse=True)
    optimizer = torch.optim.SGD([*inner.parameters(), *outer.parameters()], lr=0.1)
    frequencies = torch.rand(40)

    def train_step(center, context):
        noise = torch.multinomial(frequencies, 6 * 4, replacement=True).view(6, 4)
        v, u, n = inner(center), outer(context), outer(noise)
        loss = -(F.logsigmoid((u * v).sum(1)) + F.logsigmoid(-(n @ v.unsqueeze(2)).squeeze(2)).sum(1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    g = generator()
    batches = [tuple(torch.randint(0, 40, (2, 6), generator=g)) for _ in range(STEPS)]
    return Job(each_call(compile(train_step), batches), [inner, outer], [optimizer])


@case("torch", "accumulation over micro-batches in the step: for part in x.chunk(4)")
def micro_batches(compile) -> Job:
    model = _net()
    optimizer = adamw(model)

    def train_step(x, y):
        optimizer.zero_grad()
        total = 0.0
        for a, b in zip(x.chunk(4), y.chunk(4)):
            loss = F.mse_loss(model(a), b) / 4
            loss.backward()
            total += loss.item()
        optimizer.step()
        return total

    return Job(each_call(compile(train_step), vectors(8, 8)), [model], [optimizer])


@case("torch", "GAN: the critic 5 times as often; if i % 5 == 0 of a counter; losses by item()")
def gan_every_fifth(compile) -> Job:
    g, d = _net(4, 8), _net(8, 1)
    opt_g, opt_d = torch.optim.RMSprop(g.parameters(), 1e-3), torch.optim.RMSprop(d.parameters(), 1e-3)
    state = {"i": 0, "g": 0.0}

    def train_step(x):
        opt_d.zero_grad()
        loss_d = d(g(torch.randn(6, 4)).detach()).mean() - d(x).mean()
        loss_d.backward()
        opt_d.step()
        for p in d.parameters():
            p.data.clamp_(-0.05, 0.05)
        if state["i"] % 5 == 0:
            opt_g.zero_grad()
            loss_g = -d(g(torch.randn(6, 4))).mean()
            loss_g.backward()
            opt_g.step()
            state["g"] = loss_g.item()
        state["i"] += 1
        return loss_d.item(), state["g"]

    batches = [(x,) for x, _ in vectors(6, 8, count=LONG)]
    return Job(each_call(compile(train_step), batches), [g, d], [opt_g, opt_d])


@case("torch", "StyleGAN: lazy R1 penalty every 4th call, path length mean kept as a float")
def lazy_r1(compile) -> Job:
    g, d = _net(4, 8), nn.Sequential(nn.Linear(8, 16), nn.Softplus(), nn.Linear(16, 1))
    opt_g, opt_d = torch.optim.Adam(g.parameters(), 1e-3), torch.optim.Adam(d.parameters(), 1e-3)
    state = {"mean": 0.0}

    def train_step(x, i):
        x = x.detach().requires_grad_(i % 4 == 0)
        opt_d.zero_grad()
        real = d(x)
        loss = F.softplus(-real).mean() + F.softplus(d(g(torch.randn(6, 4)).detach())).mean()
        if i % 4 == 0:
            (slope,) = torch.autograd.grad(real.sum(), x, create_graph=True)
            loss = loss + 5 * slope.square().sum(1).mean()
        loss.backward()
        opt_d.step()
        opt_g.zero_grad()
        z = torch.randn(6, 4, requires_grad=True)
        fake = g(z)
        loss_g = F.softplus(-d(fake)).mean()
        if i % 4 == 0:
            (path,) = torch.autograd.grad((fake * torch.randn_like(fake)).sum(), z, create_graph=True)
            length = path.square().sum(1).sqrt()
            state["mean"] += 0.01 * (length.mean().item() - state["mean"])
            loss_g = loss_g + (length - state["mean"]).square().mean()
        loss_g.backward()
        opt_g.step()
        return loss.detach(), loss_g.detach()

    batches = [(x, i) for i, (x, _) in enumerate(vectors(6, 8, count=LONG))]
    return Job(each_call(compile(train_step), batches), [g, d], [opt_g, opt_d], lambda: dict(state))


@case("torch", "differential privacy: per-sample gradients by vmap, clipped, noise")
def dp_sgd(compile) -> Job:
    from torch.func import functional_call, grad, vmap

    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(params, x, y):
        return F.mse_loss(functional_call(model, params, (x.unsqueeze(0),)), y.unsqueeze(0))

    def train_step(x, y):
        params = {k: v.detach() for k, v in model.named_parameters()}
        grads = vmap(grad(loss_of), in_dims=(None, 0, 0))(params, x, y)
        norms = torch.stack([g.flatten(1).norm(2, dim=1) for g in grads.values()]).norm(2, dim=0)
        factor = (1.0 / (norms + 1e-6)).clamp(max=1.0)
        for name, p in model.named_parameters():
            clipped = torch.einsum("b,b...->...", factor, grads[name])
            p.grad = (clipped + 0.1 * torch.randn_like(clipped)) / x.shape[0]
        optimizer.step()
        optimizer.zero_grad()
        return norms.mean()

    return Job(each_call(compile(train_step), vectors(6, 8)), [model], [optimizer])


@case("torch", "gradual unfreezing and a new optimizer at call 8")
def new_optimizer(compile) -> Job:
    model = _net()
    for p in model[0].parameters():
        p.requires_grad = False
    held = {"optimizer": torch.optim.Adam(model[2].parameters(), 1e-2), "i": 0}

    def train_step(x, y):
        if held["i"] == 8:
            for p in model[0].parameters():
                p.requires_grad = True
            held["optimizer"] = torch.optim.Adam(model.parameters(), 1e-3)
        held["i"] += 1
        held["optimizer"].zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        held["optimizer"].step()
        return loss.detach()

    return Job(each_call(compile(train_step), vectors(6, 8, count=20)), [model], [])


@case("torch", "magnitude pruning: masks made anew each 10 calls, weights multiplied in the step")
def pruning(compile) -> Job:
    model = _net()
    optimizer = adamw(model)
    state: dict = {"i": 0, "masks": {}}

    def train_step(x, y):
        if state["i"] % 10 == 0:
            for name, p in model.named_parameters():
                if p.dim() > 1:
                    bound = p.detach().abs().flatten().kthvalue(int(p.numel() * 0.02 * (1 + state["i"] // 10))).values
                    state["masks"][name] = (p.detach().abs() > bound).float()
        state["i"] += 1
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for name, p in model.named_parameters():
                if name in state["masks"]:
                    p.mul_(state["masks"][name])
        return loss.detach()

    return Job(each_call(compile(train_step), vectors(6, 8, count=LONG)), [model], [optimizer])


@case("torch", "nan guard: if torch.isnan(loss).any() or any gradient is not finite: skip")
def nan_guard(compile) -> Job:
    model = _net()
    optimizer = adamw(model)
    skipped = {"n": 0}

    def train_step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        if torch.isnan(loss).any():
            skipped["n"] += 1
            return loss.detach()
        loss.backward()
        if not all(torch.isfinite(p.grad).all() for p in model.parameters()):
            skipped["n"] += 1
            return loss.detach()
        optimizer.step()
        return loss.detach()

    batches = vectors(6, 8, count=20)
    batches[9] = (batches[9][0] * math.nan, batches[9][1])
    batches[13] = (batches[13][0] * 1e30, batches[13][1])
    return Job(each_call(compile(train_step), batches), [model], [optimizer], lambda: dict(skipped))


@case("torch", "adversarial training: PGD of 3 steps, FGSM with random start, x.grad")
def pgd(compile) -> Job:
    model = _net()
    optimizer = adamw(model)

    def train_step(x, y):
        model.eval()
        delta = torch.empty_like(x).uniform_(-0.1, 0.1).requires_grad_(True)
        for _ in range(3):
            F.cross_entropy(model(x + delta), y).backward()
            delta.data = (delta + 0.03 * delta.grad.sign()).clamp(-0.1, 0.1).detach()
            delta.grad.zero_()
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x + delta.detach()), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Job(each_call(compile(train_step), _classes(6, 8)), [model], [optimizer])


@case("torch", "Gumbel softmax with a temperature that falls, hard=True")
def gumbel(compile) -> Job:
    model, codes = _net(8, 6), nn.Linear(6, 8)
    optimizer = torch.optim.Adam([*model.parameters(), *codes.parameters()], 1e-2)
    state = {"tau": 2.0}

    def train_step(x):
        z = F.gumbel_softmax(model(x), tau=state["tau"], hard=True)
        loss = F.mse_loss(codes(z), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state["tau"] = max(0.5, state["tau"] * 0.97)
        return loss.item()

    return Job(each_call(compile(train_step), [(x,) for x, _ in vectors(6, 8)]), [model, codes], [optimizer])


@case("torch", "CLIP by hand: learnable temperature, clamped under no_grad, labels by arange")
def clip_by_hand(compile) -> Job:
    a, b = _net(8, 6), _net(4, 6)
    scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))
    optimizer = torch.optim.AdamW([*a.parameters(), *b.parameters(), scale], 1e-2)

    def train_step(x, y):
        u, v = F.normalize(a(x), dim=-1), F.normalize(b(y), dim=-1)
        logits = scale.exp() * u @ v.t()
        labels = torch.arange(len(logits), device=logits.device)
        loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            scale.clamp_(0, math.log(100))
        return loss.item(), scale.item()

    return Job(each_call(compile(train_step), vectors(6, 8)), [a, b], [optimizer], lambda: {"scale": scale})


@case("torch", "LoRA by hand: a module replaces Linears, merges are undone")
def lora_by_hand(compile) -> Job:
    class Lora(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base = base.requires_grad_(False)
            self.a = nn.Parameter(torch.randn(2, base.in_features) * 0.1)
            self.b = nn.Parameter(torch.zeros(base.out_features, 2))

        def forward(self, x):
            return self.base(x) + 2.0 * F.dropout(x, 0.1, self.training) @ self.a.T @ self.b.T

    model = _net()
    model[0], model[2] = Lora(model[0]), Lora(model[2])
    return training(compile, model, vectors(6, 8), lambda m, x, y: F.mse_loss(m(x), y))


@case("torch", "DDPM: t by randint, buffers indexed, classifier-free: if random() < 0.1 the label is dropped")
def ddpm(compile) -> Job:
    alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 100), 0)
    model = nn.ModuleDict({"n": _net(8 + 4 + 4, 8), "c": nn.Embedding(5, 4), "t": nn.Embedding(100, 4)})
    optimizer = adamw(model)

    def train_step(x, y):
        t = torch.randint(0, 100, (x.shape[0],))
        noise = torch.randn_like(x)
        a = alphas[t][:, None]
        if random.random() < 0.3:
            y = torch.full_like(y, 4)
        guess = model["n"](torch.cat([a.sqrt() * x + (1 - a).sqrt() * noise, model["c"](y), model["t"](t)], 1))
        loss = F.mse_loss(guess, noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return Job(each_call(compile(train_step), _classes(6, 8, count=LONG)), [model], [optimizer])


@case("torch", "curriculum: the number of samples grows, x[: n] with n from a schedule")
def curriculum(compile) -> Job:
    model = _net()
    optimizer = adamw(model)
    state = {"i": 0}

    def train_step(x, y):
        n = min(16, 4 + 4 * (state["i"] // 10))
        state["i"] += 1
        optimizer.zero_grad()
        losses = F.mse_loss(model(x), y, reduction="none").mean(1)
        loss = losses.sort().values[:n].mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Job(each_call(compile(train_step), vectors(16, 8, count=LONG)), [model], [optimizer])


@case("torch", "Sinkhorn until it converges: while error > 1e-3")
def sinkhorn(compile) -> Job:
    model = _net(8, 6)
    optimizer = adamw(model)

    def train_step(x, y):
        cost = torch.cdist(model(x)[:, :4], y)
        kernel = (-cost / 0.5).exp()
        u = torch.ones(6)
        for _ in range(20):
            v = 1.0 / (kernel.t() @ u)
            new = 1.0 / (kernel @ v)
            error = (new - u).abs().max()
            u = new
            if error < 0.05:
                break
        loss = (u[:, None] * kernel * v[None] * cost).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return Job(each_call(compile(train_step), vectors(6, 8, count=LONG)), [model], [optimizer])


@case("torch", "adaptive computation: each round halts by (halt > 0.99).all()")
def adaptive_computation(compile) -> Job:
    model = nn.ModuleDict({"c": nn.GRUCell(8, 8), "p": nn.Linear(8, 1), "h": nn.Linear(8, 4)})
    optimizer = adamw(model)

    def train_step(x, y):
        h, halt, out = torch.zeros(6, 8), torch.zeros(6, 1), 0.0
        for _ in range(6):
            h = model["c"](x, h)
            p = torch.sigmoid(model["p"](h) * 2 + 0.5) * (1 - halt)
            out = out + p * model["h"](h)
            halt = halt + p
            if (halt > 0.9).all():
                break
        loss = F.mse_loss(out, y) + 0.01 * (1 - halt).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Job(each_call(compile(train_step), vectors(6, 8, count=LONG)), [model], [optimizer])


@case("torch", "label smoothing by scatter_, class weights from bincount of the batch")
def class_weights(compile) -> Job:
    model = _net()
    optimizer = adamw(model)

    def train_step(x, y):
        counts = torch.bincount(y, minlength=4).float()
        weights = counts.sum() / counts.clamp(min=1)
        soft = torch.full((y.shape[0], 4), 0.1 / 3).scatter_(1, y.unsqueeze(1), 0.9)
        loss = -(soft * weights * model(x).log_softmax(1)).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Job(each_call(compile(train_step), _classes(8, 8)), [model], [optimizer])


@case("torch", "deep supervision, weights as a Python list by epoch; tensors made from it")
def list_weights(compile) -> Job:
    model = nn.ModuleList([_net(8, 8), _net(8, 8), _net(8, 4)])
    optimizer = adamw(model)

    def train_step(x, y, epoch):
        weights = torch.tensor([0.5**k * (1 + epoch) for k in range(3)])
        weights /= weights.sum()
        h, losses = x, []
        for layer in model:
            h = layer(h)
            losses.append(F.mse_loss(h[:, :4], y))
        loss = (torch.stack(losses) * weights).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    batches = [(x, y, i // 3) for i, (x, y) in enumerate(vectors(6, 8))]
    return Job(each_call(compile(train_step), batches), [model], [optimizer])


@case("torch", "one sample at a time: for x, y in zip(xs, ys): loss += ..., python lists of targets")
def sample_loop(compile) -> Job:
    model = _net()
    optimizer = adamw(model)

    def train_step(xs, ys):
        loss = 0
        for x, y in zip(xs, ys):
            loss = loss + F.cross_entropy(model(x.unsqueeze(0)), torch.tensor([y]))
        loss = loss / len(xs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    batches = [(x, y.tolist()) for x, y in _classes(4, 8)]
    return Job(each_call(compile(train_step), batches), [model], [optimizer])


@case("torch", "a class with self.step, self.logs of lists, print every 4 calls by f-string")
def trainer_class(compile) -> Job:
    class Trainer:
        def __init__(self):
            self.model = _net()
            self.optimizer = adamw(self.model)
            self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 1e-2, total_steps=STEPS + 1)
            self.step_number, self.logs = 0, collections.defaultdict(list)

        def train_step(self, batch):
            self.model.train()
            loss = F.mse_loss(self.model(batch["x"]), batch["y"])
            self.optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.scheduler.step()
            self.step_number += 1
            self.logs["loss"].append(loss.item())
            self.logs["norm"].append(norm.item())
            if self.step_number % 4 == 0:
                self.logs["line"].append(f"{self.step_number}: {loss.item():.4f} {self.scheduler.get_last_lr()[0]:.2e}")
            return {"loss": loss.detach(), "norm": norm}

    trainer = Trainer()
    step = compile(trainer.train_step)
    batches = [({"x": x, "y": y},) for x, y in vectors(6, 8)]
    return Job(each_call(step, batches), [trainer.model], [trainer.optimizer], lambda: dict(trainer.logs))


@case("torch", "knowledge distillation with validation every 5 calls inside: model.eval(), no_grad")
def validates_inside(compile) -> Job:
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))
    optimizer = adamw(model)
    held, scores = torch.randn(10, 8), []

    def train_step(x, y, i):
        model.train()
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        if i % 5 == 4:
            model.eval()
            with torch.no_grad():
                scores.append(model(held).mean().item())
        return loss.detach()

    batches = [(x, y, i) for i, (x, y) in enumerate(vectors(6, 8, count=30))]
    return Job(each_call(compile(train_step), batches), [model], [optimizer], lambda: {"scores": scores})

"""Steps of people's own loops: numbers read on the host amid a step, and what Python decides by them."""

from __future__ import annotations

import collections
import math

import torch
import torch.nn.functional as F
from job import LONG, STEPS, Job, adamw, case, classed, each_call, generator, net, vectors
from torch import nn


@case("torch", "running loss: self.total += loss.item()")
def running_loss(compile) -> Job:
    model = net()
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
    model = net()
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

    return Job(each_call(compile(train_step), classed(8, 8)), [model], [optimizer], lambda: {"history": history})


@case("torch", "the loss is skipped when it is high: if loss > x: return")
def skip_high_loss(compile) -> Job:
    model = net()
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
    model = net()
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
    model = net()
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
    model = net(8, 4)
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
    model = net(2, 2)
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

    actor, critic = net(8, 4), net(8, 1)
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

    model = net()
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

    return Job(each_call(compile(train_step), classed(8, 8)), [model], [optimizer], lambda: {"c": confusion.tolist()})

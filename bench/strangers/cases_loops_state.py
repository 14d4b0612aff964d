"""Steps of people's own loops: what stays from call to call: queues, averages, code books, hidden states."""

from __future__ import annotations

import copy
import itertools

import torch
import torch.nn.functional as F
from job import LONG, STEPS, Job, adamw, case, classed, each_call, generator, net, tokens, training, vectors
from torch import nn


@case("torch", "MoCo: a queue of 4 places, ptr in Python, queue[:, ptr : ptr + n] = keys.T")
def moco_python_pointer(compile) -> Job:
    class MoCo(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k = net(8, 6), net(8, 6)
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
    model = net(8, 6)
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
    model = net(8, 6)
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
    student = net()
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
    model = net()
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
    batches = [(x, y, torch.randn(12, 8, generator=g)) for x, y in classed(6, 8)]
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

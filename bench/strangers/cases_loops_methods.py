"""Steps of people's own loops: methods of papers, written by hand."""

from __future__ import annotations

import collections
import math
import random

import torch
import torch.nn.functional as F
from job import LONG, STEPS, Job, adamw, case, classed, each_call, net, training, vectors
from torch import nn


@case("torch", "Gumbel softmax with a temperature that falls, hard=True")
def gumbel(compile) -> Job:
    model, codes = net(8, 6), nn.Linear(6, 8)
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
    a, b = net(8, 6), net(4, 6)
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

    model = net()
    model[0], model[2] = Lora(model[0]), Lora(model[2])
    return training(compile, model, vectors(6, 8), lambda m, x, y: F.mse_loss(m(x), y))


@case("torch", "DDPM: t by randint, buffers indexed, classifier-free: if random() < 0.1 the label is dropped")
def ddpm(compile) -> Job:
    alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 100), 0)
    model = nn.ModuleDict({"n": net(8 + 4 + 4, 8), "c": nn.Embedding(5, 4), "t": nn.Embedding(100, 4)})
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

    return Job(each_call(compile(train_step), classed(6, 8, count=LONG)), [model], [optimizer])


@case("torch", "curriculum: the number of samples grows, x[: n] with n from a schedule")
def curriculum(compile) -> Job:
    model = net()
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
    model = net(8, 6)
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
    model = net()
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

    return Job(each_call(compile(train_step), classed(8, 8)), [model], [optimizer])


@case("torch", "deep supervision, weights as a Python list by epoch; tensors made from it")
def list_weights(compile) -> Job:
    model = nn.ModuleList([net(8, 8), net(8, 8), net(8, 4)])
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
    model = net()
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

    batches = [(x, y.tolist()) for x, y in classed(4, 8)]
    return Job(each_call(compile(train_step), batches), [model], [optimizer])


@case("torch", "a class with self.step, self.logs of lists, print every 4 calls by f-string")
def trainer_class(compile) -> Job:
    class Trainer:
        def __init__(self):
            self.model = net()
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

"""Steps of people's own loops: optimizers and gradients in ways of one's own."""

from __future__ import annotations

import math
import random

import torch
import torch.nn.functional as F
from job import LONG, STEPS, Job, adamw, case, classed, each_call, generator, net, vectors
from torch import nn


@case("torch", "SAM with a closure: first_step, second_step by hand, norm over a list")
def sam_by_hand(compile) -> Job:
    model = net()
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
    body, heads = net(8, 8), nn.ModuleList(nn.Linear(8, 2) for _ in range(3))
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
    model = net()
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
    model = net()
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
    embed, model = nn.Embedding(50, 8, sparse=True), net()
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
    model = net()
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
    g, d = net(4, 8), net(8, 1)
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
    g, d = net(4, 8), nn.Sequential(nn.Linear(8, 16), nn.Softplus(), nn.Linear(16, 1))
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

    model = net()
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
    model = net()
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
    model = net()
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
    model = net()
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
    model = net()
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

    return Job(each_call(compile(train_step), classed(6, 8)), [model], [optimizer])

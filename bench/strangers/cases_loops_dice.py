"""Steps of people's own loops: dice of Python's: mixup, augmentations, layer drop, sampled branches."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
from job import LONG, Job, adamw, case, classed, each_call, net, pictures, tokens, training, vectors
from torch import nn


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
    model = net()
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

    return Job(each_call(compile(train_step), classed(8, 8, count=LONG)), [model], [optimizer])


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
            self.rate, self.body, self.gamma = rate, net(8, 8), nn.Parameter(1e-1 * torch.ones(8))

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
            self.layers, self.head = nn.ModuleList(net(8, 8) for _ in range(4)), nn.Linear(8, 4)

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

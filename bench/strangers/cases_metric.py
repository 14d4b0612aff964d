"""Contrastive and metric learning: embeddings, momentum encoders, queues, miners."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from job import Job, case, each_call, pictures, training
from torch import nn


def _embedder() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(True), nn.Flatten(), nn.Linear(128, 16))


@case("torch", "SimCLR, NT-Xent")
def simclr(compile) -> Job:
    def loss(m, a, b):
        z = F.normalize(m(torch.cat([a, b])), dim=1)
        scores = (z @ z.T / 0.1).masked_fill(torch.eye(len(z), dtype=torch.bool), float("-inf"))
        return F.cross_entropy(scores, (torch.arange(len(z)) + len(a)) % len(z))

    return training(compile, _embedder(), [(x[:4], x[4:]) for x, _ in pictures(8, 3, 8, 8)], loss)


@case("torch", "MoCo: momentum encoder and a queue with a pointer")
def moco(compile) -> Job:
    class MoCo(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k = _embedder(), _embedder()
            for a, b in zip(self.q.parameters(), self.k.parameters()):
                b.data.copy_(a.data)
                b.requires_grad = False
            self.register_buffer("queue", F.normalize(torch.randn(16, 32), dim=0))
            self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

        def forward(self, a, b):
            q = F.normalize(self.q(a), dim=1)
            with torch.no_grad():
                for one, two in zip(self.q.parameters(), self.k.parameters()):
                    two.data = two.data * 0.99 + one.data * 0.01
                k = F.normalize(self.k(b), dim=1)
            scores = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone().detach()], 1) / 0.07
            with torch.no_grad():
                at = int(self.pointer)
                self.queue[:, at : at + len(k)] = k.T
                self.pointer[0] = (at + len(k)) % 32
            return F.cross_entropy(scores, torch.zeros(len(a), dtype=torch.long))

    return training(compile, MoCo(), [(x[:4], x[4:]) for x, _ in pictures(8, 3, 8, 8)], lambda m, a, b: m(a, b))


@case("torch", "BYOL: target network by a moving average in the step")
def byol(compile) -> Job:
    online, predictor = _embedder(), nn.Linear(16, 16)
    target = copy.deepcopy(online).requires_grad_(False)
    optimizer = torch.optim.SGD([*online.parameters(), *predictor.parameters()], lr=1e-2, momentum=0.9)

    def train_step(a, b):
        optimizer.zero_grad()
        with torch.no_grad():
            za, zb = target(a), target(b)
        value = (
            -F.cosine_similarity(predictor(online(a)), zb).mean() - F.cosine_similarity(predictor(online(b)), za).mean()
        )
        value.backward()
        optimizer.step()
        with torch.no_grad():
            for t, p in zip(target.parameters(), online.parameters()):
                t.data = 0.99 * t.data + 0.01 * p.data
        return value.detach()

    return Job(
        each_call(compile(train_step), [(x[:4], x[4:]) for x, _ in pictures(8, 3, 8, 8)]),
        [online, predictor, target],
        [optimizer],
    )


@case("pytorch-metric-learning", "proxy anchors")
def pml_proxy(compile) -> Job:
    from pytorch_metric_learning import losses

    model, loss = _embedder(), losses.ProxyAnchorLoss(num_classes=5, embedding_size=16)
    optimizer = torch.optim.AdamW([*model.parameters(), *loss.parameters()], lr=1e-3)
    job = training(compile, model, pictures(8, 3, 8, 8, classes=5), lambda m, x, y: loss(m(x), y), optimizer)
    job.modules.append(loss)
    return job


@case("pytorch-metric-learning", "triplets from a miner", data_decides="the miner chooses triplets by the distances")
def pml_triplet(compile) -> Job:
    from pytorch_metric_learning import losses, miners

    loss, miner = losses.TripletMarginLoss(), miners.MultiSimilarityMiner()

    def value(m, x, y):
        z = m(x)
        return loss(z, y, miner(z, y))

    return training(compile, _embedder(), pictures(8, 3, 8, 8, classes=3), value)


@case("torch", "siamese net, margin ranking")
def siamese(compile) -> Job:
    def loss(m, x, y):
        z = m(x)
        return F.triplet_margin_loss(z[0::3], z[1::3], z[2::3], margin=0.5, swap=True)

    return training(compile, _embedder(), pictures(9, 3, 8, 8), loss)

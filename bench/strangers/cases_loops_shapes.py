"""Steps of people's own loops: shapes that the data decide: masks, unique, mixtures of experts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from job import LONG, STEPS, Job, adamw, case, classed, each_call, generator, net, training, vectors
from torch import nn
from torch.nn.utils.rnn import pad_sequence


@case("torch", "loss over x[mask] with another count in each batch")
def masked_rows(compile) -> Job:
    model = net()
    optimizer = adamw(model)

    def train_step(x, y):
        mask = y > 0
        out = model(x)
        loss = F.cross_entropy(out[mask], y[mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Job(each_call(compile(train_step), classed(16, 8, count=LONG)), [model], [optimizer])


@case("torch", "hard examples: losses[losses > losses.mean()].mean()")
def hard_examples(compile) -> Job:
    model = net()
    optimizer = adamw(model)

    def train_step(x, y):
        losses = F.cross_entropy(model(x), y, reduction="none")
        loss = losses[losses > losses.mean()].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Job(each_call(compile(train_step), classed(16, 8, count=LONG)), [model], [optimizer])


@case("torch", "batch-hard triplets: a Python loop over unique labels")
def unique_labels(compile) -> Job:
    model = net()
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

    return Job(each_call(compile(train_step), classed(16, 8, count=LONG)), [model], [optimizer])


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
            self.gate, self.experts = nn.Linear(8, 4), nn.ModuleList(net(8, 8) for _ in range(4))
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
            self.score, self.body, self.head = nn.Linear(8, 1), net(8, 8), nn.Linear(8, 4)

        def forward(self, x):
            score = self.score(x).squeeze(-1)
            value, index = score.topk(3, dim=1)
            kept = x.gather(1, index[..., None].expand(-1, -1, 8)) * value.sigmoid()[..., None]
            return self.head(self.body(kept).mean(1))

    g = generator()
    batches = [(torch.randn(4, 9, 8, generator=g), torch.randn(4, 4, generator=g)) for _ in range(STEPS)]
    return training(compile, Drops(), batches, lambda m, x, y: F.mse_loss(m(x), y))

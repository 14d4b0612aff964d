"""Small random training programs: layers, a loss, an optimizer and habits of training, all from one seed.

    seed ──► Program ──► run("cpu") == run("standin")      losses, tensors of model and optimizer, at each step

Chains of layers over one of three shapes of data: rows, images, sequences of tokens. What the CPU computes otherwise than
devices do is left out: dropouts whose 1/(1-p) rounds differently, and recurrent cells, which devices fuse.
"""

import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

DROPOUTS = (0.1, 0.25, 0.5)
ACTIVATIONS = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.LeakyReLU, nn.Softplus, nn.Hardswish)


class Residual(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x)


class Checkpointed(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)


class Attention(nn.Module):
    def __init__(self, width, heads, dropout, causal):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.dropout, self.causal = heads, dropout, causal

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class InPlace(nn.Module):
    """Writes into a view of what it makes."""

    def forward(self, x):
        y = x * 2
        y[..., : y.shape[-1] // 2].mul_(0.5).add_(1)
        return torch.cat(y.split(1)).relu_()


class Program:
    def __init__(self, seed):
        self.seed = seed
        draw = self.draw = random.Random(seed)
        self.kind = draw.choice(["rows", "images", "tokens"])
        self.batch, self.width = draw.randint(2, 5), draw.choice([4, 6, 8, 12])
        self.classes, self.length = draw.randint(2, 7), draw.randint(3, 9)
        self.layers = draw.getstate()
        self.loss = draw.choice(["cross_entropy", "mse", "smooth_l1", "bce"])
        self.accumulate, self.clip = draw.choice([1, 1, 2]), draw.random() < 0.4
        self.foreach, self.to_none = draw.random() < 0.5, draw.random() < 0.7
        self.optimizer = self.choose_optimizer()

    def choose_optimizer(self):
        draw = self.draw
        name = draw.choice(["SGD", "SGD", "Adam", "AdamW", "AdamW", "RMSprop", "Adagrad", "Adamax", "NAdam", "RAdam"])
        options = {"lr": 0.01, "weight_decay": draw.choice([0, 0.01])}
        if name == "SGD":
            options |= draw.choice([{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}])
        if name in ("Adam", "AdamW"):
            options |= draw.choice([{}, {"amsgrad": True}])
        form = {"foreach": self.foreach}
        if name in ("SGD", "Adam", "AdamW") and draw.random() < 0.4:
            form = {"fused": True}
        return name, options | form

    # ---- Model and data, on the CPU

    def block(self):
        draw, width = self.draw, self.width
        activation = draw.choice(ACTIVATIONS)()
        if self.kind == "images":
            made = [
                lambda: nn.Conv2d(width, width, 3, 1, 1, bias=draw.random() < 0.5),
                lambda: nn.Conv2d(width, width, 3, 1, 2, dilation=2, groups=2),
                lambda: nn.BatchNorm2d(width),
                lambda: nn.GroupNorm(2, width),
                lambda: draw.choice([nn.MaxPool2d, nn.AvgPool2d])(3, 1, 1),
                lambda: nn.Dropout2d(draw.choice(DROPOUTS)),
            ]
        else:
            made = [
                lambda: nn.Linear(width, width, bias=draw.random() < 0.7),
                lambda: nn.LayerNorm(width),
                lambda: nn.RMSNorm(width),
                lambda: nn.Softmax(-1),
            ]
            if self.kind == "rows":
                made.append(lambda: nn.BatchNorm1d(width))
            else:
                made.append(lambda: Attention(width, 2, draw.choice([0.0, *DROPOUTS]), draw.random() < 0.5))
        made += [lambda: activation, lambda: nn.Dropout(draw.choice(DROPOUTS)), InPlace]
        block = nn.Sequential(*[draw.choice(made)() for _ in range(draw.randint(1, 3))])
        return draw.choice([lambda b: b, Residual, Checkpointed])(block)

    def model(self):
        self.draw.setstate(self.layers)
        blocks = [self.block() for _ in range(self.draw.randint(1, 4))]
        if self.kind == "tokens":
            head = nn.Linear(self.width, self.classes, bias=False)
            embedding = nn.Embedding(self.classes, self.width)
            if self.draw.random() < 0.5:
                head.weight = embedding.weight
            return nn.Sequential(embedding, *blocks, head, nn.Flatten(0, 1))
        if self.kind == "images":
            first = nn.Conv2d(3, self.width, 3, self.draw.choice([1, 2]))
            return nn.Sequential(
                first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(self.width, self.classes)
            )
        return nn.Sequential(nn.Linear(5, self.width), *blocks, nn.Linear(self.width, self.classes))

    def data(self):
        if self.kind == "tokens":
            shape = self.batch, self.length
            return torch.randint(0, self.classes, shape), torch.randint(0, self.classes, shape).flatten()
        x = torch.randn(self.batch, 3, 9, 9) if self.kind == "images" else torch.randn(self.batch, 5)
        return x, torch.randint(0, self.classes, (self.batch,))

    def loss_of(self, output, target):
        if self.loss == "cross_entropy":
            return F.cross_entropy(output, target)
        wanted = F.one_hot(target, self.classes).to(output.dtype)
        if self.loss == "bce":
            return F.binary_cross_entropy_with_logits(output, wanted)
        return {"mse": F.mse_loss, "smooth_l1": F.smooth_l1_loss}[self.loss](output, wanted)

    # ---- Training

    def run(self, device, move=lambda model: model, steps=3, wrap=lambda step: step):
        """After each step: its loss, then all parameters, buffers and states of the optimizer. ``wrap``: what makes of
        the step another callable that does the same."""
        torch.manual_seed(self.seed)
        model = move(self.model())
        batches = [tuple(t.to(device) for t in self.data()) for _ in range(self.accumulate)]
        name, options = self.optimizer
        optimizer = getattr(torch.optim, name)(model.parameters(), **options)
        torch.manual_seed(self.seed + 1)

        def step(batches):
            for x, target in batches:
                loss = self.loss_of(model(x), target)
                loss.backward()
            if self.clip:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5, foreach=self.foreach)
            optimizer.step()
            optimizer.zero_grad(set_to_none=self.to_none)
            return loss.detach()

        step = wrap(step)
        for _ in range(steps):
            loss = step(batches)
            state = [v for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
            yield [t.detach().cpu().clone() for t in [loss, *model.state_dict().values(), *state]]

    def __repr__(self):
        return f"seed {self.seed}: {self.kind}, {self.loss}, {self.optimizer}, {self.model()}"

"""Training loops for bench/eager/eager.py and bench/eager/eager_bits.py: steps of tens to hundreds of milliseconds on one core,
dropout and BatchNorm on.

``make(name)`` returns a Loop; ``loop.step(i)`` trains on batch i, the same one in every process. Two of them differ
from step to step: ``varying`` in the length of its batch, ``depth`` in how many of its blocks run. Neither could be
captured once."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

BATCHES = 8  # then they repeat


@dataclasses.dataclass
class Loop:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[nn.Module, Any], torch.Tensor]
    batches: list
    around_forward: Callable = None  # a context for the forward pass

    def step(self, i: int) -> torch.Tensor:
        if self.around_forward is None:
            loss = self.loss(self.model, self.batches[i % len(self.batches)])
        else:
            with self.around_forward():
                loss = self.loss(self.model, self.batches[i % len(self.batches)])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


def _generator(i: int) -> torch.Generator:
    return torch.Generator().manual_seed(100 + i)


def _tokens(vocabulary: int, count: int, lengths: list[int]) -> list[torch.Tensor]:
    return [torch.randint(0, vocabulary, (count, length), generator=_generator(i)) for i, length in enumerate(lengths)]


def _images(count: int, size: int, classes: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [
        (
            torch.randn((count, 3, size, size), generator=_generator(i)),
            torch.randint(0, classes, (count,), generator=_generator(i)),
        )
        for i in range(2)
    ]


class _Block(nn.Module):
    """A block that is checkpointed or not."""

    def __init__(self, body: nn.Module, checkpointed: bool):
        super().__init__()
        self.body, self._checkpointed = body, checkpointed

    def forward(self, *args):
        return (
            checkpoint(self.body, *args, use_reentrant=False)
            if self._checkpointed and self.training
            else self.body(*args)
        )


# ---- Transformers


def gpt2(checkpointed: bool = False, layers: int = 4, width: int = 256, count: int = 4, tokens: int = 128):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=layers,
        n_embd=width,
        n_head=4,
        n_positions=tokens,
        vocab_size=1000,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    model = GPT2LMHeadModel(config)
    if checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model, lambda m, x: m(input_ids=x, labels=x).loss, _tokens(1000, count, [tokens] * 2)


def launch(checkpointed: bool = False):
    """GPT-2 of two layers, width 32: its kernels are so short that their launches are most of the step."""
    return gpt2(checkpointed, 2, 32, 2, 32)


def bert(checkpointed: bool = False, layers: int = 4, width: int = 256, tokens: int = 128):
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        num_hidden_layers=layers, hidden_size=width, num_attention_heads=4, intermediate_size=4 * width, vocab_size=2000
    )
    model = BertForMaskedLM(config)
    if checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model, lambda m, x: m(input_ids=x, labels=x).loss, _tokens(2000, 4, [tokens] * 2)


class _Encoder(nn.Module):
    def __init__(self, checkpointed: bool, width: int, layers: int, vocabulary: int = 1000):
        super().__init__()
        self.embed, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
        self.layers = nn.ModuleList(
            _Block(nn.TransformerEncoderLayer(width, 4, 4 * width, 0.1, batch_first=True), checkpointed)
            for _ in range(layers)
        )

    def forward(self, x):
        y = self.embed(x)
        for layer in self.layers:
            y = layer(y)
        return self.head(y)


def varying(checkpointed: bool = False, width: int = 192, layers: int = 6, tokens: int = 48):
    """A Transformer encoder of 6 layers, width 192, with 48 to 176 tokens a batch."""
    lengths = [random.Random(i).randrange(tokens, 4 * tokens - 15, 8) for i in range(BATCHES)]
    return (
        _Encoder(checkpointed, width=width, layers=layers),
        lambda m, x: F.cross_entropy(m(x).flatten(0, 1), x.flatten()),
        _tokens(1000, 4, lengths),
    )


# ---- Convolutions


class _ResNetBlock(nn.Module):
    def __init__(self, i: int, o: int, stride: int):
        super().__init__()
        inner = o // 4
        self.body = nn.Sequential(
            nn.Conv2d(i, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(inplace=True),
            nn.Conv2d(inner, inner, 3, stride, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(inplace=True),
            nn.Conv2d(inner, o, 1, bias=False),
            nn.BatchNorm2d(o),
        )
        same = i == o and stride == 1
        self.side = nn.Identity() if same else nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))

    def forward(self, x):
        return F.relu_(self.body(x) + self.side(x))


class _ResNet(nn.Module):
    """He et al. (2016) with bottlenecks."""

    def __init__(self, depths: tuple[int, ...], checkpointed: bool, width: int, classes: int = 100):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        blocks, i = [], width
        for stage, depth in enumerate(depths):
            for n in range(depth):
                blocks.append(_Block(_ResNetBlock(i, 4 * width << stage, 2 if stage and n == 0 else 1), checkpointed))
                i = 4 * width << stage
        self.blocks, self.out = nn.Sequential(*blocks), nn.Linear(i, classes)

    def forward(self, x):
        return self.out(F.dropout(self.blocks(self.stem(x)).mean((2, 3)), 0.1, self.training))


def resnet(depths: tuple[int, ...], checkpointed: bool, count: int, size: int, width: int):
    return _ResNet(depths, checkpointed, width), lambda m, b: F.cross_entropy(m(b[0]), b[1]), _images(count, size, 100)


def resnet50(checkpointed: bool = False, count: int = 8, size: int = 64, width: int = 64):
    return resnet((3, 4, 6, 3), checkpointed, count, size, width)


def resnet101(checkpointed: bool = False, count: int = 8, size: int = 64, width: int = 64):
    return resnet((3, 4, 23, 3), checkpointed, count, size, width)


class _Depth(nn.Module):
    """Huang et al. (2016), stochastic depth: each step trains another subset of 16 residual blocks, with BatchNorm and
    dropout."""

    def __init__(self, checkpointed: bool, width: int):
        super().__init__()
        self.stem, self.out = nn.Conv2d(3, width, 3, padding=1), nn.Linear(width, 10)
        body = lambda: nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.Dropout(0.1),
        )
        self.blocks = nn.ModuleList(_Block(body(), checkpointed) for _ in range(16))

    def forward(self, x, which):
        y = self.stem(x)
        for k in which:
            y = F.relu(y + self.blocks[k](y))
        return self.out(y.mean((2, 3)))


def depth(checkpointed: bool = False, count: int = 8, width: int = 48):
    """16 residual blocks of which 5 to 16 run, drawn anew for each batch."""
    images = _images(count, 32, 10) * (BATCHES // 2)
    chosen = [sorted(random.Random(i).sample(range(16), random.Random(i + 50).randint(5, 16))) for i in range(BATCHES)]
    return (
        _Depth(checkpointed, width),
        lambda m, b: F.cross_entropy(m(b[0][0], b[1]), b[0][1]),
        list(zip(images, chosen)),
    )


BUILDERS: dict[str, Callable] = {f.__name__: f for f in (gpt2, bert, resnet50, resnet101, varying, depth, launch)}
OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=False),
    "foreach": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True),
    "fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, foreach=False),
}
# The same networks, so small that hundreds of runs take minutes.
SMALL = {
    "gpt2": {"layers": 3, "width": 64, "count": 2, "tokens": 64},
    "bert": {"layers": 3, "width": 64, "tokens": 48},
    "resnet50": {"count": 2, "size": 32, "width": 16},
    "resnet101": {"count": 2, "size": 32, "width": 16},
    "varying": {"width": 64, "layers": 3, "tokens": 24},
    "depth": {"count": 2, "width": 16},
}
USUAL = {"resnet50": "sgd", "resnet101": "sgd", "depth": "sgd"}


def make(name: str, optimizer: str | None = None, small: bool = False, **options: Any) -> Loop:
    torch.manual_seed(0)
    model, loss, batches = BUILDERS[name](**(SMALL.get(name, {}) if small else {}), **options)
    return Loop(model.train(), OPTIMIZERS[optimizer or USUAL.get(name, "fused")](model.parameters()), loss, batches)

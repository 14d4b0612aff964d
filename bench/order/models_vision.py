"""Convolutional nets of the planning benchmarks, after their papers and with the channels of the well-known
implementations.

Only what shapes the graph matters here: weights are random (or fake), nothing is downloaded. Each factory returns the
model alone."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
from torch import nn


def _conv(
    i: int, o: int, k: int, stride: int = 1, groups: int = 1, act: type[nn.Module] | None = nn.ReLU, dilation: int = 1
) -> nn.Sequential:
    """Convolution without bias, batch norm, activation."""
    layers: list[nn.Module] = [
        nn.Conv2d(i, o, k, stride, (k - 1) // 2 * dilation, groups=groups, bias=False, dilation=dilation),
        nn.BatchNorm2d(o),
    ]
    return nn.Sequential(*layers, *([act(inplace=True)] if act else []))


# ---- Plain stacks


def alexnet() -> nn.Module:
    """Krizhevsky (2014), "one weird trick"."""
    relu = lambda: nn.ReLU(inplace=True)
    return nn.Sequential(
        nn.Conv2d(3, 64, 11, 4, 2),
        relu(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(64, 192, 5, padding=2),
        relu(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(192, 384, 3, padding=1),
        relu(),
        nn.Conv2d(384, 256, 3, padding=1),
        relu(),
        nn.Conv2d(256, 256, 3, padding=1),
        relu(),
        nn.MaxPool2d(3, 2),
        nn.AdaptiveAvgPool2d(6),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(9216, 4096),
        relu(),
        nn.Dropout(),
        nn.Linear(4096, 4096),
        relu(),
        nn.Linear(4096, 1000),
    )


def vgg11() -> nn.Module:
    """Simonyan and Zisserman (2015), configuration A."""
    layers: list[nn.Module] = []
    channels = 3
    for width in (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)] if width else [nn.MaxPool2d(2)]
        channels = width or channels
    return nn.Sequential(
        *layers,
        nn.AdaptiveAvgPool2d(7),
        nn.Flatten(),
        nn.Linear(25088, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(4096, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(4096, 1000),
    )


# ---- Inverted residuals


class _Residual(nn.Module):
    def __init__(self, body: nn.Module):
        super().__init__()
        self.body = body

    def forward(self, x):
        return x + self.body(x)


def _inverted(i: int, o: int, k: int, stride: int, expand: int, act: type[nn.Module], extra=None, last=()) -> nn.Module:
    wide = i * expand
    head = [_conv(i, wide, 1, act=act)] if expand != 1 else []
    squeeze = [extra(wide, i)] if extra else []
    body = nn.Sequential(*head, _conv(wide, wide, k, stride, wide, act), *squeeze, _conv(wide, o, 1, act=None), *last)
    return _Residual(body) if stride == 1 and i == o else nn.Sequential(*list(body)[: len(body) - len(last)])


def _stages(i: int, table, act, extra=None, drop=lambda n: ()) -> tuple[list[nn.Module], int]:
    """table: rows of (kernel, stride, expansion, channels, repeats)."""
    blocks: list[nn.Module] = []
    for k, stride, expand, o, repeats in table:
        for n in range(repeats):
            blocks.append(_inverted(i, o, k, stride if n == 0 else 1, expand, act, extra, drop(len(blocks))))
            i = o
    return blocks, i


def _classifier(i: int, dropout: float) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout), nn.Linear(i, 1000)]


def mnasnet0_5() -> nn.Module:
    """Tan et al. (2019), depth multiplier 0.5."""
    table = (
        (3, 2, 3, 16, 3),
        (5, 2, 3, 24, 3),
        (5, 2, 6, 40, 3),
        (3, 1, 6, 48, 2),
        (5, 2, 6, 96, 4),
        (3, 1, 6, 160, 1),
    )
    blocks, i = _stages(8, table, nn.ReLU)
    return nn.Sequential(
        _conv(3, 16, 3, 2),
        _conv(16, 16, 3, groups=16),
        _conv(16, 8, 1, act=None),
        *blocks,
        _conv(i, 1280, 1),
        *_classifier(1280, 0.2),
    )


def mobilenet_v2() -> nn.Module:
    """Sandler et al. (2018)."""
    table = (
        (3, 1, 1, 16, 1),
        (3, 2, 6, 24, 2),
        (3, 2, 6, 32, 3),
        (3, 2, 6, 64, 4),
        (3, 1, 6, 96, 3),
        (3, 2, 6, 160, 3),
        (3, 1, 6, 320, 1),
    )
    blocks, i = _stages(32, table, nn.ReLU6)
    return nn.Sequential(
        _conv(3, 32, 3, 2, act=nn.ReLU6), *blocks, _conv(i, 1280, 1, act=nn.ReLU6), *_classifier(1280, 0.2)
    )


class _SqueezeExcite(nn.Module):
    def __init__(self, wide: int, i: int):
        super().__init__()
        self.down, self.up = nn.Conv2d(wide, max(1, i // 4), 1), nn.Conv2d(max(1, i // 4), wide, 1)

    def forward(self, x):
        return torch.sigmoid(self.up(F.silu(self.down(F.adaptive_avg_pool2d(x, 1))))) * x


class _StochasticDepth(nn.Module):
    """Drops the branch of whole images (Huang et al., 2016)."""

    def __init__(self, drop: float):
        super().__init__()
        self.keep = 1 - drop

    def forward(self, x):
        noise = torch.empty((x.shape[0], 1, 1, 1), dtype=x.dtype, device=x.device).bernoulli_(self.keep)
        return x * noise.div_(self.keep)


def efficientnet_b0() -> nn.Module:
    """Tan and Le (2019)."""
    table = (
        (3, 1, 1, 16, 1),
        (3, 2, 6, 24, 2),
        (5, 2, 6, 40, 2),
        (3, 2, 6, 80, 3),
        (5, 1, 6, 112, 3),
        (5, 2, 6, 192, 4),
        (3, 1, 6, 320, 1),
    )
    blocks, i = _stages(32, table, nn.SiLU, _SqueezeExcite, lambda n: (_StochasticDepth(0.2 * n / 16),))
    return nn.Sequential(
        _conv(3, 32, 3, 2, act=nn.SiLU), *blocks, _conv(i, 1280, 1, act=nn.SiLU), *_classifier(1280, 0.2)
    )


# ---- Residual and dense nets


class _Bottleneck(nn.Module):
    def __init__(self, i: int, width: int, stride: int, dilation: int):
        super().__init__()
        self.body = nn.Sequential(
            _conv(i, width, 1), _conv(width, width, 3, stride, dilation=dilation), _conv(width, 4 * width, 1, act=None)
        )
        self.side = _conv(i, 4 * width, 1, stride, act=None) if stride > 1 or i != 4 * width else nn.Identity()

    def forward(self, x):
        y = self.body(x)
        y += self.side(x)
        return F.relu_(y)


def _resnet50_stages(dilated: bool = False) -> list[nn.Sequential]:
    stages, i, dilation = [nn.Sequential(_conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1))], 64, 1
    for n, (width, count) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        stride = 2 if n else 1
        blocks = []
        for b in range(count):
            at_once, dilation = dilation, dilation * 2 if b == 0 and dilated and n >= 2 else dilation
            blocks.append(
                _Bottleneck(
                    i, width, stride if b == 0 and not (dilated and n >= 2) else 1, at_once if b == 0 else dilation
                )
            )
            i = 4 * width
        stages.append(nn.Sequential(*blocks))
    return stages


def resnet50() -> nn.Module:
    """He et al. (2016)."""
    return nn.Sequential(*_resnet50_stages(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


class _DenseLayer(nn.Module):
    def __init__(self, i: int, growth: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(i),
            nn.ReLU(inplace=True),
            nn.Conv2d(i, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth),
            nn.ReLU(inplace=True),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )

    def forward(self, kept):
        return [*kept, self.body(torch.cat(kept, 1))]


class _DenseBlock(nn.Module):
    def __init__(self, i: int, growth: int, count: int):
        super().__init__()
        self.layers = nn.ModuleList(_DenseLayer(i + n * growth, growth) for n in range(count))

    def forward(self, x):
        kept = [x]
        for layer in self.layers:
            kept = layer(kept)
        return torch.cat(kept, 1)


def densenet121() -> nn.Module:
    """Huang et al. (2017), growth 32."""
    layers: list[nn.Module] = [_conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    i = 64
    for n, count in enumerate((6, 12, 24, 16)):
        layers.append(_DenseBlock(i, 32, count))
        i += 32 * count
        layers += [nn.BatchNorm2d(i), nn.ReLU(inplace=True)]
        if n < 3:
            layers += [nn.Conv2d(i, i // 2, 1, bias=False), nn.AvgPool2d(2)]
            i //= 2
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(i, 1000))


class _Inception(nn.Module):
    def __init__(self, i: int, one: int, three: tuple[int, int], five: tuple[int, int], pool: int):
        super().__init__()
        self.branches = nn.ModuleList(
            (
                _conv(i, one, 1),
                nn.Sequential(_conv(i, three[0], 1), _conv(*three, 3)),
                nn.Sequential(_conv(i, five[0], 1), _conv(*five, 3)),
                nn.Sequential(nn.MaxPool2d(3, 1, 1), _conv(i, pool, 1)),
            )
        )

    def forward(self, x):
        return torch.cat([branch(x) for branch in self.branches], 1)


def googlenet() -> nn.Module:
    """Szegedy et al. (2015), with batch norm and without the side classifiers."""
    rows = (
        (192, 64, (96, 128), (16, 32), 32),
        (256, 128, (128, 192), (32, 96), 64),
        None,
        (480, 192, (96, 208), (16, 48), 64),
        (512, 160, (112, 224), (24, 64), 64),
        (512, 128, (128, 256), (24, 64), 64),
        (512, 112, (144, 288), (32, 64), 64),
        (528, 256, (160, 320), (32, 128), 128),
        None,
        (832, 256, (160, 320), (32, 128), 128),
        (832, 384, (192, 384), (48, 128), 128),
    )
    blocks = [_Inception(*row) if row else nn.MaxPool2d(3, 2, 1) for row in rows]
    return nn.Sequential(
        _conv(3, 64, 7, 2),
        nn.MaxPool2d(3, 2, 1),
        _conv(64, 64, 1),
        _conv(64, 192, 3),
        nn.MaxPool2d(3, 2, 1),
        *blocks,
        *_classifier(1024, 0.2),
    )


class _DeepLab(nn.Module):
    """Chen et al. (2017): dilated ResNet-50, pyramid of dilated convolutions, a side classifier on the third stage."""

    def __init__(self, classes: int = 21):
        super().__init__()
        stages = _resnet50_stages(dilated=True)
        self.stem, self.last = nn.Sequential(*stages[:4]), stages[4]
        self.pyramid = nn.ModuleList([_conv(2048, 256, 1), *(_conv(2048, 256, 3, dilation=d) for d in (12, 24, 36))])
        self.pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), _conv(2048, 256, 1))
        self.head = nn.Sequential(_conv(1280, 256, 1), nn.Dropout(0.5), _conv(256, 256, 3), nn.Conv2d(256, classes, 1))
        self.side = nn.Sequential(_conv(1024, 256, 3), nn.Dropout(0.1), nn.Conv2d(256, classes, 1))

    def forward(self, x):
        low = self.stem(x)
        high = self.last(low)
        up = lambda y, size: F.interpolate(y, size=size, mode="bilinear", align_corners=False)
        branches = [branch(high) for branch in self.pyramid] + [up(self.pooled(high), high.shape[-2:])]
        return up(self.head(torch.cat(branches, 1)), x.shape[-2:]), up(self.side(low), x.shape[-2:])


def deeplabv3_r50() -> nn.Module:
    return _DeepLab()


# ---- A randomly wired net


def _wiring(nodes: int, neighbours: int, probability: float, generator: random.Random) -> list[list[int]]:
    """Watts-Strogatz graph, its edges directed from the smaller node to the larger; the predecessors of each node."""
    edges = set()
    for v in range(nodes):
        for step in range(1, neighbours // 2 + 1):
            w = (v + step) % nodes
            if generator.random() < probability:
                w = generator.choice([u for u in range(nodes) if u != v and (min(u, v), max(u, v)) not in edges])
            edges.add((min(v, w), max(v, w)))
    return [sorted(a for a, b in edges if b == v) for v in range(nodes)]


class _WiredNode(nn.Module):
    def __init__(self, inputs: int, i: int, o: int, stride: int):
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(inputs)) if inputs > 1 else None
        self.depthwise, self.pointwise = (
            nn.Conv2d(i, i, 3, stride, 1, groups=i, bias=False),
            nn.Conv2d(i, o, 1, bias=False),
        )
        self.norm = nn.BatchNorm2d(o)

    def forward(self, inputs):
        x = inputs[0]
        if self.weights is not None:
            w = torch.sigmoid(self.weights)
            x = sum(w[n] * y for n, y in enumerate(inputs))
        return self.norm(self.pointwise(self.depthwise(F.relu(x))))


class _WiredStage(nn.Module):
    def __init__(self, i: int, o: int, generator: random.Random):
        super().__init__()
        self.preds = _wiring(32, 4, 0.75, generator)
        self.nodes = nn.ModuleList(_WiredNode(max(1, len(p)), o if p else i, o, 1 if p else 2) for p in self.preds)
        used = {a for p in self.preds for a in p}
        self.ends = [v for v in range(len(self.preds)) if v not in used]

    def forward(self, x):
        made = []
        for preds, node in zip(self.preds, self.nodes):
            made.append(node([made[p] for p in preds] or [x]))
        return sum(made[v] for v in self.ends) / len(self.ends)


def randwire() -> nn.Module:
    """Xie et al. (2019): three stages of 32 nodes, WS(4, 0.75), 78 channels; the wiring is the same in every run."""
    generator = random.Random(0)
    return nn.Sequential(
        _conv(3, 39, 3, 2, act=None),
        nn.ReLU(),
        nn.Conv2d(39, 78, 3, 2, 1, bias=False),
        nn.BatchNorm2d(78),
        *(_WiredStage(i, o, generator) for i, o in ((78, 78), (78, 156), (156, 312))),
        nn.ReLU(),
        nn.Conv2d(312, 1280, 1, bias=False),
        nn.BatchNorm2d(1280),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(1280, 1000),
    )

"""Ops that a plan leaves to DTensor, whose rules are of many minds: modules and functions of each kind, on parameters in parts."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from shard_pair import Pair, columns_plan, step_of, zero_plan
from torch import nn

ROWS, WIDTH, LENGTH = 4, 8, 6


class _Table(nn.Module):
    """Looked up twice by tensors of one shape; each result has two readers."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, WIDTH)

    def forward(self, x):
        ids = x.detach().mul(7).long().abs() % 11
        a, b = self.table(ids.sum(1) % 11), self.table(ids.sum(2) % 11)
        return (a.sin() * a).sum(1) + (b.cos() + b).sum(1)


class _Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, WIDTH, padding_idx=0)

    def forward(self, x):
        h = self.table(x.detach().mul(7).long().abs().sum(1) % 11)
        return F.linear(h + h.tanh(), self.table.weight)


class _Bag(nn.Module):
    def __init__(self, mode: str):
        super().__init__()
        self.table = nn.EmbeddingBag(11, WIDTH, mode=mode)

    def forward(self, x):
        return self.table(x.detach().mul(7).long().abs().sum(1) % 11)


class _Of(nn.Module):
    """A function of the rows, which have passed a layer whose weights are in parts."""

    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(LENGTH, LENGTH), function

    def forward(self, x):
        return self.function(self.layer(x))


def _chosen(h):
    return h.flatten(1).gather(1, h.flatten(1).topk(3, 1).indices) * torch.arange(3)


MODULES = {
    "Conv1d": lambda: nn.Conv1d(WIDTH, 2 * WIDTH, 3, padding=1),
    "Conv1d, twice": lambda: nn.Sequential(nn.Conv1d(WIDTH, 6, 3, padding=1), nn.GELU(), nn.Conv1d(6, 5, 3, stride=2)),
    "Conv1d, by groups": lambda: nn.Conv1d(WIDTH, 2 * WIDTH, 3, groups=4),
    "Conv1d, no bias": lambda: nn.Conv1d(WIDTH, 7, 2, bias=False, dilation=2),
    "Conv2d": lambda: nn.Sequential(nn.Unflatten(1, (2, 4)), nn.Conv2d(2, 7, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
    "Conv3d": lambda: nn.Sequential(nn.Unflatten(1, (2, 2, 2)), nn.Conv3d(2, 5, 2)),
    "ConvTranspose1d": lambda: nn.ConvTranspose1d(WIDTH, 5, 3, stride=2),
    "ConvTranspose2d": lambda: nn.Sequential(nn.Unflatten(1, (2, 4)), nn.ConvTranspose2d(2, 3, 2)),
    "BatchNorm1d": lambda: nn.BatchNorm1d(WIDTH),
    "GroupNorm": lambda: nn.GroupNorm(2, WIDTH),
    "InstanceNorm1d": lambda: nn.InstanceNorm1d(WIDTH, affine=True),
    "LayerNorm": lambda: nn.LayerNorm([WIDTH, LENGTH]),
    "RMSNorm": lambda: nn.RMSNorm(LENGTH),
    "PReLU": lambda: nn.PReLU(WIDTH),
    "Bilinear": lambda: _Of(lambda h: F.bilinear(h, h, torch.ones(3, LENGTH, LENGTH, dtype=h.dtype))),
    "a table": _Table,
    "a tied table": _Tied,
    "bags, sum": lambda: _Bag("sum"),
    "bags, mean": lambda: _Bag("mean"),
    "attention": lambda: _Of(lambda h: F.scaled_dot_product_attention(h, h, h, is_causal=True)),
    "mish": lambda: _Of(F.mish),
    "softplus": lambda: _Of(F.softplus),
    "glu": lambda: _Of(lambda h: F.glu(h, 1)),
    "softmax": lambda: _Of(lambda h: h.softmax(-1).pow(2)),
    "log_softmax": lambda: _Of(lambda h: h.log_softmax(1)),
    "logsumexp": lambda: _Of(lambda h: h.logsumexp((0, 1))),
    "logcumsumexp": lambda: _Of(lambda h: h.logcumsumexp(1)),
    "cumsum": lambda: _Of(lambda h: h.cumsum(0)),
    "cumprod": lambda: _Of(lambda h: h.cumprod(1)),
    "sort": lambda: _Of(lambda h: h.sort(1).values * torch.arange(LENGTH)),
    "topk and gather": lambda: _Of(_chosen),
    "amax": lambda: _Of(lambda h: h.amax(1)),
    "median": lambda: _Of(lambda h: h.median(2).values),
    "var and std": lambda: _Of(lambda h: h.var(1) + h.std(0).sum()),
    "norms": lambda: _Of(lambda h: F.normalize(h, dim=1) + h.norm() + h.norm(3, 1, keepdim=True)),
    "prod": lambda: _Of(lambda h: h.prod(2)),
    "einsum": lambda: _Of(lambda h: torch.einsum("btc,bsc,bs->bt", h, h, h[:, :, 0])),
    "matrix functions": lambda: _Of(lambda h: torch.linalg.solve(h @ h.mT + 3 * torch.eye(WIDTH), h)),
    "inverse and determinant": lambda: _Of(lambda h: (h.mT @ h + 2 * torch.eye(LENGTH)).inverse() + torch.det(h.mT @ h)[0]),
    "roll and flip": lambda: _Of(lambda h: h.roll(2, 1) * h.flip(1)),
    "pad, circular": lambda: _Of(lambda h: F.pad(h, (2, 1), mode="circular") * 2),
    "pad, shifted": lambda: _Of(lambda h: F.pad(h, (1, -1)) + F.pad(h, (0, 0, -1, 1)) + F.pad(h, (0, 0, 0, 0, 2, -2))),
    "pad": lambda: _Of(lambda h: F.pad(h, (1, 2), mode="reflect") [..., 1:] * 2),
    "unfold": lambda: _Of(lambda h: h.unfold(1, 3, 2).sum(-1)),
    "interpolate": lambda: _Of(lambda h: F.interpolate(h, scale_factor=2, mode="linear")),
    "adaptive pool": lambda: _Of(lambda h: F.adaptive_avg_pool1d(h, 4)),
    "pixel shuffle": lambda: _Of(lambda h: F.pixel_shuffle(h.unflatten(2, (2, 3)), 2)),
    "chunks": lambda: _Of(lambda h: torch.cat([c * (i + 1) for i, c in enumerate(h.chunk(3, 2))], 2)),
    "stacks": lambda: _Of(lambda h: torch.stack([h[i] * i for i in range(ROWS)], 2)),
    "index_select": lambda: _Of(lambda h: h.index_select(1, torch.tensor([3, 0, 3]))),
    "index_add": lambda: _Of(lambda h: torch.zeros(3, LENGTH, dtype=h.dtype).index_add(0, torch.arange(WIDTH) % 3, h[0])),
    "index_put": lambda: _Of(lambda h: h.index_put((torch.tensor([1, 2]),), h[0].detach() * 2)),
    "scatter_add": lambda: _Of(lambda h: h.scatter_add(1, torch.arange(LENGTH).expand(ROWS, 2, LENGTH) % WIDTH, h[:, :2])),
    "masks": lambda: _Of(lambda h: h.masked_fill(h > 0.2, 0.5) + torch.where(h < 0, h * 3, h)),
    "masked_select": lambda: _Of(lambda h: h.tril().diagonal(dim1=1, dim2=2) * h.triu()[:, 0, :LENGTH]),
    "cdist": lambda: _Of(lambda h: torch.cdist(h, h + 1)),
    "cosine": lambda: _Of(lambda h: F.cosine_similarity(h[:, :1], h, -1)),
    "complex": lambda: _Of(lambda h: torch.fft.rfft(h, dim=2).abs()),
    "cross": lambda: _Of(lambda h: torch.linalg.cross(h[..., :3], h[..., 3:])),
    "meshgrid": lambda: _Of(lambda h: torch.outer(h[0, 0], h[1, 1]).kron(h[0, :2, :2])),
    "trapezoid": lambda: _Of(lambda h: torch.trapezoid(h, dim=1) + torch.diff(h, dim=2).sum()),
    "polar": lambda: _Of(lambda h: torch.view_as_real(torch.polar(h.abs() + 1, h)).sum(-1)),
    "special": lambda: _Of(lambda h: torch.erf(h) + torch.lgamma(h.abs() + 1) + torch.logit(h.sigmoid() * 0.9)),
    "renorm": lambda: _Of(lambda h: h.clamp(-1, 1) + h.lerp(h * 2, 0.3) + torch.addcmul(h, h, h, value=0.5)),
    "baddbmm": lambda: _Of(lambda h: torch.baddbmm(h @ h.mT, h, h.mT, beta=0.5)),
    "repeat": lambda: _Of(lambda h: h.repeat(2, 1, 1) * h.repeat_interleave(2, 0) + h.tile(2, 1, 1)),
    "cross entropy": lambda: _Of(lambda h: F.cross_entropy(h, torch.arange(LENGTH).expand(ROWS, LENGTH) % WIDTH, label_smoothing=0.1)),
    "kl_div": lambda: _Of(lambda h: F.kl_div(h.log_softmax(1), h.flip(1).softmax(1), reduction="batchmean")),
    "huber_loss": lambda: _Of(lambda h: F.huber_loss(h, h.roll(1))),
    "smooth_l1_loss": lambda: _Of(lambda h: F.smooth_l1_loss(h, h.roll(1), reduction="sum")),
    "l1_loss": lambda: _Of(lambda h: F.l1_loss(h, h.roll(1))),
    "mse_loss": lambda: _Of(lambda h: F.mse_loss(h, h.roll(1))),
    "binary_cross_entropy": lambda: _Of(lambda h: F.binary_cross_entropy(h.sigmoid(), h.detach().sigmoid())),
    "with logits": lambda: _Of(lambda h: F.binary_cross_entropy_with_logits(h, h.detach().sigmoid())),
    "soft_margin_loss": lambda: _Of(lambda h: F.soft_margin_loss(h, h.detach().sign())),
    "multi_margin_loss": lambda: _Of(lambda h: F.multi_margin_loss(h[:, :, 0], torch.arange(ROWS))),
    "poisson_nll_loss": lambda: _Of(lambda h: F.poisson_nll_loss(h, h.roll(1).abs())),
    "cosine_embedding_loss": lambda: _Of(lambda h: F.cosine_embedding_loss(h[0], h[1], torch.tensor([1, -1] * 4))),
    "margin_ranking_loss": lambda: _Of(lambda h: F.margin_ranking_loss(h[0], h[1], h[2].detach().sign())),
    "triplet_margin_loss": lambda: _Of(lambda h: F.triplet_margin_loss(h[0], h[1], h[2])),
    "multilabel_margin_loss": lambda: _Of(lambda h: F.multilabel_margin_loss(h[0], torch.arange(LENGTH).expand(WIDTH, -1))),
    "multilabel_soft": lambda: _Of(lambda h: F.multilabel_soft_margin_loss(h[0], h[1].sigmoid().detach())),
    "hinge_embedding_loss": lambda: _Of(lambda h: F.hinge_embedding_loss(h, h.detach().sign())),
    "sums, filled": lambda: _Of(lambda h: torch.empty_like(h.sum(2)).fill_(1.5) * h.sum(2)),
    "sums, written to": lambda: _Of(lambda h: h.sum(2).add_(0.3).mul_(2).sub_(h.sum(2)).clamp_(-1)),
    "means, written to": lambda: _Of(lambda h: h.mean(2).add_(0.3).mul_(2) * h.mean((1, 2), keepdim=True)[:, 0].sub_(1)),
    "extremes, written to": lambda: _Of(lambda h: h.detach().amax(2).add_(0.3).mul_(2) * h.sum(2) + h.detach().amin(2).sub_(1)),
    "products, written to": lambda: _Of(lambda h: h.detach().prod(2).add_(0.3) * h.sum(2)),
    "RMS norm of all": lambda: _Of(lambda h: F.rms_norm(h, (WIDTH, LENGTH), eps=0.1)),
    "shifts": lambda: _Of(lambda h: h * (h.detach().mul(9).long() << 1) + ((h.detach() * 9).long() >> 1)),
    "bits": lambda: _Of(lambda h: h * ((h.detach() > 0) & (h.detach() < 1) | (h.detach() < -1)) + ((h.detach() * 9).long() ^ 5)),
    "sums, overwritten": lambda: _Of(lambda h: h.sum(2).copy_(h[..., 0]) + h.mean(2).zero_() + h.sum(2).fill_(2)),
    "sums, of numbers": lambda: _Of(lambda h: (1 - h.sum(2)) * (h.mean(2) + 2) / (3 + h.sum().square())),
    "sums, like": lambda: _Of(lambda h: torch.ones_like(h.sum(2)) * h.sum() + torch.full_like(h.mean(2), 0.1) * h.mean()),
    "sums, compared": lambda: _Of(lambda h: torch.maximum(h.sum(2), h.mean(2)) + h.sum(2).relu() + h.sum(2).abs()),
    "sums, joined": lambda: _Of(lambda h: torch.cat([h.sum(2), h[..., 0], h.mean(2).exp()], 1)),
    "sums, multiplied": lambda: _Of(lambda h: h.sum(2).mT @ h.mean(2) + torch.outer(h.sum((1, 2)), h.mean((1, 2)))[:1, :1]),
}  # fmt: skip


# Each of the tensors that a draw is given: an element's number depends on where in memory it lies.
LAYOUTS = {
    "as made": lambda h: h,
    "transposed": lambda h: h.transpose(0, 1),
    "last two turned": lambda h: h.mT,
    "turned round": lambda h: h.permute(2, 0, 1),
    "sliced": lambda h: h[:, 1:7:2],
    "a row": lambda h: h[1],
    "expanded": lambda h: h[:, :1].expand(-1, 3, -1),
    "summed": lambda h: h.sum(1),
    "channels last": lambda h: h.unflatten(1, (2, 4)).to(memory_format=torch.channels_last),
}
DRAWS = {
    "dropout": lambda h: F.dropout(h, 0.3),
    "dropout1d": lambda h: F.dropout1d(h.flatten(1)[None], 0.3),
    "alpha_dropout": lambda h: F.alpha_dropout(h, 0.3),
    "bernoulli": lambda h: h * torch.bernoulli(h.detach().sigmoid()),
    "bernoulli, one number": lambda h: h * torch.empty_like(h).bernoulli_(0.4),
    "bernoulli, of each": lambda h: h * torch.zeros_like(h).bernoulli_(h.detach().sigmoid()),
    "rows first": lambda h: h * torch.empty_like(h, memory_format=torch.contiguous_format).exponential_(),
    "rand_like": lambda h: h * torch.rand_like(h),
    "randn_like": lambda h: h + torch.randn_like(h),
    "randint_like": lambda h: h * torch.randint_like(h, 5),
    "rand": lambda h: h * torch.rand(h.shape, dtype=h.dtype),
    "randperm": lambda h: h[torch.randperm(h.shape[0])],
    "normal_": lambda h: h + torch.empty_like(h).normal_(),
    "normal": lambda h: h + torch.normal(h.detach(), 0.5),
    "uniform_": lambda h: h * torch.zeros_like(h).uniform_(-1, 2),
    "exponential_": lambda h: h * torch.empty_like(h).exponential_(),
    "log_normal_": lambda h: h * torch.empty_like(h).log_normal_().clamp(max=9),
    "cauchy_": lambda h: h + torch.empty_like(h).cauchy_().clamp(-9, 9),
    "geometric_": lambda h: h * torch.empty_like(h).geometric_(0.5),
    "random_": lambda h: h * torch.empty_like(h).random_(3),
    "poisson": lambda h: h * torch.poisson(h.detach().abs()),
    "multinomial": lambda h: h + torch.multinomial(h.detach().flatten(1).softmax(-1) if h.dim() > 2 else h.detach().softmax(-1), 2).sum(),
    "rrelu": lambda h: F.rrelu(h, training=True),
    "gumbel_softmax": lambda h: F.gumbel_softmax(h, dim=-1),
    "part of a tensor": lambda h: h + torch.zeros(2, *h.shape, dtype=h.dtype)[1].normal_(),
    "its own values": lambda h: h.clone().mul_(2).uniform_() + h,
}  # fmt: skip


class _Drawn(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.layer, self.draw = nn.Linear(LENGTH, LENGTH), draw

    def forward(self, x):
        h = self.layer(x)
        return torch.stack([self.draw(layout(h)).square().mean() for layout in LAYOUTS.values()])


def _training(make_module):
    def make():
        torch.manual_seed(0)
        model = make_module().double()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)
        return model, optimizer, step_of(lambda x: model(x).square().mean(), optimizer)

    return make


def _each_kind(size, plan, modules=MODULES) -> None:
    generator = torch.Generator().manual_seed(3)
    batches = [(torch.randn(ROWS, WIDTH, LENGTH, generator=generator, dtype=torch.float64),) for _ in range(5)]
    wrong = []
    for name, make_module in modules.items():
        try:
            pair = Pair(_training(make_module), batches, (size,), plan=plan)
            for step in ("alone_step", "step"):
                setattr(pair, step, _seeded(getattr(pair, step)))
            pair.run(1e-9)
            step = pair.step.of
            if step.refusal or not step.stats()["planned_steps"]:
                wrong.append(f"{name}: never planned: {step.refusal}")
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
    assert not wrong, "\n".join(wrong)


def _seeded(step):
    """Two of these in turn draw the same numbers."""
    calls = iter(range(100))

    def seeded(*batch):
        torch.manual_seed(next(calls))
        return step(*batch)

    seeded.of = step
    return seeded


def _draws(names=tuple(DRAWS)) -> dict:
    return {name: functools.partial(_Drawn, DRAWS[name]) for name in names}


# The rest runs in ./dev soak.
ONCE_WRONG = (
    "Conv1d, twice", "Conv2d", "a table", "a tied table", "mish", "mse_loss", "soft_margin_loss", "cosine_embedding_loss",
    "BatchNorm1d", "sums, filled", "means, written to", "products, written to", "RMS norm of all", "shifts")  # fmt: skip


def ops_that_were_once_wrong(rank, size):
    _each_kind(size, zero_plan, {name: MODULES[name] for name in ONCE_WRONG})


def random_numbers_that_were_once_wrong(rank, size):
    for plan in (None, zero_plan):
        _each_kind(size, plan, _draws(("dropout", "rows first", "normal_", "log_normal_")))


def ops_of_each_kind_run_as_dtensor_runs_them(rank, size):
    _each_kind(size, zero_plan)


def ops_of_each_kind_run_as_dtensor_runs_them_on_columns(rank, size):
    _each_kind(size, columns_plan)


def ops_of_each_kind_run_as_the_plan_wants(rank, size):
    _each_kind(size, None)


def random_numbers_go_to_the_elements_of_one_process(rank, size):
    _each_kind(size, None, _draws())


def random_numbers_left_to_dtensor_go_to_the_elements_of_one_process(rank, size):
    _each_kind(size, zero_plan, _draws())

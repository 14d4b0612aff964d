"""Generative models, reinforcement, distillation and others, of the kinds of pytorch/examples."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from job import STEPS, Job, case, generator, pictures, tokens, training, vectors
from torch import nn


@case("torch", "VAE")
def vae(compile) -> Job:
    class Vae(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.mean, self.logvar, self.decode = (
                nn.Linear(64, 32),
                nn.Linear(32, 8),
                nn.Linear(32, 8),
                nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64)),
            )

        def forward(self, x):
            h = F.relu(self.body(x))
            mean, logvar = self.mean(h), self.logvar(h)
            return torch.sigmoid(self.decode(mean + torch.randn_like(mean) * torch.exp(0.5 * logvar))), mean, logvar

    def loss(m, x):
        out, mean, logvar = m(x)
        return F.binary_cross_entropy(out, x, reduction="sum") - 0.5 * torch.sum(
            1 + logvar - mean.pow(2) - logvar.exp()
        )

    return training(compile, Vae(), [(torch.sigmoid(x),) for x, _ in vectors(6, 64)], loss)


@case("torch", "VQ-VAE: codebook by moving averages, straight-through")
def vq_vae(compile) -> Job:
    class Quantizer(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode, self.decode = nn.Linear(16, 8), nn.Linear(8, 16)
            self.register_buffer("codes", torch.randn(12, 8))
            self.register_buffer("counts", torch.zeros(12))

        def forward(self, x):
            z = self.encode(x)
            which = torch.cdist(z, self.codes).argmin(1)
            with torch.no_grad():
                one = F.one_hot(which, 12).to(z.dtype)
                self.counts.mul_(0.99).add_(one.sum(0), alpha=0.01)
                self.codes.mul_(0.99).add_((one.T @ z) / self.counts.clamp(min=1e-3)[:, None], alpha=0.01)
            q = self.codes[which]
            return self.decode(z + (q - z).detach()), F.mse_loss(z, q.detach())

    return training(
        compile,
        Quantizer(),
        vectors(8, 16, out=16),
        lambda m, x, y: (lambda o: F.mse_loss(o[0], x) + 0.25 * o[1])(m(x)),
    )


@case("torch", "normalizing flow by torch.distributions")
def flow(compile) -> Job:
    class Coupling(nn.Module):
        def __init__(self):
            super().__init__()
            self.nets = nn.ModuleList(nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 4)) for _ in range(3))

        def forward(self, x):
            total = 0.0
            for net in self.nets:
                a, b = x.chunk(2, 1)
                scale, shift = net(a).chunk(2, 1)
                scale = torch.tanh(scale)
                x, total = torch.cat([b * scale.exp() + shift, a], 1), total + scale.sum(1)
            return torch.distributions.MultivariateNormal(torch.zeros(4), torch.eye(4)).log_prob(x) + total

    return training(compile, Coupling(), vectors(8, 4), lambda m, x, _: -m(x).mean())


@case("torch", "mixture density network: MixtureSameFamily")
def mixture_density(compile) -> Job:
    dist = torch.distributions

    def loss(m, x, y):
        logits, mean, scale = m(x).view(-1, 3, 4).unbind(1)
        mixture = dist.MixtureSameFamily(dist.Categorical(logits=logits), dist.Normal(mean, F.softplus(scale) + 1e-3))
        return -mixture.log_prob(y[:, 0]).mean()

    return training(compile, nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 12)), vectors(6, 8), loss)


@case("torch", "actor and critic: actions drawn by Categorical")
def actor_critic(compile) -> Job:
    body, actor, critic = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 1)
    model = nn.ModuleDict({"body": body, "actor": actor, "critic": critic})

    def loss(m, x, y):
        h = torch.tanh(body(x))
        policy = torch.distributions.Categorical(logits=actor(h))
        action = policy.sample()
        reward = y.gather(1, action[:, None])[:, 0]
        advantage = reward - critic(h)[:, 0]
        return (
            (-policy.log_prob(action) * advantage.detach()).mean()
            + advantage.pow(2).mean()
            - 0.01 * policy.entropy().mean()
        )

    return training(compile, model, vectors(6, 8), loss)


@case("torch", "DQN: target net copied every 4 steps, outside")
def dqn(compile) -> Job:
    q = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    target, optimizer = copy.deepcopy(q), torch.optim.AdamW(q.parameters(), lr=1e-3, amsgrad=True)

    def train_step(x, action, reward, after):
        with torch.no_grad():
            wanted = reward + 0.9 * target(after).max(1).values
        value = F.smooth_l1_loss(q(x).gather(1, action[:, None])[:, 0], wanted)
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_value_(q.parameters(), 100)
        optimizer.step()
        return value.detach()

    step, g = compile(train_step), generator()

    def run(observe) -> None:
        for i in range(STEPS):
            batch = (
                torch.randn(6, 8, generator=g),
                torch.randint(0, 4, (6,), generator=g),
                torch.randn(6, generator=g),
                torch.randn(6, 8, generator=g),
            )
            observe(step(*batch))
            if i % 4 == 3:
                target.load_state_dict(q.state_dict())

    return Job(run, [q, target], [optimizer])


@case("torch", "distillation from a frozen teacher in eval mode")
def distillation(compile) -> Job:
    teacher = (
        nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.Dropout(0.5), nn.Linear(32, 10)).eval().requires_grad_(False)
    )
    student = nn.Sequential(nn.Flatten(), nn.Linear(192, 10))

    def loss(m, x, y):
        with torch.no_grad():
            soft = teacher(x)
        out = m(x)
        return (
            F.cross_entropy(out, y)
            + F.kl_div(F.log_softmax(out / 2, 1), F.softmax(soft / 2, 1), reduction="batchmean") * 4
        )

    return training(compile, student, pictures(4, 3, 8, 8), loss)


@case("torch", "super resolution: PixelShuffle")
def super_resolution(compile) -> Job:
    model = nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 4, 3, padding=1), nn.PixelShuffle(2))
    g = generator()
    batches = [(torch.randn(2, 1, 8, 8, generator=g), torch.randn(2, 1, 16, 16, generator=g)) for _ in range(STEPS)]
    return training(compile, model, batches, lambda m, x, y: F.mse_loss(m(x), y))


@case("torchvision", "fast neural style: a frozen VGG, Gram matrices")
def neural_style(compile) -> Job:
    import torchvision

    features = torchvision.models.vgg11(weights=None).features[:8].eval().requires_grad_(False)
    for layer in features:
        if isinstance(layer, nn.ReLU):
            layer.inplace = False
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.InstanceNorm2d(8, affine=True), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1)
    )
    gram = lambda f: (f.flatten(2) @ f.flatten(2).transpose(1, 2)) / f[0].numel()

    def loss(m, x, _):
        out, style = features(m(x)), gram(features(torch.ones(1, 3, 32, 32)))
        return F.mse_loss(out, features(x)) + 10 * F.mse_loss(gram(out), style.expand(len(x), -1, -1))

    return training(compile, model, pictures(2, 3, 32, 32), loss)


@case("torch", "neural ODE by Runge-Kutta")
def neural_ode(compile) -> Job:
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4))

    def loss(m, x, y):
        for _ in range(5):
            a = m(x)
            b = m(x + 0.05 * a)
            c = m(x + 0.05 * b)
            x = x + (0.1 / 6) * (a + 2 * b + 2 * c + m(x + 0.1 * c))
        return F.mse_loss(x, y)

    return training(compile, model, vectors(6, 4), loss)


@case("torch", "recommender: EmbeddingBag, interactions, BCE")
def recommender(compile) -> Job:
    class Dlrm(nn.Module):
        def __init__(self):
            super().__init__()
            self.bags = nn.ModuleList(nn.EmbeddingBag(40, 8, mode="sum") for _ in range(3))
            self.dense, self.head = nn.Linear(8, 8), nn.Linear(8 + 6, 1)

        def forward(self, x, ids):
            z = torch.stack([F.relu(self.dense(x)), *(bag(i) for bag, i in zip(self.bags, ids.unbind(1)))], 1)
            pairs = torch.bmm(z, z.transpose(1, 2))
            i, j = torch.tril_indices(4, 4, -1)
            return self.head(torch.cat([z[:, 0], pairs[:, i, j]], 1))[:, 0]

    g = generator()
    batches = [
        (
            torch.randn(5, 8, generator=g),
            torch.randint(0, 40, (5, 3, 4), generator=g),
            torch.randint(0, 2, (5,), generator=g).float(),
        )
        for _ in range(STEPS)
    ]
    return training(compile, Dlrm(), batches, lambda m, x, i, y: F.binary_cross_entropy_with_logits(m(x, i), y))


@case("torch", "CTC over an LSTM")
def ctc(compile) -> Job:
    class Listener(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 12)

        def forward(self, x):
            return self.head(self.body(x)[0]).log_softmax(-1)

    g = generator()
    batches = [(torch.randn(3, 20, 8, generator=g), torch.randint(1, 12, (3, 6), generator=g)) for _ in range(STEPS)]
    return training(
        compile, Listener(), batches, lambda m, x, y: F.ctc_loss(m(x).transpose(0, 1), y, (20, 20, 20), (6, 6, 6))
    )


@case(
    "torch",
    "AdaptiveLogSoftmax over a large vocabulary",
    data_decides="words are sorted into clusters by boolean masks",
)
def adaptive_softmax(compile) -> Job:
    model = nn.ModuleDict({"embed": nn.Embedding(60, 16), "head": nn.AdaptiveLogSoftmaxWithLoss(16, 60, [10, 30])})
    return training(
        compile,
        model,
        [(x,) for (x,) in tokens(60, 3, 10)],
        lambda m, x: m["head"](m["embed"](x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()).loss,
    )

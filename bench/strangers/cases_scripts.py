"""Whole scripts' steps: recurrent nets, GANs, contrastive and metric learning, distillation, reinforcement, Lightning
modules."""

from __future__ import annotations

import copy
import itertools

import torch
import torch.nn.functional as F
from job import STEPS, Job, adamw, case, each_call, generator, pictures, tokens, training, vectors
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

# ---- Recurrent nets


class _Tagger(nn.Module):
    def __init__(self, kind: type, **options):
        super().__init__()
        self.embed, self.body = nn.Embedding(50, 16), kind(16, 24, batch_first=True, **options)
        self.head = nn.Linear(24 * (2 if options.get("bidirectional") else 1), 50)

    def forward(self, x):
        return self.head(self.body(self.embed(x))[0])


def _tagging(compile, kind: type, **options) -> Job:
    return training(
        compile,
        _Tagger(kind, **options),
        tokens(50, 4, 12),
        lambda m, x: F.cross_entropy(m(x).flatten(0, 1), x.flatten()),
    )


@case("torch", "LSTM, two layers, dropout, bidirectional")
def lstm(compile) -> Job:
    return _tagging(compile, nn.LSTM, num_layers=2, dropout=0.1, bidirectional=True)


@case("torch", "GRU, two layers, dropout")
def gru(compile) -> Job:
    return _tagging(compile, nn.GRU, num_layers=2, dropout=0.1)


@case("torch", "RNN of tanh")
def rnn(compile) -> Job:
    return _tagging(compile, nn.RNN)


@case("torch", "LSTM with projections")
def lstm_projected(compile) -> Job:
    model = nn.LSTM(8, 16, proj_size=4, batch_first=True)
    return training(compile, model, vectors(4, 10, 8), lambda m, x, y: F.mse_loss(m(x)[0], y))


def _packed(compile, kind: type, fixed: bool) -> Job:
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.body, self.head = nn.Embedding(50, 16), kind(16, 24, batch_first=True), nn.Linear(24, 50)

        def forward(self, x, lengths):
            packed = pack_padded_sequence(self.embed(x), lengths, batch_first=True, enforce_sorted=False)
            out, _ = pad_packed_sequence(self.body(packed)[0], batch_first=True, total_length=x.shape[1])
            return self.head(out)

    g = generator()
    lengths = [torch.tensor([12, 9, 7, 4]) if fixed else torch.randint(4, 13, (4,), generator=g) for _ in range(STEPS)]
    batches = [(x, n) for (x,), n in zip(tokens(50, 4, 12), lengths)]
    return training(compile, Packed(), batches, lambda m, x, n: F.cross_entropy(m(x, n).flatten(0, 1), x.flatten()))


@case("torch", "packed sequences through an LSTM, the same lengths in each batch")
def packed_lstm(compile) -> Job:
    return _packed(compile, nn.LSTM, True)


@case(
    "torch",
    "packed sequences through a GRU, other lengths in each batch",
    data_decides="the lengths of the sequences decide the shapes",
)
def packed_gru(compile) -> Job:
    return _packed(compile, nn.GRU, False)


@case("torch", "word language model: the hidden state goes from batch to batch")
def word_language_model(compile) -> Job:
    model = nn.ModuleDict({"embed": nn.Embedding(50, 16), "body": nn.LSTM(16, 24), "head": nn.Linear(24, 50)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(x, y, hidden):
        optimizer.zero_grad()
        out, hidden = model["body"](model["embed"](x), tuple(h.detach() for h in hidden))
        value = F.cross_entropy(model["head"](out).flatten(0, 1), y.flatten())
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        return value.detach(), tuple(h.detach() for h in hidden)

    step = compile(train_step)

    def run(observe) -> None:
        hidden = (torch.zeros(1, 4, 24), torch.zeros(1, 4, 24))
        for (x,) in tokens(50, 11, 4):
            value, hidden = step(x[:-1], x[1:], hidden)
            observe((value, *hidden))

    return Job(run, [model], [optimizer])


@case("torch", "time sequence prediction: two LSTMCells, a loop over time")
def lstm_cells(compile) -> Job:
    class Sequence(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.head = nn.LSTMCell(1, 12), nn.LSTMCell(12, 12), nn.Linear(12, 1)

        def forward(self, x):
            h, c, h2, c2 = (torch.zeros(x.shape[0], 12) for _ in range(4))
            out = []
            for part in x.split(1, 1):
                h, c = self.one(part, (h, c))
                h2, c2 = self.two(h, (h2, c2))
                out.append(self.head(h2))
            return torch.cat(out, 1)

    return training(compile, Sequence(), vectors(4, 20, out=20), lambda m, x, y: F.mse_loss(m(x), y))


@case("torch", "sequence to sequence: GRUCell with attention and teacher forcing")
def seq2seq(compile) -> Job:
    class Translator(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.encoder, self.cell = (
                nn.Embedding(50, 16),
                nn.GRU(16, 16, batch_first=True),
                nn.GRUCell(32, 16),
            )
            self.score, self.head = nn.Linear(16, 16), nn.Linear(16, 50)

        def forward(self, x, y):
            memory, h = self.encoder(self.embed(x))
            h, out = h[0], []
            for t in range(y.shape[1] - 1):
                weight = torch.softmax((self.score(h)[:, None] * memory).sum(-1), -1)
                h = self.cell(torch.cat([self.embed(y[:, t]), (weight[..., None] * memory).sum(1)], -1), h)
                out.append(self.head(h))
            return torch.stack(out, 1)

    batches = [(x[:, :8], x[:, 8:]) for (x,) in tokens(50, 4, 15)]
    return training(
        compile, Translator(), batches, lambda m, x, y: F.cross_entropy(m(x, y).flatten(0, 1), y[:, 1:].flatten())
    )


@case("torch", "nn.Transformer with source padding and causal masks")
def nn_transformer(compile) -> Job:
    class Translator(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.body = nn.Embedding(50, 32), nn.Transformer(32, 4, 2, 2, 64, batch_first=True)
            self.head = nn.Linear(32, 50)

        def forward(self, x, y):
            causal = nn.Transformer.generate_square_subsequent_mask(y.shape[1])
            return self.head(
                self.body(
                    self.embed(x),
                    self.embed(y),
                    tgt_mask=causal,
                    tgt_is_causal=True,
                    src_key_padding_mask=x < 6,
                    memory_key_padding_mask=x < 6,
                )
            )

    batches = [(x[:, :9], x[:, 9:]) for (x,) in tokens(50, 3, 18)]
    return training(compile, Translator(), batches, lambda m, x, y: F.cross_entropy(m(x, y).flatten(0, 1), y.flatten()))


# ---- GANs


def _gan_nets():
    g = nn.Sequential(
        nn.ConvTranspose2d(8, 16, 4), nn.BatchNorm2d(16), nn.ReLU(True), nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Tanh()
    )
    d = nn.Sequential(
        nn.Conv2d(3, 16, 4, 2, 1),
        nn.LeakyReLU(0.2, inplace=True),
        nn.BatchNorm2d(16),
        nn.Conv2d(16, 1, 4),
        nn.Flatten(0),
    )
    return (
        g,
        d,
        torch.optim.Adam(g.parameters(), 2e-4, (0.5, 0.999)),
        torch.optim.Adam(d.parameters(), 2e-4, (0.5, 0.999)),
    )


@case("torch", "DCGAN, both updates in one step")
def dcgan(compile) -> Job:
    g, d, opt_g, opt_d = _gan_nets()
    judge = nn.BCEWithLogitsLoss()

    def train_step(x):
        d.zero_grad()
        real = judge(d(x), torch.ones(x.shape[0]))
        real.backward()
        fake = g(torch.randn(x.shape[0], 8, 1, 1))
        made = judge(d(fake.detach()), torch.zeros(x.shape[0]))
        made.backward()
        opt_d.step()
        g.zero_grad()
        value = judge(d(fake), torch.ones(x.shape[0]))
        value.backward()
        opt_g.step()
        return (real + made).detach(), value.detach()

    return Job(each_call(compile(train_step), [(x,) for x, _ in pictures(4, 3, 8, 8)]), [g, d], [opt_g, opt_d])


@case("torch", "GAN, the two updates compiled apart")
def gan_two_steps(compile) -> Job:
    g, d, opt_g, opt_d = _gan_nets()
    judge = nn.BCEWithLogitsLoss()

    def update_d(x):
        opt_d.zero_grad()
        value = judge(d(x), torch.ones(x.shape[0])) + judge(
            d(g(torch.randn(x.shape[0], 8, 1, 1)).detach()), torch.zeros(x.shape[0])
        )
        value.backward()
        opt_d.step()
        return value.detach()

    def update_g(x):
        opt_g.zero_grad()
        value = judge(d(g(torch.randn(x.shape[0], 8, 1, 1))), torch.ones(x.shape[0]))
        value.backward()
        opt_g.step()
        return value.detach()

    first, second = compile(update_d), compile(update_g)

    def run(observe) -> None:
        for x, _ in pictures(4, 3, 8, 8):
            observe((first(x), second(x)))

    return Job(run, [g, d], [opt_g, opt_d])


@case("torch", "WGAN-GP, gradient penalty")
def wgan_gp(compile) -> Job:
    g, d, opt_g, opt_d = _gan_nets()
    d = nn.Sequential(
        nn.Conv2d(3, 16, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.InstanceNorm2d(16, affine=True),
        nn.Conv2d(16, 1, 4),
        nn.Flatten(0),
    )
    opt_d = torch.optim.Adam(d.parameters(), 2e-4, (0.0, 0.9))

    def train_step(x):
        opt_d.zero_grad()
        fake = g(torch.randn(x.shape[0], 8, 1, 1)).detach()
        weight = torch.rand(x.shape[0], 1, 1, 1)
        between = (weight * x + (1 - weight) * fake).requires_grad_(True)
        slope = torch.autograd.grad(d(between).sum(), between, create_graph=True)[0]
        value = d(fake).mean() - d(x).mean() + 10 * ((slope.flatten(1).norm(2, 1) - 1) ** 2).mean()
        value.backward()
        opt_d.step()
        opt_g.zero_grad()
        (-d(g(torch.randn(x.shape[0], 8, 1, 1))).mean()).backward()
        opt_g.step()
        return value.detach()

    return Job(each_call(compile(train_step), [(x,) for x, _ in pictures(4, 3, 8, 8)]), [g, d], [opt_g, opt_d])


@case("torch", "CycleGAN: two generators, two critics, chained parameters")
def cycle_gan(compile) -> Job:
    make_g = lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.InstanceNorm2d(8), nn.ReLU(True), nn.Conv2d(8, 3, 3, padding=1), nn.Tanh()
    )
    make_d = lambda: nn.Sequential(nn.Conv2d(3, 8, 4, 2, 1), nn.LeakyReLU(0.2, True), nn.Conv2d(8, 1, 3, padding=1))
    ab, ba, da, db = make_g(), make_g(), make_d(), make_d()
    opt_g = torch.optim.Adam(itertools.chain(ab.parameters(), ba.parameters()), 2e-4)
    opt_d = torch.optim.Adam(itertools.chain(da.parameters(), db.parameters()), 2e-4)

    def train_step(a, b):
        for p in itertools.chain(da.parameters(), db.parameters()):
            p.requires_grad = False
        opt_g.zero_grad()
        fake_b, fake_a = ab(a), ba(b)
        value = (F.mse_loss(db(fake_b), torch.ones(2, 1, 8, 8)) + F.mse_loss(da(fake_a), torch.ones(2, 1, 8, 8))
                 + 10 * (F.l1_loss(ba(fake_b), a) + F.l1_loss(ab(fake_a), b)))  # fmt: skip
        value.backward()
        opt_g.step()
        for p in itertools.chain(da.parameters(), db.parameters()):
            p.requires_grad = True
        opt_d.zero_grad()
        for d, real, fake in ((da, a, fake_a), (db, b, fake_b)):
            (
                0.5
                * (F.mse_loss(d(real), torch.ones(2, 1, 8, 8)) + F.mse_loss(d(fake.detach()), torch.zeros(2, 1, 8, 8)))
            ).backward()
        opt_d.step()
        return value.detach()

    batches = [(x[:2], x[2:]) for x, _ in pictures(4, 3, 16, 16)]
    return Job(each_call(compile(train_step), batches), [ab, ba, da, db], [opt_g, opt_d])


# ---- Contrastive and metric learning


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


# ---- Generative and others of pytorch/examples' kinds


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


# ---- Lightning


def _lightning_module():
    import lightning

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(
                nn.Flatten(), nn.Linear(192, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10)
            )

        def training_step(self, batch, batch_idx):
            x, y = batch
            return F.cross_entropy(self.net(x), y)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    return Net()


@case("lightning", "LightningModule, an own loop around training_step")
def lightning_module(compile) -> Job:
    module = _lightning_module().train()
    optimizer = module.configure_optimizers()

    def train_step(batch):
        optimizer.zero_grad()
        value = module.training_step(batch, 0)
        value.backward()
        optimizer.step()
        return value.detach()

    return Job(each_call(compile(train_step), [(batch,) for batch in pictures(4, 3, 8, 8)]), [module], [optimizer])


@case("lightning", "the BoringModel of Lightning's demos")
def lightning_boring(compile) -> Job:
    from lightning.pytorch.demos.boring_classes import BoringModel

    module = BoringModel().train()
    (optimizer,), _ = module.configure_optimizers()

    def train_step(batch):
        optimizer.zero_grad()
        value = module.training_step(batch, 0)["loss"]
        value.backward()
        optimizer.step()
        return value.detach()

    return Job(each_call(compile(train_step), [(x,) for x, _ in vectors(4, 32)]), [module], [optimizer])


@case("lightning", "Fabric: setup and backward, bf16-mixed")
def lightning_fabric(compile) -> Job:
    import lightning

    fabric = lightning.Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    module = _lightning_module()
    model, optimizer = fabric.setup(module.net, torch.optim.AdamW(module.parameters(), lr=1e-3))
    model.train()

    def train_step(x, y):
        optimizer.zero_grad()
        value = F.cross_entropy(model(x), y)
        fabric.backward(value)
        optimizer.step()
        return value.detach()

    return Job(each_call(compile(train_step), pictures(4, 3, 8, 8)), [module], [optimizer.optimizer])


@case("lightning", "the Transformer of Lightning's demos")
def lightning_transformer(compile) -> Job:
    from lightning.pytorch.demos import Transformer

    model = Transformer(vocab_size=50, ninp=32, nhead=4, nhid=64, nlayers=2)
    return training(
        compile,
        model,
        tokens(50, 3, 12),
        lambda m, x: F.nll_loss(m(x[:, :-1], x[:, 1:]), x[:, 1:].flatten()),
        adamw(model),
    )

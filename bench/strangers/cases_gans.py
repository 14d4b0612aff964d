"""GANs: two networks that train against each other, in one step or in two."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from job import Job, case, each_call, pictures
from torch import nn


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

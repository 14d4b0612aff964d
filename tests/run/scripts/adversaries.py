"""A GAN: two networks, two optimizers."""

import torch
from torch import nn

torch.manual_seed(999)
torch.set_num_threads(1)
ngf = 16
generator = nn.Sequential(
    nn.ConvTranspose2d(32, ngf * 4, 4, 1, 0, bias=False), nn.BatchNorm2d(ngf * 4), nn.ReLU(True),
    nn.ConvTranspose2d(ngf * 4, ngf * 2, 4, 2, 1, bias=False), nn.BatchNorm2d(ngf * 2), nn.ReLU(True),
    nn.ConvTranspose2d(ngf * 2, 3, 4, 2, 1, bias=False), nn.Tanh(),
)  # fmt: skip
discriminator = nn.Sequential(
    nn.Conv2d(3, ngf, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(ngf, ngf * 2, 4, 2, 1, bias=False), nn.BatchNorm2d(ngf * 2), nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(ngf * 2, 1, 4, 1, 0, bias=False), nn.Sigmoid(),
)  # fmt: skip
criterion = nn.BCELoss()
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
for i in range(5):
    real = torch.randn(48, 3, 16, 16)
    discriminator.zero_grad()
    loss_real = criterion(discriminator(real).view(-1), torch.ones(48))
    loss_real.backward()
    fake = generator(torch.randn(48, 32, 1, 1))
    loss_fake = criterion(discriminator(fake.detach()).view(-1), torch.zeros(48))
    loss_fake.backward()
    optimizer_d.step()
    generator.zero_grad()
    loss_g = criterion(discriminator(fake).view(-1), torch.ones(48))
    loss_g.backward()
    optimizer_g.step()
    print(f"[{i}] Loss_D: {(loss_real + loss_fake).item()} Loss_G: {loss_g.item()}")
print(fake.detach().numpy().mean())

"""A VAE: random numbers in the forward pass, gradient checkpointing, samples taken out as NumPy arrays."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(784, 400), nn.Linear(400, 20), nn.Linear(400, 20)
        self.fc3, self.fc4 = nn.Linear(20, 400), nn.Linear(400, 784)

    def decode(self, z):
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x):
        h = F.relu(self.fc1(x.view(-1, 784)))
        mu, logvar = self.fc21(h), self.fc22(h)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return checkpoint(self.decode, z, use_reentrant=False), mu, logvar


torch.manual_seed(1)
torch.set_num_threads(1)
model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(6):
    data = torch.rand(160, 1, 28, 28)
    optimizer.zero_grad()
    recon, mu, logvar = model(data)
    bce = F.binary_cross_entropy(recon, data.view(-1, 784), reduction="sum")
    loss = bce - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        sample = model.decode(torch.randn(8, 20)).numpy()
    print(f"====> Epoch: {epoch} loss: {loss.item()} sample: {sample.sum():.4f}")

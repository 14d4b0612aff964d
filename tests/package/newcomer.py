"""A small training script as people have it; the lines marked with ``# +`` are what Stowage adds or changes."""

import sys

import torch

import stowage  # +

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Embedding(64, 32),
    torch.nn.Flatten(),
    torch.nn.Linear(32 * 16, 256),
    torch.nn.GELU(),
    torch.nn.Linear(256, 64),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = torch.utils.data.DataLoader(torch.randint(0, 64, (96, 17)), batch_size=8)


@stowage.compile  # +
def train_step(batch):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(batch[:, :16]), batch[:, 16])
    loss.backward()
    optimizer.step()
    return loss.detach()


for batch in loader:
    loss = train_step(batch)
print(f"{loss.item():.6f}")
print(train_step.stats())  # +
train_step.report(sys.argv[1])  # +

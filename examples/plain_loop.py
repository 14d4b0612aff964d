"""A plain PyTorch loop. Planned: one added line (marked)."""

import torch
from torch import nn

import stowage

torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 10)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)


def train_step(x, y):
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    return loss.detach()


step = stowage.compile(train_step)  # the added line

data = torch.randn(640, 64)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data, data[:, :10].argmax(dim=1)), batch_size=64)
for epoch in range(3):
    for x, y in loader:
        loss = step(x, y)
    print(f"epoch {epoch}: loss {loss.item():.4f}")

stats = step.stats()
print(f"planned steps: {stats['planned_steps']}, arena {stats['arena_bytes'] / 2**20:.2f} MiB, {stats['outcome']}")
print(step.explain(prices=False))

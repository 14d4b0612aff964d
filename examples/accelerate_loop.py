"""A loop of Hugging Face accelerate. Planned: one added line (marked)."""

import torch
from accelerate import Accelerator
from torch import nn

import stowage

torch.manual_seed(0)
accelerator = Accelerator(cpu=True, mixed_precision="bf16")
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=20)
data = torch.utils.data.TensorDataset(torch.randn(640, 64), torch.randint(0, 10, (640,)))
model, optimizer, loader, schedule = accelerator.prepare(
    model, optimizer, torch.utils.data.DataLoader(data, batch_size=64), schedule
)


def train_step(x, y):
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    return loss.detach()


step = stowage.compile(train_step)  # the added line

for epoch in range(4):
    for x, y in loader:
        loss = step(x, y)
    print(f"epoch {epoch}: loss {loss.item():.4f}")

stats = step.stats()
print(
    f"planned steps: {stats['planned_steps']}, arena {stats['arena_bytes'] / 2**20:.2f} MiB, {step.refusal or stats['outcome']}"
)

"""bfloat16 autocast, gradients accumulated over micro-batches, clipped."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Dropout(0.1), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
accumulation = 4
for step in range(6):
    total = 0.0
    for _ in range(accumulation):
        x, y = torch.randn(256, 64), torch.randint(0, 8, (256,))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y) / accumulation
        loss.backward()
        total += loss.item()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(step, total, norm.item())

"""Tensors split over the ranks of torchrun so that the least memory is redundant: two added lines (marked).

torchrun --nproc-per-node 2 examples/torchrun_shard.py
"""

import os

import torch
from torch import nn

import stowage

torch.set_num_threads(1)
torch.manual_seed(0)  # the same model and the same batches on every rank
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 16))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
whole = sum(p.nbytes for p in model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(640, 64), torch.randint(0, 16, (640,)))
loader = torch.utils.data.DataLoader(data, batch_size=64)


def train_step(x, y):
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


# Added: parameters and optimizer state are cut into parts
step = stowage.shard(train_step, (int(os.environ["WORLD_SIZE"]),))

for epoch in range(3):
    for x, y in loader:
        loss = step(x, y)
    if torch.distributed.get_rank() == 0:
        print(f"epoch {epoch}: loss {loss.item():.4f}")

if torch.distributed.get_rank() == 0:
    mine = sum(p.to_local().nbytes for p in model.parameters())
    stats = step.stats()
    print(f"planned steps: {stats['planned_steps']}; parameters on a rank: {mine} of {whole} bytes, {stats['outcome']}")
torch.distributed.barrier()
torch.distributed.destroy_process_group()

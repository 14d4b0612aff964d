"""One rank of torchrun, over gloo."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
torch.set_num_threads(1)
model = DistributedDataParallel(nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 128)))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(5):
    loss = model(torch.randn(300, 128)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
losses = [None] * dist.get_world_size()
dist.all_gather_object(losses, loss.item())
if rank == 0:
    print(losses, os.environ["WORLD_SIZE"])
dist.destroy_process_group()

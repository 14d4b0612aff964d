"""Two processes that multiprocessing spawns, averaging gradients over gloo."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(rank, world, path):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 128)))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(5):
        loss = model(torch.randn(300, 128)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    losses = [None] * world
    dist.all_gather_object(losses, loss.item())
    if rank == 0:
        print("losses", losses)
        sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    path = os.path.abspath(sys.argv[1])
    mp.spawn(train, args=(2, path), nprocs=2)
    print("spawned and done", __name__)

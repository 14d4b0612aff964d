"""Data parallelism under torchrun: each rank plans its own forward and backward; gradients are averaged between them
and the update.

    torchrun --nproc-per-node 2 examples/torchrun_data_parallel.py
"""

import torch
import torch.distributed as dist
from torch import nn

import stowage

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
torch.manual_seed(0)  # the same parameters everywhere
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(1 + rank)  # other data on each rank
data = torch.utils.data.TensorDataset(torch.randn(640, 64), torch.randint(0, 10, (640,)))


def forward_backward(x, y):
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    return loss.detach()


step = stowage.compile(forward_backward)  # gradients stay in .grad, as they do eagerly

for epoch in range(3):
    for x, y in torch.utils.data.DataLoader(data, batch_size=64):
        loss = step(x, y)
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        optimizer.step()
        optimizer.zero_grad()
    dist.all_reduce(loss)
    if rank == 0:
        print(f"epoch {epoch}: mean loss {loss.item() / world:.4f}")

first = torch.stack([p.detach().double().sum() for p in model.parameters()])
mine = first.clone()
dist.broadcast(first, 0)
assert torch.equal(first, mine), "ranks have drifted apart"
if rank == 0:
    print(f"planned steps: {step.stats()['planned_steps']} on each of {world} ranks")
dist.barrier()
dist.destroy_process_group()

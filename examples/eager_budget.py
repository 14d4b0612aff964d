"""A byte limit around a loop whose control flow changes from batch to batch, which no plan could stand for: two added
lines (marked)."""

import torch
from torch import nn

import stowage

torch.manual_seed(0)
layers = nn.ModuleList([nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(8)])
head = nn.Linear(256, 10)
optimizer = torch.optim.SGD([*layers.parameters(), *head.parameters()], lr=0.05, momentum=0.9)
data = torch.utils.data.TensorDataset(torch.randn(10240, 256), torch.randint(0, 10, (10240,)))
loader = torch.utils.data.DataLoader(data, batch_size=1024)

with stowage.budget("24MiB") as limit:  # added; without a limit the peak is 33 MiB
    for x, y in loader:
        for i, layer in enumerate(layers):
            if x.mean() < 10 - i:  # depends on data
                x = layer(x)
        loss = nn.functional.cross_entropy(head(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"loss {loss.item():.4f}")

stats = limit.stats()  # added
print(
    f"peak {stats['peak_bytes'] / 2**20:.1f} MiB within {stats['limit_bytes'] / 2**20:.0f} MiB; {stats['evictions']} evictions, "
    f"{stats['recomputed_ops']} ops run again, {stats['swapped_bytes'] / 2**20:.1f} MiB to the host"
)

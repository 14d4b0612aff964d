"""Run as a module, with relative imports: python -m asmodule.train."""

import sys

import torch

from .model import make

torch.manual_seed(0)
torch.set_num_threads(1)
print(sys.argv[1:], __name__, __package__, __spec__.name, sys.path[0])
model = make()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
for _ in range(5):
    loss = model(torch.randn(300, 200)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())

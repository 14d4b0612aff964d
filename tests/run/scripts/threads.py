"""A thread evaluates the model while another thing waits; a pool computes on the script's tensors."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
held_out = torch.randn(400, 256)
scores = []


def evaluate():
    with torch.no_grad():
        scores.append(model(held_out).square().mean().item())


for step in range(6):
    x = torch.randn(500, 256)
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    thread = threading.Thread(target=evaluate)
    thread.start()
    thread.join()
    print(step, loss.item(), scores[-1])
with ThreadPoolExecutor(2) as pool:
    print(list(pool.map(lambda p: p.double().sum().item(), model.parameters())))

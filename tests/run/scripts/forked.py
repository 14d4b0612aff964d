"""Children made by fork: one trains, one asks for a tensor of its parent's; then the parent trains."""

import multiprocessing

import torch
from torch import nn

torch.set_num_threads(1)


def train(name, queue):
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 64))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(5):
        loss = model(torch.randn(300, 128)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    queue.put((name, loss.item()))


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    shared = torch.arange(50_000.0)
    child = context.Process(target=train, args=("child", queue))
    asking = context.Process(target=lambda: queue.put(("asked", shared.sum().item())))
    for process in (child, asking):
        process.start()
        print(queue.get())
        process.join()
        print("exit", process.exitcode)
    train("parent", queue)
    print(queue.get())

"""Runs out of the machine's memory in the way that its argument names: at most 400 MiB more than it had when it began."""

import resource
import sys

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.ones(64, 64).mm(torch.ones(64, 64))  # libraries are there


def limit(more=400 << 20):
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + more, now + more))


def layers(count, width):
    return nn.Sequential(*(module for _ in range(count) for module in (nn.Linear(width, width), nn.Tanh())))


def outputs_kept():
    net, kept = layers(3, 128), []
    optimizer = torch.optim.AdamW(net.parameters())
    limit()
    for _ in range(500):
        out = net(torch.randn(8192, 128))
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        kept.append(out)  # the graph goes, the output stays


def hidden_state_grows():
    """Truncated backpropagation without detach: each step keeps the graphs of all before it."""
    cell = nn.Linear(128, 128)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.01)
    hidden = torch.zeros(4096, 128)
    limit()
    for _ in range(500):
        hidden = torch.tanh(cell(hidden))
        hidden.mean().backward(retain_graph=True)
        cell.weight.data.sub_(0.01)
        with torch.no_grad():
            optimizer.zero_grad()
            optimizer.step()


def batch_too_large():
    net = layers(6, 256)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    limit()
    for rows in (512, 512, 100_000):
        net(torch.randn(rows, 256)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def state_too_large():
    net = nn.Embedding(160_000, 256)
    optimizer = torch.optim.AdamW(net.parameters())
    limit()
    net(torch.arange(8)).sum().backward()
    optimizer.step()


def logits():
    head = nn.Linear(64, 30_000)
    limit()
    hidden = torch.randn(1200, 64)
    F.cross_entropy(head(hidden), torch.zeros(1200, dtype=torch.long)).backward()


def attention():
    x = nn.Parameter(torch.randn(12_000, 32))
    limit()
    (x @ x.T).softmax(-1)


def wide_dtype():
    data = torch.zeros(64 << 20, dtype=torch.uint8)
    limit()
    data.double()


if __name__ == "__main__":
    globals()[sys.argv[1]]()

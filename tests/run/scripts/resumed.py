"""Trains, saves, begins anew from the checkpoint, and ends where one run would have."""

import os
import tempfile

import torch
from torch import nn


def make():
    torch.manual_seed(4)
    model = nn.LSTM(48, 160, num_layers=2, dropout=0.2)
    return model, torch.optim.Adam(model.parameters(), lr=1e-2)


def train(model, optimizer, steps):
    for step in steps:
        torch.manual_seed(step)
        out, _ = model(torch.randn(24, 16, 48))
        loss = out.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, loss.item())


torch.set_num_threads(1)
path = os.path.join(tempfile.mkdtemp(), "checkpoint.pt")
model, optimizer = make()
train(model, optimizer, range(4))
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}, path)
train(model, optimizer, range(4, 6))
model, optimizer = make()
kept = torch.load(path)
model.load_state_dict(kept["model"])
optimizer.load_state_dict(kept["optimizer"])
torch.set_rng_state(kept["rng"])
train(model, optimizer, range(4, 6))

"""A small language model whose loss heads are tested."""

import torch
from torch import nn


class Head(nn.Module):
    def __init__(self, vocabulary, width, tied, bias, dtype):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width, dtype=dtype)
        self.body = nn.Linear(width, width, dtype=dtype)
        self.out = nn.Linear(width, vocabulary, bias=bias, dtype=dtype)
        if tied:
            self.out.weight = self.embed.weight

    def forward(self, x):
        return self.out(torch.tanh(self.body(self.embed(x))))

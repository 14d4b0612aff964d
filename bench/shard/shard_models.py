"""The training steps that bench/shard/shard.py plans: fake weights, so that no model is too large, captured op by op.

``capture(name)`` returns the TensorProgram of one step: forward, backward, fused AdamW (SGD with momentum for ResNet).
Numbers are fp32, dropout is off."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn


def gpt(
    layers: int = 24, width: int = 4096, heads: int = 32, batch: int = 32, tokens: int = 1024, vocabulary: int = 51200
):
    """GPT-2's architecture at width 4096; the head shares the embedding."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=layers,
        n_embd=width,
        n_head=heads,
        n_positions=tokens,
        vocab_size=vocabulary,
        use_cache=False,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    return GPT2LMHeadModel(config), _language, (torch.zeros(batch, tokens, dtype=torch.long),)


def llama_8b(layers: int = 32, batch: int = 32, tokens: int = 2048):
    """The shape of Llama 3 8B."""
    from bench.order.models_sequence import llama

    return llama(layers, 4096, 14336, 32, 8, 128256, False), _language, (torch.zeros(batch, tokens, dtype=torch.long),)


def bert_large(layers: int = 24, batch: int = 64, tokens: int = 512):
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        num_hidden_layers=layers,
        hidden_size=1024,
        num_attention_heads=16,
        intermediate_size=4096,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return BertForMaskedLM(config), _language, (torch.zeros(batch, tokens, dtype=torch.long),)


class _Experts(nn.Module):
    """Top-2 of `experts` by dispatch and combine tensors of fixed capacity (GShard, Lepikhin et al. 2020): no shape
    depends on data."""

    def __init__(self, width: int, inner: int, experts: int, capacity: int):
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.up, self.down = (
            nn.Parameter(torch.empty(experts, width, inner)),
            nn.Parameter(torch.empty(experts, inner, width)),
        )
        self.experts, self.capacity = experts, capacity

    def forward(self, x):
        b, s, w = x.shape
        gates = self.router(x).softmax(-1)
        _values, chosen = gates.topk(2, -1)
        mask = torch.zeros_like(gates).scatter(-1, chosen, 1.0)
        position = (mask.cumsum(1) - 1) * mask
        slots = torch.arange(self.capacity, dtype=gates.dtype)
        taken = (position.unsqueeze(-1) == slots).to(gates.dtype) * mask.unsqueeze(-1)  # [b, s, e, c]
        combine = (taken * gates.unsqueeze(-1)).reshape(b, s, -1)
        inside = torch.bmm(taken.reshape(b, s, -1).transpose(1, 2), x).reshape(b, self.experts, self.capacity, w)
        inside = inside.transpose(0, 1).reshape(self.experts, -1, w)
        outside = torch.bmm(F.gelu(torch.bmm(inside, self.up)), self.down)
        outside = outside.reshape(self.experts, b, self.capacity, w).transpose(0, 1).reshape(b, -1, w)
        return torch.bmm(combine, outside)


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, mlp: nn.Module):
        super().__init__()
        self.first, self.second, self.mlp, self.heads = nn.LayerNorm(width), nn.LayerNorm(width), mlp, heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        y = self.first(x)
        q, k, v = (f(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.second(x))


class _Moe(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, experts: int, capacity: int, vocabulary: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(
            *(_Block(width, heads, _Experts(width, 4 * width, experts, capacity)) for _ in range(layers))
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.embedding(tokens))))


def moe(layers: int = 16, batch: int = 32, tokens: int = 512):
    """16 layers, width 1024, 32 experts of 4096 each, top 2, capacity 64 for each expert and sequence."""
    return _Moe(layers, 1024, 16, 32, 64, 32768), _next_token, (torch.zeros(batch, tokens, dtype=torch.long),)


def resnet152(batch: int = 256, size: int = 224):
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        depths=[3, 8, 36, 3], hidden_sizes=[256, 512, 1024, 2048], layer_type="bottleneck", num_labels=1000
    )
    return (
        ResNetForImageClassification(config),
        _image,
        (torch.zeros(batch, 3, size, size), torch.zeros(batch, dtype=torch.long)),
    )


def _language(model, tokens):
    return model(input_ids=tokens, labels=tokens).loss


def _next_token(model, tokens):
    return F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def _image(model, images, labels):
    return model(pixel_values=images, labels=labels).loss


def gpt_96():
    return gpt(layers=96)


MODELS: dict[str, Callable] = {
    "gpt": gpt,
    "gpt-96": gpt_96,
    "llama-8b": llama_8b,
    "bert-large": bert_large,
    "moe": moe,
    "resnet152": resnet152,
}


def capture(name: str, **sizes):
    from stowage._torch.fakes import FakeTensorMode
    from stowage.sharding.capture import capture_program

    with FakeTensorMode(allow_non_fake_inputs=True):
        model, loss_of, batch = MODELS[name](**sizes)
        model.train()
        if name == "resnet152":
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
        else:
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def step(*args):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model, *args)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return capture_program(step, batch, {}, list(model.named_parameters()), name)

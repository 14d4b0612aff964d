"""A GPT in one file: tied weights, weight decay by shape, cosine schedule, estimate of the loss, sampling. The
configuration is overridden by the command line, as --name=value."""

import math
import sys
from ast import literal_eval
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.nn import functional as F

batch_size = 8
block_size = 64
max_iters = 6
eval_interval = 3
learning_rate = 1e-3
warmup_iters = 2
config_keys = [k for k, v in globals().items() if not k.startswith("_") and isinstance(v, (int, float, bool, str))]
for arg in sys.argv[1:]:
    key, value = arg.removeprefix("--").split("=")
    assert key in config_keys, key
    globals()[key] = literal_eval(value)


@dataclass
class GPTConfig:
    block_size: int = 64
    vocab_size: int = 96
    n_layer: int = 3
    n_head: int = 4
    n_embd: int = 96
    dropout: float = 0.1


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.n_head, self.n_embd, self.dropout = config.n_head, config.n_embd, config.dropout
        self.register_buffer("bias", torch.tril(torch.ones(config.block_size, config.block_size))[None, None])

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in (q, k, v))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = F.dropout(F.softmax(att, dim=-1), self.dropout, self.training)
        return self.c_proj((att @ v).transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(config.n_embd), nn.LayerNorm(config.n_embd)
        self.attn = CausalSelfAttention(config)
        self.mlp = nn.Sequential(
            nn.Linear(config.n_embd, 4 * config.n_embd), nn.GELU(), nn.Linear(4 * config.n_embd, config.n_embd)
        )

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(config.vocab_size, config.n_embd), nn.Embedding(block_size, config.n_embd)
        self.h = nn.ModuleList([Block(config) for _ in range(config.n_layer)])
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets=None):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))

    @torch.no_grad()
    def generate(self, idx, count):
        for _ in range(count):
            logits, _ = self(idx[:, -block_size:])
            idx = torch.cat((idx, torch.multinomial(F.softmax(logits[:, -1], -1), 1)), 1)
        return idx


torch.manual_seed(1337)
torch.set_num_threads(1)
text = open(__file__).read()
data = torch.tensor([min(max(ord(c) - 32, 0), 95) for c in text])


def get_batch():
    ix = torch.randint(len(data) - block_size, (batch_size,))
    return tuple(torch.stack([data[i + s : i + s + block_size] for i in ix]) for s in (0, 1))


@torch.no_grad()
def estimate_loss():
    model.eval()
    losses = torch.tensor([model(*get_batch())[1].item() for _ in range(2)])
    model.train()
    return losses.mean()


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    return 0.5 * learning_rate * (1 + math.cos(math.pi * (it - warmup_iters) / (max_iters - warmup_iters)))


model = GPT(GPTConfig(block_size=block_size))
params = [p for p in model.parameters() if p.requires_grad]
groups = [
    {"params": [p for p in params if p.dim() >= 2], "weight_decay": 0.1},
    {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95))
print(f"number of parameters: {sum(p.numel() for p in params)}")
for it in range(max_iters):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(it)
    if it % eval_interval == 0:
        print(f"step {it}: loss {estimate_loss():.8f}")
    _, loss = model(*get_batch())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"iter {it}: loss {loss.item():.8f}")
model.eval()
print(model.generate(data[:8][None], 12)[0].tolist())

"""Small models of the families that sharding must get right. Dimensions that neither 2 nor 4 divides; no dropout; the
seed is set, so that two calls give equal models. Each returns (model, loss_fn(model, *batch), batches)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY = 53


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def _tokens(shape: tuple[int, ...], count: int):
    generator = _generator()
    return [(torch.randint(0, VOCABULARY, shape, generator=generator),) for _ in range(count)]


def _images(shape: tuple[int, ...], classes: int, count: int, dtype):
    generator = _generator()
    return [
        (
            torch.randn(shape, generator=generator, dtype=dtype),
            torch.randint(0, classes, shape[:1], generator=generator),
        )
        for _ in range(count)
    ]


def _next_token(model, x):
    """In the dtype of the model; GPT2LMHeadModel's own loss is in single precision."""
    return F.cross_entropy(model(input_ids=x).logits[:, :-1].flatten(0, 1), x[:, 1:].flatten())


def gpt2(count: int, dtype):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=1,
        n_embd=30,
        n_head=3,
        n_positions=12,
        vocab_size=VOCABULARY,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
    )
    return GPT2LMHeadModel(config), _next_token, _tokens((3, 10), count)


def bert(count: int, dtype):
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        hidden_size=30,
        num_hidden_layers=1,
        num_attention_heads=3,
        intermediate_size=54,
        vocab_size=VOCABULARY,
        hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
    )
    return BertForMaskedLM(config), lambda m, x: m(input_ids=x, labels=x).loss, _tokens((3, 10), count)


def vit(count: int, dtype):
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=30,
        num_hidden_layers=1,
        num_attention_heads=3,
        intermediate_size=54,
        image_size=15,
        patch_size=5,
        num_labels=7,
        hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
    )
    return (
        ViTForImageClassification(config),
        lambda m, x, y: m(pixel_values=x, labels=y).loss,
        _images((3, 3, 15, 15), 7, count, dtype),
    )


class _Experts(nn.Module):
    """Each token goes to its best two experts; all experts see all tokens, weighted, so that shapes do not depend on
    data."""

    def __init__(self, width: int, hidden: int, experts: int):
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, hidden) / width**0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) / hidden**0.5)

    def forward(self, x):
        scores = self.gate(x).softmax(-1)
        best, chosen = scores.topk(2, -1)
        weights = torch.zeros_like(scores).scatter(-1, chosen, best / best.sum(-1, keepdim=True))
        hidden = F.gelu(torch.einsum("btw,ewh->ebth", x, self.up))
        return torch.einsum("ebth,ehw,bte->btw", hidden, self.down, weights)


class _Moe(nn.Module):
    def __init__(self, width: int = 18, experts: int = 5):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(_Experts(width, 22, experts) for _ in range(1))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(1))
        self.out = nn.Linear(width, VOCABULARY)

    def forward(self, x):
        h = self.embed(x)
        for norm, block in zip(self.norms, self.blocks):
            h = h + block(norm(h))
        return self.out(h)


def moe(count: int, dtype):
    return _Moe(), lambda m, x: F.cross_entropy(m(x).flatten(0, 1), x.flatten()), _tokens((3, 10), count)


class _ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 7, 3, padding=1), nn.Conv2d(7, 9, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(7)
        self.out = nn.Linear(9, 5)

    def forward(self, x):
        x = F.relu(self.norm(self.first(x)))
        x = F.max_pool2d(F.relu(self.second(x)), 2)
        return self.out(x.mean((2, 3)))


def convnet(count: int, dtype):
    return _ConvNet(), lambda m, x, y: F.cross_entropy(m(x), y), _images((6, 3, 12, 12), 5, count, dtype)


BUILDERS = {f.__name__: f for f in (gpt2, bert, vit, moe, convnet)}


def training(name: str, dtype=torch.float64, count: int = 7, clip: float = 1.0):
    """A maker of (model, optimizer, train_step), and the batches. Steps return the loss, and the norm of all gradients
    before clipping."""
    batches = BUILDERS[name](count, dtype)[2]

    def make():
        torch.manual_seed(0)
        model, loss_fn, _ = BUILDERS[name](1, dtype)
        model = model.to(dtype).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)

        def train_step(*batch):
            optimizer.zero_grad()
            loss = loss_fn(model, *batch)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            return loss.detach(), norm.detach()

        return model, optimizer, train_step

    return make, batches

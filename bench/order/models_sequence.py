"""Transformers of the planning benchmarks: configurations of the transformers library, and two small models of our own.

Nothing is downloaded. Each factory returns the model alone; `checkpoint` recomputes every block in the backward pass.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


def _checkpointed(model: nn.Module, checkpoint: bool) -> nn.Module:
    if checkpoint:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def gpt2(layers: int = 12, width: int = 768, heads: int = 12, checkpoint: bool = False) -> nn.Module:
    """Radford et al. (2019), vocabulary 50257, dropout 0.1; the defaults are the 124 M model."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return _checkpointed(
        GPT2LMHeadModel(GPT2Config(n_layer=layers, n_embd=width, n_head=heads, use_cache=False)), checkpoint
    )


def gpt2_xl(checkpoint: bool = False) -> nn.Module:
    return gpt2(48, 1600, 25, checkpoint)


def bert(layers: int = 12, width: int = 768, heads: int = 12) -> nn.Module:
    """Devlin et al. (2019) with its masked-language head; the defaults are the base model."""
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads, intermediate_size=4 * width)
    )


def roberta() -> nn.Module:
    """Liu et al. (2019), base, the encoder alone."""
    from transformers import RobertaConfig, RobertaModel

    config = RobertaConfig(vocab_size=50265, max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5)
    return RobertaModel(config, add_pooling_layer=False)


def llama(
    layers: int, width: int, inner: int, heads: int, groups: int, vocabulary: int, tied: bool, checkpoint: bool = False
) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        vocab_size=vocabulary,
        tie_word_embeddings=tied,
        use_cache=False,
        max_position_embeddings=8192,
    )
    return _checkpointed(LlamaForCausalLM(config), checkpoint)


def llama_1b(checkpoint: bool = False) -> nn.Module:
    """The shape of Llama 3.2 1B."""
    return llama(16, 2048, 8192, 32, 8, 128256, True, checkpoint)


def t5_small() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(T5Config(use_cache=False, decoder_start_token_id=0))


def whisper_tiny() -> nn.Module:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    return WhisperForConditionalGeneration(
        WhisperConfig(
            d_model=384,
            encoder_layers=4,
            decoder_layers=4,
            encoder_attention_heads=6,
            decoder_attention_heads=6,
            encoder_ffn_dim=1536,
            decoder_ffn_dim=1536,
            use_cache=False,
        )
    )


def clip_b32() -> nn.Module:
    from transformers import CLIPConfig, CLIPModel

    return CLIPModel(CLIPConfig())


def swin_t() -> nn.Module:
    from transformers import SwinConfig, SwinForImageClassification

    return SwinForImageClassification(SwinConfig(num_labels=1000))


def convnext_t() -> nn.Module:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    return ConvNextForImageClassification(ConvNextConfig(num_labels=1000))


# ---- ViT as torchvision builds it, on nn.MultiheadAttention


class _VitBlock(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        y = self.first(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.second(x))


class _Vit(nn.Module):
    def __init__(self, width: int = 768, heads: int = 12, layers: int = 12):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token, self.positions = (
            nn.Parameter(torch.zeros(1, 1, width)),
            nn.Parameter(torch.empty(1, 197, width).normal_(std=0.02)),
        )
        self.blocks = nn.Sequential(*(_VitBlock(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, 1000)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


def vit_b_16() -> nn.Module:
    """Dosovitskiy et al. (2021)."""
    return _Vit()


# ---- DETR; that of the transformers library decides by data whether to clamp


class _Detr(nn.Module):
    """Carion et al. (2020): ResNet-50, six encoder and six decoder layers of width 256, 100 queries; positions are
    added once."""

    def __init__(self, width: int = 256, heads: int = 8, classes: int = 92, queries: int = 100, places: int = 256):
        super().__init__()
        from bench.order import models_vision

        layer = {"d_model": width, "nhead": heads, "dim_feedforward": 2048, "dropout": 0.1, "batch_first": True}
        self.backbone, self.narrow = models_vision.resnet50()[:5], nn.Conv2d(2048, width, 1)
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(**layer) for _ in range(6))
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(**layer) for _ in range(6))
        self.queries, self.places = nn.Parameter(torch.zeros(queries, width)), nn.Parameter(torch.zeros(places, width))
        self.classes = nn.Linear(width, classes)
        self.boxes = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4)
        )

    def forward(self, x):
        memory = self.narrow(self.backbone(x)).flatten(2).transpose(1, 2) + self.places
        for layer in self.encoder:
            memory = layer(memory)
        y = self.queries.expand(x.shape[0], -1, -1)
        for layer in self.decoder:
            y = layer(y, memory)
        return self.classes(y), self.boxes(y).sigmoid()


def detr_r50() -> nn.Module:
    """For 512 x 512 pixels."""
    return _Detr()


# ---- A mixture of experts with fixed capacity


class _Experts(nn.Module):
    """GShard / Switch routing (Lepikhin et al., 2021; Fedus et al., 2022): one expert a token, `capacity` places each,
    the rest passes."""

    def __init__(self, width: int, experts: int, factor: float = 1.25):
        super().__init__()
        self.experts, self.factor = experts, factor
        self.router = nn.Linear(width, experts, bias=False)
        self.up, self.down = (
            nn.Parameter(torch.empty(experts, width, 4 * width)),
            nn.Parameter(torch.empty(experts, 4 * width, width)),
        )
        for p in (self.up, self.down):
            nn.init.normal_(p, std=0.02)

    def forward(self, x):
        tokens = x.flatten(0, 1)
        capacity = int(self.factor * tokens.shape[0] / self.experts)
        weights = self.router(tokens).softmax(-1)
        top, chosen = weights.max(-1)
        one_hot = F.one_hot(chosen, self.experts).to(x.dtype)
        place = (one_hot.cumsum(0) * one_hot).sum(-1) - 1
        dispatch = one_hot.unsqueeze(-1) * (place.unsqueeze(-1) == torch.arange(capacity)).to(x.dtype).unsqueeze(1)
        inputs = torch.einsum("tec,tw->ecw", dispatch, tokens)
        made = torch.bmm(F.gelu(torch.bmm(inputs, self.up)), self.down)
        return torch.einsum("tec,ecw->tw", dispatch * top[:, None, None], made).view_as(x)


class _MoeBlock(nn.Module):
    def __init__(self, width: int, heads: int, experts: int):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.experts = _Experts(width, experts)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(self.first(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.experts(self.second(x))


class _Moe(nn.Module):
    def __init__(
        self,
        layers: int = 8,
        width: int = 512,
        heads: int = 8,
        experts: int = 8,
        vocabulary: int = 32000,
        length: int = 1024,
    ):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(_MoeBlock(width, heads, experts) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def moe() -> nn.Module:
    """8 layers, width 512, 8 experts each, vocabulary 32000."""
    return _Moe()

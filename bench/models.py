"""The models that the benchmarks train, at sizes that people train. Nothing is downloaded: all weights are random.

``make(name)`` returns (model, loss_fn(model, batch), batch), the same ones in every process.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn


def _tokens(vocabulary: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, shape, generator=torch.Generator().manual_seed(7))


def _images(count: int, size: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return torch.randn((count, 3, size, size), generator=generator), torch.randint(
        0, classes, (count,), generator=generator
    )


def _language_loss(model, tokens):
    return model(input_ids=tokens, labels=tokens).loss


def _image_loss(model, batch):
    return model(pixel_values=batch[0], labels=batch[1]).loss


def _squared_loss(model, batch):
    return F.mse_loss(model(batch[0]), batch[1])


# ---- For step_time: small enough for many rounds


def gpt2_small():
    """4 layers, width 256, batch 4 x 128 tokens, vocabulary 1000, dropout 0.1."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=4,
        n_embd=256,
        n_head=4,
        n_positions=128,
        vocab_size=1000,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    return GPT2LMHeadModel(config), _language_loss, _tokens(1000, 4, 128)


def resnet50_small():
    """ResNet-50, batch 8, 64 x 64."""
    return _resnet50(8, 64)


def linear():
    """Four linear layers of width 1024, batch 64."""
    numbers = torch.Generator().manual_seed(7)
    batch = torch.randn(64, 1024, generator=numbers), torch.randn(64, 1024, generator=numbers)
    return nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(4)]), _squared_loss, batch


# ---- For peak: sizes from papers and model cards


def _gpt2(count: int, tokens: int, **config: int):
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(use_cache=False, **config)), _language_loss, _tokens(50257, count, tokens)


def gpt2():
    """124 M, batch 4 x 256 tokens, dropout 0.1."""
    return _gpt2(4, 256)


def gpt2_1b3():
    """1.3 B: 24 layers, width 2048, 16 heads; batch 1 x 64 tokens, dropout 0.1."""
    return _gpt2(1, 64, n_layer=24, n_embd=2048, n_head=16)


def bert():
    """BERT-base, batch 8 x 128 tokens, dropout 0.1."""
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig()), _language_loss, _tokens(30522, 8, 128)


def t5():
    """T5-small, batch 8 x 128 tokens, dropout 0.1."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(use_cache=False, decoder_start_token_id=0)
    return T5ForConditionalGeneration(config), _language_loss, _tokens(32128, 8, 128)


def llama():
    """8 layers, width 512, 8 heads over 4 groups, vocabulary 32000, batch 4 x 256 tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        use_cache=False,
    )
    return LlamaForCausalLM(config), _language_loss, _tokens(32000, 4, 256)


def vit():
    """ViT-B/16, batch 8, 224 x 224."""
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(ViTConfig(num_labels=1000)), _image_loss, _images(8, 224, 1000)


def _resnet50(count: int, size: int, depths: tuple[int, ...] = (3, 4, 6, 3)):
    from transformers import ResNetConfig, ResNetForImageClassification

    return (
        ResNetForImageClassification(ResNetConfig(num_labels=1000, depths=list(depths))),
        _image_loss,
        _images(count, size, 1000),
    )


def resnet50():
    """Batch 16, 112 x 112."""
    return _resnet50(16, 112)


class LstmLanguageModel(nn.Module):
    """Word-level model of Zaremba et al. (2014), "medium": two layers of 650."""

    def __init__(self, vocabulary: int = 10000, width: int = 650):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, dropout=0.5, batch_first=True)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        return self.out(self.lstm(self.embed(tokens))[0])


def lstm():
    """Two layers of 650, vocabulary 10000, batch 20 x 35 tokens, dropout 0.5."""
    return LstmLanguageModel(), lambda m, x: F.cross_entropy(m(x).flatten(0, 1), x.flatten()), _tokens(10000, 20, 35)


def _double_convolution(i: int, o: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(i, o, 3, padding=1),
        nn.BatchNorm2d(o),
        nn.ReLU(inplace=True),
        nn.Conv2d(o, o, 3, padding=1),
        nn.BatchNorm2d(o),
        nn.ReLU(inplace=True),
    )


class _UNet(nn.Module):
    """Ronneberger et al. (2015), with padding and batch norm: channels 32 to 512 over five scales."""

    def __init__(self, channels: tuple[int, ...] = (32, 64, 128, 256, 512), classes: int = 10):
        super().__init__()
        self.down = nn.ModuleList(_double_convolution(i, o) for i, o in zip((3, *channels), channels))
        pairs = list(zip(channels[:0:-1], channels[-2::-1]))
        self.up = nn.ModuleList(nn.ConvTranspose2d(i, o, 2, stride=2) for i, o in pairs)
        self.merge = nn.ModuleList(_double_convolution(i, o) for i, o in pairs)
        self.out = nn.Conv2d(channels[0], classes, 1)

    def forward(self, x):
        kept = []
        for i, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if i else x)
            kept.append(x)
        for up, merge, side in zip(self.up, self.merge, kept[-2::-1]):
            x = merge(torch.cat([up(x), side], 1))
        return self.out(x)


def unet():
    """Segmentation, channels 32 to 512, batch 4, 128 x 128."""
    images, _ = _images(4, 128, 10)
    masks = _tokens(10, 4, 128, 128)
    return _UNet(), lambda m, b: F.cross_entropy(m(b[0]), b[1]), (images, masks)


BUILDERS: dict[str, Callable] = {
    f.__name__: f
    for f in (gpt2_small, resnet50_small, linear, gpt2, gpt2_1b3, bert, t5, llama, vit, resnet50, lstm, unet)
}
REALISTIC = ("gpt2", "resnet50", "bert", "vit", "t5", "llama", "lstm", "unet")
# For batch: a model for each batch size.
BY_BATCH: dict[str, Callable[[int], tuple]] = {
    "resnet50": lambda count: _resnet50(count, 224),
    "resnet101": lambda count: _resnet50(count, 224, (3, 4, 23, 3)),
    "gpt2": lambda count: _gpt2(count, 1024),
}
FORMS = {"default": {}, "loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


def make(name: str):
    torch.manual_seed(0)
    model, loss_fn, batch = BUILDERS[name]()
    return model.train(), loss_fn, batch


def make_step(model: nn.Module, loss_fn: Callable, form: str) -> Callable:
    """Forward, backward, AdamW in the given form, zero_grad at the end."""
    return step_with(model, loss_fn, torch.optim.AdamW(model.parameters(), lr=1e-4, **FORMS[form]))


def step_with(model: nn.Module, loss_fn: Callable, optimizer: torch.optim.Optimizer) -> Callable:
    def train_step(batch):
        loss = loss_fn(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return train_step

"""Small instances of the models that the tests train. Each builder seeds, so that two calls give equal models.

``make(name)`` returns (model, loss_fn(model, batch), batches): what a user's training script would have.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

STEPS = 6


def _tokens(vocab: int, shape: tuple[int, ...], count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(0, vocab, shape, generator=generator) for _ in range(count)]


def _images(shape: tuple[int, ...], classes: int, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(7)
    return [
        (torch.randn(shape, generator=generator), torch.randint(0, classes, shape[:1], generator=generator))
        for _ in range(count)
    ]


def gpt2(count: int = STEPS):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=2, n_embd=64, n_head=4, n_positions=32, vocab_size=211, bos_token_id=0, eos_token_id=0, use_cache=False
    )
    return GPT2LMHeadModel(config), lambda m, x: m(input_ids=x, labels=x).loss, _tokens(211, (2, 32), count)


def bert(count: int = STEPS):
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, vocab_size=211
    )
    return BertForMaskedLM(config), lambda m, x: m(input_ids=x, labels=x).loss, _tokens(211, (2, 32), count)


def t5(count: int = STEPS):
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        vocab_size=211,
        use_cache=False,
        decoder_start_token_id=0,
    )
    return T5ForConditionalGeneration(config), lambda m, x: m(input_ids=x, labels=x).loss, _tokens(211, (2, 24), count)


def llama(count: int = STEPS):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=211,
        use_cache=False,
    )
    return LlamaForCausalLM(config), lambda m, x: m(input_ids=x, labels=x).loss, _tokens(211, (2, 32), count)


def vit(count: int = STEPS):
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        image_size=32,
        patch_size=8,
        num_labels=10,
        hidden_dropout_prob=0.1,
    )
    return (
        ViTForImageClassification(config),
        lambda m, b: m(pixel_values=b[0], labels=b[1]).loss,
        _images((2, 3, 32, 32), 10, count),
    )


def resnet50(count: int = STEPS):
    from transformers import ResNetConfig, ResNetForImageClassification

    return (
        ResNetForImageClassification(ResNetConfig(num_labels=10)),
        lambda m, b: m(pixel_values=b[0], labels=b[1]).loss,
        _images((2, 3, 64, 64), 10, count),
    )


class _LstmTagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(211, 32)
        self.lstm = nn.LSTM(32, 48, num_layers=2, dropout=0.1, batch_first=True, bidirectional=True)
        self.out = nn.Linear(96, 211)

    def forward(self, x):
        return self.out(self.lstm(self.embed(x))[0])


def lstm(count: int = STEPS):
    return _LstmTagger(), lambda m, x: F.cross_entropy(m(x).flatten(0, 1), x.flatten()), _tokens(211, (3, 16), count)


def _double_conv(i: int, o: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(i, o, 3, padding=1),
        nn.BatchNorm2d(o),
        nn.ReLU(inplace=True),
        nn.Conv2d(o, o, 3, padding=1),
        nn.BatchNorm2d(o),
        nn.ReLU(inplace=True),
    )


class _UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2, self.bottom = _double_conv(3, 8), _double_conv(8, 16), _double_conv(16, 32)
        self.up2, self.up1 = nn.ConvTranspose2d(32, 16, 2, stride=2), nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.merge2, self.merge1 = _double_conv(32, 16), _double_conv(16, 8)
        self.out = nn.Conv2d(8, 10, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.bottom(F.max_pool2d(b, 2))
        b = self.merge2(torch.cat([self.up2(c), b], 1))
        a = self.merge1(torch.cat([self.up1(b), a], 1))
        return self.out(F.interpolate(a, scale_factor=0.5, mode="bilinear")).mean((2, 3))


def unet(count: int = STEPS):
    return _UNet(), lambda m, b: F.cross_entropy(m(b[0]), b[1]), _images((2, 3, 32, 32), 10, count)


BUILDERS = {f.__name__: f for f in (gpt2, resnet50, bert, vit, t5, llama, lstm, unet)}


def make(name: str, count: int = STEPS, seed: int = 0):
    torch.manual_seed(seed)
    model, loss_fn, batches = BUILDERS[name](count)
    return model.train(), loss_fn, batches

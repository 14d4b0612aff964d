"""What the parts of bench/gpu.py train, in three sizes, with random weights, made on the device itself; and how a step
is timed and compared there.

    training = make("gpt2_xl", "full", "cuda")        the same one in every process: a seed
    training.step(training.batch)                     forward, backward, optimizer, zero_grad

full: sizes that people train; middle: the same widths, a few layers; small: for trials without a GPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils.deterministic
from torch import nn
from torch.utils.checkpoint import checkpoint

MODELS = ("gpt2_xl", "bert_large", "resnet50", "llama_1b")
SIZES = ("full", "middle", "small")
_WORDS = 1 << 24  # a digest looks at so many at once


# ---- Devices


def start(device: str) -> None:
    """Makes the device known, where it is the stand-in of the tests."""
    if device == "standin":
        sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support" / "accelerator"))
        import standin

        standin.load()
        standin.configure(limit_bytes=4 << 30)
    elif not torch.cuda.is_available():
        raise SystemExit("gpu: torch sees no GPU here (torch.cuda.is_available() is false)")


def deterministic() -> None:
    """PyTorch's deterministic algorithms. Not with ``warn_only``: cuDNN's attention is then as it was. What is made
    without content stays so."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False


def free_memory() -> None:
    import gc

    gc.collect()
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    torch.accelerator.reset_peak_memory_stats()


def memory() -> dict[str, int]:
    """Since the last free_memory(). ``allocated``, ``reserved``: at most, in bytes."""
    return {
        "peak_bytes": torch.accelerator.max_memory_allocated(),
        "reserved_bytes": torch.accelerator.max_memory_reserved(),
    }


# ---- Trainings


@dataclasses.dataclass
class Training:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    step_of: Callable[[Callable], Callable[[Any], torch.Tensor]]  # the step that calls this in the model's place
    batch: Any

    def __post_init__(self) -> None:
        self.step = self.step_of(self.model)

    def tensors(self) -> Iterable[torch.Tensor]:
        """All that a step leaves: parameters, buffers, state of the optimizer."""
        yield from self.model.state_dict().values()
        for state in self.optimizer.state.values():
            yield from (v for v in state.values() if isinstance(v, torch.Tensor))

    def digest(self, loss: torch.Tensor) -> str:
        return digest([loss, *self.tensors()])


def make(name: str, size: str, device: str, samples: int = 0, dropout: float = 0.1) -> Training:
    """``samples``: the batch; 0: that of the size."""
    torch.manual_seed(0)
    count, build, loss_of, data, half = _known(name, SIZES.index(size), dropout)
    count = samples or count
    with torch.device(device):
        model = build()
    if half == "weights":
        model = model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    if name == "resnet50":
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    batch = data(count, device)
    autocast = half == "autocast"

    def step_of(called):
        def step(batch):
            with torch.autocast(device, torch.bfloat16) if autocast else contextlib.nullcontext():
                loss = loss_of(called, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return step

    torch.manual_seed(1)
    return Training(model.train(), optimizer, step_of, batch)


def _tokens(vocabulary: int, length: int) -> Callable:
    def data(count, device):
        return torch.randint(0, vocabulary, (count, length), generator=torch.Generator().manual_seed(7)).to(device)

    return data


def _language_loss(model, tokens):
    return model(input_ids=tokens, labels=tokens).loss


def _known(name: str, i: int, dropout: float) -> tuple:
    """(batch, build, loss, data, which numbers are bfloat16)"""
    if name == "gpt2_xl":
        from transformers import GPT2Config, GPT2LMHeadModel

        length = (1024, 512, 32)[i]
        config = GPT2Config(
            n_layer=(48, 4, 2)[i],
            n_embd=(1600, 1600, 32)[i],
            n_head=(25, 25, 4)[i],
            n_positions=length,
            vocab_size=(50257, 50257, 100)[i],
            resid_pdrop=dropout,
            embd_pdrop=dropout,
            attn_pdrop=dropout,
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
        )
        return (
            (8, 4, 4)[i],
            lambda: GPT2LMHeadModel(config),
            _language_loss,
            _tokens(config.vocab_size, length),
            "autocast",
        )
    if name == "bert_large":
        from transformers import BertConfig, BertForMaskedLM

        length = (512, 256, 32)[i]
        config = BertConfig(
            num_hidden_layers=(24, 4, 2)[i],
            hidden_size=(1024, 1024, 32)[i],
            num_attention_heads=(16, 16, 4)[i],
            intermediate_size=(4096, 4096, 64)[i],
            vocab_size=(30522, 30522, 100)[i],
            max_position_embeddings=length,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
        return (
            (32, 8, 4)[i],
            lambda: BertForMaskedLM(config),
            _language_loss,
            _tokens(config.vocab_size, length),
            "autocast",
        )
    if name == "llama_1b":
        from transformers import LlamaConfig, LlamaForCausalLM

        length = (2048, 512, 32)[i]
        config = LlamaConfig(
            num_hidden_layers=(16, 2, 2)[i],
            hidden_size=(2048, 2048, 32)[i],
            intermediate_size=(8192, 8192, 64)[i],
            num_attention_heads=(32, 32, 4)[i],
            num_key_value_heads=(8, 8, 2)[i],
            vocab_size=(128256, 32000, 100)[i],
            max_position_embeddings=length,
            tie_word_embeddings=True,
            use_cache=False,
        )
        return (
            (4, 2, 4)[i],
            lambda: LlamaForCausalLM(config),
            _language_loss,
            _tokens(config.vocab_size, length),
            "weights",
        )
    if name == "resnet50":
        side, depths, width = (224, 128, 64)[i], ((3, 4, 6, 3), (2, 2, 2, 2), (1, 1, 1, 1))[i], (64, 64, 8)[i]

        def images(count, device):
            generator = torch.Generator().manual_seed(7)
            x = torch.randn((count, 3, side, side), generator=generator)
            return x.to(device), torch.randint(0, 1000, (count,), generator=generator).to(device)

        def loss_of(model, batch):
            return F.cross_entropy(model(batch[0]), batch[1])

        return (128, 32, 4)[i], lambda: ResNet(depths, width), loss_of, images, ""
    raise SystemExit(f"gpu: no model is named '{name}': {', '.join(MODELS)}")


# ---- ResNet-50 (He et al., 2015; stride in the 3 x 3 convolution), written out: torchvision is not everywhere


class Bottleneck(nn.Module):
    def __init__(self, into: int, width: int, stride: int):
        super().__init__()
        out = 4 * width
        self.body = nn.Sequential(
            *(nn.Conv2d(into, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            *(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            *(nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out)),
        )
        same = stride == 1 and into == out
        self.short = (
            nn.Identity() if same else nn.Sequential(nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        )

    def forward(self, x):
        return torch.relu_(self.body(x) + self.short(x))


class ResNet(nn.Module):
    def __init__(self, depths: tuple[int, ...], width: int):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        blocks, into = [], width
        for stage, depth in enumerate(depths):
            for i in range(depth):
                blocks.append(Bottleneck(into, width << stage, 2 if i == 0 and stage > 0 else 1))
                into = 4 * (width << stage)
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(into, 1000)
        self.checkpointed = False

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(x.mean((2, 3)))


def checkpointing(model: nn.Module, on: bool) -> None:
    """Of each block, as the model's own documentation does it."""
    if isinstance(model, ResNet):
        model.checkpointed = on
    elif on:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    else:
        model.gradient_checkpointing_disable()


# ---- Bits


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """Of all bytes: sums of words, plain and by place, in integers, so that the device's order of adding is no matter."""
    sums = [sums_of(t) for t in tensors]
    text = torch.stack(sums).cpu().numpy().tobytes()
    return hashlib.sha256(text).hexdigest()[:16]


def sums_of(tensor: torch.Tensor) -> torch.Tensor:
    """Two int64 on the tensor's device. Modulo 2^64."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    words = flat.view(torch.int32) if flat.numel() % 4 == 0 and flat.storage_offset() % 4 == 0 else flat
    sums = torch.zeros(2, dtype=torch.int64, device=tensor.device)
    for i, part in enumerate(words.split(min(_WORDS, max(4096, words.numel() // 16)))):  # in little memory
        wide = part.to(torch.int64)
        place = torch.arange(part.numel(), device=tensor.device, dtype=torch.int64) % 65521 + i + 1
        sums += torch.stack([wide.sum(), (wide * place).sum()]).to(sums.device)
    return sums


# ---- Time


def timed(call: Callable, *arguments: Any) -> tuple[int, int]:
    """(ns until the call returned, ns until the device was done)"""
    torch.accelerator.synchronize()
    start = time.perf_counter_ns()
    call(*arguments)
    returned = time.perf_counter_ns() - start
    torch.accelerator.synchronize()
    return returned, time.perf_counter_ns() - start


def interleaved(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, dict]:
    """Each in turn, another first in each round. Medians in ns, and all times."""
    times: dict[str, list[tuple[int, int]]] = {name: [] for name in calls}
    names = list(calls)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            times[name].append(timed(calls[name]))
    return {
        name: {
            "step_ns": int(statistics.median(t for _, t in taken)),
            "host_ns": int(statistics.median(t for t, _ in taken)),
            "all_ns": [t for _, t in taken],
        }
        for name, taken in times.items()
    }


def profile(call: Callable[[], Any]) -> dict:
    """What the device did in one call, as PyTorch's profiler tells. ``span_ns``: from its first work to the end of its last;
    ``busy_ns``: of it, with at least one kernel or copy under way; ``works``: name to [count, ns], the longest first."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    torch.accelerator.synchronize()
    with profiler(activities=[ProfilerActivity.CUDA], acc_events=True) as watched:
        call()
        torch.accelerator.synchronize()
    works: dict[str, list[int]] = {}
    spans = []
    for event in watched.profiler.kineto_results.events():
        if event.device_type() != torch.autograd.DeviceType.CUDA or not event.duration_ns():
            continue
        work = works.setdefault(event.name()[:120], [0, 0])
        work[0] += 1
        work[1] += event.duration_ns()
        spans.append((event.start_ns(), event.start_ns() + event.duration_ns()))
    spans.sort()
    busy_ns, until = 0, 0
    for start, end in spans:
        busy_ns += max(0, end - max(start, until))
        until = max(until, end)
    longest = sorted(works.items(), key=lambda work: -work[1][1])[:40]
    return {"span_ns": until - spans[0][0] if spans else 0, "busy_ns": busy_ns, "works": dict(longest)}

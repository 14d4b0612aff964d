"""The graphs of the planning benchmarks: training steps captured by stowage.capture under FakeTensorMode, kept under
build/graphs.

Two forms of Adam:

    adam    torch.optim.Adam, for-loop form: its states are residents, updated in place
    paper   the form of ROAM's traces: the states are made by the step, as in Adam's first step, and die in it; weight decay 1e-4

A kept graph is used again as long as the sources that shape it (the models, the recorder) are the same.

    ./dev bench graphs                 lists the graphs
    ./dev bench graphs gpt2_xl-s1024-b1 --form paper -o step.graph.json.gz
"""

from __future__ import annotations

import argparse
import hashlib
import pathlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench import common

FORMS = ("adam", "paper")
PAPER_MODELS = ("alexnet", "vgg11", "mnasnet0_5", "mobilenet_v2", "efficientnet_b0", "vit_b_16", "roberta")
_SHAPING = (
    "bench/order/graphs.py",
    "bench/order/models_*.py",
    "runtime/**/*",
    "python/stowage/**/*.py",
    "python/bindings/*",
)


@dataclass(frozen=True)
class Case:
    model: str  # a factory of models_vision, models_sequence or models
    data: str  # a function of _Data
    batch: int
    options: tuple[tuple[str, Any], ...] = ()  # of the factory
    size: int = 0  # pixels or tokens
    micro_batches: int = 1
    paper: bool = False  # one of the 14 cases of ROAM's evaluation


def _cases() -> dict[str, Case]:
    cases: dict[str, Case] = {}

    def add(
        name: str,
        model: str,
        data: str,
        batches: tuple[int, ...],
        size: int,
        paper: bool = False,
        micro: int = 1,
        **options: Any,
    ):
        for batch in batches:
            cases[f"{name}-b{batch}"] = Case(model, data, batch, tuple(options.items()), size, micro, paper)

    for model in PAPER_MODELS[:-1]:
        add(model, model, "images", (1, 32), 224, paper=True)
    add("roberta", "roberta", "encoder", (1, 32), 6, paper=True)
    add("gpt2_xl-s1024", "gpt2_xl", "language", (1, 2, 4), 1024)
    add("gpt2_xl-ckpt-s1024", "gpt2_xl", "language", (1, 2, 4), 1024, checkpoint=True)
    add("gpt2-s256", "gpt2", "language", (1, 8), 256)
    add("gpt2-s1024", "gpt2", "language", (1, 4), 1024)
    add("gpt2-ckpt-s1024", "gpt2", "language", (1, 4), 1024, checkpoint=True)
    add("gpt2-accum2-s256", "gpt2", "language", (1, 4), 256, micro=2)
    add("bert_large-s128", "bert", "language", (1, 8), 128, layers=24, width=1024, heads=16)
    add("bert-s128", "bert", "language", (8,), 128)
    add("llama_1b-s2048", "llama_1b", "language", (1,), 2048)
    add("llama_1b-ckpt-s2048", "llama_1b", "language", (1, 2), 2048, checkpoint=True)
    add("moe-s512", "moe", "logits", (1, 8), 512)
    add("t5_small-s128", "t5_small", "language", (1, 8), 128)
    add("whisper_tiny", "whisper_tiny", "speech", (1, 4), 64)
    add("clip_b32", "clip_b32", "pairs", (2, 32), 224)
    add("swin_t", "swin_t", "labelled", (1, 16), 224)
    add("convnext_t", "convnext_t", "labelled", (1, 16), 224)
    add("detr_r50", "detr_r50", "boxes", (1, 4), 512)
    add("resnet50", "resnet50", "images", (1, 32), 224)
    add("densenet121", "densenet121", "images", (1, 32), 224)
    add("googlenet", "googlenet", "images", (1, 32), 224)
    add("unet", "unet", "masks", (1, 8), 256)
    add("deeplabv3_r50", "deeplabv3_r50", "scenes", (2, 4), 513)
    add("randwire", "randwire", "images", (1, 32), 224)
    return cases


CASES = _cases()
QUICK = (
    "alexnet-b1",
    "alexnet-b32",
    "vgg11-b1",
    "mnasnet0_5-b1",
    "vit_b_16-b1",
    "roberta-b1",
    "gpt2-ckpt-s1024-b1",
    "gpt2-accum2-s256-b1",
    "bert_large-s128-b1",
    "randwire-b1",
)


# ---- In the process that captures


class _Data:
    """For each kind of batch: the arguments of the step, and the loss of a model on them."""

    def __init__(self, batch: int, size: int):
        self.batch, self.size = batch, size

    def _pixels(self):
        import torch

        return torch.zeros((self.batch, 3, self.size, self.size))

    def _integers(self, *shape: int):
        import torch

        return torch.zeros(shape, dtype=torch.long)

    def images(self):
        from torch.nn.functional import cross_entropy

        return (self._pixels(), self._integers(self.batch)), lambda model, x, y: cross_entropy(model(x), y)

    def labelled(self):
        return (self._pixels(), self._integers(self.batch)), lambda model, x, y: model(pixel_values=x, labels=y).loss

    def masks(self):
        from torch.nn.functional import cross_entropy

        return (self._pixels(), self._integers(self.batch, self.size, self.size)), lambda model, x, y: cross_entropy(
            model(x), y
        )

    def scenes(self):
        from torch.nn.functional import cross_entropy

        def loss(model, x, y):
            main, side = model(x)
            return cross_entropy(main, y) + 0.5 * cross_entropy(side, y)

        return (self._pixels(), self._integers(self.batch, self.size, self.size)), loss

    def boxes(self):
        """Losses of DETR with fixed targets: the matching, done on the host, is left out."""
        import torch
        from torch.nn.functional import cross_entropy, l1_loss

        def loss(model, x, y, box):
            classes, boxes = model(x)
            return cross_entropy(classes.transpose(1, 2), y) + 5 * l1_loss(boxes, box)

        return (self._pixels(), self._integers(self.batch, 100), torch.zeros((self.batch, 100, 4))), loss

    def language(self):
        return (self._integers(self.batch, self.size),), lambda model, x: model(input_ids=x, labels=x).loss

    def logits(self):
        from torch.nn.functional import cross_entropy

        return (self._integers(self.batch, self.size),), lambda model, x: cross_entropy(
            model(x).flatten(0, 1), x.flatten()
        )

    def encoder(self):
        return (
            self._integers(self.batch, self.size),
        ), lambda model, x: model(input_ids=x).last_hidden_state.pow(2).mean()

    def speech(self):
        import torch

        features = torch.zeros((self.batch, 80, 3000))
        return (
            features,
            self._integers(self.batch, self.size),
        ), lambda model, x, y: model(input_features=x, labels=y).loss

    def pairs(self):
        return (
            self._pixels(),
            self._integers(self.batch, 77),
        ), lambda model, x, y: model(input_ids=y, pixel_values=x, return_loss=True).loss


def _factory(name: str) -> Callable:
    from bench import models
    from bench.order import models_sequence, models_vision

    if name == "unet":
        return models._UNet
    return getattr(models_vision, name, None) or getattr(models_sequence, name)


def _paper_adam(parameters, rate: float = 0.1, decay: float = 1e-4, betas=(0.9, 0.999), eps: float = 1e-8) -> None:
    """The first step of Adam, its states made where they are used."""
    import torch

    with torch.no_grad():
        for p in parameters:
            if p.grad is None:
                continue
            gradient = p.grad.add(p, alpha=decay)
            p.grad = None
            mean = torch.zeros_like(p).mul_(betas[0]).add_(gradient, alpha=1 - betas[0])
            square = torch.zeros_like(p).mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
            root = (square.sqrt() / (1 - betas[1]) ** 0.5).add_(eps)
            p.addcdiv_(mean, root, value=-rate / (1 - betas[0]))


def _make_step(model, loss_of: Callable, form: str) -> Callable:
    import torch

    parameters = list(model.parameters())
    optimizer = torch.optim.Adam(parameters, lr=1e-4, foreach=False) if form == "adam" else None

    def train_step(*micro_batches):
        for batch in micro_batches:
            loss = loss_of(model, *batch)
            loss.backward()
        if optimizer is None:
            _paper_adam(parameters)
        else:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    return train_step


_BUILT_ON_REAL_TENSORS = ("convnext_t",)  # its constructor reads numbers from tensors


def _faked(model, mode):
    """The model with fake tensors for its parameters and buffers."""
    for module in model.modules():
        for key, tensor in module._parameters.items():
            if tensor is not None:
                module._parameters[key] = mode.from_tensor(tensor)
        for key, tensor in module._buffers.items():
            if tensor is not None:
                module._buffers[key] = mode.from_tensor(tensor)
    return model


def capture(name: str, form: str):
    """The graph of one case, captured in this process."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    import stowage

    case = CASES[name]
    mode = FakeTensorMode()
    built = _factory(case.model)(**dict(case.options)) if case.model in _BUILT_ON_REAL_TENSORS else None
    with mode:
        torch.manual_seed(0)
        model = (_faked(built, mode) if built is not None else _factory(case.model)(**dict(case.options))).train()
        batches = []
        for _ in range(case.micro_batches):
            batch, loss_of = getattr(_Data(case.batch, case.size), case.data)()
            batches.append(batch)
        return stowage.capture(_make_step(model, loss_of, form), *batches, name=f"{name}.{form}")


def handlers(config: dict) -> dict:
    def save(name: str, form: str, path: str) -> dict:
        capture(name, form).save(path)
        return {}

    return {"capture": save}


# ---- In the process that plans


def _digest() -> str:
    digest = hashlib.sha256()
    for pattern in _SHAPING:
        for path in sorted(p for p in common.ROOT.glob(pattern) if p.is_file()):
            digest.update(path.name.encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


class Store:
    """Hands out graph files, captured when they are not kept yet by one worker that lives until close()."""

    def __init__(self):
        self._folder = common.ROOT / "build" / "graphs" / _digest()
        self._worker: common.Worker | None = None

    def path(self, name: str, form: str) -> pathlib.Path:
        path = self._folder / f"{name}.{form}.graph.json.gz"
        if not path.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            if self._worker is None:
                self._worker = common.Worker({}, threads=1, script=__file__)
            self._worker.ask("capture", name=name, form=form, path=str(path))
        return path

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], prog="./dev bench graphs")
    parser.add_argument("name", nargs="?", choices=list(CASES), metavar="NAME")
    parser.add_argument("--form", choices=FORMS, default="adam")
    parser.add_argument("-o", "--output", help="default NAME.FORM.graph.json.gz")
    options = parser.parse_args()
    if not options.name:
        print("\n".join(CASES))
        return
    capture(options.name, options.form).save(options.output or f"{options.name}.{options.form}.graph.json.gz")


if __name__ == "__main__":
    common.serve(handlers) if common.is_worker() else main()

"""Writes the reports of docs/gallery: small training steps of four kinds of models.

    PYTHONPATH=build/release/python:. python docs/site/gallery.py FOLDER [--pictures]

--pictures also takes docs/gallery/*.png of them, with Chromium. The models are small, so that a site is built in
seconds; what to see in them is the same in large ones."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional

import stowage

ROOT = Path(__file__).resolve().parents[2]
THE_MAP = "h => h.textContent.includes('Memory over time')"


def gpt2() -> tuple[Callable, tuple]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=4, n_embd=128, n_head=4, n_positions=64, vocab_size=512, use_cache=False, bos_token_id=0, eos_token_id=0
    )
    return _step(GPT2LMHeadModel(config), _language), (torch.zeros(4, 64, dtype=torch.long),)


def llama() -> tuple[Callable, tuple]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=128,
        intermediate_size=344,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=4096,
        use_cache=False,
    )
    return _step(LlamaForCausalLM(config), _language), (torch.zeros(4, 64, dtype=torch.long),)


def resnet() -> tuple[Callable, tuple]:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        embedding_size=16, hidden_sizes=[32, 64, 128, 256], depths=[2, 2, 2, 2], layer_type="basic", num_labels=10
    )

    def loss_of(model, images, labels):
        return model(pixel_values=images, labels=labels).loss

    return _step(ResNetForImageClassification(config), loss_of), (
        torch.zeros(16, 3, 64, 64),
        torch.zeros(16, dtype=torch.long),
    )


class Experts(torch.nn.Module):
    """A mixture of experts: each token goes to the two that the router likes best, the others see it with weight 0."""

    def __init__(self, width: int, inner: int, experts: int):
        super().__init__()
        self.router = torch.nn.Linear(width, experts, bias=False)
        self.up = torch.nn.Parameter(torch.randn(experts, width, inner) / width**0.5)
        self.down = torch.nn.Parameter(torch.randn(experts, inner, width) / inner**0.5)

    def forward(self, x):
        gates = self.router(x).softmax(-1)
        _, chosen = gates.topk(2, -1)
        weights = gates * torch.zeros_like(gates).scatter(-1, chosen, 1.0)
        each = functional.gelu(torch.einsum("bsw,ewi->ebsi", x, self.up))
        return x + torch.einsum("ebsi,eiw,bse->bsw", each, self.down, weights)


def moe() -> tuple[Callable, tuple]:
    model = torch.nn.Sequential(
        torch.nn.Embedding(512, 64), *(Experts(64, 128, 4) for _ in range(3)), torch.nn.Linear(64, 512)
    )

    def loss_of(model, tokens):
        return functional.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    return _step(model, loss_of), (torch.zeros(4, 32, dtype=torch.long),)


def _language(model, tokens):
    return model(input_ids=tokens, labels=tokens).loss


def _step(model: torch.nn.Module, loss_of: Callable) -> Callable:
    optimizer = torch.optim.AdamW(model.parameters())

    def train_step(*batch):
        loss = loss_of(model, *batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return train_step


# Of each: how it is made, which share of the planned arena it may have (None: any), and the link to the host in GB/s.
MODELS: dict[str, tuple[Callable, float | None, float]] = {
    "gpt2": (gpt2, None, 0),
    "resnet": (resnet, 0.6, 0),
    "llama": (llama, None, 0),
    "moe": (moe, 0.7, 8),
}


def _within(graph: stowage.Graph, budget_bytes: int, link_gbps: float) -> stowage.Plan:
    """In the least that works, where that is more: kernels need other memory on other processors."""
    try:
        return stowage.plan(graph, budget_bytes, link_gbps=link_gbps, progress=False)
    except stowage.Infeasible as error:
        return stowage.plan(graph, error.smallest_bytes, link_gbps=link_gbps, progress=False)


def write(folder: Path) -> list[Path]:
    """folder/NAME.html of each model."""
    torch.set_num_threads(1)
    made = []
    for name, (make, share, link) in MODELS.items():
        torch.manual_seed(0)
        step, batch = make()
        graph = stowage.capture(step, *batch, name=name)
        plan = stowage.plan(graph, progress=False)
        if share:
            plan = _within(graph, graph.resident_bytes + int(plan.arena_bytes * share), link)
        made.append(folder / f"{name}.html")
        plan.report(str(made[-1]))
    return made


def main(folder: Path, pictures: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    made = write(folder)
    if not pictures:
        return
    sys.path.append(str(ROOT / "tests" / "report"))
    from browser import Browser

    with Browser() as browser:
        for path in made:
            page = browser.open(path.resolve().as_uri())
            page.resize(1000, 780)
            page.wait("globalThis.stowageReport && stowageReport.loadMs > 0")
            page.evaluate(f"[...document.querySelectorAll('h2')].find({THE_MAP}).closest('section').scrollIntoView()")
            page.screenshot(ROOT / "docs" / "gallery" / f"{path.stem}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--pictures" in sys.argv)

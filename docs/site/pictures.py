"""Draws docs/pictures/*.svg from real plans: a small GPT-2 with AdamW, captured, planned in program order, freely, and
under a budget.

    PYTHONPATH=build/release/python python docs/site/pictures.py [FOLDER]
"""

from __future__ import annotations

import json
import sys
from html import escape
from pathlib import Path

import torch

import stowage

FOLDER = Path(__file__).resolve().parents[1] / "pictures"
COLOURS = {"activation": "#4c78a8", "gradient": "#f58518", "temporary": "#9d9da1", "output": "#54a24b"}
WIDTH, HEIGHT, MARGIN, GAP = 880, 300, 34, 40
# Words on a light and on a dark page; docs/stylesheets/site.css sets them where the picture is put into a page.
STYLE = "<style>.picture{--ink:#4a5057}@media (prefers-color-scheme:dark){.picture{--ink:#c3c8cf}}</style>"


def capture(batch: int, sequence: int, width: int) -> stowage.Graph:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = GPT2LMHeadModel(
        GPT2Config(
            n_layer=4,
            n_embd=width,
            n_head=4,
            n_positions=64,
            vocab_size=256,
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters())

    def train_step(tokens):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return stowage.capture(train_step, torch.randint(0, 256, (batch, sequence)), name="gpt2")


class Picture:
    """Elements of one SVG; y grows upwards from the bottom of a panel."""

    def __init__(self, height: int = HEIGHT):
        self.height = height
        self.elements: list[str] = []

    def text(self, x: float, y: float, words: str, anchor: str = "start") -> None:
        self.elements.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>')

    def box(self, x: float, y: float, w: float, h: float, colour: str, title: str = "", dashed: bool = False) -> None:
        style = (
            f'fill="none" stroke="{colour}" stroke-dasharray="3 2"'
            if dashed
            else f'fill="{colour}" stroke="white" stroke-width="0.3"'
        )
        self.elements.append(
            f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(w, 0.4):.2f}" height="{h:.2f}" {style}><title>{escape(title)}</title></rect>'
        )

    def save(self, path: Path) -> None:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="picture" viewBox="0 0 {WIDTH} {self.height}" '
            f'font-family="sans-serif" font-size="12" fill="var(--ink)">{STYLE}'
        )
        path.write_text("\n".join([head, *self.elements, "</svg>"]) + "\n")


def mebibytes(count: int) -> str:
    return f"{count / 2**20:.2f} MiB"


def panel(picture: Picture, graph: dict, plan: dict, left: float, width: float, highest: int, title: str) -> None:
    """One plan as address over time."""
    steps, floor = len(plan["steps"]), picture.height - MARGIN
    scale_x, scale_y = width / steps, (picture.height - 2 * MARGIN) / highest
    picture.text(left, MARGIN - 12, f"{title}: {mebibytes(plan['arena_bytes'])}")
    last: dict[int, dict] = {}
    for placement in plan["placements"]:
        buffer = graph["buffers"][placement["buffer"]]
        tall = buffer["bytes"] * scale_y
        if tall < 0.15:
            continue
        y = floor - placement["offset"] * scale_y - tall
        if placement["buffer"] in last:  # it was gone meanwhile
            before = last[placement["buffer"]]
            picture.box(
                left + before["to"] * scale_x,
                y,
                (placement["from"] - before["to"]) * scale_x,
                tall,
                COLOURS.get(buffer["kind"], "#bbb"),
                dashed=True,
            )
        last[placement["buffer"]] = placement
        picture.box(
            left + placement["from"] * scale_x,
            y,
            (placement["to"] - placement["from"]) * scale_x,
            tall,
            COLOURS.get(buffer["kind"], "#bbb"),
            f"{buffer['name']}: {mebibytes(buffer['bytes'])}, {buffer['kind']}",
        )
    picture.elements.append(f'<path d="M{left} {MARGIN} V{floor} H{left + width}" fill="none" stroke="#999"/>')
    picture.text(left + width, floor + 16, f"{steps} steps", "end")


def live(graph: dict, plan: dict) -> list[int]:
    """Bytes of the placements that cover each step; a result that lies over an input that ends there counts from the
    next step on."""
    change = [0] * (len(plan["steps"]) + 1)
    ending = {(p["to"], p["offset"]) for p in plan["placements"] if p["to"] - p["from"] > 1}
    for placement in plan["placements"]:
        begin = placement["from"] + ((placement["from"] + 1, placement["offset"]) in ending)
        change[min(begin, placement["to"])] += graph["buffers"][placement["buffer"]]["bytes"]
        change[placement["to"]] -= graph["buffers"][placement["buffer"]]["bytes"]
    total, curve = 0, []
    for delta in change[:-1]:
        total += delta
        curve.append(total)
    return curve


def curves(picture: Picture, graph: dict, plans: dict[str, dict], bound: int) -> None:
    floor = picture.height - MARGIN
    highest = max(max(live(graph, plan)) for plan in plans.values())
    width, scale = WIDTH - 2 * MARGIN, (picture.height - 2 * MARGIN) / highest
    for (title, plan), colour, y in zip(plans.items(), ("#f58518", "#4c78a8"), (MARGIN - 14, MARGIN + 2)):
        curve = live(graph, plan)
        points = " ".join(
            f"{MARGIN + i * width / len(curve):.1f},{floor - bytes_ * scale:.1f}" for i, bytes_ in enumerate(curve)
        )
        picture.elements.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        picture.elements.append(f'<path d="M{MARGIN + 4} {y - 4}h16" stroke="{colour}" stroke-width="3"/>')
        picture.text(MARGIN + 26, y, f"{title}: peak {mebibytes(max(curve))}")
    y = floor - bound * scale
    picture.elements.append(f'<path d="M{MARGIN} {y:.1f} H{WIDTH - MARGIN}" stroke="#c33" stroke-dasharray="5 3"/>')
    picture.text(WIDTH - MARGIN, y - 4, f"no order can peak below {mebibytes(bound)}", "end")
    picture.elements.append(f'<path d="M{MARGIN} {MARGIN} V{floor} H{WIDTH - MARGIN}" fill="none" stroke="#999"/>')


def value(plan: stowage.Plan) -> dict:
    return json.loads(plan._plan.to_json())


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    graph = capture(batch=1, sequence=32, width=256)  # little to keep for backward: gradients make the peak
    kept, free = stowage.plan(graph, keep_order=True, in_place_reuse=False), stowage.plan(graph)
    values = {"kept": value(kept), "free": value(free)}
    document = json.loads(graph.to_json())

    half = (WIDTH - 2 * MARGIN - GAP) / 2
    arena = Picture()
    highest = values["kept"]["arena_bytes"]
    panel(arena, document, values["kept"], MARGIN, half, highest, "Program order")
    panel(arena, document, values["free"], MARGIN + half + GAP, half, highest, "Planned")
    arena.save(folder / "arena.svg")

    lines = Picture(240)
    curves(
        lines,
        document,
        {"program order": values["kept"], "planned": values["free"]},
        free.summary()["lower_bound_bytes"],
    )
    lines.save(folder / "live.svg")

    graph = capture(batch=2, sequence=64, width=128)  # here activations do
    free = stowage.plan(graph)
    tight = stowage.plan(graph, graph.resident_bytes + free.arena_bytes * 3 // 4, link_gbps=0)
    document = json.loads(graph.to_json())
    less = Picture()
    panel(less, document, value(free), MARGIN, half, free.arena_bytes, "No limit")
    panel(less, document, value(tight), MARGIN + half + GAP, half, free.arena_bytes, "Three quarters")
    less.save(folder / "budget.svg")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)

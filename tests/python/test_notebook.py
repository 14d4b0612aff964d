"""What notebooks display: well-formed, escaped, and the figures of the objects themselves."""

import json
import re
import xml.etree.ElementTree as xml

import pytest
import torch

import stowage
from stowage.errors import UnsupportedWarning
from stowage.report import notebook


def parsed(text):
    return xml.fromstring(text)


def words_of(text):
    return " ".join("".join(parsed(text).itertext()).split())


def make_step(width=64):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.Linear(width, width))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def test_a_plan():
    graph = stowage.capture(make_step(), torch.randn(128, 64))
    plan = stowage.plan(graph)
    text = plan._repr_html_()
    said, summary = words_of(text), plan.summary()
    total = stowage.sizes.in_words(summary["resident_bytes"] + summary["arena_bytes"])
    assert total in said and "proven: no order has a smaller peak" in said and "What holds the peak" in said
    boxes = [e for e in parsed(text).iter() if e.tag.endswith("rect")]
    assert len(boxes) == min(len(json.loads(plan._plan.to_json())["placements"]), notebook.MOST_BOXES)
    for box in boxes:
        x, y, width, height = (float(box.get(key)) for key in ("x", "y", "width", "height"))
        assert 0 <= x <= x + width <= notebook.WIDTH + 1 and -1 <= y <= y + height <= notebook.HEIGHT + 1


def test_a_plan_from_a_file_and_names_that_are_markup(tmp_path):
    graph = stowage.capture(make_step(), torch.randn(128, 64))
    data = json.loads(graph.to_json())
    data["name"] = "<script>alert(1)</script>"
    for buffer in data["buffers"]:
        buffer["name"] = f'"><i>{buffer["name"]}'
    plan = stowage.plan(stowage.Graph.parse(json.dumps(data)))
    text = plan._repr_html_()
    assert "<script" not in text and "<i>" not in text and "<script>alert(1)</script>" in words_of(text)
    plan.save(str(tmp_path / "x.plan.json"))
    assert "A plan with an arena of" in words_of(stowage.Plan.load(str(tmp_path / "x.plan.json"))._repr_html_())


def test_a_budgeted_plan_says_what_it_does():
    graph = stowage.capture(make_step(128), torch.randn(1024, 128))
    free = stowage.plan(graph).summary()
    try:
        stowage.plan(graph, graph.resident_bytes + free["arena_bytes"] // 2)
    except stowage.Infeasible as error:
        budget = error.smallest_bytes
    else:
        budget = graph.resident_bytes + free["arena_bytes"] // 2
    plan = stowage.plan(graph, budget)
    said = words_of(plan._repr_html_())
    if plan.summary()["recomputed_ops"]:
        assert re.search(r"\d+ ops run again", said)
    assert f"budget {stowage.sizes.in_words(budget)}" in said


def test_a_step_before_and_after_it_is_planned():
    step = stowage.compile(make_step())
    assert "call the step three times" in words_of(step._repr_html_())
    for _ in range(6):
        step(torch.randn(128, 64))
    said = words_of(step._repr_html_())
    stats = step.stats()
    assert f"{stats['planned_steps']} planned calls, {stats['eager_steps']} eager ones" in said
    assert "residents" in said and stats["planned_steps"] > 0


def test_a_step_that_is_refused_says_why():
    net = torch.nn.Linear(8, 8)
    step = stowage.compile(lambda x: net(x).sum())
    with pytest.warns(UnsupportedWarning):
        for _ in range(4):
            step(2 * torch.randn(2, 8, requires_grad=True))
    said = words_of(step._repr_html_())
    assert "not planned" in said and step.refusal and step.refusal.split()[0] in said


def test_a_budget():
    step = make_step(256)
    with stowage.budget("4MiB", progress=False) as block:
        for _ in range(3):
            step(torch.randn(512, 256))
    text = block._repr_html_()
    said = words_of(text)
    assert "A limit of 4.0 MiB on cpu" in said and "most live" in said
    lines = [e for e in parsed(text).iter() if e.tag.endswith("polyline")]
    points = [tuple(map(float, p.split(","))) for p in lines[0].get("points").split()]
    assert len(points) > 10 and all(0 <= x <= notebook.WIDTH and 0 <= y <= notebook.HEIGHT for x, y in points)

"""explain() of plans and compiled steps, on steps whose pattern is known; each rule has its C++ test in
tests/explain."""

import pytest
import torch

import stowage


def make_step(clip: str = "", set_to_none: bool = True, layers: int = 4, width: int = 64):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(layers)])
    optimizer = torch.optim.AdamW(model.parameters())

    def train_step(x):
        loss = model(x).square().mean()
        loss.backward()
        if clip == "norm":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        elif clip == "value":
            torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)
        return loss.detach()

    return train_step, torch.randn(2, width)


def explain(**how) -> str:
    step, x = make_step(**how)
    text = stowage.plan(stowage.capture(step, x)).explain(prices=False)
    return " ".join(text.split())


def test_clipping_by_norm_is_named_with_its_line_and_what_it_costs():
    text = explain(clip="norm")
    assert "clip_grad_norm_ (test_explain.py:" in text and "needs all gradients" in text
    assert "needs all gradients" not in explain(clip="value")
    assert "needs all gradients" not in explain()


def test_gradients_that_are_kept_are_named():
    assert "zero_grad(set_to_none=False) (test_explain.py:" in explain(set_to_none=False)
    assert "set_to_none" not in explain()


def test_a_compiled_step_explains_its_plan():
    train_step, x = make_step()
    step = stowage.compile(train_step)
    assert step.explain() == "Nothing is planned yet: call the step three times\n"
    for _ in range(4):
        step(x)
    text = step.explain()
    for part in ("Where the bytes go", "What holds the peak", "test_explain.py:", "What a budget costs"):
        assert part in text, text


def test_a_refused_step_says_why():
    step = stowage.compile(lambda x: torch.unique(x, dim=0).sum())
    with pytest.warns(UserWarning):
        for _ in range(3):
            step(torch.ones(3))
    assert step.explain().startswith("Nothing is planned: ")


def test_a_plan_from_a_file_needs_its_graph(tmp_path):
    train_step, x = make_step()
    graph = stowage.capture(train_step, x)
    stowage.plan(graph).save(tmp_path / "p.plan.json")
    plan = stowage.Plan.load(tmp_path / "p.plan.json")
    with pytest.raises(TypeError, match="needs its graph"):
        plan.explain()
    assert "What holds the peak" in plan.explain(graph, prices=False)

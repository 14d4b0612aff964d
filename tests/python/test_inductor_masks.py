"""Masks that are made again from what is saved anyway: exact, and never from what is not saved."""

import inductor_models as m
import pytest
import torch
import torch.nn.functional as F
from inductor_models import compiled_anew, own_inductor_cache  # noqa: F401
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import stowage
from stowage.inductor import masks, reports  # noqa: F401

aten = torch.ops.aten


def _names(graph, target):
    return [node.name for node in graph.graph.nodes if node.target is target]


def _graph(function, *inputs):
    return make_fx(function, tracing_mode="fake")(*inputs)


def test_of_a_view_that_is_saved_its_base_is():
    def step(x):
        kept = torch.relu(x * 2)
        return kept.view(4, 8), kept <= 0

    graph = _graph(step, torch.randn(8, 4))
    (view,), (mask,), (relu,) = (_names(graph, t) for t in (aten.view.default, aten.le.Scalar, aten.relu.default))
    assert masks.without(graph, (view, mask)) == (relu,)
    assert masks.without(graph, (relu, mask)) == (relu,)
    assert masks.without(graph, (mask,)) == (mask,)  # else all of relu, to save a quarter of it


def test_what_is_not_exact_stays_saved():
    def step(x, y):
        return y.exp(), y.exp() <= 0, torch.rand(8) < 0.5, x.view(2, 4)

    graph = _graph(step, torch.randn(8), torch.randn(8))
    saved = tuple(n for t in (aten.le.Scalar, aten.lt.Scalar, aten.view.default) for n in _names(graph, t))
    assert len(saved) == 3 and masks.without(graph, (*saved, "y_1")) == (*saved, "y_1")


def test_logic_and_integers_lead_to_it():
    def step(x):
        causal = torch.arange(8)[:, None] >= torch.arange(8)[None, :] + 1
        return ((x > 0) & causal) | torch.isnan(x), x * 3

    graph = _graph(step, torch.randn(8, 8))
    (mask,) = _names(graph, aten.bitwise_or.Tensor)
    assert masks.without(graph, ("x_1", mask)) == ("x_1",)
    assert masks.without(graph, (_names(graph, aten.mul.Tensor)[0], mask))[-1] == mask


class _Gates(nn.Module):
    """Each activation has a gradient with a mask."""

    def __init__(self, activation):
        super().__init__()
        self.layers, self.activation = nn.ModuleList(nn.Linear(64, 64) for _ in range(4)), activation

    def forward(self, x):
        for layer in self.layers:
            x = self.activation(layer(x))
        return x.square().mean()


ACTIVATIONS = {
    "relu": torch.relu,
    "leaky": F.leaky_relu,
    "hardtanh": F.hardtanh,
    "hardswish": F.hardswish,
    "masked": lambda x: x.masked_fill(x > 0.5, 0.25) * x,
    "where": lambda x: torch.where(x > 0, x, 0.1 * x * x),
    "clamp": lambda x: x.clamp(-0.5, 0.5) + x.relu(),
    "dropout": lambda x: F.dropout(x.relu(), 0.3),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_bits_and_predictions_of_models_with_masks(name):
    torch.manual_seed(0)
    model, batch = _Gates(ACTIVATIONS[name]), torch.randn(256, 64)
    expected = m.step(m.compiled(model, "default"), model, batch)
    torch._dynamo.reset()
    free = m.compiled(model)
    m.step(free, model, batch)
    most = m.records(free)[0].chosen.peak_bytes
    for part in (0.97, 0.8):
        torch._dynamo.reset()
        limit = int(part * most)
        try:
            function = m.compiled(model, limit)
            m.step(function, model, batch)
        except stowage.Infeasible as error:
            torch._dynamo.reset()
            function = m.compiled(model, limit := error.smallest_bytes)
            m.step(function, model, batch)
        found = m.step(function, model, batch)
        chosen = m.records(function)[0].chosen
        assert m.same_bits(found, expected)
        assert 0.98 * chosen.peak_bytes <= found[2] <= chosen.peak_bytes <= limit
        if name == "relu":
            assert not any(saved.startswith("le") for saved in chosen.saved)

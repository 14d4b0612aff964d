"""A byte limit inside torch.compile: what is predicted is what is measured, and the bits are Inductor's."""

import itertools

import inductor_models as m
import pytest
import torch
from inductor_models import compiled_anew, own_inductor_cache  # noqa: F401

import stowage
import stowage.inductor
from stowage.inductor import partitioner, private, reports  # noqa: F401


@pytest.mark.parametrize("name", m.MODELS)
def test_measured_as_predicted_with_the_bits_of_the_default(name):
    model, batch = m.make(name)
    default = m.compiled(model, "default")
    m.step(default, model, batch)
    expected = m.step(default, model, batch)
    torch._dynamo.reset()
    most = None
    for limited in (False, True):
        model, batch = m.make(name)
        function = m.compiled(model, most - 1 if limited else None)
        m.step(function, model, batch)  # compiles; norms change their statistics, as above
        found = m.step(function, model, batch)
        (record,) = m.records(function)
        predicted = record.chosen.peak_bytes
        assert 0.98 * predicted <= found[2] <= predicted
        assert m.same_bits(found, expected)
        if limited:
            assert predicted <= record.budget_bytes == most - 1 and record.chosen.saved is not None
        most = predicted
        torch._dynamo.reset()


class _Limits(private.partitioner_base()):
    """Within one compilation: what each of ten limits chooses."""

    def __init__(self):
        self.chosen = []

    def uuid(self):
        return None

    def __deepcopy__(self, memo):
        return self

    def __call__(self, gm, inputs, **options):
        ladder = partitioner._ladder(gm, inputs, options, {})
        with pytest.raises(stowage.Infeasible) as error:
            ladder.choose(1)
        least, most = error.value.smallest_bytes, ladder.default.peak_bytes
        for i in range(10):
            limit = least + (most - least) * i // 9
            self.chosen.append((limit, ladder.choose(limit)))
        return private.partition(gm, inputs, None, **options)


@pytest.mark.parametrize("name", ["mlp", "attention"])
def test_a_larger_limit_recomputes_no_more_and_peaks_rise_with_limits(name):
    model, batch = m.make(name)
    limits = _Limits()
    torch.compile(model, options={"custom_partitioner_fn": limits}, dynamic=False)(batch)
    assert len(limits.chosen) == 10
    assert all(candidate.peak_bytes <= limit for limit, candidate in limits.chosen)
    peaks = [candidate.peak_bytes for _, candidate in limits.chosen]
    times = [candidate.recompute_ns for _, candidate in limits.chosen]
    assert peaks == sorted(peaks)
    assert times == sorted(times, reverse=True)
    assert len(set(peaks)) > 2  # the limits do something


def test_the_smallest_works_and_a_byte_less_does_not():
    model, batch = m.make("mlp")
    expected = m.step(m.compiled(model, "default"), model, batch)
    torch._dynamo.reset()
    with pytest.raises(stowage.Infeasible, match="the smallest that works") as error:
        m.compiled(model, 1)(batch)
    smallest = error.value.smallest_bytes
    assert 0 < error.value.bound_bytes <= smallest
    torch._dynamo.reset()
    with pytest.raises(stowage.Infeasible) as error:
        m.compiled(model, smallest - 1)(batch)
    assert error.value.smallest_bytes == smallest
    torch._dynamo.reset()
    function = m.compiled(model, smallest)
    m.step(function, model, batch)
    found = m.step(function, model, batch)
    assert found[2] <= smallest and m.same_bits(found, expected)


def test_dropout_that_is_recomputed_draws_the_same():
    torch.manual_seed(0)
    model, batch = m.Mlp(dropout=0.3), torch.randn(256, 64)
    expected = m.step(m.compiled(model, "default"), model, batch)
    torch._dynamo.reset()
    function = m.compiled(model)
    m.step(function, model, batch)
    most = m.records(function)[0].chosen.peak_bytes
    torch._dynamo.reset()
    function = m.compiled(model, int(0.8 * most))
    first = m.step(function, model, batch)
    assert m.records(function)[0].chosen.saved is not None
    assert m.same_bits(first, expected)
    again, other = m.step(function, model, batch, seed=5), m.step(function, model, batch, seed=6)
    assert m.same_bits(again, first) and not m.same_bits(other, first)


def test_two_models_in_one_process():
    one, batch = m.make("mlp")
    two, pictures = m.make("convolutions")
    expected = [m.step(m.compiled(model, "default"), model, b) for model, b in ((one, batch), (two, pictures))]
    torch._dynamo.reset()
    first, second = m.compiled(one, "450KiB"), m.compiled(two, "10MiB")
    two.load_state_dict(m.make("convolutions")[0].state_dict())
    assert m.same_bits(m.step(first, one, batch), expected[0])
    assert m.same_bits(m.step(second, two, pictures), expected[1])
    assert [r.budget_bytes for r in m.records(first)] == [450 << 10]
    assert [r.budget_bytes for r in m.records(second)] == [10 << 20]


def test_text_budgets_and_wrong_ones():
    (limit,) = (stowage.inductor.options(budget="1GiB")["custom_partitioner_fn"].budget_bytes,)
    assert limit == 1 << 30
    with pytest.raises(stowage.Error):
        stowage.inductor.options(budget="a lot")
    with pytest.raises(TypeError):
        stowage.inductor.options(budget=1.5)


def test_the_report_says_what_was_chosen(tmp_path):
    model, batch = m.make("mlp")
    with pytest.raises(stowage.Error, match="was not compiled"):
        stowage.inductor.report(model)
    function = m.compiled(model, "450KiB")
    assert "No graph was planned" in str(stowage.inductor.report(function))
    m.step(function, model, batch)
    report = stowage.inductor.report(function)
    (graph,) = report.graphs
    assert graph.predicted_peak_bytes <= 450 << 10 < graph.default_peak_bytes
    assert graph.bound_bytes <= graph.predicted_peak_bytes and graph.recompute_ms > 0
    assert [order.name for order in graph.orders] == ["forward", "backward"]
    for order in graph.orders:
        assert order.bound_bytes <= order.best_peak_bytes <= order.inductor_peak_bytes
        assert order.optimal == (order.bound_bytes == order.inductor_peak_bytes)
    assert "450.0 KiB" in str(report)
    report.save(str(tmp_path / "report.html"))
    assert "<h2>Graph 0</h2>" in (tmp_path / "report.html").read_text()


def test_a_gradient_that_is_copied_into_place_counts():
    """Inductor makes that of a 3x3 convolution with other strides than its parameter has: PyTorch copies it when all are there."""

    class Narrow(torch.nn.Module):
        def __init__(self):
            super().__init__()
            widths = [8, *[64] * 24]
            self.layers = torch.nn.ModuleList(torch.nn.Conv2d(a, b, 1) for a, b in itertools.pairwise(widths))
            self.last = torch.nn.Conv2d(64, 64, 3, padding=1)

        def forward(self, x):
            for layer in self.layers:
                x = layer(x).relu()
            return self.last(x).square().mean()

    torch.manual_seed(0)
    model, batch = Narrow(), torch.randn(1, 8, 2, 2)
    function = m.compiled(model)
    m.step(function, model, batch)
    (record,) = m.records(function)
    trial = record.ladder.trial
    assert trial.copied_bytes == model.last.weight.numel() * 4
    assert trial.peak_bytes > trial.backward.peak_bytes + trial.outside_bytes
    assert m.step(function, model, batch)[2] == record.chosen.peak_bytes
    torch._dynamo.reset()
    with pytest.raises(stowage.Infeasible) as error:
        m.compiled(model, 1)(batch)
    assert error.value.smallest_bytes > trial.backward.end_bytes

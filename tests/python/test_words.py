"""What a user reads first when something does not fit: units, and which way figures are rounded."""

import random

import pytest
import torch

import stowage
from stowage.errors import UnsupportedWarning
from stowage.planning import infeasible
from stowage.sizes import in_words


@pytest.mark.parametrize(
    "bytes_, down, nearest, up",
    [
        (0, "0 bytes", "0 bytes", "0 bytes"),
        (1023, "1023 bytes", "1023 bytes", "1023 bytes"),
        (1024, "1.0 KiB", "1.0 KiB", "1.0 KiB"),
        (1025, "1.0 KiB", "1.0 KiB", "1.1 KiB"),
        (69_206_016, "66.0 MiB", "66.0 MiB", "66.0 MiB"),
        (69_206_017, "66.0 MiB", "66.0 MiB", "66.1 MiB"),
        ((8 << 30) - 1, "8,191.9 MiB", "8,192.0 MiB", "8,192.0 MiB"),
        (24 << 30, "24.0 GiB", "24.0 GiB", "24.0 GiB"),
    ],
)
def test_bytes_in_words(bytes_, down, nearest, up):
    assert [in_words(bytes_, d) for d in (-1, 0, 1)] == [down, nearest, up]


def test_what_is_said_is_never_too_little_when_rounded_up_and_never_too_much_when_rounded_down():
    draw = random.Random(3)
    size = {"byte": 1, "bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    for _ in range(2000):
        bytes_ = draw.randrange(1 << draw.randrange(1, 50))
        low, high = (in_words(bytes_, d).replace(",", "").split() for d in (-1, 1))
        assert float(low[0]) * size[low[1]] <= bytes_ <= float(high[0]) * size[high[1]], bytes_


def test_a_budget_below_the_bound():
    assert str(infeasible("graph 'step'", 69_206_016, 71_515_362, 70_254_592)) == (
        "graph 'step' needs at least 67.0 MiB (proven); the budget is 66.0 MiB; "
        "the smallest that works: 68.3 MiB (71515362 bytes)"
    )


def test_a_budget_between_the_bound_and_the_smallest_that_was_found():
    assert str(infeasible("graph 'step'", 71_000_000, 71_515_362, 70_254_592)) == (
        "graph 'step': no plan was found within 67.7 MiB; below 67.0 MiB there is none (proven); "
        "the smallest that works: 68.3 MiB (71515362 bytes)"
    )


def test_figures_that_would_read_alike_are_told_to_the_byte():
    assert "needs at least 70,254,593 bytes (proven); the budget is 70,254,592 bytes" in str(
        infeasible("graph 'step'", 70_254_592, 71_515_362, 70_254_593)
    )


def test_what_the_error_says_works():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 64))
    updates = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x):
        updates.zero_grad()
        net(x).square().mean().backward()
        updates.step()

    graph = stowage.capture(step, torch.randn(32, 64))
    with pytest.raises(
        stowage.Infeasible, match=r"^graph 'step' needs at least .* \(proven\); the budget is"
    ) as caught:
        stowage.plan(graph, 1)
    copied = int(str(caught.value).rsplit("(", 1)[1].split()[0])
    assert copied == caught.value.smallest_bytes
    assert stowage.plan(graph, copied).summary()["outcome"] in ("optimal", "feasible")


def test_a_step_that_loads_its_own_data_is_told_the_line_and_what_to_do():
    """Of another length in each call; of one length such a step is planned."""
    torch.manual_seed(0)
    net = torch.nn.Linear(8, 2)
    rows, labels = torch.randn(64, 8), torch.randint(0, 2, (64,))
    lengths = iter(range(1, 64))

    def step():
        n = next(lengths)
        x = rows[:n]  # the line
        torch.nn.functional.cross_entropy(net(x), labels[:n]).backward()
        net.zero_grad()

    line = step.__code__.co_firstlineno + 2
    compiled = stowage.compile(step)
    with pytest.warns(UnsupportedWarning) as warned:
        for _ in range(40):
            compiled()
    (said,) = [str(w.message) for w in warned if "keeps changing" in str(w.message)]
    assert f"test_words.py:{line})" in said
    assert said.endswith("what is drawn or loaded anew for each call, pass as an argument")

"""stowage.max_batch and max_length: the largest batch, the longest sequence, that a byte limit holds, without memory for
the model."""

import copy
import io
import pickle

import numpy
import pytest
import torch
from mean_square import mean_square_step
from torch import nn
from torch.utils.checkpoint import checkpoint

import stowage
from stowage import _runtime
from stowage.step.fit.fit import least_eager_bytes, without_scratch
from stowage.step.fit.kernel_bytes import LARGEST_PROBE_BYTES
from stowage.step.fit.made_step import MakeStep
from stowage.step.fit.sized_step import SizedSteps


def perceptron(width=64, depth=3, form=None):
    """make_step of a small network; counts what was asked for in ``asked``."""
    asked = []

    def make_step(batch_size):
        asked.append(batch_size)
        model = nn.Sequential(*[layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.GELU())])
        optimizer = torch.optim.AdamW(model.parameters(), **(form or {"fused": True}))

        def train_step(x, y):
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return train_step, (torch.randn(batch_size, width), torch.randn(batch_size, width))

    make_step.asked = asked
    return make_step


def encoder(width=32):
    """make_step of a small transformer, by batch size and length; counts what was asked for in ``asked``."""
    asked = []

    def make_step(batch_size=2, length=8):
        asked.append((batch_size, length))
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True)
        model = nn.Sequential(nn.Embedding(100, width), nn.TransformerEncoder(layer, 2), nn.Linear(width, 100))
        optimizer = torch.optim.AdamW(model.parameters())

        def train_step(tokens):
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return train_step, (torch.randint(0, 100, (batch_size, length)),)

    make_step.asked = asked
    return make_step


def fits(make_step, batch, budget):
    made = MakeStep(make_step, "batch_size")
    graph, as_recorded = SizedSteps(made).at(made.sizes({"batch_size": batch})).graphs()
    limit = without_scratch(stowage.sizes.parse_bytes(budget))
    try:
        stowage.plan(graph, limit)
    except stowage.Error:
        return False
    return least_eager_bytes(as_recorded) <= limit


def classifier(layers, rows, width=64, classes=10):
    """make_step of a network that ends in cross entropy; ``rows`` of its input are one sample."""

    def make_step(batch_size):
        torch.manual_seed(0)
        model = nn.Sequential(*layers(width), nn.Flatten(), nn.Linear(width * rows, classes))
        optimizer = torch.optim.AdamW(model.parameters())

        def train_step(x, y):
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return train_step, (torch.randn(batch_size, rows, width), torch.randint(0, classes, (batch_size,)))

    return make_step


WIDE_GELU = classifier(lambda w: [nn.Linear(w, 8 * w), nn.GELU(), nn.Linear(8 * w, w)], rows=1)
NORMS = classifier(
    lambda w: [nn.LayerNorm(w), nn.Linear(w, w), nn.SiLU(), nn.LayerNorm(w), nn.Linear(w, w), nn.Tanh()], rows=16
)


def averaged(batch_size):
    """Gradients of the call before are there until the step lets go of them, and a copy that no kernel reads before the end."""
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    average = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters())

    def step(x):
        optimizer.zero_grad()
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for a, b in zip(average.parameters(), model.parameters()):
                a.lerp_(b, 0.1)
        return loss.detach()

    return step, (torch.randn(batch_size, 64),)


def checkpointed(batch_size):
    blocks = [nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 64)) for _ in range(3)]
    optimizer = torch.optim.SGD([p for block in blocks for p in block.parameters()], 0.1)

    def step(x):
        optimizer.zero_grad()
        for block in blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        loss = x.square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, (torch.randn(batch_size, 64),)


@pytest.mark.parametrize(
    "make_step, budget",
    [
        (WIDE_GELU, "4MiB"),
        (WIDE_GELU, "9MiB"),
        (NORMS, "4MiB"),
        (NORMS, "9MiB"),
        (averaged, "3MiB"),
        (checkpointed, "4MiB"),
    ],
    ids=["wide-gelu-4MiB", "wide-gelu-9MiB", "norms-4MiB", "norms-9MiB", "averaged-3MiB", "checkpointed-4MiB"],
)
def test_the_calls_before_the_plan_fit_too(make_step, budget):
    """What the answer says is done: compiled at that batch within that budget, the step is recorded, planned and
    replayed."""
    found = stowage.max_batch(make_step, budget)
    step, batch = make_step(found.batch)
    compiled = stowage.compile(step, budget=budget)
    for _ in range(5):
        compiled(*batch)
    assert compiled.stats()["planned_steps"] > 0
    tried = {t.batch: t for t in found.tried}
    assert tried[found.batch].eager_bytes <= found.budget_bytes
    assert not tried[found.batch + 1].fits and tried[found.batch + 1].smallest_bytes > found.budget_bytes


def test_a_head_whose_kernels_work_in_slices():
    """A planned step never has all of the logits' gradient beside them; the calls before it do."""

    def make_step(batch_size):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(200, 32), nn.Linear(32, 200))
        optimizer = torch.optim.AdamW(model.parameters())

        def train_step(tokens):
            loss = nn.functional.cross_entropy(model(tokens), tokens)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return train_step, torch.randint(0, 200, (batch_size,))

    found = stowage.max_batch(make_step, "6MiB", start=2176, most=3456, multiple_of=128)
    assert found.batch < 2816  # where the three tensors of log_softmax's backward do not fit
    step, tokens = make_step(found.batch)
    compiled = stowage.compile(step, budget="6MiB")
    for _ in range(5):
        compiled(tokens)
    assert compiled.stats()["planned_steps"] > 0


LOSSES = {
    "mse": nn.functional.mse_loss,
    "smooth l1": nn.functional.smooth_l1_loss,
    "huber": nn.functional.huber_loss,
    "bce": nn.functional.binary_cross_entropy_with_logits,
    "soft margin": nn.functional.soft_margin_loss,
    "mean": lambda y, x: (y - x).abs().mean(),
    "what it makes": lambda y, x: (y * x).square(),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_what_is_returned_counts_with_its_memory(loss):
    """A loss of one number may lie in memory for all that was summed; no fake tells."""

    def make_step(batch_size):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128))
        optimizer = torch.optim.SGD(model.parameters(), 0.01)

        def train_step(x):
            value = LOSSES[loss](model(x), x)
            value.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            return value.detach()

        return train_step, torch.rand(batch_size, 128)

    found = stowage.max_batch(make_step, "4MiB", start=256, most=4096, multiple_of=64)
    step, x = make_step(found.batch)
    compiled = stowage.compile(step, budget="4MiB")
    for _ in range(5):
        compiled(x)
    assert compiled.stats()["planned_steps"] > 0


def test_what_an_eager_call_needs_is_said():
    found = stowage.max_batch(WIDE_GELU, "4MiB")
    above = next(t for t in found.tried if t.batch == found.batch + 1)
    assert above.outcome == "infeasible" and above.eager_bytes == above.smallest_bytes > found.budget_bytes
    assert above.arena_bytes + above.resident_bytes <= found.budget_bytes  # a plan there is


@pytest.mark.parametrize("budget", [300_000, 400_000, 600_000, "1MiB"])
def test_the_answer_is_that_of_trying_all(budget):
    make_step = perceptron()
    found = stowage.max_batch(make_step, budget)
    limit = stowage.sizes.parse_bytes(budget)
    assert fits(make_step, found.batch, limit) and not any(
        fits(make_step, found.batch + more, limit) for more in (1, 2, 3, 10)
    )
    s = found.summary()
    assert s["resident_bytes"] + s["arena_bytes"] <= limit == found.budget_bytes
    assert found.slowdown == pytest.approx(s["step_ns"] / s["program_step_ns"])
    stowage.check(found.graph, found.plan)
    assert [t.batch for t in found.tried] == sorted({t.batch for t in found.tried})
    assert max(t.batch for t in found.tried if t.fits) == found.batch
    assert min(t.batch for t in found.tried if not t.fits) == found.batch + 1
    assert len(found.tried) <= 12
    assert f"batch {found.batch} " in repr(found)


@pytest.mark.parametrize("budget", ["2MiB", "3MiB"])
def test_the_longest_sequence_is_trained_and_one_more_is_not(budget):
    make_step = encoder()
    found = stowage.max_length(make_step, budget)
    limit = stowage.sizes.parse_bytes(budget)
    assert {batch for batch, _ in make_step.asked} == {2}
    assert found.length == found.size > 8 and f"length {found.length} " in repr(found)
    assert fits(lambda n: make_step(length=n), found.length, limit)
    assert not fits(lambda n: make_step(length=n), found.length + 1, limit)
    assert [t.length for t in found.tried] == sorted({t.length for t in found.tried})
    step, batch = make_step(length=found.length)
    compiled = stowage.compile(step, budget=budget)
    for _ in range(5):
        compiled(*batch)
    assert compiled.stats()["planned_steps"] > 0
    with pytest.raises(AttributeError, match="this is a length, not a batch"):
        found.batch  # noqa: B018


def test_a_size_is_handed_over_by_its_name_or_as_the_first():
    make_step = encoder()
    assert stowage.max_batch(make_step, "4MiB", most=6).batch == 6
    assert {length for _, length in make_step.asked} == {8}
    assert stowage.max_length(lambda n: make_step(2, n), "4MiB", most=6).length == 6

    def of_batches(batch_size):
        return make_step(batch_size)

    with pytest.raises(TypeError, match="of_batches.. needs a parameter 'length'"):
        stowage.max_length(of_batches, "4MiB")
    with pytest.raises(TypeError, match="<lambda>.. needs a parameter 'batch_size'"):
        stowage.max_batch(lambda length: make_step(2, length), "4MiB")


def test_not_even_a_length_of_one():
    with pytest.raises(stowage.Infeasible, match="not even length 1 fits"):
        stowage.max_length(encoder(), 10_000)


def test_a_model_that_no_machine_holds():
    """80 x 10^9 parameters; what is allocated on the way are kernels that are measured alone."""

    def make_step(batch_size):
        model = nn.Sequential(
            nn.Linear(200_000, 200_000, bias=False), nn.ReLU(), nn.Linear(200_000, 200_000, bias=False)
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return mean_square_step(model, optimizer), torch.randn(batch_size, 200_000)

    _runtime.reset_peak()
    before = _runtime.live_bytes()
    found = stowage.max_batch(make_step, 700 * 10**9)
    assert _runtime.peak_bytes() - before < 2 * LARGEST_PROBE_BYTES
    assert found.graph.resident_bytes > 320 * 10**9 - 1
    assert found.batch > 1000


def test_only_multiples_and_only_up_to_most():
    make_step = perceptron()
    free = stowage.max_batch(make_step, 600_000).batch
    found = stowage.max_batch(make_step, 600_000, multiple_of=8)
    assert found.batch == free // 8 * 8
    assert all(t.batch % 8 == 0 for t in found.tried)
    make_step.asked.clear()
    assert stowage.max_batch(make_step, "1GiB", start=3, most=40).batch == 40
    assert min(make_step.asked) == 3 and max(make_step.asked) == 40


def test_a_limit_on_the_slowdown():
    make_step = perceptron(depth=8)
    any_ = stowage.max_batch(make_step, 1_000_000, multiple_of=16)
    same = stowage.max_batch(make_step, 1_000_000, multiple_of=16, max_slowdown=1.0)
    assert same.slowdown == 1.0 and same.batch <= any_.batch
    if any_.slowdown > 1:
        assert same.batch < any_.batch


def test_not_even_one():
    with pytest.raises(stowage.Infeasible, match="not even batch 1 fits") as caught:
        stowage.max_batch(perceptron(), 10_000)
    assert caught.value.smallest_bytes >= caught.value.bound_bytes > 10_000


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"budget": None}, "needs a budget"),
        ({"budget": 1.5}, "bytes must be"),
        ({"start": 0}, "start must be at least 1"),
        ({"most": 2.0}, "most must be an int"),
        ({"start": 9, "most": 15, "multiple_of": 8}, "no multiple of 8"),
    ],
)
def test_bad_arguments(arguments, message):
    make_step = perceptron()
    with pytest.raises((TypeError, ValueError), match=message):
        stowage.max_batch(make_step, **{"budget": "1GiB", **arguments})
    assert not make_step.asked


def test_make_step_must_return_a_pair():
    with pytest.raises(TypeError, match=r"must return \(train_step, arguments\), not a tensor"):
        stowage.max_batch(lambda batch_size: torch.zeros(batch_size), "1GiB")


def test_a_real_model_is_named():
    model = nn.Linear(4, 4)

    def make_step(batch_size):
        def train_step(x):
            model(x).sum().backward()

        return train_step, torch.randn(batch_size, 4)

    with pytest.raises(stowage.Error, match="'model.weight' was not made inside make_step"):
        stowage.max_batch(make_step, "1GiB")


def test_what_cannot_be_recorded_is_refused():
    def make_step(batch_size):
        model = nn.Linear(4, 4)

        def train_step(x):
            loss = model(x).sum()
            if loss > 0:
                loss = loss * 2
            loss.backward()

        return train_step, torch.randn(batch_size, 4)

    with pytest.raises(
        stowage.Unsupported, match=r"test_fit.py:\d+: numbers that depend on data \(aten._local_scalar_dense"
    ):
        stowage.max_batch(make_step, "1GiB")


@pytest.mark.parametrize(
    "make, use, words",
    [
        (lambda: nn.LazyLinear(4), lambda model, loss: None, "a lazy module"),
        (lambda: nn.Linear(4, 4), lambda model, loss: loss.detach().numpy(), "an array of a tensor"),
        (lambda: nn.Linear(4, 4), lambda model, loss: numpy.asarray(model.bias.detach()), "an array of a tensor"),
        (lambda: nn.Linear(4, 4), lambda model, loss: pickle.dumps(loss.detach()), "pickled or copied"),
        (
            lambda: nn.Linear(4, 4),
            lambda model, loss: torch.save(model.state_dict(), io.BytesIO()),
            "pickled or copied",
        ),
    ],
)
def test_what_asks_for_content_is_refused_by_the_users_line(make, use, words):
    def make_step(batch_size):
        model = make()

        def train_step(x):
            loss = model(x).sum()
            loss.backward()
            use(model, loss)
            model.zero_grad()

        return train_step, torch.randn(batch_size, 4)

    for ask in (stowage.max_batch, stowage.will_it_fit):
        with pytest.raises(stowage.Unsupported, match=rf"test_fit.py:\d+: .*{words}"):
            ask(make_step, "1GiB")


def test_a_size_at_which_the_step_raises_is_named():
    def make_step(batch_size):
        model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16))
        return lambda x: model(x).sum().backward(), torch.randn(batch_size, 8)

    with pytest.raises(ValueError, match="more than 1 value per channel") as raised:
        stowage.max_batch(make_step, "1MiB")
    assert "with batch 1, the first that max_batch() tries; start= names another" in raised.value.__notes__[0]
    assert stowage.max_batch(make_step, "1MiB", start=2, most=64).batch == 64

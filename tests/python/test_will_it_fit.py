"""stowage.will_it_fit: what a step needs, predicted without its memory, and compared with what it takes."""

import copy
import itertools
import json
import os
import random
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import searches
import torch
from mean_square import mean_square_step
from torch import nn

import stowage
from stowage import _runtime
from stowage.step.fit import kernel_bytes
from stowage.step.fit.fit import without_scratch
from stowage.step.fit.prediction import eager_bytes, largest_within
from stowage.step.fit.size_search import largest_size


def perceptron(batch_size=8, width=256):
    model = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    optimizer = torch.optim.AdamW(model.parameters())

    def train_step(x):  # here, as tests ask for its line
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return train_step, torch.randn(batch_size, width)


class Tied(nn.Module):
    """One weight for both ends: autograd adds two gradients, in place."""

    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(2000, 64), nn.Linear(64, 2000, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x):
        return self.out(self.embed(x).relu())


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.lstm, self.out = (
            nn.Embedding(300, 64),
            nn.LSTM(64, 96, 2, batch_first=True),
            nn.Linear(96, 300),
        )

    def forward(self, x):
        return self.out(self.lstm(self.embed(x))[0])


class Drawn(nn.Module):
    """Its first values are drawn until they lie within bounds."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(300, 300)
        nn.init.trunc_normal_(self.inner.weight, std=0.02)
        nn.init.trunc_normal_(self.inner.bias, std=2.0)

    def forward(self, x):
        return self.inner(x)


def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, stride=2),
        nn.BatchNorm2d(64), nn.ReLU(), nn.ConvTranspose2d(64, 16, 2), nn.Conv2d(16, 16, 5, groups=4), nn.Flatten(), nn.Linear(400, 10),
    )  # fmt: skip


def images(n):
    return torch.randn(n, 3, 34, 34)


def tokens(n):
    return torch.randint(0, 300, (n, 40))


class Copied(nn.Module):
    """Layers that are copies of one, as nn.TransformerEncoder makes them, and a copy that follows."""

    def __init__(self):
        super().__init__()
        layer = nn.Sequential(nn.Linear(300, 300), nn.BatchNorm1d(300))
        self.layers = nn.Sequential(*[copy.deepcopy(layer) for _ in range(3)])
        self.average = copy.deepcopy(self.layers).requires_grad_(False)

    def forward(self, x):
        return self.layers(x)


ENCODER = lambda: nn.Sequential(nn.Embedding(300, 64), nn.TransformerEncoderLayer(64, 4, 256, batch_first=True))
# model, its input, what the loop does besides
CASES = {
    "convolutions": (convolutions, images, ""),
    "tied": (Tied, tokens, ""),
    "lstm": (Tagger, tokens, ""),
    "encoder": (ENCODER, tokens, "keeps its output"),
    "zero_grad before backward": (ENCODER, tokens, "late"),
    "zero_grad first": (ENCODER, tokens, "first"),
    "accumulation": (Tied, tokens, "accumulate"),
    "autocast": (ENCODER, tokens, "autocast"),
    "clipping": (convolutions, images, "clip"),
    "copied": (Copied, lambda n: torch.randn(n, 300), ""),
    "drawn": (Drawn, lambda n: torch.randn(n, 300), ""),
}
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "foreach": lambda p: torch.optim.AdamW(p, foreach=True),
    "loop": lambda p: torch.optim.AdamW(p, foreach=False),
}


def made(model, data, besides, optimizer):
    def make_step(batch_size):
        module = model()
        x = data(batch_size)
        chosen = OPTIMIZERS[optimizer](list(module.parameters()))

        def train_step(x):
            if besides == "first":
                chosen.zero_grad()
            for part in x.chunk(2) if besides == "accumulate" else (x,):
                with torch.autocast("cpu", torch.bfloat16, enabled=besides == "autocast"):
                    out = module(part)
                    loss = out.float().square().mean()
                if besides == "late":
                    chosen.zero_grad()
                loss.backward()
            if besides == "clip":
                nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            chosen.step()
            if besides not in ("first", "late"):
                chosen.zero_grad()
            return out if besides == "keeps its output" else loss.detach()

        return train_step, x

    return make_step


def measured(make_step, **sizes):
    """Bytes that the allocator counts over the making of the model and three steps."""
    torch.manual_seed(0)
    _runtime.reset_peak()
    before = _runtime.live_bytes()
    step, batch = make_step(**sizes)
    for _ in range(3):
        result = step(batch)
    del result
    return _runtime.peak_bytes() - before


# Each with each in ./dev soak.
PAIRS = list(itertools.product(CASES, OPTIMIZERS) if searches.SECONDS else zip(CASES, itertools.cycle(OPTIMIZERS)))


@pytest.mark.parametrize("case, optimizer", PAIRS)
def test_the_peak_is_that_of_eager(case, optimizer):
    make_step = made(*CASES[case], optimizer)
    for batch_size in (2, 6):
        predicted, real = eager_bytes(make_step, batch_size=batch_size), measured(make_step, batch_size=batch_size)
        assert abs(predicted - real) <= max(real / 200, 4096), (case, batch_size, predicted, real)


def test_kernels_that_are_too_large_to_run_are_on_a_line(monkeypatch):
    make_step = made(convolutions, images, "", "sgd")
    whole = eager_bytes(make_step, batch_size=24)
    monkeypatch.setattr(kernel_bytes, "LARGEST_PROBE_BYTES", 2 << 20)
    assert eager_bytes(make_step, batch_size=24) == pytest.approx(whole, rel=0.01)


def test_the_generator_is_as_before():
    torch.manual_seed(3)
    expected = torch.randn(4)
    torch.manual_seed(3)
    eager_bytes(made(ENCODER, tokens, "", "sgd"), batch_size=2)
    assert torch.equal(torch.randn(4), expected)


def device_of(bytes_):
    """The smallest device that leaves so many bytes to what is predicted."""
    return next(d for d in range(bytes_, 2 * bytes_) if without_scratch(d) >= bytes_)


def test_each_outcome():
    parameters = 2 * 256 * 1024 * 4 + 1024 * 4 + 256 * 4
    p = stowage.will_it_fit(perceptron, "1GiB", batch_size=4096, largest=False)
    assert p.outcome == "fits" and p.fits and p.sizes == {"batch_size": 4096}
    assert p.bound_bytes <= p.least_bytes < p.eager_bytes and p.planned_bytes < p.eager_bytes
    assert sum(p.by_kind.values()) == p.eager_bytes and p.by_kind["parameter"] == parameters
    assert 0 <= p.by_kind["optimizer_state"] - 2 * parameters < 100  # made in the first step, and its counters
    assert f"{__file__}:" in p.by_line[0].line and p.by_line[0].kind == "activation"
    for bytes_, outcome in ((p.eager_bytes, "fits"), (p.eager_bytes - 1, "fits with a plan")):
        there = stowage.will_it_fit(perceptron, device_of(bytes_), batch_size=4096, largest=False)
        assert there.outcome == outcome and there.fits
        assert (there.budget_bytes is None) == (outcome == "fits")
    short = stowage.will_it_fit(perceptron, p.bound_bytes - 1, batch_size=4096, largest=False)
    assert short.outcome == "does not fit" and not short.fits
    assert "proven" in str(short).splitlines()[0]


def test_what_is_said_to_fit_does():
    """Within the least budget: compiled and run, eager calls included."""
    p = stowage.will_it_fit(perceptron, "1GiB", batch_size=2048, largest=False)
    device = device_of(p.least_bytes)
    assert stowage.will_it_fit(perceptron, device, batch_size=2048, largest=False).outcome.startswith("fits with a ")
    step, batch = perceptron(batch_size=2048)
    _runtime.reset_peak()
    before = _runtime.live_bytes()
    held = sum(t.nbytes for t in [batch]) + 2 * 256 * 1024 * 4 + 1280 * 4
    compiled = stowage.compile(step, budget=device)
    for _ in range(5):
        compiled(batch)
    assert compiled.stats()["planned_steps"] > 0
    assert _runtime.peak_bytes() - before + held <= device


def test_the_largest_are_those_of_trying_all():
    p = stowage.will_it_fit(perceptron, "40MiB", batch_size=8)
    found, limit = p.largest["batch_size"], without_scratch(40 << 20)
    assert (
        eager_bytes(perceptron, batch_size=found.eager) <= limit < eager_bytes(perceptron, batch_size=found.eager + 1)
    )
    assert found.budget > found.eager and not found.bounded
    for size, fits in ((found.budget, True), (found.budget + 1, False)):
        assert stowage.will_it_fit(perceptron, "40MiB", batch_size=size, largest=False).fits == fits


def test_a_search_finds_the_last_that_fits():
    seed = random.randrange(1 << 30)
    print("seed", seed)
    draw = random.Random(seed)
    for _ in range(300):
        steps = [draw.choice((0, 1, 5, 300)) for _ in range(draw.randrange(1, 400))]
        needs = [sum(steps[: i + 1]) + i for i in range(len(steps))]
        limit, start, asked = draw.randrange(needs[-1] + 2), draw.randrange(1, len(needs) + 1), []
        found = largest_within(lambda size: asked.append(size) or needs[size - 1], limit, start, len(needs))
        assert found == (sum(n <= limit for n in needs) or None)
        assert len(asked) == len(set(asked)) <= 40


def test_a_search_that_is_misled_finds_it_too():
    seed = random.randrange(1 << 30)
    print("seed", seed)
    draw = random.Random(seed)
    for _ in range(300):
        least, most = draw.randrange(1, 9), draw.choice((9, 100, 1 << 20))
        answer, start = draw.randrange(least - 1, most + 1), draw.randrange(least, most + 1)
        told = draw.choice(
            (lambda size: None, lambda size: draw.randrange(1000), lambda size: draw.choice((None, 7, size)))
        )
        asked = []
        found = largest_size(lambda size: asked.append(size) or size <= answer, told, 500, least, start, most)
        assert found == (answer if answer >= least else None)
        assert len(asked) == len(set(asked)) <= 170


def test_length_is_a_size_too():
    def make_step(batch_size=2, length=16):
        model = ENCODER()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def train_step(x):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.item()  # read, but only told

        return train_step, torch.randint(0, 300, (batch_size, length))

    p = stowage.will_it_fit(make_step, "4MiB")
    assert p.sizes == {"batch_size": 2, "length": 16} and p.largest["length"].eager > 16
    assert p.planned_bytes is None and "loss.item()" in p.refusal and len(p.guessed) == 1
    assert p.outcome == "fits"
    assert stowage.will_it_fit(make_step, "1MiB", length=100, largest=False).outcome == "unknown"


def test_batchnorm_and_drawn_values_go_through_max_batch():
    """torch.tensor(0) keeps a real number in its fake, which is none that the user has made."""
    assert stowage.max_batch(made(convolutions, images, "", "sgd"), "8MiB").batch > 1
    assert stowage.max_batch(made(Drawn, lambda n: torch.randn(n, 300), "", "sgd"), "8MiB").batch > 1


@pytest.mark.alone
def test_a_model_that_no_machine_holds():
    """7 x 10^9 parameters with Adam, 134 GiB, in less than 1.5 GiB of this process."""

    def make_step(batch_size):
        model = nn.Sequential(*[layer for _ in range(7) for layer in (nn.Linear(31_623, 31_623), nn.ReLU())])
        optimizer = torch.optim.Adam(model.parameters())
        return mean_square_step(model, optimizer), torch.randn(batch_size, 31_623)

    p = stowage.will_it_fit(make_step, "80GiB")
    weights = 7 * 31_623 * 31_624 * 4
    assert p.eager_bytes > 4 * weights and p.by_kind["parameter"] == weights
    assert p.planned_bytes < p.eager_bytes - 2 * (31_623 * 31_624 * 4)  # gradients go one by one
    assert p.outcome == "does not fit" and p.bound_bytes > 3 * weights and p.largest["batch_size"].eager is None
    # Not ru_maxrss, which a process has from the one that started it.
    most_kib = int(re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text()).group(1))
    assert most_kib * 1024 < 3 << 29


# ---- What is wrong is told in one line


def returning(value):
    return lambda batch_size: value


def missing(batch_size, depth):
    pass


REAL = nn.Linear(4, 4)
TABLE = torch.randn(8, 4)


def with_real_model(batch_size):
    return lambda x: REAL(x).sum().backward(), torch.randn(batch_size, 4)


def with_real_data(batch_size):
    model = nn.Linear(4, 4)
    return lambda x: model(x).sum().backward(), torch.cat([TABLE, torch.randn(batch_size, 4)])


def that_decides(batch_size):
    model = nn.Linear(4, 4)

    def train_step(x):
        loss = model(x).sum()
        if loss > 0:
            loss.backward()

    return train_step, torch.randn(batch_size, 4)


@pytest.mark.parametrize(
    "make_step, error, message",
    [
        (3, TypeError, "make_step must be a function, not int"),
        (returning(None), TypeError, "must return (train_step, arguments), not None: is a return missing?"),
        (returning((1, 2)), TypeError, "not (int, ...), which cannot be called"),
        (returning((print, 1, 2)), TypeError, "not a tuple of 3"),
        (missing, TypeError, "missing() needs 'depth': it can take batch_size and length"),
        (lambda batch_size=0: None, ValueError, "(batch_size=...) must be at least 1: 0"),
        (with_real_model, stowage.Error, "was not made inside make_step()"),
        (with_real_data, stowage.Error, "a tensor that was made before make_step() meets one made in it"),
        (that_decides, stowage.Unsupported, "test_will_it_fit.py:"),
    ],
)
def test_what_is_wrong_with_make_step(make_step, error, message):
    with pytest.raises(error) as caught:
        stowage.will_it_fit(make_step, "1GiB")
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"batch_size": 1.5}, "batch_size must be an int"),
        ({"length": 8}, "perceptron() does not take 'length'"),
        ({"device": None}, "needs the bytes of the device"),
        ({"device": -1}, "must not be negative"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises((TypeError, ValueError)) as caught:
        stowage.will_it_fit(perceptron, **{"device": "1GiB", **options})
    assert message in str(caught.value)


SCRIPT = """
    import torch
    from torch import nn
    def make_step(batch_size=4):
        model = nn.Linear(64, 64)
        optimizer = torch.optim.Adam(model.parameters())
        def train_step(x):
            loss = model(x).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()
        return train_step, torch.randn(batch_size, 64)
    def mismatched(batch_size=4):
        model = nn.Linear(64, 64)
        return lambda x: model(x), torch.randn(batch_size, 32)
    if __name__ == "__main__":
        raise SystemExit("not to be run")
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("scripts") / "train.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return str(path)


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "stowage", "fit", *arguments], capture_output=True, text=True, env=dict(os.environ)
    )


def test_the_command(script):
    done = command("--model-from", f"{script}:make_step", "--device", "1MiB", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["outcome"] == "fits" and found["sizes"] == {"batch_size": 4}
    assert found["largest"]["batch_size"]["eager"] > 4
    assert {"eager_bytes", "planned_bytes", "least_bytes", "bound_bytes", "by_kind", "by_line", "budget_bytes"} <= set(
        found
    )
    told = command(f"--model-from={script}:make_step", "--device", "10KiB", "--no-largest")
    assert told.returncode == 4 and told.stdout.startswith("does not fit in 10.0 KiB at batch size 4: ")


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (["nowhere.py:make_step"], 3, "nowhere.py: no such file"),
        (["train.py"], 3, "say which function of which file, as script.py:make_step"),
        (["{script}:absent"], 3, "has no 'absent'; it has make_step, mismatched"),
        (["{script}:mismatched"], 3, "train.py:16: RuntimeError: "),
        (["{script}:make_step", "--batch-size", "none"], 2, "a whole number of at least 1, not 'none'"),
        (["{script}:make_step", "--device", "many"], 2, "--device: "),
    ],
)
def test_what_the_command_refuses(script, arguments, code, message):
    done = command("--device", "1GiB", "--model-from", *[a.format(script=script) for a in arguments])
    assert done.returncode == code and not done.stdout
    assert message in done.stderr and done.stderr.count("\n") == 1, done.stderr

"""Residents that leave: the bits of eager, within a budget below the residents' own bytes, and whole tensors for whoever
looks between calls."""

import copy
import io
import os
import pickle
import subprocess
import sys
import warnings
import zlib

import pytest
import torch
from test_other_allocators import TCMALLOC
from torch import nn

import stowage
from stowage.errors import Error, Infeasible

BUDGET = "1800KiB"  # the residents take 4.6 MiB
STEPS = 9


class Net(nn.Module):
    def __init__(self, tied=False, dropout=0.0, norm=False):
        super().__init__()
        self.embed = nn.Embedding(256, 256)
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(4))
        self.norm = nn.BatchNorm1d(256) if norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(256, 256, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, x):
        x = self.norm(self.embed(x))
        for layer in self.layers:
            x = self.dropout(torch.tanh(layer(x)))
        return self.head(x)


def batches(count=STEPS):
    made = torch.Generator().manual_seed(3)
    return [
        (torch.randint(0, 256, (24,), generator=made), torch.randint(0, 256, (24,), generator=made))
        for _ in range(count)
    ]


OPTIMIZERS = {
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    "momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2),
    "muon": lambda p: torch.optim.Muon([q for q in p if q.dim() == 2], lr=1e-2),
}


class Training:
    """The same training twice: ``wrap`` makes the step's other form."""

    def __init__(self, wrap, optimizer="adamw", clip=False, parts=1, to_none=True, ema=False, schedule=False, **net):
        torch.manual_seed(0)
        self.model = Net(**net)
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.LinearLR(self.optimizer, 0.1, 1.0, 5) if schedule else None
        self.average = [p.detach().clone() for p in self.model.parameters()] if ema else []

        def step(x, y):
            for part_x, part_y in zip(x.chunk(parts), y.chunk(parts)):
                loss = nn.functional.cross_entropy(self.model(part_x), part_y) / parts
                loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
            self.optimizer.step()
            if self.scheduler:
                self.scheduler.step()
            with torch.no_grad():
                for average, p in zip(self.average, self.model.parameters()):
                    average.lerp_(p, 0.1)
            self.optimizer.zero_grad(set_to_none=to_none)
            return loss

        self.step = wrap(step)

    def state(self):
        states = [v for s in self.optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
        return [*self.model.state_dict().values(), *states, *self.average, torch.get_rng_state()]


def leaving(budget=BUDGET, **options):
    return lambda step: stowage.compile(step, budget=budget, residents="leave", strict=True, **options)


def run(training, between=None):
    seen = []
    torch.manual_seed(11)
    for i, (x, y) in enumerate(batches()):
        seen.append(training.step(x, y).detach().clone())
        if between:
            seen += between(i, training) or []
    return seen + [t.clone() for t in training.state()]


def same(budget=BUDGET, between=None, **options):
    expected = run(Training(lambda step: step, **options), between)
    training = Training(leaving(budget), **options)
    found = run(training, between)
    assert len(expected) == len(found) and all(torch.equal(a, b) for a, b in zip(expected, found))
    stats = training.step.stats()
    assert stats["planned_steps"] >= 2 and stats["away_bytes"] > 0 and stats["misses"] == 0, (
        training.step.refusal,
        stats,
    )
    assert stats["resident_bytes"] + stats["measured_peak_bytes"] <= stowage.sizes.parse_bytes(budget)
    return training


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "adam"},
        {"optimizer": "adamw"},
        {"optimizer": "adamw fused"},
        {"optimizer": "momentum"},
        {"optimizer": "adafactor"},
        {"optimizer": "muon"},
        {"tied": True},
        {"dropout": 0.2},
        {"norm": True},
        {"schedule": True},
    ],
    ids=str,
)
def test_bits_below_the_residents(options):
    same(**options)


@pytest.mark.parametrize("options", [{"clip": True}, {"parts": 2}, {"to_none": False}, {"ema": True}], ids=str)
def test_bits_where_all_gradients_or_averages_are_there_at_once(options):
    same("3MiB", **options)


def test_whole_for_whoever_looks_between_calls():
    def look(i, training):
        seen = []
        if i == 4:
            seen += [v.clone() for v in copy.deepcopy(training.model.state_dict()).values()]
            seen += [p.detach() for p in copy.deepcopy(training.model).parameters()]
            file = io.BytesIO()
            torch.save(training.optimizer.state_dict(), file)
            seen.append(torch.tensor(list(file.getvalue()[:0]), dtype=torch.uint8))
        if i == 5:
            seen.append(pickle.loads(pickle.dumps(training.model)).head.weight.detach())
            seen.append(torch.from_numpy(training.model.head.weight.detach().numpy().copy()))
            assert training.model.head.weight.data_ptr() % 64 == 0
            repr(training.model.head.weight)
        if i == 6:
            training.model.eval()
            with torch.no_grad():
                seen.append(training.model(batches(1)[0][0]))
            training.model.train()
        return seen

    same(between=look)


def test_load_state_dict_in_the_middle():
    kept = {}

    def load(i, training):
        if i == 4:
            kept["model"] = copy.deepcopy(training.model.state_dict())
        if i == 7:
            training.model.load_state_dict(kept["model"])

    same(between=load)


def test_an_array_of_numpy_that_looks_into_a_parameter_keeps_it_in_place():
    training = Training(leaving("2MiB"))
    array = training.model.head.weight.detach().numpy()
    for x, y in batches():
        training.step(x, y)
    assert training.step.stats()["planned_steps"] > 0
    assert array.ctypes.data == training.model.head.weight.data_ptr()
    assert torch.equal(torch.from_numpy(array), training.model.head.weight.detach())


@pytest.mark.parametrize("at", [0, 7, 30, 60])
def test_an_error_in_the_step_leaves_all_as_it_was_or_says_otherwise(at):
    training = Training(leaving())
    for x, y in batches(7):
        training.step(x, y)
    before = [t.clone() for t in training.state()]
    executor = training.step._latest.executor
    executor.inject(at, 1)
    try:
        training.step(*batches(1)[0])
    except RuntimeError as error:
        if "has been finished" not in str(getattr(error, "__notes__", "")):
            assert all(torch.equal(a, b) for a, b in zip(before, training.state())), at
            training.step(*batches(1)[0])
    expected = Training(lambda step: step)
    for x, y in [*batches(7), batches(1)[0]]:
        expected.step(x, y)
    assert all(torch.equal(a, b) for a, b in zip(expected.state()[:-1], training.state()[:-1]))


def test_a_bad_token_raises_and_changes_nothing():
    training = Training(leaving())
    for x, y in batches(7):
        training.step(x, y)
    before = [t.clone() for t in training.state()]
    bad = torch.full((24,), 999)
    with pytest.raises((IndexError, RuntimeError)):
        training.step(bad, batches(1)[0][1])
    assert all(torch.equal(a, b) for a, b in zip(before, training.state()))


def test_two_steps_share_a_model_at_home():
    def both(wrap):
        training = Training(wrap)
        other = wrap(
            lambda x, y: (
                training.optimizer.zero_grad(),
                nn.functional.mse_loss(training.model(x), nn.functional.one_hot(y, 256).float()).backward(),
                training.optimizer.step(),
                training.optimizer.zero_grad(),
            )[0]
        )
        for x, y in batches():
            training.step(x, y)
            other(x, y)
        return training.state()

    assert all(torch.equal(a, b) for a, b in zip(both(lambda step: step), both(leaving("2MiB"))))


def test_a_file_as_the_host(tmp_path, monkeypatch):
    monkeypatch.setenv("STOWAGE_HOST_STORE", str(tmp_path))
    training = same()
    assert training.step.stats()["home_bytes"] > 4 << 20
    assert os.listdir(tmp_path) == []  # it has no name


MEMORY_OF_PLANNED_CALLS = """
import pathlib, torch, stowage
from torch import nn

def status(name):
    return next(int(l.split()[1]) * 1024 for l in open("/proc/self/status") if l.startswith(name))

def train(width, layers, budget, calls, measured):
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()
    planned = stowage.compile(step, budget=budget, residents="leave")
    x = torch.randn(64, width)
    while planned.stats()["planned_steps"] < 1:
        planned(x)
    if not measured:
        return
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    for _ in range(calls):
        planned(x)
    return planned.stats()

train(64, 2, "600KiB", 1, False)  # what libraries take once
before = status("VmRSS")
stats = train(1024, 16, BUDGET, 4, True)
print(status("VmHWM") - before, stats["away_bytes"], stats["planned_steps"])
"""


@pytest.mark.parametrize(
    "allocator",
    ["malloc", pytest.param("tcmalloc", marks=pytest.mark.skipif(TCMALLOC is None, reason="libtcmalloc is not there"))],
)
def test_the_process_holds_no_more_than_the_budget(tmp_path, allocator):
    """Resident set, not what the plan says: 192 MiB of residents, and what the eager calls before have left."""
    budget = 64 << 20
    script = MEMORY_OF_PLANNED_CALLS.replace("BUDGET", str(budget))
    environment = dict(os.environ, STOWAGE_HOST_STORE=str(tmp_path), OMP_NUM_THREADS="2")
    environment.pop("LD_PRELOAD", None)
    if allocator == "tcmalloc":
        environment["LD_PRELOAD"] = TCMALLOC
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    grown, away, planned = map(int, done.stdout.split())
    assert away > 128 << 20 and planned >= 4
    assert grown <= budget + (16 << 20), f"{grown >> 20} MiB"


def test_a_child_of_fork_has_copies_of_its_own():
    training = same()
    weight = training.model.head.weight
    before = weight.detach().clone()
    child = os.fork()
    if child == 0:
        with torch.no_grad():
            weight.zero_()
        os._exit(0 if bool((weight == 0).all()) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(weight.detach(), before)


def test_a_child_of_fork_trains_eagerly():
    """The file is its parent's. It said so in each call, and trained nothing."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # OpenMP's own threads are not in the child
    training, expected = same(), Training(lambda step: step)
    run(expected)

    def one_more_is_the_same():
        batch = batches(1)[0]
        results = []
        for each in (training, expected):
            torch.manual_seed(4)
            results += [each.step(*batch), *each.state()]
        half = len(results) // 2
        return all(map(torch.equal, results[:half], results[half:]))

    child = os.fork()
    if child == 0:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            fine = one_more_is_the_same() and one_more_is_the_same()
        os._exit(0 if fine and len(told) == 1 and "without its budget" in str(told[0].message) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert one_more_is_the_same()
    torch.set_num_threads(threads)


def test_a_child_of_fork_that_was_made_before_anything_left_has_plans_of_its_own():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    expected = run(Training(lambda step: step))
    training = Training(leaving())
    child = os.fork()
    if child == 0:
        fine = all(map(torch.equal, expected, run(training)))
        os._exit(0 if fine and training.step.stats()["away_bytes"] > 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    torch.set_num_threads(threads)


class Child:
    """A process made by fork() that says what it sees when it is asked."""

    def __init__(self, look):
        asked, self._ask = os.pipe()
        self._said, say = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._ask)
            while os.read(asked, 1) == b"?":
                os.write(say, look().to_bytes(4, "little"))
            os._exit(0)
        os.close(asked)
        os.close(say)

    def sees(self):
        os.write(self._ask, b"?")
        return int.from_bytes(os.read(self._said, 4), "little")

    def end(self):
        os.write(self._ask, b".")
        os.close(self._ask)
        os.close(self._said)
        assert os.waitpid(self.pid, 0)[1] == 0


def crc(tensors):
    value = 0
    for t in tensors:
        value = zlib.crc32(memoryview(t.detach().contiguous().view(-1).view(torch.uint8).numpy()), value)
    return value


@pytest.mark.parametrize("place", ["memory", "file"])
def test_children_see_the_state_that_they_were_made_with(place, tmp_path, monkeypatch):
    """A checkpoint that a forked child writes while its parent trains on."""
    if place == "file":
        monkeypatch.setenv("STOWAGE_HOST_STORE", str(tmp_path))
    training = Training(leaving())
    children = []

    def between(i, training):
        if i >= 2:  # before plans, and when they run
            children.append((Child(lambda: crc(training.state())), crc(training.state())))
        if i == STEPS - 3:
            children[1][0].end()
            del children[1]

    found = run(training, between)
    bytes_with_children = training.step.stats()["home_bytes"]
    for child, expected in children:
        assert child.sees() == expected
    for child, _ in children:
        child.end()
    expected = run(Training(lambda step: step))
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert training.step.stats()["planned_steps"] >= 4
    assert bytes_with_children == training.step.stats()["home_bytes"]


def test_places_of_children_that_ended_are_given_back(tmp_path, monkeypatch):
    monkeypatch.setenv("STOWAGE_HOST_STORE", str(tmp_path))

    def held():  # blocks of the file without a name
        found = [os.stat(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if "homes" in link(fd)]
        return max(s.st_blocks * 512 for s in found)

    def link(fd):
        try:
            return os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            return ""

    training = Training(leaving())
    sizes, fds = [], []

    def between(i, training):
        if i >= 4:
            child = Child(lambda: 0)
            training.step(*batches(1)[0])
            child.end()
            training.step(*batches(1)[0])
            sizes.append(held())
            fds.append(len(os.listdir("/proc/self/fd")))

    run(training, between)
    assert fds[-1] <= fds[0] and sizes[-1] <= sizes[0] + (64 << 10)


def test_where_the_budget_can_be_met_nobody_leaves():
    plain = Training(lambda step: stowage.compile(step, budget="8MiB"))
    may = Training(leaving("8MiB"))
    for x, y in batches(6):
        plain.step(x, y)
        may.step(x, y)
    assert may.step.stats()["away_bytes"] == may.step.stats()["home_bytes"] == 0
    assert may.step.stats()["arena_bytes"] == plain.step.stats()["arena_bytes"]


def test_without_the_option_the_budget_is_refused_as_before():
    training = Training(lambda step: stowage.compile(step, budget=BUDGET))
    with pytest.raises((Infeasible, Error, MemoryError)):
        for x, y in batches():
            training.step(x, y)


def test_what_cannot_be_done_is_refused_in_one_line():
    with pytest.raises(Error, match="give one, as budget="):
        stowage.compile(lambda: None, residents="leave")
    with pytest.raises(Error, match="must be 'stay' or 'leave'"):
        stowage.compile(lambda: None, budget=1, residents="go")
    with pytest.raises(Error, match="without a link"):
        stowage.compile(lambda: None, budget=1, residents="leave", link_gbps=0)
    training = Training(leaving("64KiB"))
    with pytest.raises(Infeasible, match="needs at least"):
        for x, y in batches():
            training.step(x, y)

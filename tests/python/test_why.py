"""stowage why: the moment when memory ran out is rebuilt from a snapshot, the cause is found, what is advised fits."""

import contextlib
import io
import json
import os
import pickle
import random
import time

import pytest
import snapshots
from snapshots import MIB, Gpu, backward, forward, loss, parameter, plain, state, update

from stowage.doctor.causes import diagnose
from stowage.doctor.snapshot import read
from stowage.errors import Error
from stowage.verbs import why


def frees_all(gpu):
    """As the exception unwinds, what only the step held goes; the snapshot is written later."""
    for address in list(gpu.live):
        if random.random() < 0.8:
            gpu.free(address)


@pytest.mark.parametrize("seed", range(40))
def test_the_moment_is_that_of_the_failure(tmp_path, seed):
    draw = random.Random(seed)
    gpu = Gpu(draw.choice([100, 400]) * MIB, segment_bytes=draw.choice([2, 20]) * MIB)
    stacks = [forward, backward, update, state, parameter, plain, loss]
    truth = None
    for _ in range(draw.randint(5, 400)):
        if gpu.live and draw.random() < 0.45:
            gpu.free(draw.choice(sorted(gpu.live)))
            continue
        request = draw.randint(1, 30) * MIB
        frames = draw.choice(stacks)(draw.randint(1, 9))
        if gpu.alloc(request, frames) is None:
            holes = [n for at, n in gpu.holes() if n < gpu.segments.get(at, 0) or at not in gpu.segments]
            truth = (request, gpu.device_free_bytes, sum(gpu.segments.values()), sorted(n for n, _ in gpu.live.values()), sorted(holes))  # fmt: skip
            if draw.random() < 0.3:
                break
    for _ in range(draw.randint(0, 50)):  # after it
        if gpu.live:
            gpu.free(draw.choice(sorted(gpu.live)))
    moment = read(gpu.dump(tmp_path / "s.pickle"))
    if truth is None:
        assert moment.request_bytes == 0
        return
    found = (moment.request_bytes, moment.device_free_bytes, moment.reserved_bytes, sorted(b.bytes for b in moment.blocks), sorted(moment.free_blocks))  # fmt: skip
    assert found == truth, f"seed {seed}"


def test_without_a_failure_it_is_the_fullest_moment(tmp_path):
    gpu = Gpu(400 * MIB)
    kept = gpu.alloc(10 * MIB, parameter(3))
    for size in (30, 80, 20):
        gpu.free(gpu.alloc(size * MIB, forward(size)))
    gpu.free(kept)
    moment = read(gpu.dump(tmp_path / "s.pickle"))
    assert sorted(b.bytes for b in moment.blocks) == [10 * MIB, 80 * MIB] and moment.request_bytes == 0


def training(gpu, steps, *, layers=6, activation=10, weight=5, keep=(), set_to_none=True, batch=lambda step: 1.0):
    """Steps of a training, until memory is out. keep: lines whose activations are never let go."""
    weights = [gpu.alloc(weight * MIB, parameter(10 + i)) for i in range(layers)]
    if None in weights:
        return
    gradients, states = [], []
    for step in range(steps):
        if set_to_none:
            for address in gradients:
                gpu.free(address)
            gradients = []
        activations = []
        for i in range(layers):
            address = gpu.alloc(int(activation * batch(step) * MIB), forward(20 + i))
            if address is None:
                return
            activations.append((20 + i, address))
        for number, (line, address) in enumerate(reversed(activations)):
            if len(gradients) < layers:
                gradients.append(gpu.alloc(weight * MIB, backward(40)))
                if gradients[-1] is None:
                    return
            if line not in keep or number:
                gpu.free(address)
        if not states:
            states = [gpu.alloc(2 * weight * MIB, state(50)) for _ in range(layers)]
            if None in states:
                return
        temporary = gpu.alloc(weight * MIB, update(50))
        if temporary is None:
            return
        gpu.free(temporary)


def kept_losses(gpu):
    training(gpu, 100, keep=(25,))


def activations_too_large(gpu):
    training(gpu, 5, activation=60)


def state_too_large(gpu):
    training(gpu, 5, weight=18, activation=1)


def a_batch_that_is_longer(gpu):
    training(gpu, 9, batch=lambda step: 6.0 if step == 6 else 1.0)


def logits(gpu):
    for i in range(4):
        gpu.alloc(10 * MIB, parameter(i))
    gpu.alloc(20 * MIB, forward(30))
    for _ in range(4):
        gpu.alloc(100 * MIB, loss(31))


def one_request(gpu):
    gpu.alloc(40 * MIB, parameter(1))
    gpu.alloc(50 * MIB, forward(30))
    gpu.alloc(900 * MIB, plain(77))


def gradients_through_forward(gpu):
    gpu.segment_bytes = MIB  # a segment for each block: no fragments
    training(gpu, 5, weight=10, activation=10, layers=9, set_to_none=False)


def fragments(gpu):
    small = [gpu.alloc(4 * MIB, forward(30 + i % 3)) for i in range(95)]
    for address in small[::2]:
        gpu.free(address)
    gpu.alloc(30 * MIB, forward(60))


def update_too_large(gpu):
    for i in range(5):
        gpu.alloc(20 * MIB, parameter(i))
        gpu.alloc(20 * MIB, backward(40))
    for _ in range(20):
        gpu.alloc(20 * MIB, update(50))


CASES = {
    kept_losses: ("kept", "me/net.py:25"),
    activations_too_large: ("activations", ""),
    state_too_large: ("state", ""),
    a_batch_that_is_longer: ("activations", ""),
    logits: ("loss", "me/train.py:31"),
    one_request: ("request", "me/train.py:77"),
    gradients_through_forward: ("gradients kept", ""),
    fragments: ("fragments", ""),
    update_too_large: ("update", ""),
}


@pytest.mark.parametrize("after", ["at once", "unwound"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_cause(tmp_path, case, after):
    random.seed(1)
    gpu = Gpu(400 * MIB)
    case(gpu)
    assert gpu.trace[-1]["action"] == "oom", "the case does not run out of memory"
    if after == "unwound":
        frees_all(gpu)
    found = diagnose(read(gpu.dump(tmp_path / "s.pickle")))
    name, line = CASES[case]
    assert found.causes[0].name == name, [c.text for c in found.causes]
    if line:
        assert found.causes[0].line == line
    assert found.suggestions[0].fits or not any(s.fits for s in found.suggestions)
    freed = {s.change: s.frees_bytes for s in found.suggestions}
    assert max(freed.values()) <= found.moment.live_bytes + found.moment.request_bytes + found.moment.reserved_bytes
    assert found.shortage_bytes > 0


def test_what_is_said(tmp_path, capsys):
    gpu = Gpu(400 * MIB)
    fragments(gpu)
    path = gpu.dump(tmp_path / "s.pickle")
    assert why.run([path]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Out of memory: 30.0 MiB were asked for at me/net.py:60;")
    assert "1. fragments: 192.0 MiB of what PyTorch had reserved are free, but the largest piece is" in said
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py" in said
    assert why.run([path, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["request_bytes"] == 30 * MIB and told["causes"][0]["name"] == "fragments"


class Runs:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_file_that_would_run_something_runs_nothing(tmp_path, capsys):
    bad, made = tmp_path / "bad.pickle", tmp_path / "made"
    bad.write_bytes(pickle.dumps({"segments": [Runs(made)]}))
    assert why.run([str(bad)]) == 3
    assert not made.exists()
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "mkdir" in error and "plain data alone" in error


@pytest.mark.parametrize("seed", range(60))
def test_broken_files_are_one_line(tmp_path, seed):
    """Bytes changed, cut, or fields of another kind: a clear error or a diagnosis, nothing else."""
    draw = random.Random(seed)
    gpu = Gpu(100 * MIB)
    training(gpu, 3)
    if seed % 2:
        data = gpu.snapshot()
        entries = [
            data,
            *data["segments"],
            *data["device_traces"][0][:50],
            *(b for s in data["segments"] for b in s["blocks"]),
        ]
        victim = draw.choice(entries)
        key = draw.choice(sorted(victim))
        victim[key] = draw.choice([None, -1, "x", [], {}, 1e300, [1], True])
        if draw.random() < 0.3:
            del victim[key]
        raw = pickle.dumps(data)
    else:
        raw = bytearray(pickle.dumps(gpu.snapshot()))
        for _ in range(draw.randint(1, 8)):
            raw[draw.randrange(len(raw))] = draw.randrange(256)
        raw = bytes(raw[: draw.randint(0, len(raw))])
    path = tmp_path / "s.pickle"
    path.write_bytes(raw)
    with contextlib.suppress(Error):
        diagnose(read(path))
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        code = why.run([str(path)])
    assert (code, errors.getvalue().count("\n")) in ((0, 0), (3, 1)), f"seed {seed}"


@pytest.mark.parametrize("content", [b"", b"x", pickle.dumps([]), pickle.dumps({}), pickle.dumps({"segments": 1})])
def test_what_is_no_snapshot_is_refused(tmp_path, content):
    path = tmp_path / "s.pickle"
    path.write_bytes(content)
    with pytest.raises(Error, match=r"is no snapshot of torch.cuda.memory: "):
        read(path)
    with pytest.raises(Error, match="cannot be read"):
        read(tmp_path / "none.pickle")


def test_a_long_trace_takes_seconds(tmp_path):
    gpu = Gpu(400 * MIB)
    addresses = [gpu.alloc(MIB, forward(i)) for i in range(100)]
    for i in range(30_000):
        entry = {"addr": addresses[i % 100], "size": MIB, "stream": 0, "time_us": i, "frames": []}
        gpu.trace += [{"action": "free_requested", **entry}, {"action": "free_completed", **entry}]
        gpu.trace.append({"action": "alloc", **entry, "frames": forward(i % 7)})
    start = time.process_time()
    diagnose(read(gpu.dump(tmp_path / "s.pickle")))
    assert time.process_time() - start < 10


def test_plans_of_ours_can_be_read(tmp_path):
    import torch

    import stowage

    net = torch.nn.Linear(64, 64)

    def step(x):
        loss = net(x).square().mean()
        loss.backward()
        net.zero_grad()

    graph = stowage.capture(step, torch.randn(8, 64))
    stowage.plan(graph).report(str(tmp_path / "plan.pickle"), graph)
    assert diagnose(read(tmp_path / "plan.pickle")).moment.live_bytes > 0


assert snapshots.MIB == MIB

"""Where a budget inside torch.compile cannot help, Inductor does what it always does, and the user is told once."""

import subprocess
import sys
import warnings

import inductor_models as m
import pytest
import torch
from inductor_models import compiled_anew, own_inductor_cache  # noqa: F401
from torch import nn
from torch.utils.checkpoint import checkpoint

import stowage
import stowage.inductor
from stowage.inductor import partitioner, private, reports  # noqa: F401


@pytest.fixture(autouse=True)
def told_anew():
    partitioner._TOLD_REASONS.clear()


def test_shapes_that_change():
    model, batch = m.make("mlp")
    expected = m.step(model, model, batch)
    function = torch.compile(model, options=stowage.inductor.options(budget=1), dynamic=True)
    with pytest.warns(UserWarning, match="its shapes are dynamic"):
        found = m.step(function, model, batch)
    assert "dynamic" in m.records(function)[0].reason
    torch.testing.assert_close(found[0], expected[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        m.step(function, model, torch.randn(100, 64))  # said once


def test_a_checkpoint_of_the_users_own():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = m.Mlp(depth=3)

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=False)

    torch.manual_seed(0)
    model, batch = Checkpointed(), torch.randn(64, 64)
    default = m.step(m.compiled(model, "default"), model, batch)
    torch._dynamo.reset()
    function = m.compiled(model, 1)
    with pytest.warns(UserWarning, match="says itself what is recomputed"):
        found = m.step(function, model, batch)
    assert m.same_bits(found, default)


def test_inference_has_nothing_to_save():
    model, batch = m.make("mlp")
    function = m.compiled(model, 1)
    with torch.no_grad():
        expected = model(batch)
        torch.testing.assert_close(function(batch), expected)
    assert m.records(function) == []


def test_graph_breaks_are_named():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = m.Mlp(depth=1), nn.Linear(64, 64)

        def forward(self, x):
            y = self.two(x).relu()
            torch._dynamo.graph_break()
            return self.one(y)

    torch.manual_seed(0)
    model, batch = Broken(), torch.randn(64, 64)
    default = m.step(m.compiled(model, "default"), model, batch)
    torch._dynamo.reset()
    function = m.compiled(model, "1GiB")
    with pytest.warns(UserWarning, match="no limit for the step"):
        found = m.step(function, model, batch)
    assert m.same_bits(found, default)
    assert "no limit for the step" in str(stowage.inductor.report(function))


def test_a_program_with_an_unknown_line(monkeypatch):
    from stowage.inductor import trial
    from stowage.inductor.program import Unreadable

    def unreadable(*args, **kwargs):
        raise Unreadable("while True:")

    monkeypatch.setattr(trial, "read", unreadable)
    model, batch = m.make("mlp")
    partitioner._LADDERS.clear()
    with pytest.warns(UserWarning, match="while True"):
        m.step(m.compiled(model, 1), model, batch)


def test_a_pytorch_that_lacks_something(monkeypatch):
    monkeypatch.setattr(private, "missing", lambda: ("torch._inductor.graph.GraphLowering",))
    with pytest.warns(UserWarning, match="lacks torch._inductor.graph.GraphLowering"):
        assert stowage.inductor.options(budget=1) == {}


def test_importing_needs_no_inductor():
    code = "import stowage, stowage.inductor, sys; assert not [n for n in sys.modules if n.startswith('torch')]"
    subprocess.run([sys.executable, "-c", code], check=True)


_BACKEND = """
import sys, torch, stowage.inductor
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.GELU(), torch.nn.Linear(32, 32))
options = {"options": stowage.inductor.options(budget="1GiB")} if sys.argv[1] == "with" else {}
function = torch.compile(model, backend="stowage", dynamic=False, **options)
function(torch.ones(4, 32)).sum().backward()
print("planned", "\\n".join(str(stowage.inductor.report(function)).splitlines()[:1]) if options else "")
"""


def test_the_backend_is_found_by_its_name(tmp_path):
    """As an installed package has it: its entry points lie beside it."""
    import os
    import re
    from pathlib import Path

    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    entry = re.search(r"\[project\.entry-points\.torch_dynamo_backends\]\n(\S+ = )\"(\S+)\"", text)
    info = tmp_path / "stowage-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stowage\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[torch_dynamo_backends]\n{entry[1]}{entry[2]}\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _BACKEND, "with"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "planned Graph 0: forward and backward take" in done.stdout


_CACHED = """
import sys, torch, stowage.inductor
from stowage.inductor import reports
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(4)])
function = torch.compile(model, options=stowage.inductor.options(budget=int(sys.argv[1])), dynamic=False)
function(torch.ones(256, 64)).square().mean().backward()
print("planned", len(reports.records_of(function)))
"""


def test_a_second_process_plans_nothing(tmp_path):
    import os

    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}

    def run(budget):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _CACHED, str(budget)], env=environment, capture_output=True, text=True
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return int(done.stdout.split()[-1])

    assert [run(10**9), run(10**9)] == [1, 0]
    assert run(10**9 + 1) == 1  # another budget is another plan

"""Extensions in C++ that were built against PyTorch. One that asks for operators is planned. One that looks into memory itself
finds it behind where a step's Python runs over shells: such a step gives eager's numbers all the same."""

import importlib.util
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
from torch import nn

import stowage

CALLS = 12
NAME = "extension_of_a_test"


@pytest.fixture(scope="module")
def extension(tmp_path_factory):
    """Compiled by hand, as PyTorch's own tools need ninja on the path."""
    library = tmp_path_factory.mktemp("extension") / f"{NAME}.so"
    torch_folder = Path(torch.__file__).parent
    includes = [
        torch_folder / "include",
        torch_folder / "include/torch/csrc/api/include",
        sysconfig.get_path("include"),
    ]
    subprocess.run(
        ["c++", "-O0", "-shared", "-fPIC", "-std=c++20", f"-DTORCH_EXTENSION_NAME={NAME}", *(f"-I{path}" for path in includes),
         str(Path(__file__).with_name("extension.cpp")), "-o", str(library), f"-L{torch_folder / 'lib'}",
         "-lc10", "-ltorch", "-ltorch_cpu", "-ltorch_python"], check=True)  # fmt: skip
    spec = importlib.util.spec_from_file_location(NAME, library)
    module = sys.modules[NAME] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


AFTER = {
    "reads a parameter": lambda e, net, x, heard: heard.append(e.norm(net.weight)),
    "writes a parameter": lambda e, net, x, heard: e.round_(net.weight.detach()),
    "averages": lambda e, net, x, heard: e.average_(net.average, net.weight),
    "reads a gradient": lambda e, net, x, heard: heard.append(e.norm(net.weight.grad)),
    "reads what is made": lambda e, net, x, heard: heard.append(e.norm(net(x))),
    "reads an argument": lambda e, net, x, heard: heard.append(e.norm(x.mul_(2))),
}


def trained(extension, compiled, *, first=None, forward=None, before=None, after=None):
    torch.manual_seed(0)
    net, heard = nn.Linear(4, 4), []
    net.register_buffer("average", net.weight.detach().clone())
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step(x):
        if first is not None:
            heard.append(first(x))
        loss = (net(x) if forward is None else forward(x, net.weight)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        if before is not None:
            before(extension, net, x, heard)
        optimizer.step()
        if after is not None:
            after(extension, net, x, heard)
        return loss.detach()

    run = stowage.compile(step) if compiled else step
    data = torch.Generator().manual_seed(1)
    losses = [run(torch.randn(2, 4, generator=data)).item() for _ in range(CALLS)]
    return (losses, heard, net.weight.tolist(), net.average.tolist()), run


@pytest.mark.filterwarnings("ignore:stowage")
@pytest.mark.parametrize("name", AFTER)
@pytest.mark.parametrize("when", ["before", "after"])
def test_what_looks_into_memory(extension, name, when):
    expected, _ = trained(extension, False, **{when: AFTER[name]})
    got, _ = trained(extension, True, **{when: AFTER[name]})
    assert got == expected


@pytest.mark.parametrize("where", ["forward", "first"])
def test_what_asks_for_operators_or_comes_first_is_planned(extension, where):
    use = {"forward": {"forward": extension.cell}, "first": {"first": extension.norm}}[where]
    expected, _ = trained(extension, False, **use)
    got, step = trained(extension, True, **use)
    assert got == expected
    assert step.stats()["planned_steps"] > 4, step.refusal

"""The stand-in accelerator changes the process that it is loaded into: from then on, there is a device. So these tests
run in this process only where they are alone in it; else each file runs in a process of its own.

    pytest tests/accelerator     this process
    pytest                       test_memory.py::test_first ──► pytest tests/accelerator/test_memory.py, whole
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parent / "python"))
sys.path.insert(0, str(HERE.parent / "support" / "accelerator"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    ours = [item for item in items if item.path.parent == HERE]
    if len(ours) == len(items):
        return
    first_of = {}
    for item in ours:
        first_of.setdefault(item.path, item)
    for item in first_of.values():
        item.stands_for_file = True
        item.funcargs.update(dict.fromkeys(item.fixturenames))  # so that none of them is set up: they load the device
    items[:] = [item for item in items if item.path.parent != HERE or hasattr(item, "stands_for_file")]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if not hasattr(pyfuncitem, "stands_for_file"):
        return None
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(pyfuncitem.path)]
    done = subprocess.run(command, cwd=pyfuncitem.config.rootpath, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]
    return True


@pytest.fixture(scope="session")
def loaded():
    import standin

    try:
        standin.load()
    except standin.CannotBuild as error:
        pytest.skip(f"the stand-in accelerator cannot be built: {error}")
    return standin


@pytest.fixture(autouse=True)
def fresh_device(request):
    """Settings as at first, counters at 0, one thread; and nothing left on the device afterwards."""
    standin = request.getfixturevalue("loaded")
    standin.reset()
    torch.set_num_threads(1)
    yield
    torch.accelerator.synchronize()
    standin.reset()

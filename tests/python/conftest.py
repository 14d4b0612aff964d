import os
import subprocess
import sys
import types

import pytest
import torch

sys.path.insert(0, os.path.dirname(__file__))


@pytest.fixture(autouse=True)
def one_thread():
    """Exactness is tested with one thread; tests that need more set it themselves."""
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def nothing_idle():
    """Compiled steps of tests before have made way, as they do where a budget begins: limits are told from what lives."""
    if budgets := sys.modules.get("stowage.eviction.budget"):
        budgets.everybody_makes_way()


@pytest.fixture(autouse=True)
def nothing_is_left():
    """A test that leaves a budget, a recording or a mode in the process would disturb others."""
    yield
    if "stowage" in sys.modules:
        from process_state import left_over

        assert left_over() == []


@pytest.fixture(autouse=True, scope="session")
def seeds_without_stacks():
    """torch.manual_seed() formats the stack of its caller for each kind of accelerator that may come to be: a quarter of
    the time of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        for devices in (torch.cuda, torch.mtia, torch.xpu):
            patch.setattr(devices, "traceback", types.SimpleNamespace(format_stack=list))
        yield


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory):
    """Costs measured by tests stay with them; each test makes its own plans (but test_plan_cache.py)."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["STOWAGE_PLAN_CACHE"] = "off"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Tests marked ``alone`` run in a process of their own."""
    if pyfuncitem.get_closest_marker("alone") is None or os.environ.get("STOWAGE_TEST_ALONE"):
        return None
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            str(pyfuncitem.config.rootpath / pyfuncitem.nodeid),
        ],
        cwd=pyfuncitem.config.rootpath,
        env={**os.environ, "STOWAGE_TEST_ALONE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    return True

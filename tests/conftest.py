"""Which tests ./dev test leaves to ./dev soak: those of slow.txt, with the seconds that they take; and of a test that has many
cases, a half, which the digest of their names has drawn once and for all.

pytest                     all others
pytest --slow              these alone
pytest FILE                all of a file but those of slow.txt
pytest FILE::NAME          what is named, slow or not

And what a worker of ``pytest -n`` does before each file."""

import collections
import gc
import importlib
import os
import sys
import zlib
from pathlib import Path

import pytest

SLOW = Path(__file__).with_name("slow.txt")
MANY = 16  # cases of one test
LIBRARIES = ("torch._dynamo", "torch._inductor.compile_fx", "torch.distributed.tensor", "transformers")


@pytest.fixture(autouse=True, scope="module")
def libraries_are_no_garbage():
    """A worker runs tests of all kinds for minutes: a tenth of their time went to collections that looked through what
    libraries have made when they were imported."""
    if "PYTEST_XDIST_WORKER" in os.environ and "torch" in sys.modules:
        for name in LIBRARIES:
            importlib.import_module(name)
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def still_no_garbage(libraries_are_no_garbage):
    """What stowage asks of the collector takes them back. Asking whether it did takes longer than this."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        gc.freeze()


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="the tests of tests/slow.txt alone")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    slow = {line.split(maxsplit=1)[1] for line in SLOW.read_text().splitlines() if line and not line.startswith("#")}
    if any("::" in argument for argument in config.args):
        return
    found = {name for item in items for name in slow & _names(item)}
    files = {item.nodeid.split("::")[0] for item in items}
    gone = sorted(name for name in slow - found if name.split("::")[0] in files)
    if gone and not (config.option.keyword or config.option.markexpr):  # else others may have taken them out
        raise pytest.UsageError(f"slow.txt names tests that are not there: {', '.join(gone)}")
    wanted = config.getoption("--slow")
    whole = any(os.path.isfile(argument) for argument in config.args) and not wanted
    cases = collections.Counter(_test(item) for item in items)

    def left_to_soak(item):
        drawn = cases[_test(item)] >= MANY and zlib.crc32(item.nodeid.encode()) % 2 == 0
        return bool(slow & _names(item)) or (drawn and not whole)

    chosen = [item for item in items if left_to_soak(item) == wanted]
    config.hook.pytest_deselected(items=[item for item in items if left_to_soak(item) != wanted])
    items[:] = chosen


def _test(item):
    """The function of which it is one case."""
    return item.nodeid.split("[")[0]


def _names(item):
    return {item.nodeid, _test(item)}

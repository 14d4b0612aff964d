"""without_collections(): the garbage collector stands still meanwhile, and is as before after it, whatever comes."""

import gc

import pytest

from stowage._core import without_collections


@pytest.fixture(params=[True, False], ids=["collects", "does not"])
def collects(request):
    was = gc.isenabled()
    gc.enable() if request.param else gc.disable()
    yield request.param
    gc.enable() if was else gc.disable()


def test_it_stands_still_meanwhile(collects):
    assert without_collections(lambda: [gc.isenabled(), "result"]) == [False, "result"]
    assert gc.isenabled() == collects


def test_an_error_passes_through(collects):
    def fails():
        raise KeyboardInterrupt("meanwhile")

    with pytest.raises(KeyboardInterrupt, match="meanwhile"):
        without_collections(fails)
    assert gc.isenabled() == collects


def test_one_within_another(collects):
    assert without_collections(lambda: (without_collections(gc.isenabled), gc.isenabled())) == (False, False)
    assert gc.isenabled() == collects

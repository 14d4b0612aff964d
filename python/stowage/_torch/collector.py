"""What the garbage collector is asked for: who refers to an object, and which objects there are. After gc.freeze() it
answers neither for what was there before."""

import gc
from typing import Any


def get_referrers(value: Any) -> list[Any]:
    """As gc.get_referrers(), frozen ones too: they are frozen no longer."""
    gc.unfreeze()
    return gc.get_referrers(value)


def get_objects() -> list[Any]:
    """As gc.get_objects(), frozen ones too: they are frozen no longer."""
    gc.unfreeze()
    return gc.get_objects()


__all__ = ["get_objects", "get_referrers"]

"""What the tests of tiles share (test_tile_loss.py, test_tile_mlp.py)."""

import contextlib

from stowage import _runtime
from stowage.step.replay import step_plan

EXACT = {"tiled_ops": 0, "tile_error": 0.0, "tile_largest_error": 0.0}


@contextlib.contextmanager
def tiling(**options):
    """Small parts are tiled too, in tiles of a few rows."""
    small = {"least_bytes": 0, "tile_bytes": 1 << 10, **options}
    before = step_plan._tiling
    step_plan._tiling = lambda loss, mlp: _runtime.TileOptions(loss=loss, mlp=mlp, **small)
    try:
        yield
    finally:
        step_plan._tiling = before


def distance(got, truth):
    return max(((a - b).norm() / b.norm().clamp_min(1e-12)).item() for a, b in zip(got, truth, strict=True))

"""These run on the CUDA build of PyTorch above a driver without a GPU (tests/support/nullcuda): `./dev cuda`. Elsewhere
none is collected."""

import ctypes
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support" / "nullcuda"))

if not hasattr(ctypes.CDLL(None), "nullcuda_count"):
    collect_ignore_glob = ["test_*.py"]

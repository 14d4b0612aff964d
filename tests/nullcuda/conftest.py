"""These run on the CUDA build of PyTorch above a driver without a GPU (tests/support/nullcuda): `./dev cuda`. Elsewhere
none is collected."""

import ctypes
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support" / "nullcuda"))

if not hasattr(ctypes.CDLL(None), "nullcuda_count"):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def without_cudnn():
    """It chooses among plans of kernels that the stub does not have."""
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_cudnn_sdp(False)

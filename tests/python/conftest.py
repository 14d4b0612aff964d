import os
import sys

import pytest
import torch

sys.path.insert(0, os.path.dirname(__file__))


@pytest.fixture(autouse=True)
def one_thread():
    """Exactness is tested with one thread; tests that need more set it themselves."""
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)

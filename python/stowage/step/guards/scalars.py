"""Values that Python compares by what they are: no object hangs on them, and none of them changes."""

from __future__ import annotations

import torch

SCALARS = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)

__all__ = ["SCALARS"]

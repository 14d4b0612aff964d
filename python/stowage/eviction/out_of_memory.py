"""What is raised where a budget cannot be kept."""

from __future__ import annotations

import torch

from stowage.errors import Error


class OutOfMemory(Error, torch.OutOfMemoryError):
    """The limit of a stowage.budget cannot be met. It is a torch.OutOfMemoryError, too. The message says what is
    pinned, and by how much the limit is short.

    Args:
        bound_bytes: of a compiled step with a budget: the smallest budget, in bytes, that may be enough for its eager
            calls, as far as is known.
    """

    bound_bytes = 0


__all__ = ["OutOfMemory"]

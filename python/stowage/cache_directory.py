"""Where Stowage keeps things between runs: measured costs, plans, and the runtime built for each torch.

    $STOWAGE_CACHE, else $XDG_CACHE_HOME/stowage, else ~/.cache/stowage
        costs-*.json    costs.py
        plans/          plan_cache.py
        runtime/        runtime_build.py
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def cache_directory() -> Path:
    named = os.environ.get("STOWAGE_CACHE", "")
    if named:
        return Path(named).absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    return Path(base if os.path.isabs(base) else os.path.expanduser("~/.cache")) / "stowage"


def replace_file(path: Path, content: bytes) -> bool:
    """Writes a file as a whole: another process sees the old one or the new one. False where that cannot be done."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        return False
    return True

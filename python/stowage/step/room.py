"""What the plans of one compiled step share: an arena, a host store, a link."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from stowage import _runtime
from stowage.sizes import parse_bytes
from stowage.step import compiled_regions


@dataclass(frozen=True)
class Room:
    """What the plans of one compiled step share."""

    arena: _runtime.Arena
    host: _runtime.Host
    link_gbps: float | None
    store: str  # what the host store is, as costs are kept by it
    # "closely": rehearsals note which op differs first; "paranoid": and no op may write outside its own memory
    looks: str = ""
    regions: compiled_regions.Regions = field(default_factory=compiled_regions.Regions)

    @classmethod
    def of_environment(cls, arena: _runtime.Arena, link_gbps: float | None) -> Room:
        """With the host store that the environment wants: in memory, or in a file of a directory; as large as needed,
        or limited."""
        directory = os.environ.get("STOWAGE_HOST_STORE", "")
        limit = parse_bytes(os.environ.get("STOWAGE_HOST_LIMIT") or None)
        return cls(arena, _runtime.Host(directory, limit or 0, link_gbps or 0.0), link_gbps, directory or "memory")


__all__ = ["Room"]

"""What the plans of one compiled step share: an arena, a host store, a link."""

from __future__ import annotations

from dataclasses import dataclass, field

from stowage import _runtime
from stowage.eviction.budget import host_settings
from stowage.step.record import compiled_regions


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
        directory, limit_bytes = host_settings()
        return cls(arena, _runtime.Host(directory, limit_bytes, link_gbps or 0.0), link_gbps, directory or "memory")


__all__ = ["Room"]

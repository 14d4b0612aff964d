"""What the plans of one compiled step share: an arena, a host store, a link."""

from __future__ import annotations

from dataclasses import dataclass, field

from stowage import _runtime, compiled_regions
from stowage.eviction.budget import gives_way, host_settings


@dataclass(frozen=True, eq=False)
class Room:
    """What the plans of one compiled step share."""

    arena: _runtime.Arena
    host: _runtime.Host
    link_gbps: float | None
    store: str  # what the host store is, as costs are kept by it
    # "closely": rehearsals note which op differs first; "paranoid": and no op may write outside its own memory
    looks: str = ""
    regions: compiled_regions.Regions = field(default_factory=compiled_regions.Regions)

    def __post_init__(self) -> None:
        gives_way(self)

    def make_way(self) -> None:
        """No planned step runs: its memory is somebody else's, until the next one takes it again."""
        self.arena.release()

    @classmethod
    def of_environment(cls, arena: _runtime.Arena, link_gbps: float | None) -> Room:
        """With the host store that the environment wants: in memory, or in a file of a directory; as large as needed,
        or limited."""
        directory, limit_bytes = host_settings()
        return cls(arena, _runtime.Host(directory, limit_bytes, link_gbps or 0.0), link_gbps, directory or "memory")


__all__ = ["Room"]

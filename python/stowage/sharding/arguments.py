"""What stowage.shard() is given, looked at before anything happens: TypeError and ValueError name the argument."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from stowage.errors import Error


def refuse_wrong_arguments(
    mesh: Any, eps: Any, links: Any, link_gbps: Any, plan: Any, options: Mapping[str, Any]
) -> None:
    _require_mesh(mesh)
    numbers = {"eps": eps, "link_gbps": link_gbps}
    numbers |= {key: options.get(key) for key in ("relative_gap", "time_limit_seconds")}
    for name, value in numbers.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name}= must be a number, not {value!r}")
        if not value >= 0 or math.isinf(value):
            raise ValueError(f"{name}= must be a number that is not negative, not {value!r}")
    if links is not None and not isinstance(links, dict):
        raise TypeError(f"links= must be a dict by the positions of axes, such as {{0: {{'gbps': 50}}}}, not {links!r}")
    for axis, link in (links or {}).items():
        if isinstance(axis, int) and not isinstance(link, dict):
            raise TypeError(f"links=: of axis {axis} it must be a dict, such as {{'gbps': 50}}, not {link!r}")
    if plan is not None and not isinstance(plan, str) and not callable(plan):
        raise TypeError(f"plan= must be the text of a plan, or a function that gives one, not {type(plan).__name__}")


def _require_mesh(mesh: Any) -> None:
    from torch.distributed.device_mesh import DeviceMesh

    if isinstance(mesh, DeviceMesh):
        return
    sizes = [mesh] if isinstance(mesh, int) else mesh
    whole = isinstance(sizes, Sequence) and not isinstance(sizes, str)
    if not whole or any(isinstance(n, bool) or not isinstance(n, int) for n in sizes):
        raise TypeError(f"mesh= must be a DeviceMesh, or whole numbers such as (2, 4), not {mesh!r}")


def as_plan(text: Any, tensors: int, ops: int) -> str:
    """A plan that was given, for a program of so many tensors and ops. Raises Error for one that is none."""
    if not isinstance(text, str):
        raise Error(f"plan=: the function gave no text of a plan, but {type(text).__name__}")
    try:
        document = json.loads(text)
    except ValueError as error:
        raise Error(f"plan=: it is no JSON: {error}") from None
    for key, count in (("tensors", tensors), ("ops", ops)):
        found = document.get(key) if isinstance(document, dict) else None
        if not isinstance(found, list):
            raise Error(f"plan=: it has no list '{key}'")
        if len(found) != count:
            raise Error(f"plan=: it has {len(found)} {key}, and the step {count}: it is of another step")
    return text

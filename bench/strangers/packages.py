"""All cases, and what a package needs before it can be imported here."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import sys

import torch
from job import CASES, Case


def admit_torchvision() -> None:
    """torchvision declares shapes for its compiled operators when it is imported. Where its wheel was built for a GPU
    and torch was not, those operators do not load, and the import fails: they are declared without kernels, as the
    models used here call none of them."""
    if _kept or "torchvision" in sys.modules:
        return
    folder = pathlib.Path(importlib.util.find_spec("torchvision").submodule_search_locations[0])
    try:
        for file in folder.glob("_C*.so"):
            torch.ops.load_library(file)
    except OSError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in sorted(
            set(re.findall(r'register_fake\("torchvision::(\w+)"', (folder / "_meta_registrations.py").read_text()))
        ):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(library)


_kept: list[torch.library.Library] = []


def all_cases() -> dict[str, Case]:
    import cases_engines  # noqa: F401
    import cases_examples  # noqa: F401
    import cases_gans  # noqa: F401
    import cases_graphs  # noqa: F401
    import cases_language  # noqa: F401
    import cases_lightning  # noqa: F401
    import cases_loops_dice  # noqa: F401
    import cases_loops_fetch  # noqa: F401
    import cases_loops_methods  # noqa: F401
    import cases_loops_now_and_then  # noqa: F401
    import cases_loops_numbers  # noqa: F401
    import cases_loops_shapes  # noqa: F401
    import cases_loops_state  # noqa: F401
    import cases_loops_updates  # noqa: F401
    import cases_metric  # noqa: F401
    import cases_optimizers  # noqa: F401
    import cases_recurrent  # noqa: F401
    import cases_sciences  # noqa: F401
    import cases_techniques  # noqa: F401
    import cases_trainers  # noqa: F401
    import cases_vision  # noqa: F401

    return CASES


def load(name: str) -> Case:
    found = all_cases()[name]
    admit_torchvision()
    return found

"""Stands for the compiled module where none was shipped: builds it for the installed torch, once, and takes its place.

Where the compiled `_runtime` lies beside this file, as in the build tree of a developer, Python prefers that and never
runs this."""

import sys

from stowage._torch.runtime_build import load

sys.modules[__name__] = load(__name__)

"""Stands for the compiled module where it does not lie beside this file: loads the one for the installed torch, built
before or now, and takes its place.

Where the compiled `_runtime` lies beside this file, as in the build tree of a developer, Python prefers that and never
runs this."""

import sys

from stowage._torch.installed import install
from stowage._torch.runtime_build import load

_compiled = load(__name__)
install(_compiled)
sys.modules[__name__] = _compiled

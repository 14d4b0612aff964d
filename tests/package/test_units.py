"""On first use the runtime is compiled in a few units, each of which includes many sources: their names must not
collide."""

import re
import subprocess
import sysconfig
from pathlib import Path

import nanobind
import torch

from stowage._torch import runtime_build

ROOT = Path(__file__).resolve().parents[2]


def test_all_sources_compile_as_one_unit(tmp_path):
    listed = re.search(r"set\(runtime_bindings ([^)]*)\)", (ROOT / "python" / "CMakeLists.txt").read_text()).group(1)
    sources = sorted([*(ROOT / "runtime").rglob("*.cpp"), *(ROOT / "python" / path for path in listed.split())])
    assert len(sources) > 20
    unit = tmp_path / "unit.cpp"
    unit.write_text("".join(f'#include "{path}"\n' for path in sources))
    headers = Path(torch.__file__).parent / "include"
    own = [ROOT / "include", ROOT]
    foreign = [
        nanobind.include_dir(),
        headers,
        headers / "torch" / "csrc" / "api" / "include",
        sysconfig.get_path("include"),
    ]
    include = [f"-I{folder}" for folder in own] + [part for folder in foreign for part in ("-isystem", str(folder))]
    command = [*runtime_build._compiler(), *runtime_build._FLAGS, *include, "-fsyntax-only", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[:4000]

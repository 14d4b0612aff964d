"""Fails when two headers define a class of one name in one namespace: the linker takes the members of one of them for both,
without a word (the one definition rule)."""

import re
import sys
from collections import defaultdict
from pathlib import Path

OPENS = re.compile(r"^(?:inline )?namespace ([\w:]*) ?\{$")
CLOSES = re.compile(r"^\}  // namespace")
DEFINES = re.compile(
    r"^(?:class|struct|enum class|enum)(?: alignas\([^)]*\))? (\w+)(?: final)?(?: :[^:;].*)?(?: \{.*)?$"
)


def classes(text):
    """(namespace, name) of each class that is defined outside of others."""
    within = []
    for line in text.splitlines():
        if opens := OPENS.match(line):
            within.append(opens[1])
        elif CLOSES.match(line):
            within.pop()
        elif (defines := DEFINES.match(line)) and ("{" in line or not line.endswith(";")):
            yield "::".join(within), defines[1]


def main():
    root = Path(sys.argv[1])
    found = defaultdict(set)
    for folder in ("include", "src", "runtime", "cli"):
        for path in sorted((root / folder).rglob("*.h")):
            for name in classes(path.read_text()):
                found[name].add(path.relative_to(root))
    if len(found) < 200:
        sys.exit(f"only {len(found)} classes were found: the headers are written in another form than this test reads")
    faults = [
        f"{namespace}::{name} is defined by {' and by '.join(map(str, sorted(paths)))}"
        for (namespace, name), paths in sorted(found.items())
        if len(paths) > 1
    ]
    sys.exit("\n".join(faults) or 0)


if __name__ == "__main__":
    main()

"""Line coverage of the core by its tests: bench/coverage.py BUILD_FOLDER, after the tests have run there (./dev
coverage does both).

Prints one row for each room of src/, then the lines of the checker that no test runs. Reads what gcov says of each
object file; a line counts as run when any object file says so (templates and inline functions are in many)."""

import collections
import gzip
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHECKER = ["check.cpp", "occupancy.cpp", "overlap.cpp", "simulate.cpp", "occupancy.h", "violation.h"]


def line_counts(build):
    """{source: {line: how often it ran}} for the sources of the core."""
    counts = collections.defaultdict(lambda: collections.defaultdict(int))
    notes = sorted(path for path in build.glob("src/**/*.gcno") if path.name != "page_parts.cpp.gcno")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["gcov", "--json-format", "--hash-filenames", *map(str, notes)],
            cwd=folder,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        for path in Path(folder).glob("*.gcov.json.gz"):
            data = json.loads(gzip.open(path).read())
            for file in data["files"]:
                source = (Path(data["current_working_directory"]) / file["file"]).resolve()
                if not source.is_relative_to(ROOT / "src") and not source.is_relative_to(ROOT / "include"):
                    continue
                lines = counts[source.relative_to(ROOT)]
                for line in file["lines"]:
                    lines[line["line_number"]] += line["count"]
    return counts


def row(name, files):
    lines = [count for file in files for count in file.values()]
    run = sum(count > 0 for count in lines)
    return f"{name:12} {len(lines):6} lines  {run:6} run  {100 * run / max(len(lines), 1):6.2f} %"


def main():
    counts = line_counts(Path(sys.argv[1]).resolve())
    rooms = collections.defaultdict(list)
    for source, lines in counts.items():
        rooms[source.parts[1] if source.parts[0] == "src" else "include"].append(lines)
    for room in sorted(rooms):
        print(row(room, rooms[room]))
    checker = {
        source: lines for source, lines in counts.items() if source.parent.name == "plan" and source.name in CHECKER
    }
    print(row("the checker", checker.values()))
    print(row("the core", counts.values()))
    for source, lines in sorted(checker.items()):
        for line in sorted(number for number, count in lines.items() if count == 0):
            print(f"not run: {source}:{line}: {(ROOT / source).read_text().splitlines()[line - 1].strip()}")


if __name__ == "__main__":
    main()

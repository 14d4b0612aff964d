"""What the fuzz targets found.

    plain    executions with random changes of the corpus, by the release build: no crash, no check that fails, no hang
    guided   libFuzzer, by the build of the preset "fuzz" (clang 16 or newer), under AddressSanitizer and UBSan

A finding ends its target's run, and its input's file is named. The time of guided runs is the processor's, so that a busy
machine does not count as fuzzing. It adds up from call to call, as their inputs are kept below build/fuzz. Plain runs add
up over seeds. What was found and mended is in tests/fuzz/regressions."""

from __future__ import annotations

import concurrent.futures
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import NamedTuple

from bench import common

FUZZ = common.ROOT / "tests" / "fuzz"
PLAIN, GUIDED = common.ROOT / "build" / "release", common.ROOT / "build" / "fuzz"
PYTHON = "cache_readers"  # the target that is Python's: plain only
_SECONDS = {"plain": 5, "guided": 10}  # an execution may take; clocks of a busy machine, and sanitizers, count in
_MOST_MIB = 3072
_END = re.compile(r"(\d+) executions(?:, \d+ taken,)? in ([\d.]+) s; the slowest ([\d.]+) s")


def targets() -> list[str]:
    return [*sorted(path.name.removeprefix("fuzz_") for path in (PLAIN / "bin").glob("fuzz_*")), PYTHON]


def inputs(target: str) -> list[str]:
    return [str(folder) for folder in (FUZZ / "regressions" / target, FUZZ / "corpus" / target) if folder.is_dir()]


class Run(NamedTuple):
    code: int
    said: str
    processor_s: float


def run(command: list[str], folder: Path, **environment: str) -> Run:
    folder.mkdir(parents=True, exist_ok=True)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"  # where HiGHS is looked for
    environment = {**os.environ, "PATH": path, **environment}
    done = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.stdout is not None
    said = done.stdout.read().decode(errors="replace")
    _, status, used = os.wait4(done.pid, 0)
    done.returncode = os.waitstatus_to_exitcode(status)
    return Run(done.returncode, said, used.ru_utime + used.ru_stime)


def plain(target: str, runs: int, seed: int) -> dict:
    command = [str(PLAIN / "bin" / f"fuzz_{target}"), *inputs(target)]
    if target == PYTHON:
        command = [sys.executable, str(FUZZ / f"{PYTHON}.py")]
    limit = str(_SECONDS["plain"])
    code, said, _ = run(
        command, PLAIN / "fuzz", STOWAGE_FUZZ_RUNS=str(runs), STOWAGE_SEED=str(seed), STOWAGE_FUZZ_LIMIT=limit
    )
    end = _END.search(said)
    if code != 0 or end is None:
        return {"found": said.strip().splitlines()[-5:]}
    return {"executions": int(end[1]), "seconds": float(end[2]), "slowest_s": float(end[3]), "seeds": [seed]}


def guided(target: str, seconds: int) -> dict:
    corpus = GUIDED / "corpus" / target
    corpus.mkdir(parents=True, exist_ok=True)
    code, said, processor_s = run(
        [
            str(GUIDED / "bin" / f"fuzz_{target}"),
            str(corpus),
            *inputs(target),
            f"-max_total_time={seconds}",
            f"-timeout={_SECONDS['guided']}",
            f"-rss_limit_mb={_MOST_MIB}",
            f"-artifact_prefix={target}.",
            "-print_final_stats=1",
        ],
        GUIDED / "found",
    )
    if code != 0:
        return {"found": said.strip().splitlines()[-12:]}
    statistics = dict(re.findall(r"stat::(\w+):\s+(\d+)", said))
    return {
        "executions": int(statistics["number_of_executed_units"]),
        "seconds": round(processor_s),
        "slowest_s": int(statistics["slowest_unit_time_sec"]),
        "edges": max((int(n) for n in re.findall(r"cov: (\d+)", said)), default=0),
    }


def added(before: dict | None, now: dict) -> dict:
    """Runs of one target, one after the other. Plain ones of a seed that was there stand alone: they tried the same."""
    if (
        before is None
        or "found" in before
        or "found" in now
        or set(before.get("seeds", [])) & set(now.get("seeds", []))
    ):
        return now
    summed = {key: before[key] + now[key] for key in ("executions", "seconds", "seeds") if key in now}
    return summed | {key: max(before[key], now[key]) for key in ("slowest_s", "edges") if key in now}


def table(results: dict) -> str:
    rows = []
    for target, found in results.items():
        p, g = found.get("plain", {}), found.get("guided", {})
        regressions = FUZZ / "regressions" / target
        rows.append(
            [
                target,
                f"{p['executions']:,}" if "executions" in p else "-",
                f"{p['slowest_s']:.2f}" if "executions" in p else "-",
                f"{g['executions']:,}" if "executions" in g else "-",
                f"{g['seconds'] / 60:.0f}" if "executions" in g else "-",
                f"{g['edges']:,}" if "executions" in g else "-",
                len(list(regressions.iterdir())) if regressions.is_dir() else 0,
                sum("found" in part for part in (p, g)),
            ]
        )
    header = ["target", "plain", "slowest, s", "guided", "CPU minutes", "edges", "found and mended", "found, open"]
    return common.markdown(header, rows)


def main() -> None:
    parser = common.parser(__doc__, "fuzz")
    parser.add_argument("--targets", nargs="+", choices=targets(), metavar="TARGET", default=targets())
    parser.add_argument("--runs", type=int, default=0, help="plain executions of each (default 0: none)")
    parser.add_argument("--seed", type=int, default=1, help="of the plain ones")
    parser.add_argument("--guided-seconds", type=int, default=0, help="of libFuzzer for each (default 0: none)")
    parser.add_argument("--jobs", type=int, default=1, help="targets at once")
    options = parser.parse_args()
    if options.guided_seconds and not (GUIDED / "bin").is_dir():
        raise SystemExit("--guided-seconds needs: cmake --preset fuzz && cmake --build --preset fuzz")
    path = common.RESULTS / "fuzz.json" if options.output in (None, "-") else Path(options.output)
    results: dict = json.loads(path.read_text())["results"] if path.exists() and options.output != "-" else {}

    lock = threading.Lock()

    def one(target: str) -> None:
        found = results.setdefault(target, {})
        if options.runs:
            found["plain"] = added(found.get("plain"), plain(target, options.runs, options.seed))
        if options.guided_seconds and target != PYTHON:
            found["guided"] = added(found.get("guided"), guided(target, options.guided_seconds))
        with lock:
            common.publish("fuzz", {"results": dict(sorted(results.items()))}, table({target: found}), options.output)

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for done in [pool.submit(one, target) for target in options.targets]:
            done.result()
    print(table(dict(sorted(results.items()))))
    for target, found in results.items():
        for how, part in found.items():
            if "found" in part:
                common.say("\n".join([f"{target}, {how}:", *part["found"]]))
    if any("found" in part for found in results.values() for part in found.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()

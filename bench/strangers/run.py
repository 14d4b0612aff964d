"""Strangers' code: models and training scripts that were not written for Stowage, planned or refused aloud, never
wrong.

Each case (cases_*.py) runs in a process of its own with a time limit: it trains eagerly and through stowage.compile,
from the same seeds, and compares every bit after each iteration (worker.py). A case that passes the time limit or ends
by a signal is a failure.

    planned      plans were executed, nothing was refused, every bit is eager's
    refused      it ran eagerly and said why; "data" where no plan can exist, as the data decide a shape or what runs
    partly       one of its signatures or steps was planned, another refused
    wrong, hangs, crashes, raises, never (no refusal, and no plan either)        must not be

    ./dev strangers                      all of them
    ./dev strangers bert 'timm_*'        these, by name or pattern; the others keep their places in the result file
    ./dev strangers --compiled bert      models are compiled by torch.compile in both runs
    ./dev strangers --list
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import json
import os
import pathlib
import re
import select
import signal
import sys
import tempfile
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import worker  # noqa: E402

from bench import common  # noqa: E402
from bench.strangers import strangers_tables  # noqa: E402

worker.prepare()
import packages  # noqa: E402

RESULTS = common.RESULTS / "strangers.json"
FINE = ("planned", "data")


def one(name: str, seed: int, limit_s: float) -> dict:
    """The verdict of a process of its own, or what became of it. It is forked from this one, which has imported and
    done nothing else."""
    start = time.monotonic()
    answers, child_answers = os.pipe()
    errors = tempfile.TemporaryFile()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.dup2(errors.fileno(), 2)
        try:
            worker.answer(name, seed, child_answers)
        except BaseException:
            traceback.print_exc()
        os._exit(70)
    os.close(child_answers)
    text = _read(answers, start + limit_s)
    if text is None:
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    wall_s = time.monotonic() - start
    if text is None:
        return {"outcome": "hangs", "reason": f"not done after {limit_s:.0f} s", "wall_s": wall_s}
    code = os.waitstatus_to_exitcode(status)
    if code != 0 or not text:
        errors.seek(0)
        last = [line for line in errors.read().decode(errors="replace").splitlines() if line.strip()][-3:]
        how = signal.Signals(-code).name if code < 0 else f"status {code}"
        return {"outcome": "crashes", "reason": f"{how}: {' | '.join(last)}"[:500], "wall_s": wall_s}
    return json.loads(text)


def _read(descriptor: int, deadline: float) -> str | None:
    """All until the other end closes; None when that does not happen in time."""
    text = b""
    with os.fdopen(descriptor, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            part = pipe.read(1 << 16)
            if not part:
                return text.decode()
            text += part
    return None


def preload() -> None:
    """Imports what cases need, once for all of them."""
    packages.admit_torchvision()
    for name in (
        "transformers",
        "timm",
        "peft",
        "torchvision",
        "diffusers",
        "segmentation_models_pytorch",
        "torch_geometric.nn",
        "lightning.pytorch",
        "trl",
        "torch_optimizer",
    ):
        importlib.import_module(name)


def _short(value):
    """Paths from their package on."""
    if isinstance(value, str):
        return re.sub(r"[^\s'\"]*/(?:site-packages|strangers)/", "", value)
    return [_short(v) for v in value] if isinstance(value, list) else value


def judged(case, found: dict) -> dict:
    """With the case's names; a refusal of what no plan can exist for is "data"."""
    outcome = found["outcome"]
    found = {key: _short(value) for key, value in found.items()}
    if case.data_decides and outcome in ("refused", "partly"):
        outcome = "data"
    return {
        "case": case.name,
        "package": case.package,
        "title": case.title,
        "data_decides": case.data_decides,
        **found,
        "outcome": outcome,
    }


def versions() -> dict:
    from importlib.metadata import version

    lines = (HERE / "requirements.txt").read_text().splitlines()
    names = [line.split("==")[0] for line in lines if "==" in line and not line.startswith("#")]
    return {name: version(name) for name in names}


def write(path: pathlib.Path | None, seed: int, runs: list[dict]) -> None:
    """After each case, so that a run that is broken off leaves what it has found."""
    if path is not None:
        content = {
            "benchmark": "strangers",
            "seed": seed,
            "versions": versions(),
            "results": runs,
            "environment": common.environment(),
        }
        path.write_text(json.dumps(content, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], prog="./dev strangers")
    parser.add_argument("names", nargs="*", help="cases or patterns; default: all")
    parser.add_argument("--list", action="store_true")
    parser.add_argument(
        "--compiled",
        action="store_true",
        help="models are compiled by torch.compile, in eager runs, too; no result file",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=180.0, help="seconds that a case may take")
    parser.add_argument("-o", "--output", help='results as JSON (default bench/results/strangers.json; "-": none)')
    options = parser.parse_args()
    if options.compiled:
        os.environ[worker.COMPILED] = "1"
        options.output = options.output or "-"
    cases = packages.all_cases()
    if options.list:
        print("\n".join(f"{c.name:28} {c.package:28} {c.title}" for c in cases.values()))
        return
    chosen = [n for n in cases if not options.names or any(fnmatch.fnmatchcase(n, p) for p in options.names)]
    if not chosen:
        raise SystemExit(f"no case is named {' or '.join(options.names)}; --list names them")
    path = pathlib.Path(options.output) if options.output not in (None, "-") else RESULTS
    kept = {r["case"]: r for r in json.loads(path.read_text())["results"]} if options.names and path.is_file() else {}
    common.say(f"seed {options.seed}")
    if len(chosen) > 12:
        preload()
    for i, name in enumerate(chosen, 1):
        found = judged(cases[name], one(name, options.seed, options.limit)) | {"seed": options.seed}
        kept[name] = found
        common.say(
            f"[{i}/{len(chosen)}] {name}: {found['outcome']} ({found['wall_s']:.1f} s) {' '.join((found.get('reason') or '').split())[-200:]}"
        )
        write(path if options.output != "-" else None, options.seed, [kept[n] for n in cases if n in kept])
    here = [kept[n] for n in chosen]
    print(strangers_tables.cases(here))
    sys.exit(any(r["outcome"] not in FINE for r in here))


if __name__ == "__main__":
    main()

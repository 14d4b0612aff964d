"""One script for a machine with a GPU and no network: builds Stowage for the torch that is there, and runs what only a GPU
can tell.

    python3 bench/gpu.py --out FOLDER                 all parts; FOLDER/gpu.json has the results, FOLDER/gpu.log what was said
    python3 bench/gpu.py --out FOLDER --only budget/gpt2_xl --seconds 540
    python3 bench/gpu.py --device standin --small --out FOLDER       without a GPU, on the stand-in of the tests

Each part is a process of its own with a limit of 8 minutes, so a crash or a hang costs that part alone. Parts that are in
gpu.json are not run again (--again does): stop it whenever you like, and start it with the same FOLDER. What Stowage does
not have yet is reported as "not there".

Needs a C++ compiler and Python's headers; all else comes with `./dev gpu-bundle`, and is used where the machine lacks it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BROUGHT = ROOT / "brought"  # by the bundle: what the machine may lack
MOST_SECONDS = 480
MODELS = ("gpt2_xl", "bert_large", "resnet50", "llama_1b")
SHARES = (0.5, 0.75, 0.3, 0)  # of eager's peak; 0: the smallest budget
RIVALS = ("checkpointing", "save_on_cpu", "torch.compile", "expandable")


# ---- What is run


def units(device: str) -> dict[str, dict]:
    """Name to what gpu_parts.py is told, in the order of what is wanted first."""
    middle = {"size": "middle"}
    some: dict[str, dict] = {}
    for model in MODELS:
        some[f"1 eager repeats/{model}"] = {"part": "eager_repeats", "model": model, "stowage": False} | middle
    for model in MODELS:
        some[f"2 records twice/{model}"] = {"part": "records_twice", "model": model} | middle
    for model in MODELS:
        some[f"3 armed replay/{model}"] = {"part": "armed_replay", "model": model} | middle
    some["4 link"] = {"part": "link"}
    for model in ("gpt2_xl", "bert_large"):
        some[f"5 dropout recomputed/{model}"] = {"part": "dropout", "model": model} | middle
    some["11 sanitizer/gpt2_xl"] = {"part": "small_step", "model": "gpt2_xl", "size": "small", "sanitized": True}
    for share in SHARES[:1]:
        for model in MODELS:
            some[f"6 budget/{model} {_percent(share)}"] = {"part": "budget", "model": model, "share": share}
    some["7 eager budget/gpt2_xl"] = {"part": "eager_budget", "model": "gpt2_xl"} | middle
    for model in MODELS:
        some[f"8 graphs/{model}"] = {"part": "graphs", "model": model} | middle
    for rival in RIVALS:
        for model in MODELS:
            some[f"10 rivals/{model} {rival}"] = {"part": "rival", "model": model, "rival": rival}
    for share in SHARES[1:]:
        for model in MODELS:
            some[f"6 budget/{model} {_percent(share)}"] = {"part": "budget", "model": model, "share": share}
    for model in MODELS:
        some[f"9 largest batch/{model}"] = {"part": "largest_batch", "model": model, "limit_bytes": 78 << 30}
    return some


def _percent(share: float) -> str:
    return f"{round(share * 100)} %" if share else "smallest"


# ---- Building


def commands(folder: Path) -> tuple[list[str], list[str]]:
    """That configures, and that builds."""
    cmake, ninja = (program(name, place) for name, place in (("cmake", "cmake/bin/cmake"), ("ninja", "ninja")))
    configure = [cmake, "-G", "Ninja", "-S", str(ROOT), "-B", str(folder), f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    configure += ["-DSTOWAGE_TESTS=OFF", "-DSTOWAGE_UNITY=ON", "-DSTOWAGE_PYTHON=ON", "-DSTOWAGE_TORCH=ON"]
    configure += [f"-DPython_EXECUTABLE={sys.executable}"]
    if BROUGHT.is_dir():
        configure += [f"-DSTOWAGE_SIMDJSON_SOURCE={BROUGHT / 'simdjson'}", f"-DCMAKE_PREFIX_PATH={BROUGHT}"]
        configure += ["-DOPENSSL_USE_STATIC_LIBS=ON", f"-DOPENSSL_ROOT_DIR={BROUGHT}"]
    return configure, [cmake, "--build", str(folder)]


def build(device: str, log) -> str:
    """The folder to import stowage from."""
    folder = ROOT / "build" / f"gpu-{platform.python_version()}-{_torch_version()}"
    for what in commands(folder):
        log.write(f"$ {' '.join(what)}\n")
        log.flush()
        if subprocess.run(what, stdout=log, stderr=log, env=environment(None), stdin=subprocess.DEVNULL).returncode:
            raise SystemExit(
                f"gpu: cannot build: {' '.join(what[:2])} failed; its messages are at the end of {log.name}"
            )
    if device == "cuda" and "-DSTOWAGE_CUDA" not in (folder / "build.ninja").read_text():
        raise SystemExit(
            "gpu: torch has CUDA, but its runtime's headers or library were not found: runtime/CMakeLists.txt says where"
        )
    return str(folder / "python")


def program(name: str, place: str) -> str:
    found = str(BROUGHT / place) if BROUGHT.is_dir() else shutil.which(name)
    if found is None:
        raise SystemExit(f"gpu: there is no {name} on the PATH; a bundle brings one (./dev gpu-bundle)")
    return found


def _torch_version() -> str:
    found = importlib.util.find_spec("torch")
    if found is None:
        raise SystemExit(f"gpu: {sys.executable} has no torch: start this with the Python that has it")
    from importlib.metadata import version

    return version("torch")


def environment(package: str | None, unit: dict | None = None) -> dict[str, str]:
    """Of packages that the bundle brings, those that the machine lacks; nanobind always, in the version that was tried."""
    brought = [
        str(p) for p in (BROUGHT / "site").glob("*") if p.name == "nanobind" or not importlib.util.find_spec(p.name)
    ]
    paths = [p for p in (package, *brought, os.environ.get("PYTHONPATH")) if p]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1"}
    env |= {"STOWAGE_CACHE": str(ROOT / "build" / "gpu-cache"), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    if unit and unit.get("rival") == "expandable":
        env["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    return env


# ---- Running


def run(name: str, unit: dict, package: str, seconds: float, log) -> dict:
    """The part's result; what it died of, where it died."""
    result = Path(log.name).with_name(f"part-{os.getpid()}.json")
    result.unlink(missing_ok=True)
    config = unit | {"seconds": seconds}
    command = [sys.executable, str(ROOT / "bench" / "gpu_parts.py"), json.dumps(config), str(result)]
    if unit.get("sanitized"):
        tool = shutil.which("compute-sanitizer")
        if tool is None:
            return {"not_there": "compute-sanitizer is not on the PATH"}
        command = [tool, "--tool", "memcheck", "--error-exitcode", "99", *command]
    log.write(f"\n== {name}\n")
    log.flush()
    begin, start = log.tell(), time.monotonic()
    # A group of its own, so that its children end with it
    process = subprocess.Popen(
        command,
        stdout=log,
        stderr=log,
        stdin=subprocess.DEVNULL,
        env=environment(package if unit.get("stowage", True) else None, unit),
        start_new_session=True,
    )
    try:
        status: int | str = process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        status = "time limit"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    took = {"seconds": round(time.monotonic() - start, 1)}
    text = result.read_text() if result.exists() else ""
    result.unlink(missing_ok=True)
    if status == 0 and text:
        return json.loads(text) | took
    return {"died": _cause(status, log, begin), "good": False} | took


def _cause(status: int | str, log, begin: int) -> str:
    if status == "time limit":
        return "the time limit"
    if isinstance(status, int) and status < 0:
        return f"signal {signal.Signals(-status).name}"
    with open(log.name, errors="replace") as said:
        said.seek(begin)
        lines = [line.strip() for line in said if line.strip()]
    return f"status {status}: {lines[-1][:300] if lines else 'it said nothing'}"


def save(path: Path, results: dict) -> None:
    whole = path.with_suffix(".new")
    whole.write_text(json.dumps(results, indent=1) + "\n")
    whole.replace(path)


# ---- Printing


def mebibytes(count: int | None) -> str:
    return "" if count is None else f"{count / 2**20:,.0f}"


def table(parts: dict[str, dict]) -> str:
    header = ["part", "good", "time/eager", "peak MiB", "of eager's", "reserved MiB", "of eager's", "what else"]
    rows = [header]
    for name, found in parts.items():
        eager = found.get("eager") if isinstance(found.get("eager"), dict) else {}
        good = {True: "yes", False: "NO", None: ""}[found.get("good")]

        def share(which: str) -> str:
            return f"{found[which] / eager[which]:.2f}" if which in found and eager.get(which) else ""

        rows.append(
            [
                *(name, good, f"{found['ratio']:.3f}" if "ratio" in found else ""),
                *(mebibytes(found.get("peak_bytes")), share("peak_bytes")),
                *(mebibytes(found.get("reserved_bytes")), share("reserved_bytes"), remark(found)),
            ]
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(header) - 1)]
    lines = [
        "  ".join(c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(row, [*widths, 0])))
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def remark(found: dict) -> str:
    says = [
        *(f"{word}: {found[key]}" for key, word in (("died", "died of"), ("not_there", "not there")) if key in found),
        *(f"bits differ: {found['differs']}" for _ in "1" if found.get("differs")),
        *(f"first: {found['op']}" for _ in "1" if found.get("op")),
        *(f"{found['misses']} misses" for _ in "1" if found.get("misses")),
        *(f"stays eager: {found['refusal']}" for _ in "1" if found.get("refusal")),
    ]
    if "infeasible_smallest_bytes" in found:
        says.append(f"no plan: smallest {mebibytes(found['infeasible_smallest_bytes'])} MiB")
    if "in_gbps" in found:
        says.append(" ".join(f"{way} {found[f'{way}_gbps']:.1f}" for way in ("in", "out", "both")) + " GB/s")
    for kind in ("eager", "planned"):
        if found.get(kind) and "samples" in found[kind]:
            says.append(f"{kind} {found[kind]['samples']} samples, {found[kind]['samples_a_second']:.1f}/s")
    if found.get("recomputed_ops"):
        says.append(f"{found['recomputed_ops']} ops again")
    if found.get("swapped_bytes"):
        says.append(f"{mebibytes(found['swapped_bytes'])} MiB swapped")
    return "; ".join(says)


# ---- Command


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", default=os.environ.get("OUT") or str(ROOT / "build" / "gpu-results"), metavar="FOLDER")
    parser.add_argument("--device", default="cuda", choices=["cuda", "standin"])
    parser.add_argument("--small", action="store_true", help="tiny models and few rounds, for trials without a GPU")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="parts whose name has TEXT in it")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="for all; a part that is cut off runs again"
    )
    parser.add_argument(
        "--most", type=float, default=MOST_SECONDS, metavar="SECONDS", help="for each part; default: 480"
    )
    parser.add_argument("--again", action="store_true", help="also what has a result")
    parser.add_argument(
        "--graphs", metavar="FOLDER", help="graphs, with measured costs, and plans of the budgets are written there"
    )
    parser.add_argument("--package", metavar="FOLDER", help="import stowage from here instead of building it")
    parser.add_argument("--list", action="store_true", help="print the parts, and run none")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("gpu: ended; start this again with the same --out"))
    wanted = {n: u for n, u in units(options.device).items() if not options.only or any(t in n for t in options.only)}
    if options.list:
        print("\n".join(wanted))
        return 0
    if not wanted:
        parser.error(f"no part has {' or '.join(options.only)} in its name; --list names them")
    _torch_version()
    out = Path(options.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    path = out / "gpu.json"
    kind = {"device": options.device, "small": options.small}
    results = json.loads(path.read_text()) if path.exists() else {**kind, "parts": {}}
    if any(results.get(key) != value for key, value in kind.items()):
        parser.error(f"{path} has results of another device or size: name another --out")
    with open(out / "gpu.log", "a") as log:
        start = time.monotonic()
        package = options.package or build(options.device, log)
        results["environment"] = facts(options.device) | {"build_seconds": round(time.monotonic() - start, 1)}
        for name, unit in wanted.items():
            left = deadline - time.monotonic()
            if (name in results["parts"] and not options.again) or left < 5:
                continue
            limit = min(options.most, left)
            found = run(name, _sized(unit, options, results["parts"]), package, limit, log)
            if found.get("died") == "the time limit" and limit < options.most:
                continue  # of all, not its own
            results["parts"][name] = _beside_eager(unit, found, results["parts"])
            save(path, results)
            print(f"{name}: {found.get('seconds', 0):.0f} s {remark(found)}", file=sys.stderr)
    save(path, results)
    left = [name for name in wanted if name not in results["parts"]]
    print(table(results["parts"]))
    if left:
        print(f"{len(left)} parts are left: start this again with the same --out")
    return 1 if any(found.get("good") is False for found in results["parts"].values()) else 0


def _sized(unit: dict, options: argparse.Namespace, parts: dict) -> dict:
    unit = {"size": "full", "rounds": 10} | unit | {"device": options.device}
    if unit["part"] == "largest_batch":
        unit["first"] = 1
    if options.graphs:
        unit["graphs"] = str(Path(options.graphs).resolve())
    if options.small:
        unit |= {"size": "small", "rounds": 3, "most": 16}
        unit.pop("limit_bytes", None)
    # Where eager repeats its bits only by PyTorch's deterministic algorithms, all else is done with these
    repeats = parts.get(f"1 eager repeats/{unit.get('model')}", {})
    if unit["part"] != "eager_repeats" and repeats.get("differs") and not repeats.get("deterministic_differs"):
        unit["deterministic"] = True
    return unit


def _beside_eager(unit: dict, found: dict, parts: dict) -> dict:
    """Expandable segments hold for a whole process, so their step is compared with that of eager in another one."""
    if unit.get("rival") != "expandable" or "times" not in found:
        return found
    others = (parts.get(f"10 rivals/{unit['model']} {rival}", {}) for rival in RIVALS)
    plain = next((o["times"]["eager"]["step_ns"] for o in others if "times" in o), None)
    found = {key: value for key, value in found.items() if key != "ratio"}
    return found | {"ratio": found["times"]["expandable"]["step_ns"] / plain} if plain else found


def facts(device: str) -> dict:
    """Of the machine, so that a figure can be understood later."""
    from importlib.metadata import PackageNotFoundError, version

    known = {"python": platform.python_version(), "torch": _torch_version(), "cores": os.cpu_count()}
    try:
        known["transformers"] = version("transformers")
    except PackageNotFoundError:
        raise SystemExit(f"gpu: {sys.executable} has no transformers, whose models are trained") from None
    commit = ROOT / "COMMIT"
    known["commit"] = commit.read_text().strip() if commit.exists() else "of a checkout"
    if device == "cuda" and (tool := shutil.which("nvidia-smi")):
        said = subprocess.run(
            [tool, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
        )
        known["gpu"] = said.stdout.strip()
    return known


if __name__ == "__main__":
    sys.exit(main())

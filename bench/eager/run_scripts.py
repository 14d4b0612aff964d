"""stowage run: what watching costs, and whether limits hold around scripts that know nothing of them.

    ./dev bench run_scripts                    both
    ./dev bench run_scripts --rounds 3 -o -    a short look
    ./dev bench run_scripts --only limits --scripts lit.py    one script's limit anew

The price: the same training step in one process, watched and not watched in turn, a few steps each; a round begins with the
other one. The ratio is that of the medians of processor time (nothing waits here, and other programs disturb it less
than the time of the wall). Blocks: how many of a step's allocations are looked at, those of 4 KiB and more.

The limits: each script of tests/run is run watched, then within a share of the peak that it had; its output must be the
same, byte for byte."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench import common

sys.path.insert(0, str(common.ROOT / "tests" / "run"))

STEPS = 4  # in a turn


# ---- In a worker


def make_step(name: str):
    import torch
    import torch.nn.functional as F
    from torch import nn

    torch.manual_seed(0)
    if name.startswith("gpt2"):
        from transformers import GPT2Config, GPT2LMHeadModel

        width, length = (384, 192) if name == "gpt2" else (64, 32)
        config = GPT2Config(vocab_size=2000, n_positions=length, n_embd=width, n_layer=4, n_head=4)
        model = GPT2LMHeadModel(config)
        tokens = torch.randint(0, 2000, (2, length))
        loss = lambda: model(input_ids=tokens, labels=tokens).loss
    elif name == "convolutions":
        model = nn.Sequential(
            nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.BatchNorm2d(64), nn.ReLU(),
            nn.Flatten(), nn.Linear(64 * 28 * 28, 10),
        )  # fmt: skip
        images, labels = torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))
        loss = lambda: F.cross_entropy(model(images), labels)
    elif name == "lstm, step by step":
        model = nn.LSTMCell(64, 64)
        series = torch.randn(60, 32, 64)

        def loss():
            state = None
            for x in series:
                state = model(x, state)
            return state[0].square().mean()

    else:
        model = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(8)))
        x = torch.randn(128, 512)
        loss = lambda: model(x).square().mean()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def handlers(config: dict) -> dict:
    from stowage import _runtime
    from stowage.eviction import budget  # noqa: F401  # which knows whose lines are the user's

    _runtime.install_allocator()
    step = make_step(config["name"])
    for _ in range(3):
        step()

    def turn(watched: bool) -> list[float]:
        if watched:
            _runtime.begin_owners()
        times = []
        for _ in range(STEPS):
            start = time.process_time()
            step()
            times.append(time.process_time() - start)
        if watched:
            _runtime.end_owners()
        return times

    def blocks() -> int:
        _runtime.forget_owners()
        _runtime.begin_owners()
        step()
        _runtime.end_owners()
        return len(_runtime.owners_curve()) // 2

    return {"turn": turn, "blocks": blocks}


# ---- The parent


NAMES = ("gpt2", "convolutions", "mlp", "lstm, step by step", "gpt2, tiny")


def price(name: str, rounds: int) -> dict:
    with common.Worker({"name": name}, 1, script=__file__) as worker:
        times: dict[bool, list[float]] = {True: [], False: []}
        for i in range(rounds):
            for watched in (True, False) if i % 2 else (False, True):
                times[watched] += worker.ask("turn", watched=watched)
        blocks = worker.ask("blocks")
    on, off = (statistics.median(times[w]) for w in (True, False))
    return {
        "step": name,
        "step_s": off,
        "watched_s": on,
        "ratio": on / off,
        "blocks": blocks,
        "steps": len(times[True]),
    }


def limit(script, folder: Path) -> dict:
    """One of tests/run/test_run_scripts.py."""
    from launched import by_us, plainly, run
    from test_run_scripts import _in_folder, _of_all

    alone = run(plainly(_in_folder(script, folder / "alone")))
    watched = run(by_us(_in_folder(script, folder / "w"), "--watch", "--report", str(folder / "w.json")))
    peak = _of_all(folder / "w.json")["peak_bytes"]
    limit_bytes = int(peak * script.share)
    limited = run(
        by_us(_in_folder(script, folder / "l"), f"--budget={limit_bytes}", "--report", str(folder / "l.json"))
    )
    ended = limited.returncode == alone.returncode == 0
    figures = _of_all(folder / "l.json") if ended else {"peak_bytes": 0, "evictions": 0}
    return {
        "script": script.name().replace("FOLDER/", "").replace("FOLDER", "").strip(),
        "peak_bytes": peak,
        "limit_bytes": limit_bytes,
        "limited_peak_bytes": figures["peak_bytes"],
        "evictions": figures["evictions"],
        "held": ended and figures["peak_bytes"] <= limit_bytes,
        "same": alone.stdout == watched.stdout == limited.stdout,
    }


def table(results: dict) -> str:
    prices = [
        [r["step"], f"{r['ratio']:.3f}", f"{1e3 * r['step_s']:.1f}", f"{1e3 * r['watched_s']:.1f}", r["blocks"]]
        for r in results["prices"]
    ]
    limits = [
        [
            f"`{r['script']}`", common.mebibytes(r["peak_bytes"]), common.mebibytes(r["limit_bytes"]),
            common.mebibytes(r["limited_peak_bytes"]), f"{r['evictions']:,}",
            "yes" if r["held"] else "no", "yes" if r["same"] else "no",
        ]
        for r in results["limits"]
    ]  # fmt: skip
    parts = [common.markdown(["step", "watched / not", "not, ms", "watched, ms", "blocks"], prices)] if prices else []
    if limits:
        header = ["script", "peak MiB", "limit MiB", "peak under it", "let go", "held", "same output"]
        parts.append(common.markdown(header, limits))
    return "\n\n".join(parts)


def main() -> None:
    parser = common.parser(__doc__, "run_scripts")
    parser.add_argument("--rounds", type=int, default=12, help="of the price, each with a turn watched and one not")
    parser.add_argument("--only", choices=("prices", "limits"), help="the other part's results stay as they are")
    parser.add_argument("--scripts", nargs="+", metavar="NAME", help="of the limits: the results of others stay, too")
    options = parser.parse_args()
    path = common.RESULTS / "run_scripts.json"
    results: dict = {"prices": [], "limits": []}
    if options.only and path.exists():
        results = json.loads(path.read_text())["results"]
    if options.only != "limits":
        results["prices"] = []
        for name in NAMES:
            results["prices"].append(price(name, options.rounds))
            common.say(str(results["prices"][-1]))
    if options.only != "prices":
        from test_run_scripts import ALL

        before = {found["script"]: found for found in results["limits"]} if options.scripts else {}
        for script in ALL:
            if options.scripts and not any(name in script.words for name in options.scripts):
                continue
            with tempfile.TemporaryDirectory() as folder:
                found = limit(script, Path(folder))
            before[found["script"]] = found
            common.say(str(found))
        results["limits"] = list(before.values())
    common.publish("run_scripts", {"results": results}, table(results), options.output)


if __name__ == "__main__":
    if common.is_worker():
        common.serve(handlers)
    else:
        main()

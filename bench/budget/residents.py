"""State that leaves: a planned step within a budget below its own parameters and optimizer state, beside eager.

Each rival trains the same model from the same seed on the same batch in a process of its own. They take turns, a step
each, in an order that rotates; the first planned step of each is not timed:

    eager            as PyTorch is installed
    eager tcmalloc   on an allocator that keeps its pages
    leave memory     stowage.compile(residents="leave"), what is away waits in memory that the budget does not count
    leave file       the same, what is away waits in a file in --store

What is counted, and by whom:

    allocator   what the step's plan keeps in place, and the most that the arena held in a planned step
    anonymous   RssAnon in a planned step, the most of what another process saw every few milliseconds, less the floor:
                what the process held when the model had been made and a tiny one trained, without the model (the
                interpreter, PyTorch, the model's code). It is what no file has, and so what a machine cannot take back.
                Pages of PyTorch's own code (RssFile) it can; those of the homes, too. The matrix library's work memory
                counts, some ten MiB in all rivals.
    homes       the most pages of what waits on the host that were mapped then: memory where it waits in memory, else
                pages of a file that the system drops when it needs them
    moved       what one step reads and writes of the host store, as the kernel counts it (rchar and wchar of
                /proc/self/io)

    ./dev bench residents                                         GPT-2, 700 MiB, 12 steps
    ./dev bench residents --model gpt2_small --budget 24MiB       seconds
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator

from bench import common

RIVALS = ("leave memory", "leave file", "eager tcmalloc", "eager")
MOST_FIRST_CALLS = 12
SAMPLE_S = 0.005
HOMES = "stowage-homes"  # in the names of the files


# ---- What a process holds


def held(pid: int | str = "self") -> dict[str, int]:
    """Bytes by kind: VmRSS, VmHWM, RssAnon, RssFile, RssShmem."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    wanted = ("VmRSS", "VmHWM", "RssAnon", "RssFile", "RssShmem")
    return {
        key: int(rest.split()[0]) * 1024 for key, _, rest in (line.partition(":") for line in lines) if key in wanted
    }


def homes_held(pid: int | str = "self") -> int:
    """Bytes of mapped pages of what waits on the host."""
    total, counts = 0, False
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        first = line.split(maxsplit=1)[0]
        if not first.endswith(":"):
            counts = HOMES in line
        elif counts and first == "Rss:":
            total += int(line.split()[1]) * 1024
    return total


def moved() -> dict[str, int]:
    fields = dict(line.split(": ") for line in pathlib.Path("/proc/self/io").read_text().splitlines())
    return {"read": int(fields["rchar"]), "written": int(fields["wchar"])}


class Watch:
    """The most that a process holds while the block runs, seen from outside: it costs the process nothing."""

    def __init__(self, pid: int):
        self.pid = pid
        self.most: dict[str, int] = {}

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        end = threading.Event()

        def look() -> None:
            while not end.wait(SAMPLE_S):
                for key, value in held(self.pid).items():
                    self.most[key] = max(self.most.get(key, 0), value)

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()


# ---- In a worker


def handlers(config: dict) -> dict:
    import torch

    import stowage
    from bench import models

    model, loss_fn, batch = models.make(config["model"])
    _train_a_tiny_one()
    floor = held()
    floor["RssAnon"] -= sum(t.untyped_storage().nbytes() for t in {*model.parameters(), *model.buffers()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **models.FORMS[config["form"]])
    step = models.step_with(model, loss_fn, optimizer)
    leaves = config["rival"].startswith("leave")
    if leaves:
        step = stowage.compile(step, budget=config["budget"], residents="leave")

    def steps(count: int) -> dict:
        return common.timed_steps(step, batch, count)

    def until_planned() -> dict:
        losses: list[str] = []
        while not step.stats()["planned_steps"]:
            if step.refusal or len(losses) > MOST_FIRST_CALLS:
                raise SystemExit(f"{config['model']} is not planned: {step.refusal or 'not settled'}")
            losses += steps(1)["losses"]
        return {"losses": losses}

    def begin_watch() -> dict:
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
        return moved()

    def end_watch(before: dict) -> dict:
        after = moved()
        return {
            "held": held(),
            "homes_held": homes_held(),
            "moved": {key: after[key] - before[key] for key in after},
        }

    def lasting() -> list[torch.Tensor]:
        state = [v for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
        return [*model.parameters(), *model.buffers(), *state]

    def residents() -> int:
        return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in lasting()}.values())

    def digest() -> str:
        value = 0
        for tensor in lasting():
            value = zlib.crc32(memoryview(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()), value)
        return f"{value:08x}"

    return {
        "pid": os.getpid,
        "floor": lambda: floor,
        "steps": steps,
        "until_planned": until_planned,
        "begin_watch": begin_watch,
        "end_watch": end_watch,
        "residents": residents,
        "stats": lambda: step.stats() if leaves else {},
        "digest": digest,
    }


def _train_a_tiny_one() -> None:
    """PyTorch imports and sets up much of itself when it first trains."""
    import torch

    tiny = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(tiny.parameters())
    tiny(torch.ones(2, 8)).sum().backward()
    optimizer.step()


# ---- In the parent


def measure(options) -> dict:
    workers, losses, floors = {}, {}, {}
    for rival in options.rivals:
        os.environ["STOWAGE_HOST_STORE"] = options.store if rival == "leave file" else ""
        config = {"model": options.model, "form": options.form, "budget": options.budget, "rival": rival}
        worker = workers[rival] = common.Worker(config, options.threads, tcmalloc="tcmalloc" in rival)
        floors[rival] = worker.ask("floor")
        losses[rival] = worker.ask("until_planned")["losses"] if rival.startswith("leave") else []
        common.say(f"{rival}: ready after {len(losses[rival])} steps")
    most = max(map(len, losses.values()))
    for rival, worker in workers.items():  # all have done as many steps when the turns begin
        if len(losses[rival]) < most:
            losses[rival] += worker.ask("steps", count=most - len(losses[rival]))["losses"]
    watches = {rival: Watch(worker.ask("pid")) for rival, worker in workers.items()}
    before = {rival: worker.ask("begin_watch") for rival, worker in workers.items()}
    seconds: dict[str, list[float]] = {rival: [] for rival in workers}
    names = list(workers)
    for turn in range(max(options.steps - most, 2)):
        shift = turn % len(names)
        for rival in names[shift:] + names[:shift]:
            began = time.perf_counter()
            with watches[rival].running():
                answer = workers[rival].ask("steps", count=1)
            losses[rival] += answer["losses"]
            seconds[rival].append(answer["seconds"][0])
            common.say(f"{rival}, step {len(losses[rival])}: {time.perf_counter() - began:.1f} s")
    points = []
    for rival, worker in workers.items():
        end = worker.ask("end_watch", before=before[rival])
        counted = seconds[rival][1:]
        most, floor = watches[rival].most, floors[rival]
        points.append(
            {
                "rival": rival,
                "losses": losses[rival],
                "seconds": common.median(counted),
                "all_seconds": counted,
                "spread": common.spread(counted),
                "floor": floor,
                "most": most,
                "end": end["held"],
                "anonymous_bytes": most["RssAnon"] - floor["RssAnon"],
                "homes_bytes": end["homes_held"],
                "moved": {key: value // len(seconds[rival]) for key, value in end["moved"].items()},
                "resident_bytes": worker.ask("residents"),
                "stats": worker.ask("stats"),
                "digest": worker.ask("digest"),
            }
        )
        worker.close()
    return {
        "model": options.model,
        "what": options.what,
        "form": options.form,
        "budget_bytes": options.budget_bytes,
        "threads": options.threads,
        "steps": len(losses[names[0]]),
        "points": points,
        "equal": len({p["digest"] for p in points}) == 1 and len({tuple(p["losses"]) for p in points}) == 1,
    }


# ---- The table


def table(results: list[dict]) -> str:
    mib = common.mebibytes
    parts = []
    for r in results:
        base = next((p["seconds"] for p in r["points"] if p["rival"] == "eager tcmalloc"), None)
        rows = []
        for p in r["points"]:
            s = p["stats"]
            moved_bytes = p["moved"]
            rows.append(
                [
                    p["rival"],
                    mib(s["resident_bytes"] + s["measured_peak_bytes"]) if s else "-",
                    mib(p["anonymous_bytes"]),
                    mib(p["floor"]["RssAnon"]),
                    mib(p["most"]["VmHWM"]),
                    mib(p["most"]["RssFile"]),
                    mib(p["most"]["RssShmem"]),
                    mib(moved_bytes["read"] + moved_bytes["written"]) if s else "-",
                    str(s["misses"]) if s else "-",
                    f"{p['seconds']:.2f}",
                    f"{p['seconds'] / base:.3f}" if base else "-",
                ]
            )
        head = (
            f"{r['model']}: {r['what']} AdamW ({r['form']}), {common.threads_text(r['threads'])}. Parameters and optimizer "
            f"state {mib(r['points'][0]['resident_bytes'])} MiB, budget {mib(r['budget_bytes'])} MiB. Losses of {r['steps']} "
            f"steps and a digest of all state: {'equal' if r['equal'] else 'they differ'}."
        )
        header = [
            "MiB",
            "allocator",
            "anonymous",
            "its floor",
            "RSS, most",
            "of it code, files",
            "homes in memory",
            "moved a step",
            "misses",
            "s a step",
            "over eager tcmalloc",
        ]
        parts.append(f"{head}\n\n{common.markdown(header, rows)}")
    return "\n\n".join(parts)


def main() -> None:
    parser = common.parser(__doc__, "residents")
    parser.add_argument("--model", default="gpt2", help="of bench/models.py (default gpt2)")
    parser.add_argument("--budget", default="700MiB", help="for all that the device holds (default 700MiB)")
    parser.add_argument("--form", default="default", help="of AdamW: default, loop, foreach or fused")
    parser.add_argument("--rivals", nargs="+", choices=RIVALS, default=list(RIVALS), metavar="RIVAL")
    parser.add_argument("--steps", type=int, default=12, help="whose losses are compared (default 12)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--store", default=tempfile.gettempdir(), help="directory of the file (default: the system's)")
    options = parser.parse_args()
    from bench import models
    from stowage.sizes import parse_bytes

    if options.model not in models.BUILDERS or options.form not in models.FORMS:
        parser.error(f"models: {', '.join(models.BUILDERS)}; forms: {', '.join(models.FORMS)}")
    options.what = models.BUILDERS[options.model].__doc__
    options.budget_bytes = parse_bytes(options.budget)
    result = measure(options)
    common.publish("residents", {"results": [result]}, table([result]), options.output)
    if not result["equal"]:
        raise SystemExit("bits differ")


if __name__ == "__main__":
    common.serve(handlers) if common.is_worker() else main()

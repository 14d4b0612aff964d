"""Step time against peak bytes: what a byte limit costs, for Stowage and for what PyTorch itself offers, in one run.

Each configuration trains the same model from the same seed on the same batch in a process of its own, under tcmalloc
(eager also as installed). Configurations take turns, in groups that fit the memory; eager under tcmalloc takes its turn
in every round of every group, and times are medians of the ratios to it, round by round:

    round 1   eager, A, B, C        group 1, ``--screen`` rounds for every rival
    round 2   A, B, C, eager
    ...
    round 1   eager, S1, S2, R      then ``--rounds`` more for the rivals that another one does not beat in bytes and time, and for
    ...                             Stowage at the peaks of these rivals, at 75, 50 and 38 % of eager's, and at the least it can do

Peaks are what is asked of PyTorch's CPU allocator in one step beyond parameters, optimizer state, buffers and batch.
Stowage's allocator counts them for all; rivals load it after their last timed step, so it costs them nothing. Stowage's
peak is its whole arena.

    ./dev bench budget                                  five models, one thread
    ./dev bench budget --model gpt2 --rounds 20         a run replaces the results of its models only
    ./dev bench budget --quick                          fewer rivals, budgets and rounds
"""

from __future__ import annotations

import concurrent.futures
import itertools
import json
import pathlib
import time

from bench import common, models
from bench.budget import budget_report, budget_rivals, budget_worker

MODELS = ("gpt2", "bert", "resnet50", "vit", "llama")
QUICK = (
    "inside",
    "checkpoint/1",
    "selective",
    "selective<=1",
    "host",
    "inside+checkpoint/1",
    "inside+selective<=1",
    "inside+host",
    "inside+checkpoint/1+chunks",
    "activation budget 0.5 dp",
    "activation budget 0.5 whole ops",
)
CHECKED = 3  # steps of a rival whose bits are compared
FRACTIONS = (0.75, 0.5, 0.38)
NO_LINK = 0  # GB/s: recomputation alone


class Reference:
    """Eager under tcmalloc, alive as long as its model is measured."""

    def __init__(self, model: str, threads: int):
        self.worker = common.Worker({"model": model}, threads, tcmalloc=True)
        self.losses: list[str] = []
        self.digests: list[dict] = []
        for _ in range(budget_worker.TRACED):
            answer = self.worker.ask("trace", count=1)
            self.losses += answer["losses"]
            self.digests.append(answer["digest"])
        self.resident_bytes = answer["resident_bytes"]
        self.memory = self.worker.ask("memory")

    def compare(self, losses: list[str], digest: dict) -> dict:
        known = self.digests[len(losses) - 1]
        return {
            "steps": len(losses),
            "losses": losses == self.losses[: len(losses)],
            **{part: digest[part] == known[part] for part in known},
        }


class Measurement:
    """All configurations of one model."""

    def __init__(self, model: str, options):
        self.model, self.options = model, options
        self.reference = Reference(model, options.threads)
        self.points: dict[str, dict] = {}
        self._partitions: dict[str, str] = {}
        self._reference_wall: list[float] = []
        self._at_once = max(1, int(options.memory_gib * 2**30 / self.reference.memory) - 1)

    def run(self) -> dict:
        chosen = self.options.rivals or (QUICK if self.options.quick else None)
        rivals = {
            name: {"form": form}
            for name, form in budget_rivals.rivals(self.model).items()
            if chosen is None or name in chosen
        }
        self.measure({"eager": {"form": {}, "tcmalloc": False}} | rivals, self.options.screen)
        best = set(budget_report.frontier([p for p in self.points.values() if "ratio" in p], slack=0.05))
        again = {name: config for name, config in rivals.items() if name in best}
        self.measure(again | self.stowage_budgets(), self.options.rounds)
        reference = self.reference.worker.ask("peak")
        self.reference.worker.close()
        return {
            "model": self.model,
            "what": models.BUILDERS[self.model].__doc__,
            "threads": self.options.threads,
            "clock": self.options.clock,
            "resident_bytes": self.reference.resident_bytes,
            "eager_peak_bytes": reference["peak_bytes"],
            "eager_ms": 1000 * common.median(self._reference_wall),
            "points": list(self.points.values()),
        }

    # ---- budgets

    def stowage_budgets(self) -> dict[str, dict]:
        """Name to configuration, jointly and by recomputation alone."""
        eager = self.points["eager"]["peak_bytes"]
        with common.Worker({"model": self.model, "stowage": {}}, self.options.threads, tcmalloc=True) as probe:
            probe.ask("trace", count=1)
            resident = probe.ask("peak")["resident_bytes"]
            least = {
                "joint": probe.ask("smallest", link_gbps=None),
                "recompute": probe.ask("smallest", link_gbps=NO_LINK),
            }
        made = {"stowage no limit": {"stowage": {}}}
        for kind, count in (("joint", self.options.budgets), ("recompute", self.options.recompute_budgets)):
            link = {} if kind == "joint" else {"link_gbps": NO_LINK}
            rivals = [p for p in self.points.values() if "ratio" in p and (kind == "joint" or not p["host_bytes"])]
            by_name = {p["name"]: p for p in rivals}
            theirs = [by_name[name]["peak_bytes"] for name in budget_report.frontier(rivals)]
            if self.options.shares:
                arenas = [max(least[kind] - resident, int(eager * share)) for share in self.options.shares]
            else:
                arenas = choose_budgets(least[kind] - resident, eager, theirs, count)
            for arena in arenas:
                made[f"stowage {kind} {arena / eager:.3f}"] = {
                    "stowage": {"budget": resident + arena, **link},
                    "kind": kind,
                }
        return made

    # ---- turns

    def measure(self, configs: dict[str, dict], rounds: int) -> None:
        names = list(configs)
        for i in range(0, len(names), self._at_once):
            self._measure_group({name: configs[name] for name in names[i : i + self._at_once]}, rounds)

    def _measure_group(self, configs: dict[str, dict], rounds: int) -> None:
        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
            started = dict(zip(configs, pool.map(lambda item: self._start(*item), configs.items())))
        workers = {name: worker for name, worker in started.items() if worker is not None}
        if not workers:
            return
        common.say(f"{self.model}: {rounds} rounds of {', '.join(workers)}")
        turns = ["", *workers]  # "": the reference
        for turn in range(rounds):
            shift = turn % len(turns)
            seconds = {}
            for name in turns[shift:] + turns[:shift]:
                answer = (workers[name] if name else self.reference.worker).ask("steps", count=1)
                seconds[name] = (answer["wall"][0], answer["cpu"][0])
            self._reference_wall.append(seconds[""][0])
            for name in workers:
                self.points[name]["rounds"].append([*seconds[name], *seconds[""]])
        for name, worker in workers.items():
            self._finish(name, worker)

    def _start(self, name: str, config: dict):
        """A worker ready for its turns; None when it failed or would repeat what has been measured."""
        point = self.points.setdefault(
            name,
            {"name": name, **{key: config[key] for key in ("form", "stowage", "kind") if key in config}, "rounds": []},
        )
        try:
            worker, answer = self._trace(config)
        except RuntimeError as error:
            point["error"] = str(error)
            common.say(f"{self.model}, {name}: {error}")
            return None
        point["bits"] = self.reference.compare(answer["losses"], answer["digest"])
        if answer["partition"] is not None:
            first = self._partitions.setdefault(answer["partition"], name)
            if first != name:
                point["same_as"] = first
                worker.close()
                return None
        return worker

    def _trace(self, config: dict):
        """Costs are measured anew in each process, so what was the smallest budget in one may be too small in the next:
        then a bit more."""
        for _ in range(3):
            worker = common.Worker({"model": self.model, **config}, self.options.threads, config.get("tcmalloc", True))
            answer = worker.ask("trace", count=1 if "stowage" in config else CHECKED)
            if "smallest_bytes" not in answer:
                return worker, answer
            worker.close()
            config = config | {"stowage": config["stowage"] | {"budget": answer["smallest_bytes"]}}
        raise RuntimeError("no budget near the smallest one was met")

    def _finish(self, name: str, worker) -> None:
        point = self.points[name]
        point |= worker.ask("peak")
        worker.close()
        wall = [seconds / reference for seconds, _, reference, _ in point["rounds"]]
        cpu = [seconds / reference for _, seconds, _, reference in point["rounds"]]
        ratios = cpu if self.options.clock == "cpu" else wall
        point["ratio"], point["quartiles"] = common.median(ratios), budget_report.quartiles(ratios)
        point["wall_ratio"], point["cpu_ratio"] = common.median(wall), common.median(cpu)
        point["step_ms"] = 1000 * common.median([wall for wall, *_ in point["rounds"]])


def choose_budgets(least: int, eager: int, rivals: list[int], count: int) -> list[int]:
    """Arenas to ask for: the least, fractions of eager's peak, the peaks of rivals, and what lies between; largest
    first."""
    chosen = [least, *(int(eager * f) for f in FRACTIONS), *sorted(rivals)]
    spaced = []
    for bytes_ in chosen:
        if least <= bytes_ < eager and all(abs(bytes_ - other) > 0.01 * eager for other in spaced):
            spaced.append(bytes_)
    spaced = spaced[:count]
    while 0 < len(spaced) < count:
        ends = sorted([*spaced, eager])
        low, high = max(itertools.pairwise(ends), key=lambda pair: pair[1] / pair[0])
        spaced.append((low + high) // 2)
    return sorted(spaced, reverse=True)


def main() -> None:
    parser = common.parser(__doc__, "budget")
    parser.add_argument("--model", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument(
        "--threads", type=int, default=1, help="of PyTorch (default 1); a swap works in a thread of its own"
    )
    parser.add_argument("--screen", type=int, default=3, help="rounds of every rival (default 3)")
    parser.add_argument(
        "--rounds", type=int, default=10, help="further rounds of the best rivals, and rounds of Stowage (default 10)"
    )
    parser.add_argument("--budgets", type=int, default=12, help="of Stowage, recomputing and swapping (default 12)")
    parser.add_argument("--recompute-budgets", type=int, default=6, help="of Stowage, recomputing alone (default 6)")
    parser.add_argument(
        "--shares",
        nargs="+",
        type=float,
        help="budgets instead of these: shares of eager's peak, both ways; 0 is the smallest",
    )
    parser.add_argument(
        "--add",
        action="store_true",
        help="keep the points of earlier runs; each is relative to eager steps of its own run",
    )
    parser.add_argument("--memory-gib", type=float, default=16, help="of all processes together (default 16)")
    parser.add_argument("--jobs", type=int, default=2, help="processes that prepare at once (default 2)")
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="what times are judged by: cpu on a machine that is not idle; it counts copies to the host, not waiting for them",
    )
    parser.add_argument(
        "--rivals", nargs="+", metavar="NAME", help='only these, named as in the table: "inside+checkpoint/1"'
    )
    parser.add_argument("--quick", action="store_true", help="fewer rivals, 4 + 3 budgets, 3 rounds")
    options = parser.parse_args()
    if options.quick:
        options.screen, options.rounds, options.budgets, options.recompute_budgets = 2, 3, 4, 3
    unknown = set(options.rivals or ()) - {name for model in options.model for name in budget_rivals.rivals(model)}
    if unknown:
        parser.error(f"no such rival: {', '.join(sorted(unknown))}")
    path = pathlib.Path(options.output) if options.output else common.RESULTS / "budget.json"
    known = json.loads(path.read_text())["results"] if options.output != "-" and path.exists() else []
    for model in options.model:
        start = time.perf_counter()
        result = Measurement(model, options).run()
        result["minutes"] = (time.perf_counter() - start) / 60
        result["environment"] = common.environment()
        if options.add:
            names = {p["name"] for p in result["points"]}
            result["points"] = [
                p for r in known if r["model"] == model for p in r["points"] if p["name"] not in names
            ] + result["points"]
        known = sorted([r for r in known if r["model"] != model] + [result], key=lambda r: MODELS.index(r["model"]))
        common.publish("budget", {"results": known}, budget_report.table([result]), options.output)
    if options.output != "-":
        budget_report.draw(known, path.with_suffix(""))


if __name__ == "__main__":
    common.serve(budget_worker.handlers) if common.is_worker() else main()

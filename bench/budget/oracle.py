"""Recomputation planned by Stowage beside the optimum of Checkmate's MILP (Jain et al., MLSys 2020), on graphs of at
most 200 ops.

Both get the same graph, without pairs for in-place reuse, and the same budget; there is no link to the host. The MILP
(bench/rivals/checkmate_milp.h, through HiGHS) fixes the order of first runs and decides what runs again. It counts
bytes and needs no addresses, where Stowage's plan is laid out; Stowage also chooses the order, so that it may be faster
than the MILP of program order. The MILP therefore runs twice, on program order and on that of Stowage's plan. Steps are
in units of the step in which every op runs once.

In the graphs "away-…" all parameters and all optimizer state wait on the host (src/planner/away_graph.h): an op fetches each, and may
run again for a later use, beside recomputation. A fetch takes what its copy takes, and nothing runs beside it: what is
compared is which of them are fetched again and what is computed again. Plans let copies run beside ops afterwards.

    budget     arena bytes over the peak of program order; the smallest is the least that Stowage meets
    Stowage    predicted step of the checked plan
    program    optimum of the MILP in program order; "a … b": stopped at its limit, the optimum is at least a, and b was found
    plan's     the same in the order of Stowage's plan (the same run when that is program order), begun from that plan's runs, so that a MILP
               that is stopped still shows how much better it could be
    bound      Stowage's own proven bound, over all orders
    ratio      Stowage over the better of the two MILPs; in brackets when one of them did not finish
    laid out   arena bytes that the better MILP's schedule needs with addresses (Stowage's layout search), over the budget: above 1 it
               would not have been a plan

    ./dev bench oracle
    ./dev bench oracle --only mlp chain-8 --budgets 6 --seconds 60
"""

from __future__ import annotations

import json
import pathlib
import random
import subprocess
import tempfile

from bench import common
from bench.order import order

RIVALS = str(common.ROOT / "build" / "release" / "bin" / "rivals")
SECONDS, GAP = 5.0, 1e-4
MOST_OPS = 200
WITHIN = 1.01


# ---- Graphs


class _Step:
    """A graph without PyTorch: a forward pass, and for each of its ops a backward op, which reads what its op read and
    made."""

    def __init__(self):
        self.buffers, self.ops = [], []

    def buffer(self, bytes_: int, **more) -> int:
        self.buffers.append({"name": f"b{len(self.buffers)}", "bytes": bytes_, "kind": "activation", **more})
        return len(self.buffers) - 1

    def op(self, reads: list[int], creates: list[int], cost: int, **more) -> None:
        self.ops.append(
            {
                "name": f"op{len(self.ops)}",
                "target": "test::op",
                "reads": reads,
                "creates": creates,
                "cost_ns": cost,
                **more,
            }
        )

    def write(self, path: str) -> None:
        with open(path, "w") as out:
            json.dump(
                {
                    "format": "stowage-graph",
                    "version": 1,
                    "name": "oracle",
                    "align": 64,
                    "buffers": self.buffers,
                    "ops": self.ops,
                },
                out,
            )


def _forward_backward(path: str, ops: int, seed: int, width: int, state: bool = False) -> None:
    """Each of `ops` forward ops reads the one before it and up to `width` - 1 others of the 6 latest; sizes and costs
    are random. With `state`, each has a parameter, which is updated with a momentum as soon as there is its gradient."""
    dice = random.Random(seed)
    step = _Step()
    unit = 64 << 8 if state else 64  # copies take about as long as ops
    inputs, made = [], [step.buffer(unit * dice.randint(1, 64), kind="input", resident=True)]
    parameters, momenta = (
        [step.buffer(unit * dice.randint(1, 64), kind=kind, resident=True) for _ in range(ops if state else 0)]
        for kind in ("parameter", "optimizer_state")
    )
    sizes = [step.buffers[0]["bytes"]]
    for i in range(ops):
        reads = sorted({i, *(max(0, i - dice.randint(0, 5)) for _ in range(dice.randint(0, width - 1)))})
        inputs.append(reads)
        sizes.append(unit * dice.randint(1, 64))
        made.append(step.buffer(sizes[-1]))
        step.op([*(made[r] for r in reads), *parameters[i : i + 1]], [made[-1]], 1000 * dice.randint(1, 64))
    gradients = {ops: [step.buffer(sizes[ops])]}
    step.op([made[ops]], gradients[ops], 1000)
    for i in reversed(range(ops)):
        into = [r for r in inputs[i] if r > 0]
        new = {r: step.buffer(sizes[r]) for r in into} or {0: step.buffer(sizes[0], returned=True)}
        slope = [step.buffer(step.buffers[p]["bytes"]) for p in parameters[i : i + 1]]
        step.op(
            [*gradients[i + 1], *(made[r] for r in inputs[i]), made[i + 1], *parameters[i : i + 1]],
            [*new.values(), *slope],
            2000 * dice.randint(1, 64),
        )
        if state:
            step.op(slope, [], 1000 * dice.randint(1, 8), writes=[parameters[i], momenta[i]])
        for r, gradient in new.items():
            gradients.setdefault(r, []).append(gradient)
    step.write(path)


def _even_chain(path: str, length: int) -> None:
    """The chain of Chen et al., "Training deep nets with sublinear memory cost": all activations and costs are
    equal."""
    step = _Step()
    made = [step.buffer(4096, kind="input", resident=True)]
    for i in range(length):
        made.append(step.buffer(4096))
        step.op([made[i]], [made[i + 1]], 1000)
    gradient = step.buffer(4096)
    step.op([made[-1]], [gradient], 1000)
    for i in reversed(range(length)):
        new = step.buffer(4096, **({"returned": True} if i == 0 else {}))
        step.op([made[i], gradient], [new], 2000)
        gradient = new
    step.write(path)


def _models() -> dict:
    """name -> (model, batch, loss of the model on it, optimizer), under FakeTensorMode."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Attention(nn.Module):
        def __init__(self, width: int, heads: int):
            super().__init__()
            self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

        def forward(self, x):
            q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
            weights = F.dropout(F.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1), 0.1)
            return self.out((weights @ v).transpose(1, 2).flatten(2))

    class Block(nn.Module):
        def __init__(self, width: int = 128, heads: int = 4):
            super().__init__()
            self.one, self.two, self.attention = nn.LayerNorm(width), nn.LayerNorm(width), Attention(width, heads)
            self.mlp = nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)
            )

        def forward(self, x):
            x = x + self.attention(self.one(x))
            return x + self.mlp(self.two(x))

    class Residual(nn.Module):
        def __init__(self, channels: int):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(channels, channels, 3, padding=1, bias=False),
                nn.BatchNorm2d(channels),
                nn.ReLU(inplace=True),
                nn.Conv2d(channels, channels, 3, padding=1, bias=False),
                nn.BatchNorm2d(channels),
            )

        def forward(self, x):
            return F.relu(x + self.body(x), inplace=True)

    def squares(model, x):
        return model(x).pow(2).mean()

    def classes(model, x):
        return F.cross_entropy(model(x), torch.zeros(x.shape[0], dtype=torch.long))

    def mlp(depth: int):
        return nn.Sequential(
            *(layer for _ in range(depth) for layer in (nn.Linear(256, 256), nn.GELU())), nn.Linear(256, 10)
        )

    def convolutions(blocks: int):
        return nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            *(Residual(16) for _ in range(blocks)),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(16, 10),
        )

    images, tokens = (lambda: torch.zeros(8, 3, 32, 32)), (lambda: torch.zeros(4, 128, 128))
    return {
        "mlp": (lambda: mlp(6), lambda: torch.zeros(4096, 256), classes),
        "transformer-block": (Block, tokens, squares),
        "resnet-block": (lambda: convolutions(1), images, classes),
        "resnet-3-blocks": (lambda: convolutions(3), images, classes),
    }


def capture(name: str, path: str) -> dict:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    import stowage

    make, batch_of, loss_of = _models()[name]
    with FakeTensorMode():
        model, batch = make().train(), batch_of()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)

        def train_step(x):
            loss = loss_of(model, x)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        stowage.capture(train_step, batch, name=name).save(path)
    return {}


GRAPHS = {
    **{f"chain-{n}": lambda path, n=n: _even_chain(path, n) for n in (8, 16, 24)},
    **{f"uneven-chain-{n}": lambda path, n=n: _forward_backward(path, n, n, 1) for n in (12, 20)},
    **{f"random-{n}": lambda path, n=n: _forward_backward(path, n, n, 3) for n in (10, 16)},
    **dict.fromkeys(("mlp", "transformer-block", "resnet-block", "resnet-3-blocks")),
    **{
        f"away-{width}-{n}": lambda path, n=n, w=w: _forward_backward(path, n, n, w, state=True)
        for width, w, n in (("chain", 1, 6), ("chain", 1, 10), ("chain", 1, 14), ("random", 3, 8), ("random", 3, 12))
    },
    **dict.fromkeys(("away-mlp", "away-resnet-block")),
}
AWAY = "away-"
LINK_GBPS = 12.0


def write_graph(name: str, path: pathlib.Path, worker: common.Worker) -> None:
    """The graph without pairs for in-place reuse: neither has them."""
    if GRAPHS[name] is not None:
        GRAPHS[name](str(path))
    else:
        worker.ask("capture", name=name.removeprefix(AWAY), path=str(path))
    content = json.loads(path.read_text())
    for op in content["ops"]:
        op.pop("takeover", None)
    if name.startswith(AWAY):
        for buffer in content["buffers"]:
            if buffer.get("resident") and buffer["kind"] in ("parameter", "optimizer_state"):
                buffer["leaves"] = True
    path.write_text(json.dumps(content))
    if name.startswith(AWAY):
        path.write_text(subprocess.check_output([RIVALS, "away", str(path), str(LINK_GBPS)], text=True))


# ---- Planning


def call(*command: str) -> dict | None:
    """What it prints; None when the budget is not met."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 4):
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
    return None if done.returncode else json.loads(done.stdout)


def milp(graph: str, budget: int, seconds: float, *options: str) -> dict:
    result = call(RIVALS, "checkmate", graph, str(budget), "--seconds", str(seconds), "--gap", str(GAP), *options)
    return {
        key: result[key]
        for key in (
            "outcome",
            "step_ns",
            "bound_ns",
            "recomputed_ops",
            "peak_bytes",
            "arena_bytes",
            "nodes",
            "columns",
            "seconds",
        )
    }


def reordered(plan: str) -> bool:
    """Do first runs leave program order?"""
    with open(plan) as file:
        runs = [step["op"] for step in json.load(file)["steps"] if "op" in step]
    first = list(dict.fromkeys(runs))
    return first != sorted(first)


def study(name: str, graph: str, count: int, seconds: float) -> list[dict]:
    cli, target = order.stowage(), graph + ".plan.json"
    free = call(cli, "plan", graph, "-o", target, "--json", "--link-gbps", "0")
    if free["ops"] > MOST_OPS:
        raise SystemExit(f"{name} has {free['ops']} ops, more than {MOST_OPS}")
    resident, high = free["resident_bytes"], min(free["arena_bytes"], free["program_peak_bytes"])
    fit = subprocess.run(
        [cli, "fit", graph, "--budget", "1", "--json", "--link-gbps", "0"], capture_output=True, text=True
    )
    low = json.loads(fit.stdout)["tried"][0]["smallest_bytes"] - resident
    cases = []
    for i in range(count):
        arena = round(low * (high / low) ** (i / count))
        plan = call(cli, "plan", graph, "-o", target, "--json", "--link-gbps", "0", "--budget", str(resident + arena))
        if plan is None:
            raise SystemExit(f"{name}: an arena of {arena} bytes is not met, but one of {low} is")
        call(cli, "check", graph, target, "--json")
        in_plan_order = milp(graph, resident + arena, seconds, "--order", target)
        in_program_order = milp(graph, resident + arena, seconds) if reordered(target) else in_plan_order
        cases.append(
            {
                "graph": name,
                "ops": free["ops"],
                "arena_limit_bytes": arena,
                "program_peak_bytes": free["program_peak_bytes"],
                "program_step_ns": free["program_step_ns"],
                "step_ns": plan["step_ns"],
                "step_bound_ns": plan["step_bound_ns"],
                "arena_bytes": plan["arena_bytes"],
                "plan_peak_bytes": plan["peak_bytes"],
                "recomputed_ops": plan["recomputed_ops"],
                "plan_s": plan["seconds"]["total"],
                "program_order": in_program_order,
                "plan_order": in_plan_order,
            }
        )
    return cases


# ---- Results


def milps(case: dict) -> list[dict]:
    return [case["program_order"], case["plan_order"]]


def finished(case: dict) -> bool:
    return all(m["outcome"] in ("optimal", "infeasible") for m in milps(case))


def better(case: dict) -> dict | None:
    """The MILP with the better schedule; among equals the one that needs less when laid out. None when there is no
    schedule."""
    return min(
        (m for m in milps(case) if m["step_ns"] is not None),
        key=lambda m: (m["step_ns"], m["arena_bytes"]),
        default=None,
    )


def ratio(case: dict) -> float | None:
    found = better(case)
    return case["step_ns"] / found["step_ns"] if found else None


def _milp_text(m: dict, program_ns: int) -> str:
    if m["outcome"] == "infeasible":
        return "none"
    bound, found = (f"{ns / program_ns:.3f}" if ns is not None else "" for ns in (m["bound_ns"], m["step_ns"]))
    return found if m["outcome"] == "optimal" else f"{bound} … {found}".rstrip()


def table(results: list[dict]) -> str:
    rows = []
    for c in results:
        r = ratio(c)
        unit = c["program_step_ns"]
        rows.append(
            [
                c["graph"],
                c["ops"],
                f"{c['arena_limit_bytes'] / c['program_peak_bytes']:.3f}",
                f"{c['step_ns'] / unit:.3f}",
                *(_milp_text(m, unit) for m in milps(c)),
                f"{c['step_bound_ns'] / unit:.3f}",
                "" if r is None else f"{r:.4f}" if finished(c) else f"({r:.4f})",
                f"{better(c)['arena_bytes'] / c['arena_limit_bytes']:.3f}" if better(c) else "",
                f"{c['plan_s']:.2f}",
                f"{sum({m['seconds'] for m in milps(c)}):.2f}",
            ]
        )
    cases = [c for c in results if finished(c) and better(c)]
    done = [ratio(c) for c in cases]
    lines = [
        common.markdown(
            [
                "graph",
                "ops",
                "budget",
                "Stowage",
                "MILP, program",
                "MILP, plan's",
                "bound",
                "ratio",
                "laid out",
                "plan s",
                "MILP s",
            ],
            rows,
        )
    ]
    if done:
        lines.append(
            f"Both MILPs finish in {len(done)} of {len(results)} cases. There Stowage's step over the optimum is {common.median(done):.4f} "
            f"in the median, {max(done):.4f} at most and {min(done):.4f} at least; within 1 % in {sum(r <= WITHIN for r in done)}, and of the others "
            f"{sum(ratio(c) > WITHIN and better(c)['arena_bytes'] > c['arena_limit_bytes'] for c in cases)} have an optimum that this "
            f"layout search cannot place within the budget."
        )
    return "\n\n".join(lines)


def main() -> None:
    parser = common.parser(__doc__, "oracle")
    parser.add_argument("--only", nargs="+", choices=list(GRAPHS), metavar="GRAPH", help=", ".join(GRAPHS))
    parser.add_argument("--budgets", type=int, default=3, help="of each graph (default 3)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"limit of each MILP (default {SECONDS:g})")
    options = parser.parse_args()
    order.rivals()  # builds it
    results = []
    with tempfile.TemporaryDirectory() as folder, common.Worker({}, threads=1, script=__file__) as worker:
        for name in options.only or GRAPHS:
            path = pathlib.Path(folder) / f"{name}.graph.json"
            write_graph(name, path, worker)
            results += study(name, str(path), options.budgets, options.seconds)
            common.say(
                f"{name}, {results[-1]['ops']} ops: {[round(ratio(c), 4) if ratio(c) else None for c in results[-options.budgets :]]}"
            )
    common.publish(
        "oracle", {"results": results, "limit_seconds": options.seconds, "gap": GAP}, table(results), options.output
    )


if __name__ == "__main__":
    common.serve(lambda config: {"capture": capture}) if common.is_worker() else main()

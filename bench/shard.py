"""Sharding plans of large training steps on meshes that nobody needs to own: least redundancy against the usual strategies.

    python bench/shard.py --models gpt moe --meshes 8 2,4 4,8 4,4,4 --eps 0 0.05 0.1 0.25 -o bench/results/shard.json

Every strategy is priced by the same model: the placements that define it are fixed (state, inputs, Megatron's residual stream), the rest is
chosen by the same solver for the least time. So the rivals get the best activations that their placements allow.

    ddp       state whole everywhere, batch cut over all axes                zero1/2/3   + optimizer state / gradients / parameters cut
    megatron  columns and rows over the last axis, batch over the others     +sp  residual stream cut along the sequence, too
    +do       the distributed optimizer: states cut over the other axes      time   least time; fsdp-cap: least time with half of its memory over the least
"""

from __future__ import annotations

import json
import math
import pathlib
import re
import subprocess
import sys
import time

import common

# Split by columns (the result's features) or rows over the tensor axis: dimension of the weight that is cut; biases of columns.
COLUMNS = re.compile(r"\.(c_attn|c_fc)\.weight$")  # Conv1D: [in, out]
ROWS = re.compile(r"\.c_proj\.weight$")
OUT_FIRST = re.compile(r"\.(q_proj|k_proj|v_proj|gate_proj|up_proj|query|key|value|intermediate\.dense|q|k|v)\.weight$|lm_head\.weight$|"
                       r"(wte|embed_tokens|word_embeddings|embedding)\.weight$|mlp\.(up|down)$")
IN_SECOND = re.compile(r"\.(o_proj|down_proj|output\.dense|o)\.weight$")
BIASES = re.compile(r"\.(c_attn|c_fc|query|key|value|intermediate\.dense|q|k|v)\.bias$")
RESIDUAL = ("aten.add.Tensor", "aten.mul.Tensor", "aten.native_layer_norm.default", "aten.embedding.default")


def tensor_dim(name: str) -> int | None:
    for pattern, dim in ((COLUMNS, 1), (ROWS, 0), (OUT_FIRST, 0), (IN_SECOND, 1), (BIASES, 0)):
        if pattern.search(name):
            return dim
    return None


def _text(parts: list[str]) -> str:
    return ",".join(parts)


def _over(tensor: dict, axes: range, count: int, base: list[str] | None = None) -> str:
    """Dimension 0 cut over these axes, where `base` leaves them whole; scalars whole."""
    parts = list(base or ["R"] * count)
    if tensor["shape"] and tensor["shape"][0] > 1:
        for a in axes:
            if parts[a] == "R" and not any(parts[b] == "S0" for b in range(a + 1, count)):
                parts[a] = "S0"
    return _text(parts)


def data_parallel(program: dict, axes: int, stage: int) -> dict[str, str]:
    """Stage 0: DDP; 1, 2, 3: ZeRO's."""
    cut = {"optimizer_state": stage >= 1, "gradient": stage >= 2, "parameter": stage >= 3, "input": True}
    return {str(i): _over(t, range(axes), axes) if cut[t["kind"]] else _text(["R"] * axes)
            for i, t in enumerate(program["tensors"]) if t["kind"] in cut}


def megatron(program: dict, axes: int, sequence: bool, distributed: bool) -> dict[str, str]:
    last, tensors = axes - 1, program["tensors"]
    hidden = next(t["shape"] for op in program["ops"] if op["target"] == "aten.embedding.default" for t in [tensors[op["outputs"][0]]] if len(t["shape"]) == 3)
    fixed = {}
    for i, t in enumerate(tensors):
        if t["kind"] == "input":
            fixed[str(i)] = _over(t, range(last), axes)
        if t["kind"] not in ("parameter", "gradient", "optimizer_state"):
            continue
        owner = tensors[t["of"]]["name"] if t["kind"] != "parameter" else t["name"]
        parts = ["R"] * axes
        dim = tensor_dim(owner)
        if dim is not None and len(t["shape"]) > dim and t["shape"][dim] > 1:
            parts[last] = f"S{dim}"
        if t["kind"] == "optimizer_state" and distributed and t["shape"]:
            free = 1 if parts[last] == "S0" and len(t["shape"]) > 1 else 0
            for a in range(last):
                parts[a] = f"S{free}" if t["shape"][free] > 1 else "R"
        fixed[str(i)] = _text(parts)
    for op in program["ops"]:
        if op.get("phase", "forward") == "forward" and op["target"] in RESIDUAL and tensors[op["outputs"][0]]["shape"] == hidden:
            fixed[str(op["outputs"][0])] = _text(["S0"] * last + ["S1" if sequence else "R"])
    return fixed


def strategies(program: dict, mesh: list[int], eps: list[float]) -> dict[str, dict]:
    axes = len(mesh)
    found = {f"stowage eps {e:g}": {"eps": e} for e in eps} | {"time first": {"goal": "time"}}
    for stage, name in enumerate(("ddp", "zero-1", "zero-2", "zero-3")):
        found[name] = {"goal": "time", "fixed": data_parallel(program, axes, stage)}
    if program["name"] != "resnet152":
        for sequence in (False, True):
            for distributed in (False, True):
                name = "megatron" + (" +sp" if sequence else "") + (" +do" if distributed else "")
                found[name] = {"goal": "time", "fixed": megatron(program, axes, sequence, distributed)}
    return found


def mesh_document(sizes: list[int]) -> dict:
    """The last axis within a host (300 GB/s, 6 us), the others between hosts (25 GB/s, 15 us); 300 TFLOP/s reached."""
    axes = [{"size": n, "gbps": 300 if a == len(sizes) - 1 else 25, "latency_ns": 6000 if a == len(sizes) - 1 else 15000} for a, n in enumerate(sizes)]
    return {"axes": axes, "tflops": 300, "memory_gbps": 1500, "kernel_ns": 2000}


def solve(path: str, mesh: list[int], options: dict) -> dict:
    """In a process of its own, so that a limit of seconds holds."""
    from stowage import _core

    begun = time.perf_counter()
    plan = json.loads(_core.plan_sharding(pathlib.Path(path).read_text(), json.dumps(mesh_document(mesh)), json.dumps(options)))
    whole = sorted({p["why"] for p in plan["ops"] if p["replicated"]})
    return {k: v for k, v in plan.items() if k not in ("ops", "tensors", "format", "version")} | {
        "seconds": time.perf_counter() - begun, "whole_ops": whole}


def row(name: str, r: dict, fastest: float | None) -> list:
    if "bytes" not in r or not r["compute_ns"]:
        return [name, r.get("time", {}).get("outcome", "failed"), *[""] * 9]
    b = r["bytes"]
    state = b["parameters"] + b["gradients"] + b["optimizer_state"] + b["buffers"] + b["inputs"]
    ns = r["compute_ns"] + r["communication_ns"]
    gap = max(0.0, ns / r["time"]["bound"] - 1) if r["time"]["bound"] > 0 else math.inf
    return [name, r["time"]["outcome"], *(f"{v / 2**30:.2f}" for v in (state, b["saved"], b["redundant"], b["peak"])), f"{ns / 1e6:.1f}",
            f"{ns / fastest:.2f}" if fastest else "", f"{r['redundancy']['gap']:.0%}", f"{gap:.1e}", f"{r['seconds']:.1f}"]


HEADER = ["strategy", "outcome", "state GiB", "saved GiB", "redundant GiB", "peak GiB", "time ms", "of fastest", "gap of least", "gap of time", "solved s"]


def program_of(model: str, folder: pathlib.Path) -> pathlib.Path:
    path = folder / f"{model}.program.json"
    if not path.exists():
        import shard_models

        path.write_text(shard_models.capture(model).to_json())
    return path


def ask(path: pathlib.Path, mesh: list[int], options: dict, limit: float) -> dict:
    command = [sys.executable, __file__, "--solve", str(path), json.dumps(mesh)]
    try:
        done = subprocess.run(command, input=json.dumps(options), capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"time": {"outcome": f"> {limit:.0f} s"}}
    return json.loads(done.stdout) if done.returncode == 0 else {"time": {"outcome": done.stderr.strip().splitlines()[-1][:60]}}


def main() -> None:
    if "--solve" in sys.argv:
        print(json.dumps(solve(sys.argv[2], json.loads(sys.argv[3]), json.load(sys.stdin))))
        return
    parser = common.parser(__doc__.splitlines()[0], "shard")
    parser.add_argument("--models", nargs="+", default=["gpt", "llama-8b", "bert-large", "moe", "resnet152"])
    parser.add_argument("--meshes", nargs="+", default=["8", "2,4", "4,8", "4,4,4"])
    parser.add_argument("--eps", nargs="+", type=float, default=[0, 0.05, 0.1, 0.25])
    parser.add_argument("--relative-gap", type=float, default=1e-3)
    parser.add_argument("--limit", type=float, default=120, help="seconds for one plan")
    parser.add_argument("--programs", type=pathlib.Path, default=common.ROOT / "build" / "programs", help="captured programs are kept here")
    arguments = parser.parse_args()
    arguments.programs.mkdir(parents=True, exist_ok=True)
    results, tables = {}, []
    for model in arguments.models:
        path = program_of(model, arguments.programs)
        program = json.loads(path.read_text())
        for text in arguments.meshes:
            mesh = [int(n) for n in text.split(",")]
            rows = {}
            for name, options in strategies(program, mesh, arguments.eps).items():
                rows[name] = ask(path, mesh, options | {"relative_gap": arguments.relative_gap}, arguments.limit)
                common.say(f"{model} ({text}) {name}: {rows[name]['time']['outcome']}")
            first = rows["time first"]
            fastest = first["compute_ns"] + first["communication_ns"] if "compute_ns" in first else None
            tables.append(f"{model} on ({text}), {len(program['ops'])} ops, fp32\n\n" + common.markdown(HEADER, [row(n, r, fastest) for n, r in rows.items()]))
            results[f"{model} {text}"] = rows
    common.publish("shard", results, "\n\n".join(tables), arguments.output)


if __name__ == "__main__":
    main()

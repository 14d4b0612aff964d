"""What the usual strategies for splitting a training step fix, in the words of Stowage's planner: placements of state,
of inputs, of Megatron's residual stream. The rest of each is chosen by the planner for the least time, so a rival gets
the best that its placements allow.

    ddp       state whole everywhere, the batch cut over all axes
    zero-1    + optimizer state cut           zero-2   + gradients cut           zero-3   + parameters cut (Rajbhandari et al., SC 2020)
    megatron  columns and rows of each layer cut over the last axis, the batch over the others (Shoeybi et al., 2019)
    +sp       the residual stream cut along the sequence over the last axis, too (Korthikanti et al., 2022)
    +do       the distributed optimizer: its state cut over the other axes as well
"""

from __future__ import annotations

import re

# Split by columns (features of the result) or rows over the tensor axis: the dimension of the weight that is cut;
# biases go with columns.
_COLUMNS = re.compile(r"\.(c_attn|c_fc)\.weight$")  # Conv1D: [in, out]
_ROWS = re.compile(r"\.c_proj\.weight$")
_OUT_FIRST = re.compile(
    r"\.(q_proj|k_proj|v_proj|gate_proj|up_proj|query|key|value|intermediate\.dense|q|k|v)\.weight$|lm_head\.weight$|"
    r"(wte|embed_tokens|word_embeddings|embedding)\.weight$|mlp\.(up|down)$"
)
_IN_SECOND = re.compile(r"\.(o_proj|down_proj|output\.dense|o)\.weight$")
_BIASES = re.compile(r"\.(c_attn|c_fc|query|key|value|intermediate\.dense|q|k|v)\.bias$")
_RESIDUAL = ("aten.add.Tensor", "aten.mul.Tensor", "aten.native_layer_norm.default", "aten.embedding.default")


def _tensor_dim(name: str) -> int | None:
    for pattern, dim in ((_COLUMNS, 1), (_ROWS, 0), (_OUT_FIRST, 0), (_IN_SECOND, 1), (_BIASES, 0)):
        if pattern.search(name):
            return dim
    return None


def _cut_rows(tensor: dict, axes: range, count: int) -> str:
    """Dimension 0 cut over these axes; scalars whole."""
    has_rows = bool(tensor["shape"]) and tensor["shape"][0] > 1
    return ",".join("S0" if has_rows and a in axes else "R" for a in range(count))


def data_parallel(program: dict, axes: int, stage: int) -> dict[str, str]:
    """Stage 0: DDP; 1, 2, 3: ZeRO's."""
    cut = {"optimizer_state": stage >= 1, "gradient": stage >= 2, "parameter": stage >= 3, "input": True}
    return {
        str(i): _cut_rows(t, range(axes if cut[t["kind"]] else 0), axes)
        for i, t in enumerate(program["tensors"])
        if t["kind"] in cut
    }


def _megatron_state(tensor: dict, owner: str, axes: int, distributed: bool) -> str:
    last, shape, parts = axes - 1, tensor["shape"], ["R"] * axes
    dim = _tensor_dim(owner)
    if dim is not None and len(shape) > dim and shape[dim] > 1:
        parts[last] = f"S{dim}"
    if tensor["kind"] == "optimizer_state" and distributed and shape:
        free = 1 if parts[last] == "S0" and len(shape) > 1 else 0
        parts[:last] = [f"S{free}" if shape[free] > 1 else "R"] * last
    return ",".join(parts)


def megatron(program: dict, axes: int, sequence: bool, distributed: bool) -> dict[str, str]:
    last, tensors = axes - 1, program["tensors"]
    first_results = [
        tensors[op["outputs"][0]]["shape"] for op in program["ops"] if op["target"] == "aten.embedding.default"
    ]
    hidden = next(shape for shape in first_results if len(shape) == 3)
    fixed = {}
    for i, t in enumerate(tensors):
        if t["kind"] == "input":
            fixed[str(i)] = _cut_rows(t, range(last), axes)
        elif t["kind"] in ("parameter", "gradient", "optimizer_state"):
            owner = t if t["kind"] == "parameter" else tensors[t["of"]]
            fixed[str(i)] = _megatron_state(t, owner["name"], axes, distributed)
    for op in program["ops"]:
        if (
            op.get("phase", "forward") == "forward"
            and op["target"] in _RESIDUAL
            and tensors[op["outputs"][0]]["shape"] == hidden
        ):
            fixed[str(op["outputs"][0])] = ",".join(["S0"] * last + ["S1" if sequence else "R"])
    return fixed


def rivals(program: dict, axes: int) -> dict[str, dict]:
    """Options of plan_sharding by strategy. Megatron's strategies are for transformers."""
    found = {
        name: {"goal": "time", "fixed": data_parallel(program, axes, stage)}
        for stage, name in enumerate(("ddp", "zero-1", "zero-2", "zero-3"))
    }
    if not any(op["target"] == "aten.embedding.default" for op in program["ops"]):
        return found
    for sequence in (False, True):
        for distributed in (False, True):
            name = "megatron" + (" +sp" if sequence else "") + (" +do" if distributed else "")
            found[name] = {"goal": "time", "fixed": megatron(program, axes, sequence, distributed)}
    return found

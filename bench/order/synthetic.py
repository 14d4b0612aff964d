"""A training step of a transformer of any depth as a graph file, without PyTorch: for graphs that no capture reaches.

The ops of a layer, their operands and bytes are those of GPT-2's block with flash attention and dropout (18 forward, 21
backward) and of Adam's for-loop form (7 ops for each of 12 parameters): 123 ops a layer, 141 when the backward pass
computes the block again. The same arguments give the same bytes.

    ./dev bench synthetic 100000 -o step.graph.json
    ./dev bench synthetic 100000 --checkpoint -o step.graph.json.gz
"""

from __future__ import annotations

import argparse
import gzip
import json
from typing import IO

FORWARD_OPS, BACKWARD_OPS, UPDATE_OPS = 18, 21, 7 * 12


class Step:
    """Buffers and ops, appended in program order."""

    def __init__(self, width: int, tokens: int, heads: int, vocabulary: int, checkpoint: bool):
        self.buffers: list[str] = []
        self.ops: list[str] = []
        self.width, self.tokens, self.heads, self.vocabulary, self.checkpoint = (
            width,
            tokens,
            heads,
            vocabulary,
            checkpoint,
        )

    # -- pieces

    def buffer(self, bytes_: int, kind: str, more: str = "") -> int:
        self.buffers.append(f'{{"name":"{kind[0]}{len(self.buffers)}","bytes":{bytes_},"kind":"{kind}"{more}}}')
        return len(self.buffers) - 1

    def resident(self, bytes_: int, kind: str) -> int:
        return self.buffer(bytes_, kind, ',"resident":true')

    def run(
        self,
        target: str,
        reads: list[int],
        creates: tuple[int, ...] = (),
        kind: str = "activation",
        writes: list[int] = [],  # noqa: B006
        rng: bool = False,
    ) -> list[int]:
        """Adds an op; the ids of what it creates, of the given sizes."""
        made = [self.buffer(b, kind) for b in creates]
        text = f'{{"name":"{target}_{len(self.ops)}","target":"aten::{target}"'
        for key, ids in (("reads", reads), ("writes", writes), ("creates", made)):
            if ids:
                text += f',"{key}":[{",".join(map(str, ids))}]'
        self.ops.append(text + (',"traits":["rng"]' if rng else "") + ',"cost_ns":1000}')
        return made

    def parameters(self, *shapes: int) -> list[int]:
        return [self.resident(4 * count, "parameter") for count in shapes]

    # -- one layer

    def layer_parameters(self) -> list[int]:
        w = self.width
        return self.parameters(w, w, 3 * w * w, 3 * w, w * w, w, w, w, 4 * w * w, 4 * w, 4 * w * w, w)

    def forward(self, x: int, p: list[int]) -> tuple[int, dict[str, int]]:
        """x: the residual stream. Returns it after the block, and what the backward pass needs."""
        n, t = 4 * self.width * self.tokens, 4 * self.tokens
        s: dict[str, int] = {"x": x}
        s["h1"], s["mean1"], s["rstd1"] = self.run("native_layer_norm", [x, p[0], p[1]], (n, t, t))
        (qkv,) = self.run("addmm", [s["h1"], p[2], p[3]], (3 * n,))
        for name in "qkv":
            (s[name],) = self.run("clone", [qkv], (n,))
        s["o"], s["lse"] = self.run(
            "_scaled_dot_product_flash_attention_for_cpu", [s["q"], s["k"], s["v"]], (n, t * self.heads)
        )
        (s["merged"],) = self.run("clone", [s["o"]], (n,))
        (a,) = self.run("addmm", [s["merged"], p[4], p[5]], (n,))
        a = self._dropout(a, n, s, "mask1")
        (s["x2"],) = self.run("add", [x, a], (n,))
        s["h2"], s["mean2"], s["rstd2"] = self.run("native_layer_norm", [s["x2"], p[6], p[7]], (n, t, t))
        (s["f"],) = self.run("addmm", [s["h2"], p[8], p[9]], (4 * n,))
        (s["g"],) = self.run("gelu", [s["f"]], (4 * n,))
        (b,) = self.run("addmm", [s["g"], p[10], p[11]], (n,))
        b = self._dropout(b, n, s, "mask2")
        return self.run("add", [s["x2"], b], (n,))[0], s

    def _dropout(self, x: int, bytes_: int, saved: dict[str, int], name: str) -> int:
        (saved[name],) = self.run("bernoulli", [], (bytes_,), rng=True)
        return self.run("mul", [x, saved[name]], (bytes_,))[0]

    def _linear_backward(
        self, d: int, x: int, weight: int, bytes_: int, weights: int, bias: int
    ) -> tuple[int, list[int]]:
        (dx,) = self.run("mm", [d, weight], (bytes_,), "temporary")
        (gw,) = self.run("mm", [d, x], (4 * weights,), "gradient")
        return dx, [gw, *self.run("sum", [d], (4 * bias,), "gradient")]

    def backward(self, d: int, p: list[int], s: dict[str, int]) -> tuple[int, list[int]]:
        """d: the gradient of the residual stream after the block. Returns that before it, and the parameters'
        gradients."""
        w, n = self.width, 4 * self.width * self.tokens
        (m,) = self.run("mul", [d, s["mask2"]], (n,), "temporary")
        dg, g_proj = self._linear_backward(m, s["g"], p[10], 4 * n, 4 * w * w, w)
        (df,) = self.run("gelu_backward", [dg, s["f"]], (4 * n,), "temporary")
        dh, g_fc = self._linear_backward(df, s["h2"], p[8], n, 4 * w * w, 4 * w)
        d2, *g_ln2 = self._norm_backward(dh, s["x2"], s["mean2"], s["rstd2"], p[6])
        (d,) = self.run("add", [d, d2], (n,), "temporary")
        (m,) = self.run("mul", [d, s["mask1"]], (n,), "temporary")
        dm, g_out = self._linear_backward(m, s["merged"], p[4], n, w * w, w)
        dqkv = self.run(
            "_scaled_dot_product_flash_attention_for_cpu_backward",
            [dm, s["q"], s["k"], s["v"], s["o"], s["lse"]],
            (n, n, n),
            "temporary",
        )
        (dc,) = self.run("cat", dqkv, (3 * n,), "temporary")
        dh, g_qkv = self._linear_backward(dc, s["h1"], p[2], n, 3 * w * w, 3 * w)
        d1, *g_ln1 = self._norm_backward(dh, s["x"], s["mean1"], s["rstd1"], p[0])
        (d,) = self.run("add", [d, d1], (n,), "temporary")
        return d, [*g_ln1, *g_qkv, *g_out, *g_ln2, *g_fc, *g_proj]

    def _norm_backward(self, d: int, x: int, mean: int, rstd: int, weight: int) -> list[int]:
        n, w = 4 * self.width * self.tokens, self.width
        dx, *grads = self.run("native_layer_norm_backward", [d, x, mean, rstd, weight], (n, 4 * w, 4 * w), "gradient")
        return [dx, *grads]

    def update(self, parameter: int, gradient: int, bytes_: int) -> None:
        """Adam, for-loop form."""
        mean, square = self.resident(bytes_, "optimizer_state"), self.resident(bytes_, "optimizer_state")
        self.run("lerp_", [gradient], writes=[mean])
        self.run("mul_", [], writes=[square])
        self.run("addcmul_", [gradient], writes=[square])
        (root,) = self.run("sqrt", [square], (bytes_,), "temporary")
        (scaled,) = self.run("div", [root], (bytes_,), "temporary")
        self.run("add_", [], writes=[scaled])
        self.run("addcdiv_", [mean, scaled], writes=[parameter])

    # -- the step

    def build(self, layers: int) -> None:
        w, n = self.width, 4 * self.width * self.tokens
        ids, labels = self.resident(8 * self.tokens, "input"), self.resident(8 * self.tokens, "input")
        embedding, out = self.parameters(w * self.vocabulary, w * self.vocabulary)
        blocks = [self.layer_parameters() for _ in range(layers)]
        (x,) = self.run("embedding", [ids, embedding], (n,))
        saved = []
        for p in blocks:
            entry = x
            x, s = self.forward(x, p)
            saved.append({"x": entry} if self.checkpoint else s)
        v = 4 * self.vocabulary * self.tokens
        (logits,) = self.run("mm", [x, out], (v,))
        (log,) = self.run("_log_softmax", [logits], (v,))
        loss, weight = self.run("nll_loss_forward", [log, labels], (4, 4), "output")
        self.buffers[loss] = self.buffers[loss][:-1] + ',"returned":true}'
        (d,) = self.run("nll_loss_backward", [log, labels, weight], (v,), "temporary")
        (d,) = self.run("_log_softmax_backward_data", [d, log], (v,), "temporary")
        (g_out,) = self.run("mm", [d, x], (4 * w * self.vocabulary,), "gradient")
        (d,) = self.run("mm", [d, out], (n,), "temporary")
        gradients = []
        for p, s in zip(reversed(blocks), reversed(saved)):
            if self.checkpoint:
                _, s = self.forward(s["x"], p)
            d, g = self.backward(d, p, s)
            gradients.append(g)
        (g_embedding,) = self.run("embedding_dense_backward", [d, ids], (4 * w * self.vocabulary,), "gradient")
        sizes = [4 * c for c in (w, w, 3 * w * w, 3 * w, w * w, w, w, w, 4 * w * w, 4 * w, 4 * w * w, w)]
        self.update(embedding, g_embedding, 4 * w * self.vocabulary)
        for p, g in zip(blocks, reversed(gradients)):
            for parameter, gradient, bytes_ in zip(p, g, sizes):
                self.update(parameter, gradient, bytes_)
        self.update(out, g_out, 4 * w * self.vocabulary)

    def write(self, out: IO[str], name: str) -> None:
        out.write(
            f'{{"format":"stowage-graph","version":1,"name":{json.dumps(name)},"align":64,"meta":{{}},\n"buffers":[\n'
        )
        out.write(",\n".join(self.buffers))
        out.write('\n],\n"ops":[\n')
        out.write(",\n".join(self.ops))
        out.write("\n]}\n")


def write(
    path: str,
    ops: int,
    checkpoint: bool = False,
    width: int = 1600,
    tokens: int = 1024,
    heads: int = 25,
    vocabulary: int = 50257,
) -> int:
    """Writes a step of about `ops` ops; returns how many."""
    step = Step(width, tokens, heads, vocabulary, checkpoint)
    per_layer = FORWARD_OPS * (2 if checkpoint else 1) + BACKWARD_OPS + UPDATE_OPS
    step.build(max(1, round(ops / per_layer)))
    with gzip.open(path, "wt", compresslevel=1) if path.endswith(".gz") else open(path, "w") as out:
        step.write(out, f"transformer-{len(step.ops)}{'-ckpt' if checkpoint else ''}")
    return len(step.ops)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], prog="./dev bench synthetic")
    parser.add_argument("ops", type=int, help="about how many")
    parser.add_argument("--checkpoint", action="store_true", help="the backward pass computes each block again")
    parser.add_argument("-o", "--output", required=True)
    options = parser.parse_args()
    print(write(options.output, options.ops, options.checkpoint), "ops")


if __name__ == "__main__":
    main()

"""Training steps of many small ops: unrolled recurrent nets, optimizers in Python loops, normalisation chains, mixtures
of experts, solvers.

Their graphs are as large as those of big models, but a step takes milliseconds: what planning must not cost. Everything
is made from a seed; the same arguments give the same ops and bytes in every process.

    ./dev bench small_ops                          lists the steps
    ./dev bench small_ops lstm-59 -o step.graph.json.gz
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CASES: dict[str, tuple[str, dict[str, Any]]] = {  # name: maker, its arguments
    "lstm-10": ("recurrent", {"cell": "LSTMCell", "steps": 10}),
    "lstm-59": ("recurrent", {"cell": "LSTMCell", "steps": 59}),
    "lstm-128": ("recurrent", {"cell": "LSTMCell", "steps": 128}),
    "lstm-1layer-200": ("recurrent", {"cell": "LSTMCell", "steps": 200, "layers": 1}),
    "lstm-4layers-64": ("recurrent", {"cell": "LSTMCell", "steps": 64, "layers": 4}),
    "gru-100": ("recurrent", {"cell": "gru", "steps": 100}),
    "gru-3layers-80": ("recurrent", {"cell": "gru", "steps": 80, "layers": 3}),
    "rnn-200": ("recurrent", {"cell": "RNNCell", "steps": 200}),
    "rnn-4layers-150": ("recurrent", {"cell": "RNNCell", "steps": 150, "layers": 4}),
    "lstm-last-100": ("recurrent", {"cell": "LSTMCell", "steps": 100, "last_only": True}),
    "adam-loop-300": ("optimizer_loop", {"parameters": 300, "rule": "adam"}),
    "amsgrad-loop-300": ("optimizer_loop", {"parameters": 300, "rule": "amsgrad"}),
    "lion-loop-600": ("optimizer_loop", {"parameters": 600, "rule": "lion"}),
    "clipped-loop-400": ("optimizer_loop", {"parameters": 400, "rule": "clipped"}),
    "rmsnorm-100": ("rmsnorm_chain", {"layers": 100}),
    "rmsnorm-400": ("rmsnorm_chain", {"layers": 400}),
    "moe-8x12": ("moe_loop", {"experts": 8, "layers": 12}),
    "moe-32x6": ("moe_loop", {"experts": 32, "layers": 6}),
    "wave-100": ("wave", {"steps": 100}),
    "burgers-300": ("burgers", {"steps": 300}),
    "ode-rk4-60": ("neural_ode", {"steps": 60}),
    "scan-100": ("selective_scan", {"steps": 100, "layers": 3}),
    "unrolled-adam-20": ("unrolled_optimizer", {"steps": 20}),
}


@dataclass
class Step:
    """A whole training step as a function of its batch."""

    run: Callable
    batch: tuple


def _finished(parameters, loss_of: Callable, batch: tuple, optimizer: Any = None) -> Step:
    import torch

    optimizer = optimizer or torch.optim.Adam(parameters, lr=1e-3, foreach=False)

    def train_step(*arguments):
        optimizer.zero_grad()
        loss = loss_of(*arguments)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Step(train_step, batch)


def _gru_cell(inputs: int, width: int):
    """A GRU as people write it by hand."""
    import torch
    from torch import nn

    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.of_input, self.of_state = nn.Linear(inputs, 3 * width), nn.Linear(width, 3 * width)

        def forward(self, x, h):
            (r, z, n), (hr, hz, hn) = self.of_input(x).chunk(3, -1), self.of_state(h).chunk(3, -1)
            keep = torch.sigmoid(z + hz)
            return (1 - keep) * torch.tanh(n + torch.sigmoid(r + hr) * hn) + keep * h

    return Cell()


def recurrent(cell: str, steps: int, layers: int = 2, width: int = 51, batch: int = 8, last_only: bool = False) -> Step:
    """A stack of cells unrolled over time, read out at each step or at the last alone."""
    import torch
    from torch import nn

    make = _gru_cell if cell == "gru" else getattr(nn, cell)
    cells = nn.ModuleList([make(1 if i == 0 else width, width) for i in range(layers)])
    out = nn.Linear(width, 1)

    def loss_of(x, y):
        state = [
            (torch.zeros(batch, width), torch.zeros(batch, width)) if cell == "LSTMCell" else torch.zeros(batch, width)
            for _ in cells
        ]
        outputs = []
        for now in x.split(1, 1):
            for i, layer in enumerate(cells):
                state[i] = layer(now, state[i])
                now = state[i][0] if cell == "LSTMCell" else state[i]
            if not last_only:
                outputs.append(out(now))
        made = out(now) if last_only else torch.cat(outputs, 1)
        return nn.functional.mse_loss(made, y[:, -made.shape[1] :])

    return _finished(
        [*cells.parameters(), *out.parameters()], loss_of, (torch.randn(batch, steps), torch.randn(batch, steps))
    )


class _Rule:
    """An optimizer as people write them: one Python loop, small ops, temporaries."""

    def __init__(self, parameters, rule: str):
        import torch

        self.parameters, self.rule = list(parameters), rule
        self.state = [tuple(torch.zeros_like(p) for _ in range(3)) for p in self.parameters]

    def zero_grad(self) -> None:
        for p in self.parameters:
            p.grad = None

    def step(self) -> None:
        import torch

        with torch.no_grad():
            scale = None
            if self.rule == "clipped":
                norm = torch.stack([p.grad.pow(2).sum() for p in self.parameters]).sum().sqrt()
                scale = torch.clamp(1.0 / (norm + 1e-6), max=1.0)
            for p, (mean, square, most) in zip(self.parameters, self.state):
                gradient = p.grad if scale is None else p.grad * scale
                if self.rule == "lion":
                    p.add_(torch.sign(mean * 0.9 + gradient * 0.1) + p * 0.01, alpha=-1e-4)
                    mean.mul_(0.99).add_(gradient, alpha=0.01)
                    continue
                mean.copy_(0.9 * mean + 0.1 * gradient)
                square.copy_(0.999 * square + 0.001 * gradient * gradient)
                root = square
                if self.rule == "amsgrad":
                    most.copy_(torch.maximum(most, square))
                    root = most
                p.sub_(1e-3 * mean / (root.sqrt() + 1e-8))


def optimizer_loop(parameters: int, rule: str, width: int = 48, batch: int = 16) -> Step:
    """A deep narrow net, and an optimizer that loops over its parameters."""
    import torch
    from torch import nn

    torch_linear = [nn.Linear(width, width) for _ in range(parameters // 2)]
    net = nn.Sequential(*[m for layer in torch_linear for m in (layer, nn.Tanh())])
    return _finished(None, lambda x: net(x).pow(2).mean(), (torch.randn(batch, width),), _Rule(net.parameters(), rule))


def rmsnorm_chain(layers: int, width: int = 64, tokens: int = 32) -> Step:
    """Residual blocks of a hand-written RMSNorm, a gate and a linear layer."""
    import torch
    from torch import nn

    gains = nn.ParameterList([nn.Parameter(torch.ones(width)) for _ in range(layers)])
    linears = nn.ModuleList([nn.Linear(width, width, bias=False) for _ in range(layers)])

    def loss_of(x):
        for gain, linear in zip(gains, linears):
            h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * gain
            x = x + linear(h) * torch.sigmoid(h)
        return x.pow(2).mean()

    return _finished([*gains, *linears.parameters()], loss_of, (torch.randn(tokens, width),))


def moe_loop(experts: int, layers: int, width: int = 32, tokens: int = 64) -> Step:
    """Every expert runs on all tokens, weighted by its gate: a loop over experts in Python."""
    import torch
    from torch import nn

    gates = nn.ModuleList([nn.Linear(width, experts) for _ in range(layers)])
    ups = nn.ModuleList([nn.Linear(width, 2 * width) for _ in range(layers * experts)])
    downs = nn.ModuleList([nn.Linear(2 * width, width) for _ in range(layers * experts)])

    def loss_of(x):
        for layer, gate in enumerate(gates):
            share = torch.softmax(gate(x), -1)
            mixed = torch.zeros_like(x)
            for e in range(experts):
                i = layer * experts + e
                mixed = mixed + share[:, e : e + 1] * downs[i](nn.functional.silu(ups[i](x)))
            x = nn.functional.layer_norm(x + mixed, (width,))
        return x.pow(2).mean()

    return _finished(
        [*gates.parameters(), *ups.parameters(), *downs.parameters()], loss_of, (torch.randn(tokens, width),)
    )


def wave(steps: int, cells: int = 256) -> Step:
    """A wave equation by leapfrog; its speed, a field, is learned through all time steps."""
    import torch
    from torch import nn

    speed = nn.Parameter(torch.rand(cells, cells // 4) * 0.1 + 0.1)

    def loss_of(start, target):
        before, now = start, start
        for _ in range(steps):
            laplace = sum(torch.roll(now, s, d) for s, d in ((1, 0), (-1, 0), (1, 1), (-1, 1))) - 4 * now
            before, now = now, 2 * now - before + speed * speed * laplace
        return (now - target).pow(2).mean()

    shape = (cells, cells // 4)
    return _finished([speed], loss_of, (torch.randn(shape), torch.randn(shape)))


def burgers(steps: int, cells: int = 4096) -> Step:
    """Burgers' equation, explicit; viscosity and forcing are learned."""
    import torch
    from torch import nn

    viscosity, force = nn.Parameter(torch.full((cells,), 0.1)), nn.Parameter(torch.zeros(cells))

    def loss_of(u, target):
        for _ in range(steps):
            left, right = torch.roll(u, 1), torch.roll(u, -1)
            u = u + 1e-3 * (viscosity * (left - 2 * u + right) - u * (right - left) * 0.5 + force)
        return (u - target).abs().mean()

    return _finished([viscosity, force], loss_of, (torch.randn(cells), torch.randn(cells)))


def neural_ode(steps: int, width: int = 32, batch: int = 32) -> Step:
    """A small net integrated by Runge-Kutta's fourth order."""
    import torch
    from torch import nn

    field = nn.Sequential(nn.Linear(width, 2 * width), nn.Tanh(), nn.Linear(2 * width, width))

    def loss_of(x, y):
        h = 1.0 / steps
        for _ in range(steps):
            a = field(x)
            b = field(x + h / 2 * a)
            c = field(x + h / 2 * b)
            d = field(x + h * c)
            x = x + h / 6 * (a + 2 * b + 2 * c + d)
        return nn.functional.mse_loss(x, y)

    return _finished(field.parameters(), loss_of, (torch.randn(batch, width), torch.randn(batch, width)))


def selective_scan(steps: int, layers: int, width: int = 32, batch: int = 4) -> Step:
    """State-space layers scanned step by step, as written without a fused kernel."""
    import torch
    from torch import nn

    inputs = nn.ModuleList([nn.Linear(width, 3 * width) for _ in range(layers)])
    decay = nn.ParameterList([nn.Parameter(torch.rand(width)) for _ in range(layers)])

    def loss_of(x):
        for project, rate in zip(inputs, decay):
            state, made = torch.zeros(batch, width), []
            for t in range(steps):
                u, gate, delta = project(x[:, t]).chunk(3, -1)
                delta = nn.functional.softplus(delta)
                state = torch.exp(-delta * rate) * state + delta * u
                made.append(state * nn.functional.silu(gate))
            x = x + torch.stack(made, 1)
        return x.pow(2).mean()

    return _finished([*inputs.parameters(), *decay], loss_of, (torch.randn(batch, steps, width),))


def unrolled_optimizer(steps: int, width: int = 32, batch: int = 16) -> Step:
    """Meta-learning: the gradient through an inner Adam of `steps` steps."""
    import torch
    from torch import nn

    start = nn.ParameterList([nn.Parameter(torch.randn(width, width) / width**0.5) for _ in range(4)])
    rate = nn.Parameter(torch.full((), -4.0))

    def net(x, weights):
        for w in weights[:-1]:
            x = torch.tanh(x @ w)
        return x @ weights[-1]

    def loss_of(x, y):
        weights = list(start)
        mean = [torch.zeros_like(w) for w in weights]
        square = [torch.zeros_like(w) for w in weights]
        for _ in range(steps):
            gradients = torch.autograd.grad(nn.functional.mse_loss(net(x, weights), y), weights, create_graph=True)
            mean = [0.9 * m + 0.1 * g for m, g in zip(mean, gradients)]
            square = [0.99 * s + 0.01 * g * g for s, g in zip(square, gradients)]
            weights = [w - torch.exp(rate) * m / (s + 1e-8).sqrt() for w, m, s in zip(weights, mean, square)]
        return nn.functional.mse_loss(net(x, weights), y)

    return _finished([*start, rate], loss_of, (torch.randn(batch, width), torch.randn(batch, width)))


def make(name: str) -> Step:
    """The step of a case, on real tensors, from seed 0."""
    import torch

    torch.manual_seed(0)
    maker, arguments = CASES[name]
    return globals()[maker](**arguments)


def captured(name: str):
    """Its graph, with measured costs."""
    import stowage

    step = make(name)
    step.run(*step.batch)  # the optimizer's state
    return stowage.capture(step.run, *step.batch, name=name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", choices=list(CASES), metavar="NAME")
    parser.add_argument("-o", "--output", help="where its graph goes")
    options = parser.parse_args()
    if options.name is None:
        print("\n".join(CASES))
        return
    if options.output is None:
        parser.error("give -o FILE")
    captured(options.name).save(options.output)


if __name__ == "__main__":
    main()

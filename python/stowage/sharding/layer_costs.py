"""What each layer of a chain takes and holds, for one micro-batch: measured by running it, or modelled on tensors without
memory.

    layer ──► forward ──► its output, what autograd keeps of it (each storage once; not its input, not its parameters)
          └─► backward at once;  backward of the input, then of the parameters;  update

The layers run as functions of copies: parameters, buffers, gradients and random numbers of the user's stay as they are."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from stowage._torch.distributed import backward_of_input, backward_of_weights
from stowage._torch.fakes import DATA_DEPENDENT, FakeTensorMode
from stowage._torch.private import flatten, flops_of, storage_address, storage_bytes
from stowage.errors import Unsupported
from stowage.sharding.chain import Chain, as_tuple, handed_on, trainable
from stowage.sharding.ties import joined, ties

_REPEATS = 5


class _Watch:
    """By the clock: the least of a few runs, after one that warms up."""

    repeats = _REPEATS

    def __init__(self):
        self.ns = 0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        begin = time.perf_counter_ns()
        yield
        self.ns = time.perf_counter_ns() - begin


class _Model(TorchDispatchMode):
    """By a sum over kernels: each takes what its arithmetic or its bytes take, whichever is more, and at least
    kernel_ns."""

    repeats = 1

    def __init__(self, tflops: float = 300, memory_gbps: float = 1500, kernel_ns: float = 2000):
        super().__init__()
        self.tflops, self.memory_gbps, self.kernel_ns = tflops, memory_gbps, kernel_ns
        self.ns = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        tensors = [t for t in flatten((args, kwargs, result))[0] if isinstance(t, torch.Tensor)]
        if not func.is_view and tensors:
            moved = sum({storage_address(t): t.nbytes for t in tensors}.values())
            flops = flops_of(func, args, kwargs or {}, result)
            self.ns += int(max(flops / self.tflops / 1e3, moved / self.memory_gbps, self.kernel_ns))
        return result

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        self.ns = 0
        with self:
            yield


class _Layer:
    """A layer over its own copies."""

    def __init__(self, module: torch.nn.Module, loss: Callable | None, target: Any, copy: Callable):
        self.module, self.loss, self.target = module, loss, target
        made: dict[int, torch.Tensor] = {}  # shared ones stay shared
        self.state: dict[str, torch.Tensor] = {}
        named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
        for name, tensor in named:
            if id(tensor) not in made:
                made[id(tensor)] = copy(tensor)
            self.state[name] = made[id(tensor)]
        self.held = {storage_address(t) for t in self.state.values()}
        self.parameters: list[Any] = [made[id(p)] for p in trainable([module])]
        self.parameter_bytes = sum(made[id(p)].nbytes for p in {id(p): p for p in module.parameters()}.values())
        self.buffer_bytes = sum({id(b): b.nbytes for b in module.buffers()}.values())

    def __call__(self, inputs: tuple) -> tuple:
        values = as_tuple(torch.func.functional_call(self.module, self.state, handed_on(inputs)))
        if self.loss is not None:
            values = (self.loss(values[0] if len(values) == 1 else values, self.target),)
        return handed_on(values)


def layer_costs(chain: Chain, batch: tuple, clock: Any, copy: Callable, halves: bool) -> list[dict]:
    """Of each layer the fields of docs/formats.md. ``batch``: one micro-batch; ``copy``: a tensor of ours like one of the
    user's."""
    *inputs, target = (copy(t) for t in batch)
    values, costs, pieces = tuple(inputs), [], joined(chain.layers)
    for i, module in enumerate(chain.layers):
        last = i == len(chain.layers) - 1
        layer = _Layer(module, chain.loss if last else None, target, copy)
        entry = {"name": f"{i}.{type(module).__name__}", "joined": pieces[i], **_held(layer, values)}
        runs = [_times(chain, layer, values, clock, halves) for _ in range(clock.repeats + (clock.repeats > 1))]
        entry |= {key: min(run[key] for run in runs[-clock.repeats :]) for key in runs[0]}
        if i == 0:  # nothing asks for the gradient of the pipeline's input
            entry["input_ns"], entry["weight_ns"] = 0, entry["backward_ns"]
        with torch.no_grad():
            values = layer(values)
        entry["sent_bytes"] = 0 if last else sum(t.nbytes for t in values)
        entry["optimizer_bytes"] = _optimizer_bytes(chain, layer.parameters)
        costs.append(entry)
    return costs


def _leaves(values: tuple) -> tuple:
    return tuple(v.detach().requires_grad_(v.is_floating_point()) for v in values)


def _held(layer: _Layer, values: tuple) -> dict:
    inputs = _leaves(values)
    outside = layer.held | {storage_address(t) for t in [*inputs, layer.target]}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if storage_address(tensor) not in outside:
            kept[storage_address(tensor)] = tensor.untyped_storage()
        return tensor.detach()  # a graph that holds its own result is there for ever

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        outputs = layer(inputs)
    for output in outputs:
        if not isinstance(output, torch.Tensor):
            raise Unsupported(f"a layer returns {type(output).__name__}: only tensors pass from layer to layer")
        keep(output)
    return {
        "parameter_bytes": layer.parameter_bytes + layer.buffer_bytes,
        "gradient_bytes": sum(p.nbytes for p in layer.parameters),
        "saved_bytes": sum(storage.nbytes() for storage in kept.values()),
    }


def can_halve(chain: Chain, batch: tuple) -> bool:
    """PyTorch can run the backward of each layer in halves, as zero bubbles do. Tried on tensors without memory; what is in
    several layers of a stage it cannot, and no stage has the first and the last."""
    ends = (0, len(chain.layers) - 1)
    if any(joined(chain.layers)) or any(tie.layers != ends for tie in ties(chain.layers)):
        return False
    try:
        modelled(chain, batch, halves=True)
    except RuntimeError:
        return False
    return True


def _times(chain: Chain, layer: _Layer, values: tuple, clock: Any, halves: bool) -> dict[str, int]:
    """One run of each part. ``halves``: backward in halves, too."""
    found: dict[str, int] = {}

    def run(name: str, call: Callable) -> Any:
        with clock.running():
            result = call()
        found[name] = max(clock.ns, 0)
        return result

    def forward() -> tuple[tuple, tuple, list]:
        inputs = _leaves(values)
        outputs = run("forward_ns", lambda: layer(inputs))
        wanted = [o for o in outputs if o.requires_grad]
        return inputs, tuple(wanted), [torch.ones_like(o) for o in wanted]

    _, outputs, gradients = forward()
    run("backward_ns", lambda: torch.autograd.backward(outputs, gradients) if outputs else None)
    for p in layer.parameters:
        p.grad = None
    if halves:
        inputs, outputs, gradients = forward()
        groups = run("input_ns", lambda: backward_of_input(outputs, gradients, inputs, layer.parameters))
        run("weight_ns", lambda: backward_of_weights(layer.parameters, groups))
    else:
        found |= {"input_ns": found["backward_ns"], "weight_ns": 0}
    if layer.parameters:
        for p in layer.parameters:
            p.grad = torch.zeros_like(p)
        optimizer = chain.optimizer(layer.parameters)
        optimizer.step()  # makes its state
        run("update_ns", lambda: _update(chain, layer, optimizer))
    return found


def _update(chain: Chain, layer: _Layer, optimizer: torch.optim.Optimizer) -> None:
    if chain.max_norm is not None:
        torch.nn.utils.clip_grad_norm_(layer.parameters, chain.max_norm)
    optimizer.step()
    optimizer.zero_grad()


def _optimizer_bytes(chain: Chain, parameters: list[Any]) -> int:
    if not parameters:
        return 0
    for p in parameters:
        p.grad = torch.zeros_like(p)
    optimizer = chain.optimizer(parameters)
    optimizer.step()
    states = [v for state in optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor)]
    return sum({storage_address(v): storage_bytes(v) for v in states}.values())


def tie_costs(chain: Chain) -> list[dict]:
    """Of each tie the fields of docs/formats.md, by tensors without memory."""
    found = []
    with FakeTensorMode(allow_non_fake_inputs=True), torch.random.fork_rng(devices=[]):
        for tie in ties(chain.layers):
            trained = [torch.empty_like(p).requires_grad_() for p in tie.parameters if p.requires_grad]
            found.append(
                {
                    "layers": list(tie.layers),
                    "parameter_bytes": sum(p.nbytes for p in tie.parameters),
                    "gradient_bytes": sum(p.nbytes for p in trained),
                    "optimizer_bytes": _optimizer_bytes(chain, trained),
                }
            )
    return found


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def measured(chain: Chain, batch: tuple, halves: bool = True) -> list[dict]:
    """By running each layer, a few times, on copies."""
    with torch.random.fork_rng(devices=[]):
        return layer_costs(chain, batch, _Watch(), _copy, halves)


def modelled(chain: Chain, batch: tuple, halves: bool = True, **device: float) -> list[dict]:
    """On tensors without memory. ``device``: "tflops", "memory_gbps", "kernel_ns"."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    made: dict[int, torch.Tensor] = {}

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        return made.setdefault(id(tensor), fake.requires_grad_(tensor.requires_grad))

    try:
        with mode, torch.random.fork_rng(devices=[]):
            return layer_costs(chain, batch, _Model(**device), copy, halves)
    except DATA_DEPENDENT as reason:
        raise Unsupported(f"a layer reads numbers that depend on data, or makes shapes of them: {reason}") from None


__all__ = ["measured", "modelled", "tie_costs"]

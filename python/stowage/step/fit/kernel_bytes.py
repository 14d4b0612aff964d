"""What a kernel allocates for itself, measured: the kernel runs once, alone, on zeros of the shapes that it will meet.

    kernel      live before ─┐            ┌─ most        inside = most - before: results, and what it gives back itself
                             ▁▂▆█▆▃  ─────┘

Only kernels that may allocate more than their results are run: those that work element by element on one type, views and
matrix products in single precision do not. A kernel that takes more than LARGEST_PROBE_BYTES is not run; what it
needs follows on a line through two smaller batches (`Smaller`).

Some kernels make results of other sizes than their fake says (oneDNN's recurrent layers keep a workspace). The real size is
then that of the result wherever it goes, so kernels are measured in the order of the run.

One run of each distinct kernel: never slower than a few of the run's own steps, in memory of one kernel."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from stowage import _runtime
from stowage._torch.private import flatten
from stowage.step.record.eager_trace import TensorForm, Trace, TracedOp, forms_in

LARGEST_PROBE_BYTES = 96 << 20
_PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mv", "aten::dot", "aten::linear"}
_PLAIN = {
    "aten::copy_", "aten::clone", "aten::_to_copy", "aten::fill_", "aten::zero_", "aten::detach", "aten::cat", "aten::stack",
    "aten::embedding", "aten::lift_fresh", "aten::_foreach_zero_", "aten::set_",
    "aten::uniform_", "aten::normal_", "aten::random_", "aten::bernoulli_",
}  # fmt: skip
_FULL_PRECISION = (torch.float32, torch.float64)


@dataclasses.dataclass(frozen=True)
class Inside:
    """Bytes of a kernel at its own peak, results included; and of each of its results that is a tensor of its own."""

    bytes: int
    result_bytes: tuple[int, ...]
    results: tuple[TensorForm | None, ...]  # what differs from the fake's


class KernelBytes:
    """Measures kernels; remembers them by their shapes, also from one trace to the next."""

    def __init__(self) -> None:
        self._known: dict[Any, Inside | None] = {}

    def of_trace(self, trace: Trace, smaller: Smaller | None) -> dict[int, int]:
        """Of the ops of the trace that allocate more than their results: bytes at the op's own peak. Results whose size
        turns out to be another get it (Trace.storages).

        smaller: the same run at smaller batches, for kernels that are too large to be run; None: there is none.
        """
        found: dict[int, int] = {}
        real: dict[int, TensorForm] = {}  # by storage: the form of a result that the fake did not tell
        for number, op in enumerate(trace.ops):
            if not _may_allocate(op):
                continue
            takes = _replace(op.takes, real)
            if any(form.shape == (0,) for form in forms_in(takes)):
                continue  # a workspace whose size is not known: the kernel would read beyond it
            if _footprint(takes) > LARGEST_PROBE_BYTES:
                inside = smaller.inside(self, number, op) if smaller is not None else None
            else:
                inside = self.measured(op, takes)
            if inside is None:
                continue
            _settle_results(trace, op, inside, real)
            own = sum(trace.storages[n].bytes for n in op.makes)
            if inside.bytes > own:
                found[number] = inside.bytes
        return found

    def measured(self, op: TracedOp, takes: tuple[Any, ...]) -> Inside | None:
        key = (op.func, op.grad_mode, _anonymous(takes))
        try:
            if key not in self._known:
                self._known[key] = _run(op, takes)
            return self._known[key]
        except TypeError:  # an argument that cannot be compared: this kernel is run each time
            return _run(op, takes)


class Smaller:
    """The same run at smaller batches, powers of two: what a kernel needs is taken to grow on a line. trace_at(size)."""

    def __init__(self, trace_at: Callable[[int], Trace], size: int):
        self._trace_at, self._size = trace_at, size

    def inside(self, kernels: KernelBytes, number: int, op: TracedOp) -> Inside | None:
        """On the line through the largest two sizes whose kernels can be run; None: there are none."""
        high = 1 << max((self._size - 1).bit_length() - 1, 0)
        while high >= 2:
            ops = [self._op(size, number, op) for size in (high // 2, high)]
            if any(o is None for o in ops):
                return None
            if all(_footprint(o.takes) <= LARGEST_PROBE_BYTES for o in ops if o is not None):
                small, large = (kernels.measured(o, o.takes) for o in ops if o is not None)
                return self._on_line(small, large, high)
            high //= 2
        return None

    def _op(self, size: int, number: int, like: TracedOp) -> TracedOp | None:
        ops = self._trace_at(size).ops
        return ops[number] if number < len(ops) and ops[number].func is like.func else None

    def _on_line(self, low: Inside | None, high: Inside | None, size: int) -> Inside | None:
        if low is None or high is None or len(low.result_bytes) != len(high.result_bytes):
            return None

        def at(a: int, b: int) -> int:
            return max(b, b + (b - a) * (self._size - size) // (size - size // 2))

        results = tuple([at(a, b) for a, b in zip(low.result_bytes, high.result_bytes)])
        return Inside(at(low.bytes, high.bytes), results, (None,) * len(results))


def _may_allocate(op: TracedOp) -> bool:
    func, forms = op.func, op.forms()
    name = func._schema.name
    if not name.startswith("aten::") or not forms or name in _PLAIN or func.is_view:
        return False
    results = [form for form in op.made_forms if form is not None]
    if any(form.device != "cpu" for form in [*forms, *results]):
        return False
    types = {form.dtype for form in [*forms, *results] if form.shape}
    if torch.Tag.pointwise in func.tags or name.startswith("aten::_foreach_"):
        return len(types) > 1
    return not (name in _PRODUCTS and types <= set(_FULL_PRECISION) and len(types) == 1)


def _footprint(takes: tuple[Any, ...]) -> int:
    return sum({f.storage: f.storage_bytes for f in forms_in(takes)}.values())


def _anonymous(value: Any) -> Any:
    """Storages numbered by their first use, so that equal calls are equal."""
    numbers: dict[int, int] = {}

    def walk(v: Any) -> Any:
        if isinstance(v, TensorForm):
            return dataclasses.replace(v, storage=numbers.setdefault(v.storage, len(numbers)))
        return (type(v), tuple([walk(e) for e in v])) if isinstance(v, tuple) else (type(v), v)

    return walk(value)


def _replace(value: Any, real: dict[int, TensorForm]) -> Any:
    if isinstance(value, TensorForm):
        return real.get(value.storage, value)
    return tuple([_replace(v, real) for v in value]) if isinstance(value, tuple) else value


def _settle_results(trace: Trace, op: TracedOp, inside: Inside, real: dict[int, TensorForm]) -> None:
    own = [f for f in op.made_forms if f is not None and f.storage in op.makes]
    if len(own) != len(inside.result_bytes):
        return
    for form, bytes_, result in zip(own, inside.result_bytes, inside.results):
        if bytes_ != form.storage_bytes:
            trace.storages[form.storage].bytes = bytes_
            if result is not None:
                real[form.storage] = dataclasses.replace(result, storage=form.storage)


def _run(op: TracedOp, takes: tuple[Any, ...]) -> Inside | None:
    """Runs the kernel. None when it does not go through: what it needs besides its results stays unknown."""
    generator = torch.get_rng_state()
    most_before = _runtime.peak_bytes()
    storages: dict[int, torch.Tensor] = {}
    try:
        with torch.set_grad_enabled(op.grad_mode):  # some keep a workspace for backward
            args, kwargs = _real(takes[0], storages), {k: _real(v, storages) for k, v in takes[1]}
            _runtime.reset_peak()
            before = _runtime.live_bytes()
            result = op.func(*args, **kwargs)
            most = _runtime.peak_bytes() - before
    except Exception:
        return None
    finally:
        _runtime.raise_peak(most_before)
        torch.set_rng_state(generator)
    given = {t.untyped_storage()._cdata for t in storages.values()}
    sizes: dict[int, int] = {}
    forms: list[TensorForm | None] = []
    for leaf in flatten(result)[0]:
        if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided:
            storage = leaf.untyped_storage()
            if storage._cdata not in given and storage._cdata not in sizes:
                sizes[storage._cdata] = storage.nbytes()
                forms.append(
                    TensorForm(tuple(leaf.shape), tuple(leaf.stride()), int(leaf.storage_offset()), leaf.dtype, "cpu", -1, storage.nbytes())
                )  # fmt: skip
    return Inside(most, tuple(sizes.values()), tuple(forms))


def _real(value: Any, storages: dict[int, torch.Tensor]) -> Any:
    if isinstance(value, TensorForm):
        base = storages.get(value.storage)
        if base is None:
            base = storages[value.storage] = torch.zeros(value.storage_bytes, dtype=torch.uint8, device="cpu")
        empty = torch.empty(0, dtype=value.dtype, device="cpu")
        return empty.set_(base.untyped_storage(), value.offset, value.shape, value.stride)
    return [_real(v, storages) for v in value] if isinstance(value, tuple) else value

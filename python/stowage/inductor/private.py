"""All private names of torch.compile that the byte budget uses, in one place; none is touched before
``missing()`` has looked for all of them. tests/python/test_inductor_private.py touches each.

- ``torch._inductor.custom_graph_pass.CustomPartitionerFn``: the base of a partitioner that caches accept.
- ``torch._functorch.partitioners``: ``min_cut_rematerialization_partition``, which partitions and extracts, and asks
  ``choose_saved_values_set`` what is saved; ``has_recomputable_ops``: the user's own tags.
- ``torch._inductor.compile_fx.fx_codegen_and_compile``: lowers one graph; it ends in
  ``GraphLowering.compile_to_module``, where a trial stops: the program is written, nothing of it is compiled.
- ``GraphLowering.codegen``, ``.name_to_buffer``, ``.scheduler.nodes``, ``.graph_outputs``: the program, and of each of
  its buffers the size, the FX node that it is and what the kernel that makes it reads; ``.removed_buffers``,
  ``.removed_operations``, ``.inplaced_to_remove``: emptied before code is generated once more.
- ``CppScheduling.kernel_proxy_cls``, ``CppKernelProxy``, ``CppKernel``, ``CSEProxy``, ``SchedulerNode._body``,
  ``V.local_buffer_context``: C++ kernels whose text no trial needs; where one is missing the text is written.
- ``preserve_rng_state``, ``_disable_current_modes``: a kernel is tried on real tensors within a compilation.
- ``torch.fx.node._side_effectful_functions``: what must not run twice.
- ``torch._guards.TracingContext.fw_metadata.bw_donated_idxs``: which saved tensors backward may write over.
- ``torch._inductor.config._post_fusion_custom_pass``, ``CustomSchedulerPass``, ``Scheduler.topological_sort_schedule``:
  the order of the kernels; from 2.13 on, else Inductor's own. ``memory.reorder_for_peak_memory``, ``.prepare_planning_info``:
  what would choose another one after it; ``memory_plan_reuse``, ``estimate_peak`` of the code's writer: what waits for
  reuse; ``mutation_real_name``, ``get_mutations``: what a kernel changes.
- ``torch._dynamo.exc.ShortenTraceback``: errors of this kind come out of Dynamo as they are.
- ``OptimizedModule.dynamo_ctx`` and ``_torchdynamo_orig_backend``: the options a model was compiled with."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import itertools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from stowage.errors import Infeasible

_NAMES = (
    ("torch._inductor.custom_graph_pass", "CustomPartitionerFn"),
    ("torch._inductor.config", "custom_partitioner_fn"),
    ("torch._inductor.config", "save_config_portable"),
    ("torch._functorch.config", "activation_memory_budget"),
    ("torch._functorch.partitioners", "min_cut_rematerialization_partition"),
    ("torch._functorch.partitioners", "choose_saved_values_set"),
    ("torch._functorch.partitioners", "has_recomputable_ops"),
    ("torch._inductor.compile_fx", "fx_codegen_and_compile"),
    ("torch._inductor.compile_fx", "compile_fx"),
    ("torch._inductor.debug", "DebugContext"),
    ("torch._inductor.graph", "GraphLowering.codegen"),
    ("torch._inductor.graph", "GraphLowering.compile_to_module"),
    ("torch._guards", "TracingContext.try_get"),
    ("torch._dynamo.exc", "ShortenTraceback"),
    ("torch._inductor.utils", "BoxedBool"),
    ("torch._dynamo.utils", "preserve_rng_state"),
    ("torch.utils._python_dispatch", "_disable_current_modes"),
    ("torch.fx.node", "_side_effectful_functions"),
)


@functools.cache
def missing() -> tuple[str, ...]:
    """Names that this version of PyTorch lacks; with any of them, everything is compiled as without us."""
    found = []
    for module, name in _NAMES:
        try:
            value: Any = __import__(module, fromlist=["_"])
            for part in name.split("."):
                value = getattr(value, part)
        except (ImportError, AttributeError):
            found.append(f"{module}.{name}")
    return tuple(found)


def partitioner_base() -> type:
    from torch._inductor.custom_graph_pass import CustomPartitionerFn

    return CustomPartitionerFn


@functools.cache
def _infeasible_class() -> type[Infeasible]:
    from torch._dynamo.exc import ShortenTraceback

    class InfeasibleHere(Infeasible, ShortenTraceback):
        """As stowage.Infeasible; Dynamo lets it through."""

        def __init__(self, message: str, smallest_bytes: int, bound_bytes: int):
            ShortenTraceback.__init__(self, message, first_useful_frame=None)
            self.smallest_bytes = smallest_bytes
            self.bound_bytes = bound_bytes

        def remove_dynamo_frames(self):
            return self

    InfeasibleHere.__name__ = InfeasibleHere.__qualname__ = "Infeasible"
    return InfeasibleHere


def infeasible(message: str, smallest_bytes: int, bound_bytes: int) -> Infeasible:
    return _infeasible_class()(message, smallest_bytes, bound_bytes)


# ---- Partitions


def user_tags(joint: torch.fx.GraphModule) -> bool:
    """The user says what is recomputed: activation checkpointing within the graph, or a budget of a region."""
    from torch._functorch.partitioners import has_recomputable_ops

    if has_recomputable_ops(joint):
        return True
    for node in joint.graph.nodes:
        custom = node.meta.get("custom")
        if isinstance(node.meta.get("memory_budget"), float) or (
            isinstance(custom, dict) and any("memory_budget" in str(key) for key in custom)
        ):
            return True
    return False


def partition(joint: torch.fx.GraphModule, inputs: Any, saved: Sequence[str] | None, **options: Any) -> tuple:
    """(forward, backward): of a copy of the joint graph; saved: names of its nodes, None: as Inductor chooses."""
    import torch._functorch.config as functorch_config
    from torch._functorch import partitioners

    ours = copied(joint)
    if saved is None:
        with functorch_config.patch(activation_memory_budget=1.0):
            return partitioners.min_cut_rematerialization_partition(ours, inputs, **options)

    def choose(graph: torch.fx.Graph, node_info: Any, memory_budget: float = 1) -> list:
        names = {node.name: node for node in graph.nodes}
        chosen = [names[name] for name in saved if name in names]
        return list(dict.fromkeys([*node_info.inputs, *chosen]))

    with _swapped(partitioners, "choose_saved_values_set", choose):
        return partitioners.min_cut_rematerialization_partition(ours, inputs, **options)


def copied(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Its own graph and notes; constants are shared."""
    ours = torch.fx.GraphModule(module, copy.deepcopy(module.graph), type(module).__name__)
    ours.meta = dict(module.meta)
    return ours


def settings() -> str:
    """What a lowering depends on besides its graph."""
    from torch._inductor import config

    return repr(sorted((k, repr(v)) for k, v in config.save_config_portable().items() if k != "custom_partitioner_fn"))


@contextlib.contextmanager
def _swapped(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


# ---- Trial lowering


@dataclasses.dataclass
class Made:
    """What is known of a name of the program."""

    bytes: tuple[int | None, ...]  # of each tensor that the name is bound to; None: no tensor
    single: bool  # one tensor, not a tuple
    node: torch.fx.Node | None  # of the graph that was lowered
    reads: frozenset[str]  # names that the kernel which makes it reads
    inputs: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()  # size and strides of what it is given
    changes: frozenset[str] = frozenset()  # names whose content that kernel changes


@dataclasses.dataclass
class Lowered:
    """A graph as Inductor would run it, with nothing compiled."""

    code: str
    made: dict[str, Made]
    output_strides: list[tuple[int, ...] | None]


class _Stop(BaseException):
    def __init__(self, lowered: list[Lowered]):
        super().__init__()
        self.lowered = lowered


def lower(module: torch.fx.GraphModule, inputs: Sequence[Any], visible: Sequence[int], backward: bool,
          donated: Sequence[int], text: bool = False,
          again: Callable[[Lowered], bool] = lambda lowered: False) -> list[Lowered]:  # fmt: skip
    """The program; and another one where ``again`` says, of the first, that its nodes shall be put in order once more.

    Args:
        visible: outputs whose strides the user sees.
        text: that of C++ kernels is written, too, which takes as long as the rest and changes nothing else.
    """
    if not text and textless_kernels() is not None:
        try:
            with _without_text():
                return _lower(copied(module), inputs, visible, backward, donated, again)
        except Exception:  # a kernel of an unknown kind; Inductor's own way tells whether the graph is the reason
            pass
    return _lower(copied(module), inputs, visible, backward, donated, again)


def _lower(module: torch.fx.GraphModule, inputs: Sequence[Any], visible: Sequence[int], backward: bool,
           donated: Sequence[int], again: Callable[[Lowered], bool]) -> list[Lowered]:  # fmt: skip
    from torch._inductor import compile_fx
    from torch._inductor.debug import DebugContext
    from torch._inductor.graph import GraphLowering
    from torch._inductor.utils import BoxedBool

    def generate(graph: Any) -> Lowered:
        code, _ = graph.codegen()
        return Lowered(getattr(code, "value", code), _made(graph), _strides(graph))

    def stop(graph: Any) -> Any:
        found = [generate(graph)]
        if again(found[0]):
            for known in (graph.removed_buffers, graph.removed_operations, graph.inplaced_to_remove):
                known.clear()  # as GraphLowering.codegen_with_cpp_wrapper does before its second pass
            found.append(generate(graph))
        raise _Stop(found)

    _SEEN.clear()
    output = next(iter(module.graph.find_nodes(op="output")))
    output.meta["user_visible_output_idxs"] = list(visible)
    with (
        _donating(donated if backward else []),
        torch.no_grad(),
        _swapped(GraphLowering, "compile_to_module", stop),
        _quiet_counters(),
        DebugContext(),
    ):
        try:
            compile_fx.fx_codegen_and_compile(
                module, inputs, (), static_input_idxs=tuple(range(len(inputs))) if not backward else (),
                cudagraphs=BoxedBool(False), is_backward=backward, graph_id=None, cpp_wrapper=False, is_inference=False,
            )  # fmt: skip
        except _Stop as stopped:
            return stopped.lowered
    raise RuntimeError("Inductor compiled nothing")


@functools.cache
def textless_kernels() -> type | None:
    """The class that makes of nodes a C++ kernel with the arguments, the in-place updates and the removed buffers of
    Inductor's, and no text. None: this version of PyTorch has other classes."""
    try:
        from torch._inductor.codegen.common import CSEProxy
        from torch._inductor.codegen.cpp import CppKernel, CppKernelProxy, CppScheduling
        from torch._inductor.codegen.cpp_utils import LocalBufferContext
        from torch._inductor.utils import IndentedBuffer, reduction_num_outputs, sympy_index_symbol
        from torch._inductor.virtualized import V

        if CppScheduling.kernel_proxy_cls is not CppKernelProxy:
            return None
    except (ImportError, AttributeError):
        return None

    class Handler(CSEProxy):
        """Which buffers are loaded and stored is all that counts; whatever is computed is one and the same value."""

        kernel: Any

        def _default(self, name: str, args: tuple, kwargs: dict) -> Any:
            if name == "masked":
                with V.kernel.swap_buffers(IndentedBuffer()):
                    args[1]()
            elif name == "load_seed":
                V.kernel.load(args[0], args[1])
            return (self.kernel.value,) * 2 if name == "frexp" else self.kernel.value

        def indirect_indexing(self, *args: Any, **kwargs: Any) -> Any:
            return sympy_index_symbol("tmp0")  # told from indices that are known by its name

        def check_bounds(self, *args: Any, **kwargs: Any) -> None:
            return None

    class Kernel(CppKernel):
        def __enter__(self) -> Any:
            super().__enter__()
            self.value = self.cse.newvar()
            self.exit_stack.enter_context(V.set_ops_handler(Handler(self, self.overrides())))
            return self

        def load(self, name: str, index: Any) -> Any:
            self.args.input(name)
            return self.value

        def store(self, name: str, index: Any, value: Any, mode: Any = None) -> None:
            self.args.output(name)

        def store_reduction(self, name: str, index: Any, value: Any) -> None:
            self.args.output(name)

        def reduction(self, dtype: Any, src_dtype: Any, reduction_type: str, value: Any) -> Any:
            outputs = reduction_num_outputs(reduction_type)
            return self.value if outputs == 1 else (self.value,) * outputs

    class Textless(CppKernelProxy):
        written = True

        def codegen_nodes(self, nodes: list) -> None:
            if isinstance(V.local_buffer_context, LocalBufferContext):  # what of it is fused hangs on its loops
                super().codegen_nodes(nodes)
                return
            self.written = False
            sizes = [node.group[1] for node in nodes]
            group, reduced = max(sizes, key=lambda size: len(size[1]))
            self.set_ranges(group, reduced)
            with self.kernel_group.new_kernel(Kernel) as kernel:
                kernel.set_ranges(group, reduced)
                for node, size in zip(nodes, sizes):
                    node.decide_inplace_update()
                    node.mark_run()
                    whole = size in [(group, reduced), ((*group, *reduced), ())]
                    with contextlib.nullcontext() if whole else kernel.write_to_suffix():
                        run(node, kernel)
            V.graph.removed_buffers |= kernel.removed_buffers
            V.graph.inplaced_to_remove |= kernel.inplaced_to_remove

        def codegen_loops(self, code: Any, worksharing: Any) -> None:
            if self.written:
                super().codegen_loops(code, worksharing)
            else:
                code.writeline(f"// {next(_NUMBERS)}")  # kernels of one text would be one

    def run(node: Any, kernel: Any) -> None:
        body, before = node._body, kernel.current_node
        kernel.current_node, body.indexing = node, body.indexing_exprs
        try:
            body.root_block()
        finally:
            kernel.current_node, body.indexing = before, None

    return Textless


_NUMBERS = itertools.count()


@contextlib.contextmanager
def _without_text() -> Iterator[None]:
    from torch._inductor.codegen.cpp import CppScheduling

    with _swapped(CppScheduling, "kernel_proxy_cls", textless_kernels()):
        yield


@contextlib.contextmanager
def _quiet_counters() -> Iterator[None]:
    """A trial is none of the compilations that users count."""
    from torch._dynamo.utils import counters
    from torch._inductor import metrics

    before = {name: counter.copy() for name, counter in counters.items()}
    kernels = metrics.generated_kernel_count
    try:
        yield
    finally:
        counters.clear()
        counters.update(before)
        metrics.generated_kernel_count = kernels


@contextlib.contextmanager
def _donating(indices: Sequence[int]) -> Iterator[None]:
    import torch._functorch.config as functorch_config
    from torch._guards import TracingContext

    context: Any = TracingContext.try_get()
    if context is None:
        yield
        return
    before = context.fw_metadata
    allowed = getattr(functorch_config, "donated_buffer", True)
    context.fw_metadata = types.SimpleNamespace(
        bw_donated_idxs=list(indices) if allowed else None, static_input_indices=[], num_mutated_inp_runtime_indices=0
    )
    try:
        yield
    finally:
        context.fw_metadata = before


def _made(graph: Any) -> dict[str, Made]:
    reads: dict[str, frozenset[str]] = {}
    changes: dict[str, frozenset[str]] = {}
    true_name = getattr(graph.scheduler, "mutation_real_name", {})
    for node in graph.scheduler.nodes:
        names = frozenset(dependency.name for dependency in node.read_writes.reads)
        changed = frozenset(true_name.get(n, n) for buffer in node.get_outputs() for n in buffer.get_mutations())
        for buffer in node.get_outputs():
            reads[buffer.get_name()] = names
            changes[buffer.get_name()] = changed
    made = {}
    for name, buffer in graph.name_to_buffer.items():
        node = _origin(buffer)
        outputs, inputs = getattr(buffer, "outputs", None), _inputs(buffer)
        try:
            made[name] = Made(
                (_bytes(buffer),), True, node, reads.get(name, frozenset()), inputs, changes.get(name, frozenset())
            )
        except (AttributeError, NotImplementedError, TypeError, AssertionError):
            value = node.meta.get("val") if node is not None else None
            of_node = [_tensor_bytes(v) for v in value] if isinstance(value, (tuple, list)) else None
            parts = of_node if of_node is not None else [_bytes(o) for o in outputs or () if hasattr(o, "get_layout")]
            made[name] = Made(
                tuple(parts), False, node, reads.get(name, frozenset()), inputs, changes.get(name, frozenset())
            )
    return made


def _origin(buffer: Any) -> torch.fx.Node | None:
    try:
        node = buffer.get_origin_node()
    except AttributeError:
        node = None
    if node is not None:
        return node
    overload = getattr(buffer, "op_overload", None)  # of a kernel that returns several tensors
    found = [n for n in getattr(buffer, "origins", ()) if overload is not None and n.target is overload]
    return found[0] if len(found) == 1 else None


def _inputs(buffer: Any) -> tuple:
    """Of a kernel of PyTorch's own: Inductor may hand it other strides than the graph says."""
    found = []
    for given in getattr(buffer, "inputs", None) or ():
        try:
            found.append((tuple(int(n) for n in given.get_size()), tuple(int(n) for n in given.get_stride())))
        except (AttributeError, NotImplementedError, TypeError, AssertionError):
            continue
    return tuple(found)


def _bytes(buffer: Any) -> int:
    layout = buffer.get_layout()
    return storage_bytes([int(s) for s in layout.size], [int(s) for s in layout.stride], layout.dtype)


def _tensor_bytes(value: Any) -> int | None:
    if not isinstance(value, torch.Tensor):
        return None
    return storage_bytes(value.shape, value.stride(), value.dtype)


def storage_bytes(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> int:
    if any(n == 0 for n in size):
        return 0
    return (1 + sum((n - 1) * s for n, s in zip(size, stride))) * dtype.itemsize


def _strides(graph: Any) -> list[tuple[int, ...] | None]:
    found: list[tuple[int, ...] | None] = []
    for out in graph.graph_outputs or ():
        try:
            found.append(tuple(int(s) for s in out.get_stride()))
        except (AttributeError, NotImplementedError, TypeError, AssertionError):
            found.append(None)
    return found


@contextlib.contextmanager
def real_tensors() -> Iterator[None]:
    """Operators run for real while a graph is being compiled; the generators are as before when the block ends."""
    from torch._dynamo.utils import preserve_rng_state
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes(), preserve_rng_state(), torch.no_grad():
        yield


def is_random(target: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


def acts_outside(target: Any) -> bool:
    """A collective, a print, a custom operator that writes to what it is given."""
    if isinstance(target, torch._ops.HigherOrderOperator):
        return True
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return "c10d" in target.namespace or target._schema.is_mutable or target in torch.fx.node._side_effectful_functions


# ---- The order of kernels


@dataclasses.dataclass(frozen=True)
class Wanted:
    """ranks: of each buffer by the order of the kernels that make them; empty: Inductor's order. peak_bytes: no buffer waits
    for reuse where more would live."""

    ranks: dict[str, int]
    peak_bytes: int


_WANTED: dict[tuple, Wanted] = {}  # by the nodes of a scheduler
_SEEN: list[tuple] = []  # the nodes that were ordered last
_MOST_WANTED = 4096


@functools.cache
def order_pass() -> Any:
    """What Inductor calls after it has fused; None where its caches would not accept one (before 2.13)."""
    try:
        from torch._inductor.custom_graph_pass import CustomSchedulerPass
        from torch._inductor.scheduler import Scheduler

        if not hasattr(Scheduler, "topological_sort_schedule"):
            return None
    except ImportError:
        return None

    class StowageOrder(CustomSchedulerPass):
        def uuid(self) -> Any:
            return "stowage"  # the partitioner's, which goes with it, says which

        def __call__(self, nodes: list) -> list:
            return _ordered(nodes)

        def __deepcopy__(self, memo: dict) -> Any:
            return self

        def __reduce__(self) -> tuple:
            return order_pass, ()

    StowageOrder.__qualname__ = "StowageOrder"
    return StowageOrder()


def _ordered(nodes: list) -> list:
    """Inductor would take the best of this order and its own, by its own estimate, which is too high: so it is not asked."""
    from torch._inductor.virtualized import V

    key = tuple((n.get_name(), tuple(sorted(d.name for d in n.read_writes.reads))) for n in nodes)
    _SEEN[:] = [key]
    wanted = _WANTED.get(key)
    if wanted is None:
        return nodes
    _limit_reuse(V.graph.wrapper_code, wanted.peak_bytes)
    if not wanted.ranks:
        return nodes
    ranks = dict(wanted.ranks)
    for node in reversed(nodes):  # what lives within a kernel alone comes with its first reader
        known = [ranks[name] for name in node.get_buffer_names() if name in ranks]
        for name in node.get_buffer_names():
            ranks.setdefault(name, min(known, default=len(wanted.ranks)))
        for read in node.read_writes.reads:
            if read.name not in wanted.ranks:
                readers = [ranks[name] for name in node.get_buffer_names()]
                ranks[read.name] = min([ranks.get(read.name, len(wanted.ranks)), *readers])
    sortable = [
        (min((ranks[name] for name in node.get_buffer_names()), default=0), i, node) for i, node in enumerate(nodes)
    ]
    ordered = V.graph.scheduler.topological_sort_schedule(
        [node for _, _, node in sorted(sortable, key=lambda s: s[:2])]
    )
    _keep(ordered)
    return ordered


def _keep(ordered: list) -> None:
    """Once, of these nodes, the step that looks for an order with a smaller peak leaves the one that it is given."""
    from torch._inductor import memory

    own = getattr(memory.reorder_for_peak_memory, "own", memory.reorder_for_peak_memory)
    names = {node.get_name() for node in ordered}

    def left_alone(nodes: list, *facts: Any, **more: Any) -> list:
        memory.reorder_for_peak_memory = own
        if more or {node.get_name() for node in nodes} != names:  # of another graph: this one's came to an end before
            return own(nodes, *facts, **more)
        memory.prepare_planning_info(nodes, *facts)
        return nodes

    left_alone.own = own  # type: ignore[attr-defined]
    memory.reorder_for_peak_memory = left_alone


def _limit_reuse(wrapper: Any, most_bytes: int) -> None:
    """Of the program that is about to be written."""
    decide = getattr(wrapper, "memory_plan_reuse", None)
    if decide is None:
        return

    def within_limit() -> None:
        estimate: Any = getattr(wrapper, "estimate_peak", None)
        if getattr(estimate, "overall_peak_memory", 0) > most_bytes:
            estimate.overall_peak_memory = most_bytes
        decide()

    wrapper.memory_plan_reuse = within_limit


def can_order() -> bool:
    """The pass is among the options of this compilation."""
    from torch._inductor import config

    return order_pass() is not None and config._post_fusion_custom_pass is order_pass()


def want(wanted: Wanted) -> Any:
    """Of the graph that was lowered last; returns what takes it back. None: it has no order that could be changed."""
    if not _SEEN:
        return None
    key = _SEEN[0]
    while len(_WANTED) >= _MOST_WANTED:
        del _WANTED[next(iter(_WANTED))]
    _WANTED[key] = wanted
    return lambda: _WANTED.pop(key, None)


# ---- The way in


def compile_with(options: dict[str, Any], module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
    from torch._inductor.compile_fx import compile_fx

    return compile_fx(module, inputs, config_patches=options)


def options_of(model: Any) -> Any:
    """The backend, as Dynamo keeps it, that a compiled module or function was compiled with; None: not found."""
    context = getattr(model, "dynamo_ctx", None)
    callback = getattr(context, "callback", None)
    if callback is None:
        callback = getattr(model, "_torchdynamo_orig_callable", None) and _in_closure(model)
    seen = 0
    while callback is not None and seen < 8:
        if hasattr(callback, "compiler_name"):
            return callback
        callback = getattr(callback, "_torchdynamo_orig_backend", None) or getattr(
            callback, "_torchdynamo_orig_callable", None
        )
        seen += 1
    return None


def _in_closure(function: Any) -> Any:
    for cell in getattr(function, "__closure__", None) or ():
        callback = getattr(cell.cell_contents, "callback", None)
        if callback is not None:
            return callback
    return None

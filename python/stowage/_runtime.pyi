from collections.abc import Callable, Sequence
from typing import Self

import stowage._core


def install_allocator() -> None: ...

def take_up(tensor: int) -> None:
    """
    Steps are planned on its device from now on. What is alive there unseen is counted as it is now.
    """

def require_allocator() -> None: ...

def available_bytes(root: str = '/') -> int:
    """Memory that can be had before the kernel must take it from somebody."""

def storages(tensors: Sequence[int]) -> list[int]:
    """
    Of each the address of its storage, 0 where it has none. Python does not come to hold the storages by asking.
    """

def lies_over_foreign(tensor: int) -> bool:
    """Is its memory another library's, such as an array's?"""

def live_bytes(device: str = 'cpu') -> int: ...

def peak_bytes(device: str = 'cpu') -> int: ...

def reset_peak(device: str = 'cpu') -> None: ...

def raise_peak(bytes: int, device: str = 'cpu') -> None: ...

def give_free_pages_back() -> None:
    """
    What the host's allocator keeps of freed memory goes back to the system.
    """

class Arena:
    def __init__(self) -> None: ...

    def fill(self, value: int) -> None: ...

    def reserve(self, bytes: int) -> None: ...

    def release(self) -> None: ...

    def holds(self, address: int) -> bool: ...

    @property
    def results_outlive(self) -> bool:
        """
        A planned step has found results of the one before in it, which somebody still had.
        """

    @property
    def bytes(self) -> int: ...

class Host:
    """Where swapped buffers wait, and the link that leads there."""

    def __init__(self, directory: str = '', limit_bytes: int = 0, gbps: float = 0.0, good_writes: int = -1, good_reads: int = -1) -> None: ...

    @property
    def bytes(self) -> int: ...

    @property
    def home_bytes(self) -> int:
        """Of residents that wait there between their uses."""

    def reserve(self, bytes: int) -> None: ...

    def release(self) -> None: ...

    def part_from_children(self) -> None:
        """
        What is written through the mappings of residents from now on is not seen by children made by fork().
        """

    @property
    def homes_are_a_parent_s(self) -> bool:
        """Residents wait where the process that has forked this one has them."""

    def measure_gbps(self, device: str = 'cpu', room_bytes: int = 67108864) -> float: ...

def at_home(tensor: int) -> bool:
    """Its memory is a region of a host's file, or of what stands for one."""

class KeptContent:
    """Bytes of storages, kept on the host to be put back."""

    def __init__(self, ranges: Sequence[tuple[int, int, int]]) -> None:
        """Tensors, and from which byte of their storages to which."""

    def put_back(self) -> None: ...

def end_copy_thread(after_parts: int, no_more: bool = False) -> int:
    """
    For tests: a copy thread ends once they have moved so many parts (of a MiB) from now; negative: none. Returns what was left.
    """

class GeneratorState:
    """
    Of the default generators, the CPU's and the accelerator's, and of others.
    """

    def __init__(self, others: list = []) -> None: ...

    def put_back(self) -> None: ...

    def __eq__(self, arg: object, /) -> bool: ...

SHELL_TEXT: str = ...

MOST_KERNEL_PARAMETERS: int = 256

def unrecorded(call: Callable) -> object:
    """What call() returns, whose operators no recorder sees."""

def with_step_keys(call: Callable, limited: bool) -> object:
    """
    What call() returns. Tensors have the dispatch keys meanwhile that they have while a step is recorded, within a budget or not.
    """

def keep_attached_key(kept: bool) -> None:
    """
    From true on, until false, the thread's tensors have the dispatch key that a budget watches by.
    """

def pass_unseen(passes: bool) -> None:
    """
    From true on, until false, no recorder of this thread sees its operators.
    """

def add_compiled_kernel(name: str, address: int, parameters: str) -> None:
    """
    Makes a C function that torch.compile has generated known to torch.ops.stowage.compiled_kernel. parameters: 'r' for a tensor that is read, 'w' for one that is written, 'n' for a 64-bit number.
    """

def intercepting() -> bool: ...

def inside_operator() -> bool:
    """Does this thread run the kernel of an operator of a recorded step?"""

def kernel_threads() -> tuple[int, int, bool]:
    """
    (MKL's, OpenMP's, whether they are set) numbers of threads of kernels in the calling thread. Unlike torch.get_num_threads(), asking sets nothing.
    """

def flushes_denormals() -> bool:
    """As torch.set_flush_denormal() has told the calling thread."""

def eager_kernels_come_first() -> bool:
    """
    True where the numbers of threads are not set, until eager_kernels_have_run().
    """

def eager_kernels_have_run() -> None: ...

def tell_cannot_replay(why: str) -> None:
    """
    Where this thread records or matches a step: what that does that no replay can do.
    """

def end_with_spent_graph(tensor: int, name: str) -> None:
    """
    It requires grad from now on, and its graph is one that backward has used up.
    """

class ThreadState:
    """As it is now."""

    def __init__(self) -> None: ...

def uninterrupted(function: object, error: object | None = None, before: ThreadState | None = None) -> None: ...

class Work:
    @property
    def kernels(self) -> int: ...

    @property
    def bytes(self) -> int:
        """Of what they read and write."""

    @property
    def made_bytes(self) -> int:
        """That they allocate."""

    @property
    def lasts(self) -> bool:
        """
        They write what was there before the step, draw, or belong to a backward pass or to an optimizer's step.
        """

class Tape:
    @property
    def refusal(self) -> str: ...

    @property
    def sections(self) -> int: ...

    @property
    def ops(self) -> int: ...

    @property
    def reads(self) -> list[int]:
        """
        The ops that tell numbers which the step makes and its Python asks for.
        """

    @property
    def takes_sparse(self) -> bool:
        """Kernels read sparse tensors, which each call gives them anew."""

    @property
    def foreign(self) -> bool:
        """It has kernels that are not PyTorch's, and may be in Python."""

    @property
    def wall_ns(self) -> int: ...

    @property
    def device(self) -> str:
        """Where its memory is planned: "cpu", ..."""

    def cost_keys(self) -> list[str]:
        """
        What each op's run time depends on; "" for those that are not replayed.
        """

    @property
    def costs_ns(self) -> list[int]: ...

    @costs_ns.setter
    def costs_ns(self, arg: Sequence[int], /) -> None: ...

    @property
    def finds(self) -> bool:
        """Each call comes by other tensors by itself."""

    @property
    def makes_generators(self) -> bool:
        """
        It draws from random generators that it makes, or comes by, or sets them.
        """

    @property
    def outdated(self) -> bool:
        """A later call came by another tensor than one that it holds."""

    def held_storages(self) -> list[tuple[int, int]]:
        """
        (address, bytes) of what it keeps alive: residents of the step, and numbers that its Python made.
        """

    def memory(self, inputs: Sequence[int]) -> list[tuple[int, int, bool, str]]:
        """
        Of a recording that has just been made: (first byte, end, written, name) of what it finds and touches.
        """

    def work_from(self, op: int) -> Work:
        """What its kernels do from this op on."""

    def decided(self, inputs: Sequence[int], other_numbers: bool) -> tuple[str, bool]:
        """
        What the step's Python would decide otherwise for these arguments than the tape has it, "" for nothing; and if the tape may hold what it does all the same. other_numbers: Python is known to give others.
        """

    def same_program(self, other: Tape) -> str:
        """
        Empty when both tapes hold the same ops on the same tensors with the same numbers, else what differs first.
        """

class Recorder:
    def __init__(self, fake: bool, hidden: Sequence[str], distributed: bool = False, around: object | None = None, until: object | None = None, declares_form: object | None = None) -> None:
        """
        around: a list, for a set of the codes that run when an op may raise because of what tensors hold, up to the code ``until``; with None, where it is an operator of others, which may raise anything. declares_form: of an operator's name, if that is not PyTorch's; tells whether it declares what its results look like.
        """

    def declare(self, tensor: int, kind: str, name: str) -> None: ...

    def declare_input(self, tensor: int, kind: str, name: str, input: int, start_bytes: int, end_bytes: int) -> None: ...

    def declare_gradient(self, arg0: int, arg1: int, /) -> None: ...

    def let_go(self) -> list[int]: ...

    def know_generator(self, generator: object, earlier: Sequence[Tape]) -> None:
        """
        One that the step can reach, before it may be drawn from or set. earlier: tapes of the same step.
        """

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...

    def take_back(self) -> bool: ...

    @property
    def kernel_raised(self) -> bool: ...

    def refuse(self, reason: str) -> None: ...

    def reads_on_host(self, tensor: int, what: str) -> None: ...

    @property
    def refusal(self) -> str: ...

    @property
    def ops(self) -> int: ...

    def begin_section(self, arg: Sequence[int], /) -> None: ...

    def end_section(self) -> None: ...

    def slot_of(self, arg: int, /) -> int: ...

    def latest_op(self) -> int: ...

    def array_gone(self, teller: int) -> None: ...

    def made_in_step(self, arg: int, /) -> bool: ...

    def touched_inputs(self) -> list[int]: ...

    def lasts(self, arg: int, /) -> bool: ...

    def touches(self, arg: int, /) -> bool: ...

    def writes(self, arg: int, /) -> bool: ...

    def fills(self, inside: bool) -> None:
        """
        Within a function of PyTorch's that fills tensors on the host, by what it has read there.
        """

    def survivors(self, arg: Sequence[int], /) -> list[str]: ...

    def finish(self, returned: Sequence[int], keep: bool = False, replaced: Sequence[int] = [], dropped: Sequence[int] = [], earlier: Sequence[Tape] = [], returned_numbers: Sequence[int] = [], until_next: Sequence[int] = []) -> Tape:
        """
        replaced: lasting tensors that the step has read, and put others in their places. dropped: positions of inputs that are gone before a planned call runs. earlier: recordings of the same step. returned_numbers: ops that tell a number of which the step makes nothing but what it returns. until_next: positions in returned, of what is gone before any part of the next planned call runs.
        """

class NodeHooks:
    def __init__(self, tensors: Sequence[int]) -> None: ...

    def now(self) -> list[int]:
        """
        What is on the autograd nodes of these tensors, as numbers; empty: nothing.
        """

class Gate:
    """Of a step: one thread at a time is through, as often as it wants."""

    def __init__(self) -> None: ...

class Turn:
    """
    Of a compiled step, in a with block: through its gate, and together with those of other threads, or alone(). Raises stowage.Error where a turn does not come for `longest_s` seconds.
    """

    def __init__(self, gate: Gate | None = None, longest_s: float = 600.0) -> None: ...

    def __enter__(self) -> Turn: ...

    def __exit__(self, kind: object | None, error: object | None, traceback: object | None) -> None: ...

    def alone(self) -> bool:
        """From now on; True where others may have run since the block began."""

    def ends(self, last: object | None) -> None:
        """The block ends with last.end(), whatever interrupts it."""

class Handover:
    def begin(self, executor: Executor) -> None: ...

    def take_results(self, executor: Executor) -> None: ...

class IndexRanges:
    """Indices among the arguments that a kernel of a tape refuses."""

    def __init__(self, arg: Tape, /) -> None: ...

    def refused(self, inputs: Sequence[int]) -> str:
        """
        The op that would raise for these arguments, with its line; "" for none.
        """

    def may_refuse(self, inputs: Sequence[int]) -> bool:
        """As refused(), but whichever part of an argument the step looks at."""

    def foreseen(self) -> list[int]:
        """
        Of the recorder's ``around``, the places of those ops that raise for nothing but what may_refuse() sees.
        """

class Matcher:
    def __init__(self, arg: Tape, /) -> None: ...

    def adopt_shell(self, tensor: int, slot: int) -> None: ...

    def bind(self, inputs: Sequence[int]) -> None: ...

    def section(self, section: int, step: object) -> str:
        """
        Calls step() and matches the section with what it does; the matching ends however the call ends. Returns what differed, or "".
        """

    def begin_step(self, inputs: Sequence[Sequence[int]], others: Sequence[Tape], before_leaving: object | None, copies: bool, executors: Sequence[Executor | None], around: object | None, raised: list, decided: Sequence[bool], kernels: object, on_all_ranks: object | None) -> None:
        """
        executors: of the trusted plans, this tape's first, else None. around(run, may_fail) calls run() where memory is limited: was there room, without any to be made? None: not enough. What these functions raise is appended to `raised`: within an operator it comes out as a RuntimeError. decided: is what each tape's guards ask for as it has it? kernels: noted(run) and back() (ToldKernels). on_all_ranks(under_way): of a step that is split, asked before kernels run for a number: have some run on all ranks?
        """

    def step(self, call: object) -> object:
        """
        After begin_step(): calls call() and matches what it does; returns what it returns. `difference` says how it went.
        """

    def returns(self, tensors: Sequence[int]) -> bool: ...

    @property
    def under_way(self) -> bool: ...

    def start_over(self) -> None: ...

    def run_plainly(self) -> None: ...

    def handover(self) -> Handover: ...

    @property
    def keeps_lost_states(self) -> bool: ...

    def kept_agree(self, executor: Executor) -> bool: ...

    def forget_step(self) -> None: ...

    def leave(self, why: str) -> None: ...

    @property
    def difference(self) -> str: ...

    @property
    def altered(self) -> list[int]: ...

    @property
    def decides_as_before(self) -> bool: ...

    @property
    def told_otherwise(self) -> list[int]:
        """
        Ops that have told Python other numbers, which the step makes, than when it was recorded.
        """

    @property
    def left_by(self) -> tuple[int, str]: ...

    @property
    def plain_runs(self) -> int: ...

    @property
    def read_shell(self) -> bool: ...

    @property
    def chosen(self) -> int: ...

    @property
    def refreshed(self) -> bool: ...

    @property
    def left(self) -> bool: ...

    @property
    def matched(self) -> int: ...

    def repeatable_since(self, matched: int) -> bool: ...

    def is_behind(self, tensor: int) -> bool:
        """
        Would what has been matched so far write it? Its memory does not show that yet.
        """

    def touches(self, tensor: int) -> bool:
        """Would what has been matched so far read it or write it?"""

    def array_made(self, memory: int, tensor: int, is_shell: bool) -> int: ...

    def array_gone(self, number: int) -> None: ...

    def join_arrays(self) -> None: ...

    @property
    def array_stays(self) -> bool: ...

    @property
    def left_in_section(self) -> bool: ...

    @property
    def other_in_step(self) -> bool: ...

    def look_closely(self, on: bool) -> None: ...

    def first_difference(self, executor: Executor, watched: bool = False) -> str: ...

    def watch(self, executor: Executor) -> None:
        """In the next plain run: what the executor's plan replaces."""

    @property
    def tile_error(self) -> tuple[float, float, str, bool]:
        """
        Of the tiles in the latest plain run: the largest difference as a part of the largest number of its result, the largest one in numbers, the op that the first is of, and whether it is larger than roundings make it.
        """

    def remember(self, inputs: Sequence[int]) -> None: ...

    def roll_back(self) -> None: ...

class RowSlicing:
    """
    Which chains of kernels work row by row in slices, and which products over their operand.
    """

    def __init__(self, on: bool = True, slice_bytes: int = 1048576, least_bytes: int = 1048576, wrong: bool = False, product_columns: int = 2048) -> None:
        """
        wrong: for tests, one bit of each result is another one. product_columns: of a slice at least; 0: no products.
        """

class TileOptions:
    """What is done some rows at a time: loss heads, MLP blocks."""

    def __init__(self, loss: bool = False, mlp: bool = False, tile_bytes: int = 16777216, least_bytes: int = 1048576, wrong: bool = False) -> None:
        """wrong: for tests, a number of each result is another one."""

class Lowered:
    @property
    def graph(self) -> stowage._core.Graph: ...

    @property
    def replaced(self) -> int:
        """Chains of kernels that one op stands for."""

    @property
    def products(self) -> int:
        """Products that may take the memory of their operand."""

    @property
    def tiled(self) -> int:
        """Kernels that run on tiles."""

    @property
    def tile_refusal(self) -> str:
        """Why not all is tiled that was to be, where that is asked for."""

    def set_costs_ns(self, costs: Sequence[int]) -> None:
        """Of the graph's ops."""

def lower(tape: Tape, name: str, slicing: RowSlicing, leaving: bool = False, tiles: TileOptions = ..., once: set[str] = ..., in_results: bool = False, stay: bool = False) -> Lowered:
    """
    leaving: residents are marked that may wait on the host. once: kinds of ops that must not be made again. in_results: what the step returns is made in the memory of its result, where that can be. stay: what its next call lets go of unread is not: it stays in the arena.
    """

def in_place_reuse_ops() -> list[str]:
    """Ops whose result may be placed over an input, by overload."""

def row_slice_ops() -> list[str]:
    """Ops that may run on some rows at a time, by overload."""

class RunStats:
    @property
    def misses(self) -> int: ...

    @property
    def skipped(self) -> int: ...

    @property
    def peak_bytes(self) -> int: ...

    @property
    def escaped_blocks(self) -> int: ...

    @property
    def stall_ns(self) -> int: ...

    @property
    def rescued_bytes(self) -> int: ...

    @property
    def wall_ns(self) -> int: ...

class Executor:
    def __init__(self, tape: Tape, lowered: Lowered, plan: stowage._core.Plan, arena: Arena, host: Host) -> None: ...

    def reserve(self) -> None: ...

    def reserve_host(self) -> None: ...

    @property
    def host_bytes(self) -> int: ...

    def op_times(self) -> list[tuple[int, int]]:
        """
        Of the last timed run: (op of the tape, ns), one entry for each time an op ran.
        """

    @property
    def swapped_bytes(self) -> int: ...

    @property
    def chain_surprised(self) -> bool:
        """
        The last rehearsal saw a replacement allocate otherwise than was planned.
        """

    @property
    def runs(self) -> int: ...

    @property
    def half_done(self) -> bool: ...

    def look_closely(self, on: bool, paranoid: bool) -> None: ...

    @property
    def again_otherwise(self) -> str: ...

    @property
    def do_not_repeat(self) -> set[str]:
        """
        Kinds of ops that the last run that was looked at made again, on the same inputs, with other results.
        """

    @property
    def made_again(self) -> set[str]:
        """Kinds of ops that the plan makes again."""

    def inject(self, ops: int, times: int = 1) -> None:
        """For tests: the kernel after so many others raises, so many times."""

    @property
    def injected_in(self) -> int: ...

    def residents_unchanged(self) -> bool: ...

    def lasting(self) -> list[list[int]]:
        """
        Parameters, states and buffers that the step uses: of each, the tensors in its memory that are still there.
        """

    def residents_died(self) -> bool:
        """A parameter, state or buffer that the step uses is nobody's any more."""

    def tenants_unchanged(self, inputs: Sequence[int]) -> bool:
        """Do tensors in the memory of others lie there as before?"""

    def tenants_fit(self) -> None: ...

    def accepts(self, inputs: Sequence[int]) -> bool: ...

    @property
    def learned_something(self) -> bool: ...

    def run(self, inputs: Sequence[int], time_ops: bool = False, writes_counted: bool = False) -> RunStats: ...

    @property
    def wants_graphs(self) -> bool: ...

    def note_graphs(self, inputs: Sequence[int], gradients: Sequence[int]) -> None:
        """
        Before run(), which is to follow: the device notes pieces of the plan. Nothing is changed.
        """

    def try_graphs(self, inputs: Sequence[int]) -> None:
        """
        After run(): the graphs are used from now on, where both have done the same.
        """

    @property
    def graph_ops(self) -> int:
        """Ops of the step that run in graphs."""

    @property
    def graph_refusal(self) -> str: ...

    def tells_as_recorded(self, reads: Sequence[int], inputs: Sequence[int]) -> bool:
        """
        Before run(): the step up to the last of these ops of Tape.reads. False where one tells another number than when it was recorded; then nothing has happened.
        """

    def take_back(self) -> None:
        """
        What tells_as_recorded() has done since the last run: residents and generator are as before it.
        """

    def rehearse(self, inputs: Sequence[int], matcher: Matcher, learn: bool = True) -> tuple[RunStats, StateDigest]: ...

    def state(self, inputs: Sequence[int], matcher: Matcher) -> StateDigest: ...

    def hand_out(self, inputs: Sequence[int], into: Sequence[int]) -> None:
        """What the last run returns: each tensor of `into` becomes one."""

    def number(self, read: int) -> object:
        """Of the last run: what the op, one of Tape.reads, has told."""

    def is_result(self, i: int) -> bool:
        """It lies in the arena: neither a resident nor an input."""

    @property
    def has_staying_results(self) -> bool:
        """Some of what it returns stays in the arena until the next call."""

    def drop_results(self) -> None: ...

    def drop_returned(self) -> None: ...

class StateDigest:
    def __eq__(self, arg: object, /) -> bool: ...

def digest(tensor: int) -> bytes:
    """Of the bytes of a contiguous tensor."""

class Block:
    """
    A with block whose end no interrupt can keep away. Classes that derive have _may_begin(), _begin(), _end(), _ended(error).
    """

    def __init__(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: object | None, error: object | None, traceback: object | None) -> None: ...

class Reader:
    """
    A function: before(that argument, or None) is called first; after() with what that gave, if anything.
    """

    def __init__(self, original: object, before: object, after: object, argument: int = 0) -> None: ...

    def __call__(self, *args, **kwargs) -> object: ...

    def __get__(self, of: object | None, kind: object | None = None) -> object: ...

class Packer:
    """
    A hook of saved tensors: budgets see what it does inside the operator that saves.
    """

    def __init__(self, original: object) -> None: ...

    @property
    def original(self) -> object: ...

    def __call__(self, *args) -> object: ...

class Budget:
    def __init__(self, limit_bytes: int, policy: str, release: str, link_gbps: float, prefetch: bool, poison: bool, replay_generator: bool, host_limit_bytes: int, seed: int, device: str = 'cpu', host: Host | None = None, soft: bool = False) -> None: ...

    def enter(self, limit_bytes: int) -> None: ...

    def adopt(self, arg: int, /) -> None: ...

    def shrink(self) -> None: ...

    def leave(self, may_stay: Sequence[int] = []) -> str: ...

    def begin_update(self, optimizer: int) -> None: ...

    def end_update(self, optimizer: int) -> None: ...

    def attach(self) -> None: ...

    @staticmethod
    def detach() -> None: ...

    @staticmethod
    def expect_thread() -> None:
        """The calling thread is attached when it runs its first operator."""

    def restore(self, tensor: int) -> None: ...

    def hold(self, tensor: int) -> int: ...

    def hold_storage(self, storage: int) -> int: ...

    def release(self, number: int) -> None: ...

    def evict(self, tensor: int, drop: bool) -> str: ...

    def describe(self, arg: int, /) -> str: ...

    @property
    def active(self) -> bool: ...

    def live_on(self) -> None:
        """
        It is never destroyed: what is away when the process ends need not come back.
        """

    def stats(self) -> dict: ...

    def counters(self) -> dict: ...

    def alive(self) -> dict: ...

    def timeline(self) -> list: ...

def of_types(objects: list, types: tuple) -> list:
    """Those whose type is one of them, none that derives from it."""

def thread_attached() -> bool: ...

def budget_active() -> bool: ...

def as_allocated(tensor: int) -> None:
    """
    A storage that PyTorch has read from a file into memory of the CPU's allocator is as one that it has allocated: resizable, until an array is made of it.
    """

def budget_policies() -> list[str]: ...

def hide_lines(hidden: Sequence[str], shown: Sequence[str]) -> None:
    """
    Code below the first folders is no user's, but for what is below the second; the nearest folder counts.
    """

def begin_owners(device: str = 'cpu') -> None:
    """
    From now on blocks of the device are counted by the line that asks for them.
    """

def end_owners() -> None: ...

def forget_owners() -> None: ...

def owners_peak() -> dict:
    """What was live when the most was, by line and phase, the largest first."""

def owners_curve() -> list:
    """(t_ns, live bytes), at most 16,384 of them."""

def owners_updates() -> int:
    """Optimizer steps so far."""

def update_begins(optimizer: int) -> None: ...

def update_ends(optimizer: int) -> None: ...

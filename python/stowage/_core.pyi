from collections.abc import Callable, Sequence
import os


version: str = '0.2.0'

class Error(Exception):
    """
    What stowage cannot do, and why: bad input, a limit, a missing solver. All its errors are of this kind.
    """

class InvalidGraph(Error):
    """
    A graph breaks a rule of its format. The message names the file, the rule and the id.
    """

class InvalidPlan(Error):
    """
    A plan breaks a rule of its format. The message names the file, the rule and the id.
    """

class Graph:
    """A training step as buffers and ops: bytes, costs and dependencies."""

    @staticmethod
    def load(path: str | os.PathLike) -> Graph:
        """Reads a *.graph.json or *.graph.json.gz file."""

    @staticmethod
    def parse(json: str, name: str = 'graph') -> Graph:
        """Reads a graph from the text of its file."""

    def save(self, path: str | os.PathLike) -> None:
        """Writes the graph; compressed when the name ends in .gz."""

    def to_json(self) -> str:
        """The graph as the text of its file."""

    @property
    def name(self) -> str:
        """What the graph was called when it was captured."""

    @property
    def align(self) -> int:
        """Addresses are multiples of so many bytes."""

    @property
    def sha256(self) -> str:
        """Digest of the graph's text."""

    @property
    def structure_sha256(self) -> str:
        """Digest of the graph without its names, notes and costs."""

    @property
    def costs_ns(self) -> list[int]:
        """Nanoseconds of each op, in program order."""

    @property
    def ops(self) -> int:
        """Number of ops."""

    @property
    def buffers(self) -> int:
        """Number of buffers."""

    @property
    def resident_bytes(self) -> int:
        """Bytes of parameters, optimizer state, module buffers and the batch."""

    @property
    def program_step_ns(self) -> int:
        """Sum of what all ops cost, in nanoseconds."""

    @property
    def program_peak_bytes(self) -> int:
        """
        Peak of the non-resident bytes in program order, each buffer freed after its last use.
        """

    def lower_bound_bytes(self) -> int:
        """Proven: no order of the ops has a smaller peak."""

    def __repr__(self) -> str: ...

class Plan:
    """What runs when, and where each buffer lies."""

    @staticmethod
    def load(path: str) -> Plan: ...

    @staticmethod
    def parse(json: str, name: str = 'plan') -> Plan: ...

    def save(self, path: str) -> None: ...

    def to_json(self) -> str: ...

    @property
    def arena_bytes(self) -> int: ...

    @property
    def graph_sha256(self) -> str: ...

    def resident_bytes(self, graph: Graph) -> int:
        """Sum of the bytes of residents that stay on the device."""

    def of_graph(self, graph: Graph) -> Plan:
        """The same plan for a graph that differs in costs and names only."""

    @property
    def steps(self) -> int:
        """Number of steps."""

class Guard:
    def __init__(self) -> None: ...

    @property
    def blind(self) -> list[str]: ...

    @blind.setter
    def blind(self, arg: list[str], /) -> None: ...

    def changed(self) -> str: ...

    def all_changed(self) -> list[str]: ...

    def name(self, dict: dict, key: object | None, quiet: bool, what: str) -> int: ...

    def dict(self, dict: dict, attributes: bool, quiet: bool, what: str) -> int: ...

    def list(self, list: list, what: str) -> int: ...

    def elements(self, container: object | None, what: str) -> int: ...

    def size(self, container: object | None, what: str) -> int: ...

    def cell(self, cell: object | None, what: str) -> int: ...

    def slots(self, object: object | None, slots: Sequence[tuple[object, int]], quiet: bool, what: str) -> int: ...

    def function(self, function: object | None, what: str) -> int: ...

    def of_class(self, object: object | None, what: str) -> int: ...

    def own_dict(self, object: object | None, what: str) -> int: ...

    def bases(self, cls: object | None, what: str) -> int: ...

    def getter(self, object: object | None, name: object | None, quiet: bool, what: str) -> int: ...

    def memory(self, object: object | None, begin: int, end: int, quiet: bool, what: str) -> int: ...

    def buffer(self, object: object | None, what: str) -> int: ...

    def referent(self, reference: object | None, what: str) -> int: ...

    def call(self, callable: object | None, quiet: bool, what: str) -> int: ...

    def finish(self, active: Sequence[int], names: set, whole: Sequence[int]) -> None: ...

    def let_go(self, why: str) -> None: ...

    def forget_changed(self, which: Sequence[int]) -> None: ...

    def __len__(self) -> int: ...

def same_bits(a: object | None, b: object | None) -> bool: ...

def buffer_memory(object: object) -> tuple[int, int]:
    """
    [first byte, end) of what an object with the buffer protocol looks into; (0, 0) for none.
    """

def buffer_digest(object: object) -> tuple[int, int]:
    """Of shape, type and every byte."""

def without_collections(call: Callable) -> object:
    """
    call(), without collections of garbage meanwhile: where it makes many objects, they would look through all that there is, again and again.
    """

def slot_offset(member: object | None) -> int: ...

def python_class(cls: object | None) -> bool: ...

def class_dict(cls: object | None) -> dict: ...

class Notes:
    def __init__(self, ran: object, given: object, matters: object, called: object, returned: object) -> None: ...

    def start(self) -> None: ...

    def stop(self) -> bool: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *args) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    @property
    def calls(self) -> int: ...

class Planned:
    @property
    def plan(self) -> Plan | None: ...

    @property
    def outcome(self) -> str: ...

    @property
    def smallest_bytes(self) -> int: ...

    @property
    def budget_bound_bytes(self) -> int: ...

    @property
    def summary(self) -> dict: ...

def plan(graph: Graph, budget_bytes: int | None = None, keep_order: bool = False, in_place_reuse: bool = True, time_limit: float = 0.0, seed: int = 0, link_gbps: float | None = None, method: str = 'stowage', roam_without: Sequence[str] = [], solver_library: str = '', progress: Callable[[str, float], None] | None = None) -> Planned: ...

def explain(graph: Graph, plan: Plan | None = None, budget_bytes: int | None = None, link_gbps: float | None = None, prices: bool = True, width: int = 100, json: bool = False) -> str: ...

def report(path: str, graph: Graph | None = None, plan: Plan | None = None, budget_bytes: int | None = None, lower_bound_bytes: int | None = None, link_gbps: float | None = None, ledger_json: str = '', timeline_json: str = '') -> None: ...

roam_parts: tuple = ...

def check(arg0: Graph, arg1: Plan, /) -> int: ...

def plan_sharding(program: str, mesh: str, options: str = '{}') -> str:
    """JSON texts in and out: docs/formats.md section 5."""

def plan_pipeline(problem: str) -> str:
    """JSON text in and out: docs/formats.md section 5. The plan is checked."""

def sharding_rules(program: str) -> str:
    """How each op of a program may run on parts, as JSON."""

def parse_bytes(text: str) -> int: ...

def in_words(bytes: int, direction: int = 0) -> str: ...

"""Functions of Python at random: what they do is told by a log, and by what they return or raise.

Statements of all kinds, nested: assignments, loops, blocks, handlers, comprehensions, matches, functions within, deletions,
early ends. Names may be unbound, expressions may raise."""

from __future__ import annotations

import random
import traceback
import types
from collections.abc import Callable
from typing import Any

NAMES = "abcdef"
SIGNATURES = {
    "x, y, *rest, z=3, **kwargs": ((1, 2, 5), {"k": 1}),
    "self, x, y=2, *rest, **kwargs": ((1, 2, 5), {"k": 1}),
    "x, y, /, a=5, *rest, b, **kwargs": ((1, 2), {"b": 2, "k": 1}),
}


class _Source:
    def __init__(self, rng: random.Random):
        self._rng = rng
        self._depth = 0
        self._counters = 0
        self._lines: list[str] = []
        self._indent = 2

    def text(self) -> tuple[str, str]:
        signature = self._rng.choice(list(SIGNATURES))
        self._put("nonlocal free")
        self._put("b = c = d = 1")
        for _ in range(self._rng.randrange(4, 14)):
            self._statement()
        if self._rng.random() < 0.8:
            self._put(f"return {self._expression()}, {self._name()}, kwargs")
        lines = ["def outer():", "    free = 2", f"    def step({signature}):", *self._lines]
        return "\n".join([*lines, "    return step, lambda: free", ""]), signature

    def _name(self) -> str:
        return self._rng.choice(NAMES)

    def _expression(self, depth: int = 0) -> str:
        leaves = [
            self._name,
            lambda: str(self._rng.randrange(5)),
            lambda: self._rng.choice(["x", "y", "free", "GLOBAL"]),
            lambda: f"tell({self._name()})",
            lambda: "len(rest)",
        ]
        if depth >= 2:
            return self._rng.choice(leaves)()

        def inner() -> str:
            return self._expression(depth + 1)

        v, w = self._name(), self._name()
        made = [
            lambda: f"({inner()} + {inner()})",
            lambda: f"({inner()} if {inner()} else {inner()})",
            lambda: f"sum([{v} for {v} in range({self._name()} % 3)])",
            lambda: f"len({{({v}, {w}) for {v} in range(2) for {w} in range(2)}})",
            lambda: f"tell({inner()}, key={inner()})",
            lambda: f"(lambda q, z={self._name()}: q + z)({inner()})",
            lambda: f"(lambda q: q + free)({inner()})",
            lambda: f"sum(q + free for q in range({self._name()} % 3))",
            lambda: f"({self._name()} := {inner()})",
            lambda: f"({inner()} and {inner()})",
            lambda: f"raises({inner()})",
            lambda: f"int(f'{{{self._name()}}}')",
        ]
        return self._rng.choice([*leaves, *made])()

    def _put(self, line: str) -> None:
        self._lines.append("    " * self._indent + line)

    def _block(self, head: str) -> None:
        self._put(head)
        self._indent += 1
        for _ in range(self._rng.randrange(1, 4)):
            self._statement()
        self._indent -= 1

    def _statement(self) -> None:
        self._depth += 1
        plain = [self._assign, self._assign, self._tell, self._share, self._ends]
        nested = [
            self._if,
            self._if,
            self._for,
            self._while,
            self._try,
            self._finally,
            self._with,
            self._match,
            self._def,
        ]
        self._rng.choice(plain if self._depth > 3 else [*plain, *nested])()
        self._depth -= 1

    def _assign(self) -> None:
        kinds = [
            lambda: f"{self._name()} = {self._expression()}",
            lambda: f"{self._name()} += {self._expression()}",
            lambda: f"{self._name()}, {self._name()} = {self._expression()}, {self._expression()}",
            lambda: f"[{self._name()}, *{self._name()}] = [1, 2, 3]",
            lambda: f"x = {self._expression()}",
            lambda: f"{self._name()} = [*range(3)][{self._name()} % 3]",
        ]
        self._put(self._rng.choice(kinds)())

    def _tell(self) -> None:
        self._put(self._rng.choice([f"tell({self._expression()})", f"log.append({self._expression()})"]))

    def _share(self) -> None:
        self._put(self._rng.choice(["free", "kwargs['k']", "STATE['g']"]) + f" = {self._expression()}")

    def _ends(self) -> None:
        ends = [
            f"del {self._name()}",
            "raise ValueError(1)",
            f"return {self._expression()}",
            f"assert {self._expression()}",
        ]
        self._put(self._rng.choice(ends) if self._rng.random() < 0.4 else f"{self._name()} = {self._expression()}")

    def _if(self) -> None:
        self._block(f"if {self._expression()}:")
        if self._rng.random() < 0.5:
            self._block("else:")

    def _for(self) -> None:
        self._block(f"for {self._name()} in range({self._name()} % 3):")

    def _while(self) -> None:
        counter, self._counters = f"i{self._counters}", self._counters + 1
        self._put(f"{counter} = 0")
        self._block(f"while ({counter} := {counter} + 1) < {self._rng.randrange(1, 4)}:")

    def _try(self) -> None:
        self._block("try:")
        self._block(self._rng.choice(["except ValueError:", "except (KeyError, ValueError) as e:"]))
        if self._rng.random() < 0.3:
            self._block("else:")
        if self._rng.random() < 0.3:
            self._block("finally:")

    def _finally(self) -> None:
        self._block("try:")
        self._block("finally:")

    def _with(self) -> None:
        self._block(f"with Block({self._name()}){self._rng.choice(['', ' as ' + self._name()])}:")

    def _match(self) -> None:
        self._put(f"match {self._name()}:")
        self._indent += 1
        self._block(f"case {self._rng.randrange(3)}:")
        self._block(f"case {self._name()}:")
        self._indent -= 1

    def _def(self) -> None:
        self._put(f"def inner(p, q={self._name()}):")
        self._put("    return tell(p + q)")
        self._put(f"{self._name()} = inner({self._expression()})")


class RandomFunction:
    """``source`` is what it was made of."""

    def __init__(self, rng: random.Random):
        self.source, signature = _Source(rng).text()
        self._code = compile(self.source, "<random function>", "exec")
        self._signature = signature

    def outcome(self, call: Callable[[Any, tuple, dict], Any]) -> tuple:
        """Of call(function, args, kwargs) in a world of its own: what it returns or raises, with the lines of the function that
        the error has passed; its log; and what it has left in its variables of outside."""
        log: list[Any] = []

        class Block:
            def __init__(self, value: Any):
                self._value = value

            def __enter__(self) -> int:
                log.append("in")
                return 3

            def __exit__(self, kind: Any, *_: Any) -> bool:
                log.append(("out", kind is None))
                return self._value == 1

        def tell(*given: Any, key: Any = 0) -> Any:
            log.append((given, key))
            return key + 1

        def raises(value: Any) -> Any:
            if value == 2:
                raise ValueError("two")
            return value

        world: dict[str, Any] = {"log": log, "tell": tell, "raises": raises, "Block": Block, "GLOBAL": 4, "STATE": {}}
        exec(self._code, world)
        step, free = world["outer"]()
        args, kwargs = SIGNATURES[self._signature]
        if self._signature.startswith("self"):
            step = types.MethodType(step, 7)
        try:
            end = ("returns", repr(call(step, args, dict(kwargs))))
        except Exception as error:
            passed = traceback.extract_tb(error.__traceback__)
            lines = [frame.lineno for frame in passed if frame.filename == "<random function>"]
            end = ("raises", type(error).__name__, str(error), lines)
        return end, [repr(each) for each in log], repr(free()), repr(world["STATE"])


__all__ = ["RandomFunction"]

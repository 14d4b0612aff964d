"""May forward and backward run just before optimizer.step(), where a framework hands them to it as a closure?

    loss = None
    if closure is not None:
        with torch.enable_grad():
            loss = closure()
    ...                               neither closure nor loss is read here
    return loss

An optimizer whose step() is written so does the same either way. All of torch.optim are but LBFGS, which calls the
closure again and again. What is written otherwise is refused, though it may do the same."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable

import torch


def why_not_after_closure(optimizer: torch.optim.Optimizer) -> str:
    """Why optimizer.step() after closure() may be another thing than optimizer.step(closure), or ""."""
    name = type(optimizer).__name__
    if optimizer._optimizer_step_pre_hooks:
        return f"{name} has a hook that is to run before the closure of its step()"
    step = inspect.unwrap(type(optimizer).step)
    if not closure_comes_first(step):
        return f"{name}.step() does more with its closure than to call it first, once"
    return ""


def closure_comes_first(step: Callable) -> bool:
    """Does the function begin by calling its closure, if there is one, and only return what that gave?"""
    try:
        function = ast.parse(textwrap.dedent(inspect.getsource(step))).body[0]
    except (OSError, TypeError, SyntaxError):
        return False
    if not isinstance(function, ast.FunctionDef):
        return False
    arguments = [a.arg for a in function.args.args + function.args.kwonlyargs]
    if "closure" not in arguments:
        return (
            "closure" not in {n.id for n in ast.walk(function) if isinstance(n, ast.Name)} and not function.args.kwarg
        )
    for at, statement in enumerate(function.body):
        if _is_call_of_closure(statement):
            result = _result_of(statement)
            rest = [*function.body[:at], *function.body[at + 1 :]]
            return not any(_uses(s, "closure") or (result and _reads(s, result)) for s in rest)
        if not _is_harmless(statement):
            return False
    return not _uses(function, "closure")  # never called


def _is_call_of_closure(statement: ast.stmt) -> bool:
    """`if closure is not None: [with torch.enable_grad():] [loss =] closure()`"""
    if not (isinstance(statement, ast.If) and not statement.orelse and len(statement.body) == 1):
        return False
    if ast.unparse(statement.test) not in ("closure is not None", "closure"):
        return False
    inner = statement.body[0]
    if isinstance(inner, ast.With) and len(inner.body) == 1 and ast.unparse(inner.items[0]) == "torch.enable_grad()":
        inner = inner.body[0]
    return isinstance(inner, (ast.Assign, ast.Expr)) and ast.unparse(inner.value) in ("closure()", "float(closure())")


def _result_of(statement: ast.stmt) -> str:
    assigned = next((n for n in ast.walk(statement) if isinstance(n, ast.Assign)), None)
    return ast.unparse(assigned.targets[0]) if assigned is not None else ""


def _is_harmless(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return True
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return isinstance(statement.value, ast.Constant)
    return re.fullmatch(r"self\._\w+_capture_health_check\(\)", ast.unparse(statement)) is not None


def _uses(tree: ast.AST, name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(tree))


def _reads(statement: ast.stmt, name: str) -> bool:
    """But for `return name`."""
    if isinstance(statement, ast.Return) and isinstance(statement.value, ast.Name):
        return False
    return any(
        isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)
        for n in ast.walk(statement)
        if not isinstance(n, ast.Return)
    )


__all__ = ["closure_comes_first", "why_not_after_closure"]

"""Numbers that a step makes and only returns: planned calls give their own without running its Python. Where Python makes
anything else of one, it runs."""

import contextlib
import linecache
import random
import sys
import types

import pytest
import torch
from torch import nn

import stowage

CALLS = 20
# Where handlers of errors are not followed
_BLOCKS = (
    {"before the update", "within a block", "behind handlers", "decorated"} if sys.version_info < (3, 11) else set()
)
LARGE = range(13, 17)  # calls of which the batch is larger than any before: what nobody has recorded


def made(source):
    """The step of this text, and what it uses."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    held = types.SimpleNamespace(log=[], last=None, best=0.0, trainer=None)
    names = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), 0.01),
        "held": held,
        "torch": torch,
        "nn": nn,
        "contextlib": contextlib,
    }
    file = f"<step {abs(hash(source))}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    exec(compile(source, file, "exec"), names)
    return names["step"], names


def run(source, compiled, **options):
    step, names = made(source)
    step = stowage.compile(step, **options) if compiled else step
    seen = []
    for call in range(CALLS):
        torch.manual_seed(call)
        x = torch.randn(4, 3) * (40 if call in LARGE else 1)
        seen.append((plain(step(x)), list(names["held"].log), names["held"].last))
    seen.append([p.tolist() for p in names["model"].parameters()])
    return seen, step


def plain(value):
    if isinstance(value, torch.Tensor):
        return "tensor", value.tolist()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [plain(item) for item in value]
    return type(value), value


TRAIN = """
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

WITHOUT_PYTHON = {
    "item": "def step(x):" + TRAIN + "    return loss.item()",
    "float": "def step(x):" + TRAIN + "    return float(loss)",
    "of a count": "def step(x):" + TRAIN + "    return (model(x) > 0).sum().item()",
    "int of a count": "def step(x):" + TRAIN + "    return int((model(x) > 0).sum())",
    "bool": "def step(x):" + TRAIN + "    return bool((model(x) > 2).any())",
    "beside tensors": "def step(x):" + TRAIN + "    return loss.detach(), loss.item(), (model(x) > 0).sum().item()",
    "dict": "def step(x):" + TRAIN + "    return {'loss': loss.item(), 'right': int((model(x) > 0).sum()), 'n': 4}",
    "nested": "def step(x):" + TRAIN + "    return {'a': [loss.item(), (1, loss.detach())], 'b': 2}",
    "before the update": """
def step(x):
    loss = model(x).square().mean()
    value = loss.item()
    optimizer.zero_grad()
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p.grad.clamp_(-1, 1)
    optimizer.step()
    return value
""",
    "unpacked": "def step(x):" + TRAIN + "    both = loss.item(), loss.detach()\n    a, b = both\n    return b, a",
    "indexed": "def step(x):" + TRAIN + "    both = {'a': loss.item(), 'b': 1}\n    return both['a'], both['b']",
    "twice": "def step(x):" + TRAIN + "    n = loss.item()\n    return n, n",
    "dropped": "def step(x):" + TRAIN + "    loss.item()\n    return loss.detach()",
    "within a block": """
def step(x):
    with torch.no_grad():
        return model(x).square().mean().item()
""",
    "of a function": "def inner(x):" + TRAIN + "    return loss.item()\ndef step(x):\n    return {'loss': inner(x)}",
    "decorated": "@torch.enable_grad()\ndef step(x):" + TRAIN + "    return loss.item()",
    "method": """
class Trainer:
    def step(self, x):
        loss, right = self.both(x)
        return loss, right
    def both(self, x):
"""
    + TRAIN.replace("\n    ", "\n        ")
    + "        return loss.item(), int((model(x) > 0).sum())\nstep = Trainer().step",
    "overwritten since": """
def step(x):
    y = model(x).detach()
    total = y.square().sum()
    before = total.item()
    total.add_(1)
    return before, total.item()
""",
    "behind handlers": """
def step(x):
    loss = model(x).square().mean()
    n = loss.item()
    try:
        factor = held.nothing
    except AttributeError:
        factor = 2.0
    with contextlib.suppress(KeyError):
        {}['none']
    (loss * factor).backward()
    optimizer.step()
    optimizer.zero_grad()
    return n, factor
""",
    "an optional number": """
def step(x):"""
    + TRAIN
    + """
    n, norm = loss.item(), model.weight.norm().item()
    if held.best:
        return {'loss': n, 'norm': norm}
    return {'loss': n}
""",
    "another form": """
def step(x):
    n, k = model(x).square().mean().item(), model(x).sum().item()
    if held.best:
        return {'a': [n, k]}
    if held.log:
        return [n]
    return (n, (k,))
""",
    "either way": """
def step(x):
    loss = model(x).square().mean()
    value = loss.item()
    if held.best:
        return value
    loss.backward()
    return value
""",
}

WITH_PYTHON = {
    "compared": "def step(x):" + TRAIN + "    n = loss.item()\n    if n > 9: held.log.append('large')\n    return n",
    "compared where it is returned": "def step(x):" + TRAIN + "    n = loss.item()\n    return n if n < 9 else -1.0",
    "rounded": "def step(x):" + TRAIN + "    return round(loss.item(), 3)",
    "summed": "def step(x):" + TRAIN + "    return loss.item() + 1",
    "kept": "def step(x):" + TRAIN + "    held.last = loss.item()\n    return held.last",
    "largest": "def step(x):" + TRAIN + "    return max(loss.item(), 9.0)",
    "largest of two": "def step(x):" + TRAIN + "    return max(map(torch.Tensor.item, [loss, model(x).sum()]))",
    "sorted": "def step(x):" + TRAIN + "    return sorted([loss.item(), 9.0])[0]",
    "text": "def step(x):" + TRAIN + "    return f'{loss.item():.3f}'",
    "closure": """
def step(x):
    n = model(x).square().mean().item()
    def large():
        return n > 9
    if large(): held.log.append('large')
    return n
""",
    "names of variables": """
def step(x):
    n = model(x).square().mean().item()
    if locals()['n'] > 9: held.log.append('large')
    return n
""",
    "an index": "def step(x):" + TRAIN + "    return ('few', 'many')[int((model(x) > 9).any())]",
    "from the end": """
def step(x):
    both = 1, model(x).square().mean().item()
    if both[-1] > 9: held.log.append('large')
    return both[1]
""",
    "logged by a function": """
def logged(n):
    if n > 9: held.log.append('large')
    return n
def step(x):
    return logged(model(x).square().mean().item())
""",
    "best so far": """
def step(x):
    n = model(x).square().mean().item()
    held.best = max(held.best, n)
    return n
""",
    "in a loop": """
def step(x):
    for part in x.chunk(2):
        n = model(part).square().mean().item()
        if n > 9:
            held.log.append('large')
            break
    return n
""",
    "converted": "def step(x):" + TRAIN + "    return int(loss)",
    "in a handler of what always comes": """
def step(x):
    n = model(x).square().mean().item()
    try:
        return {}['none']
    except KeyError:
        if n > 9: held.log.append('large')
    return n
""",
    "decides in a handler": """
def step(x):
    loss = model(x).square().mean()
    n = loss.item()
    try:
        factor = held.nothing
    except AttributeError:
        factor = 2.0 if n > 9 else 0.5
    (loss * factor).backward()
    optimizer.step()
    optimizer.zero_grad()
    return n
""",
    "behind a block that ends an error": """
def step(x):
    n = model(x).square().mean().item()
    with contextlib.suppress(KeyError):
        {}['none']
        return n
    if n > 9: held.log.append('large')
    return n
""",
    "at last": """
def step(x):
    n = model(x).square().mean().item()
    try:
        return n
    finally:
        if n > 9: held.log.append('large')
""",
    "in a handler": """
def step(x):
    n = model(x).square().mean().item()
    try:
        if n > 9: raise KeyError('large')
    except KeyError:
        held.log.append('large')
    return n
""",
}


@pytest.mark.parametrize("check", ["never", "auto"])
@pytest.mark.parametrize("name", [*WITHOUT_PYTHON, *WITH_PYTHON])
def test_as_eager(name, check):
    source = (WITHOUT_PYTHON | WITH_PYTHON)[name]
    expected, _ = run(source, compiled=False)
    got, step = run(source, compiled=True, check=check)
    for call, (a, b) in enumerate(zip(expected, got, strict=True)):
        assert a == b, (call, a, b)
    assert step.stats()["planned_steps"] >= 5
    if check == "never":
        free = step.stats()["checked_steps"] <= 2 and step._cutting.halves is None
        assert free == (name in WITHOUT_PYTHON and name not in _BLOCKS)


# ---- Generated steps

ASKED = {
    "{t}.item()": "square().mean()",
    "float({t})": "abs().max()",
    "({t} > 0).sum().item()": "detach()",
    "bool(({t} > 30).any())": "detach()",
}


SHAPES = ("{0}", "[{0}]", "({0},)", "{{'a': ({0},), 'b': 1}}", "(1, [{0}])", "{{0: [{0}]}}", "{{'b': {{'c': ({0},)}}}}")


def generated(rng):
    """A step that asks for numbers, hands them about in ways that look at them or do not, and returns what it has."""
    lines, values = ["y = model(x)"], ["y.detach()"]
    for i in range(rng.randrange(1, 4)):
        asked = rng.choice(list(ASKED))
        lines += [f"t{i} = y.{ASKED[asked]}", f"n{i} = {asked.format(t=f't{i}')}"]
        name = f"n{i}"
        for j in range(rng.randrange(3)):
            kind = rng.randrange(15)
            other = f"m{i}_{j}"
            if kind == 0:
                lines.append(f"{other} = {name}")
            elif kind == 1:
                lines += [f"pair = {name}, {j}", f"{other}, k = pair"]
            elif kind == 2:
                lines += [f"pair = {{'v': {name}, 'k': {j}}}", f"{other} = pair['v']"]
            elif kind == 3:
                lines += [f"{other} = {name}", f"if {other} > 30: held.log.append({j})"]
            elif kind == 4:
                lines += [f"{other} = [{j}, {name}][{rng.choice([1, -1])}]"]
            elif kind == 5:
                lines += [f"if held.best: {other} = {name}", f"else: {other} = {name}"]
            elif kind == 6:
                lines += [f"{other} = {name} if {rng.choice(['held.best', name])} else {name}"]
            elif kind == 7:
                lines += ["for _ in range(2):", f"    {other} = {name}"]
            elif kind == 8:
                lines += ["with torch.no_grad():", f"    {other} = {name}", f"    {other} = {other}"]
            elif kind == 9:
                lines += ["try:", f"    {other} = {name}", f"    {{}}[{j}]", "except KeyError:"]
                lines += [rng.choice(["    pass", f"    if {name} > 30: held.log.append({j})", f"    {other} = {j}.5"])]
            elif kind == 10:
                lines += [
                    "with contextlib.suppress(KeyError):",
                    f"    {other} = {name}",
                    f"    {{}}[{j}]",
                    f"    {other} = 1",
                ]
                lines += rng.choice([[], [f"if {other} > 30: held.log.append({j})"]])
            elif kind == 11:
                lines += ["try:", f"    {other} = {name}", "finally:"]
                lines += [rng.choice(["    held.last = 1", f"    if {name} > 30: held.log.append({j})"])]
            elif kind == 14:  # handlers of errors that are raised in handlers
                raises = rng.choice(["try: raise", "try: {}[0]", "try: raise ValueError"])
                lines += ["try:", f"    {other} = {name}", f"    {{}}[{j}]", "except KeyError:", f"    {raises}"]
                lines += [rng.choice(["    except Exception:", "    except (KeyError, ValueError):"])]
                lines += [rng.choice(["        pass", f"        if {name} > 30: held.log.append({j})"])]
            elif kind == 12:
                lines += [f"def f{i}(n): return n", f"{other} = f{i}({name})"]
            else:
                lines += ["for k in range(3):", f"    {other} = {name}"]
                lines += [
                    rng.choice(
                        ["    if k == 1: break", "    continue", f"    if k == 2 and {other} > 30: held.log.append(k)"]
                    )
                ]
            name = other
        values.append(name)
    rng.shuffle(values)
    for others in range(rng.randrange(3)):  # returns of other forms, which this call does not come to, or does
        some = rng.sample(values, rng.randrange(1, len(values) + 1))
        condition = rng.choice(["held.best", "held.log", "not held.best", f"len(held.log) > {others}"])
        lines += [f"if {condition}: return " + rng.choice(SHAPES).format(", ".join(some))]
    shape = rng.choice(SHAPES)
    lines.append("return " + (shape if len(values) > 1 else "{0}").format(", ".join(values)))
    return "def step(x):\n" + "".join(f"    {line}\n" for line in lines)


@pytest.mark.parametrize("seed", range(60))
def test_generated(seed):
    source = generated(random.Random(seed))
    expected, _ = run(source, compiled=False)
    got, step = run(source, compiled=True, check="never")
    for call, (a, b) in enumerate(zip(expected, got, strict=True)):
        assert a == b, (seed, source, call, a, b)
    assert step.stats()["planned_steps"] >= 3, source


def test_one_number_in_two_places():
    step = made(WITHOUT_PYTHON["twice"])[0]
    step = stowage.compile(step, check="never")
    for _ in range(8):
        first, second = step(torch.ones(4, 3))
        assert first is second
    assert step.stats()["checked_steps"] <= 2


def test_some_generated_ones_need_no_python():
    steps = [run(generated(random.Random(seed)), compiled=True, check="never")[1] for seed in range(12)]
    without = [step.stats()["checked_steps"] <= 2 for step in steps]
    assert any(without) and not all(without)

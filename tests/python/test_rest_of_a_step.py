"""Python behind the last of a step's work runs by itself, in every call: the plan needs no Python for what it logs, counts, keeps
or returns. All numbers, logs and errors are eager's."""

import dis
import random
import sys
import threading
import types

import pytest
import torch
from torch import nn

import stowage

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="functions stay whole")

CALLS = 14
TRAINS = """
    out = model(x)
    loss = nn.functional.cross_entropy(out, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
# What comes then, in a step that would else need its Python in every call
RESTS = {
    "a log": "held.log.append(loss.item())",
    "a sum": "held.total += loss.item() * len(x)",
    "a variable of outside": "nonlocal seen; seen += 1; held.log.append((seen, float(loss)))",
    "a mean": "held.total = 0.9 * held.total + 0.1 * loss.item(); return {'mean': held.total, 'loss': loss.detach()}",
    "now and then": "held.n += 1\n    if held.n % 3 == 0: held.log.append(f'{loss.item():.3f}')",
    "an accuracy": "held.log.append((out.argmax(1) == y).float().mean().item())",
    "an accuracy, by rows": "held.log.extend((out.argmax(1) == y).tolist())",
    "a tensor that it keeps": "held.log.append(loss.detach()); held.log = held.log[-3:]",
    "a graph that it keeps": "held.log = [loss]",
    "an object": "return types.SimpleNamespace(loss=loss.detach(), right=int((out.argmax(1) == y).sum()))",
    "several views": "return out.detach(), out.detach().t(), loss.detach()",
    "in a function": "note(held, loss)",
    "decided": "return 'bad' if not torch.isfinite(loss) else 'good' if loss.item() < 1.5 else 'fair'",
    "ends early": "held.n += 1\n    if held.n % 2: return None\n    return loss.item()",
    "an error now and then": "held.n += 1\n    if held.n % 4 == 0: raise KeyError(loss.item())\n    return held.n",
    "an error that it handles": "try:\n        held.nothing\n    except AttributeError:\n        held.log.append(loss.item())",
    "a block": "with held.block:\n        held.log.append(loss.item())",
    "a loop": "for value in (loss, loss * 2):\n        held.log.append(value.item())",
    "a learning rate": "for group in opt.param_groups: group['lr'] = 0.1 / (1 + loss.item())",
    "gradients": "held.log.append([round(p.grad.norm().item(), 6) for p in model.parameters()])",
    "weights": "held.log.append([p.detach().clone() for p in model.parameters()])",
    "a switch": "held.scale = 1.0 + held.n % 2; held.n += 1",
    "unbound": "del out\n    held.log.append(loss.item())",
    "arguments": "held.log.append((x, y is held.y, loss.item()))",
    "the clock": "held.times.append(time.perf_counter()); held.log.append(loss.item())",
    "a buffer, and a log": "model.seen.add_(1); held.log.append(loss.item())",
    "trains again, and a log": "opt.zero_grad(); model(x).sum().backward(); opt.step(); return model(x).sum().item() > 0 and held.n",
    "drawn": "held.log.append((random.random(), loss.item()))",
}
# Whose Python has to run in every call all the same: what is behind their work is not the reason, or works itself
WHOLE = {
    "draws": "held.log.append(torch.rand(2).sum().item())",
    "writes to a buffer": "held.log.append(loss.item()); model.seen.add_(1)",
    "trains again": "held.log.append(loss.item()); opt.zero_grad(); model(x).sum().backward(); opt.step()",
    "a large part": "held.log.append(sum(model(x).square().sum().item() for _ in range(9)))",
}
# Before the work is done
INSIDE = {
    "decides": "    if model(x).sum().item() > 3: x = x * 2\n" + TRAINS,
    "counts": "    held.n += 1\n    x = x * held.n\n" + TRAINS,
    "in a block": "    with held.block:\n" + TRAINS.replace("\n", "\n    ") + "    held.log.append(loss.item())",
    "in a loop": "    i = 0\n    while i < 2:\n"
    + TRAINS.replace("\n", "\n    ")
    + "    held.log.append(loss.item())\n        i += 1\n",
    "in its middle": TRAINS.replace("    opt.step()", "    held.log.append(loss.item())\n    opt.step()"),
}


class Block:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


class Model(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
        self.register_buffer("seen", torch.zeros(1))


def note(held, value):
    held.log.append(value.item())


def sources():
    for name, rest in {**RESTS, **WHOLE}.items():
        yield name, TRAINS + "    " + rest + "\n"
    yield from INSIDE.items()


def made(source, as_method=False):
    torch.manual_seed(0)
    random.seed(0)
    model = Model()
    held = types.SimpleNamespace(log=[], total=0.0, n=0, scale=1.0, block=Block(), times=[], y=None)
    opt = torch.optim.AdamW(model.parameters(), lr=0.05)
    first = "self, x, y" if as_method else "x, y"
    text = f"def outer():\n  seen = 0\n  def step({first}):\n{source.replace('x = x * held.n', 'x = x * held.scale')}\n  return step\n"
    import time

    world = {"torch": torch, "nn": nn, "model": model, "opt": opt, "held": held, "note": note, "types": types}
    world |= {"random": random, "time": time}
    exec(compile(text, "<step>", "exec"), world)
    step = world["outer"]()
    return types.MethodType(step, held) if as_method else step, model, opt, held


def told(value):
    """To compare: tensors by their bits."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.detach().double().tolist(), value.requires_grad
    if isinstance(value, types.SimpleNamespace):
        return told(vars(value))
    if isinstance(value, dict):
        return {key: told(inner) for key, inner in value.items()}
    return type(value)(told(v) for v in value) if isinstance(value, (list, tuple)) else value


def run(source, compiled, as_method=False, **options):
    step, model, opt, held = made(source, as_method)
    step = stowage.compile(step, **options) if compiled else step
    generator = torch.Generator().manual_seed(1)
    seen = []
    for _ in range(CALLS):
        x, held.y = torch.randn(8, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator)
        try:
            end = told(step(x, held.y))
        except KeyError as error:
            end = ("raises", str(error))
        seen.append(
            (end, told(held.log), held.total, held.n, told(list(model.parameters())), told(opt.state_dict()["state"]))
        )
        seen[-1] += (told([p.grad for p in model.parameters()]), len(held.times), opt.param_groups[0]["lr"])
    return seen, step


SOURCES = dict(sources())


@pytest.mark.parametrize("check", ["auto", "never", "always", 3])
@pytest.mark.parametrize("name", SOURCES)
def test_as_eager(name, check):
    expected, _ = run(SOURCES[name], compiled=False)
    got, step = run(SOURCES[name], compiled=True, check=check)
    for call, (a, b) in enumerate(zip(expected, got, strict=True)):
        assert a == b, (call, a, b)
    assert step.stats()["planned_steps"] >= CALLS // 3, step.refusal
    if check == "never":  # a plan that is trusted needs no Python
        assert (step.stats()["checked_steps"] <= 3) == (name in RESTS), step.stats()
    assert (step._cutting.halves is not None) == (name in RESTS and check != "always")


@pytest.mark.parametrize("name", [*RESTS, *INSIDE])
def test_within_a_budget(name):
    expected, _ = run(SOURCES[name], compiled=False)
    got, step = run(SOURCES[name], compiled=True, budget=1 << 20)
    assert expected == got
    assert step.stats()["planned_steps"] >= CALLS // 3, step.refusal


@pytest.mark.parametrize("name", ["a log", "a mean", "an object", "now and then", "an error now and then"])
def test_methods(name):
    expected, _ = run(SOURCES[name], compiled=False, as_method=True)
    got, step = run(SOURCES[name], compiled=True, as_method=True)
    assert expected == got
    assert step._cutting.halves is not None


def test_errors_name_its_lines():
    import traceback

    step, *_ = made(TRAINS + "    held.n += 1\n    held.log.append(loss.item())\n    if held.n > 9: held.nothing()\n")
    step = stowage.compile(step)
    for _ in range(9):
        step(torch.randn(8, 6), torch.randint(0, 3, (8,)))
    assert step._cutting.halves is not None
    with pytest.raises(AttributeError, match="nothing") as caught:
        step(torch.randn(8, 6), torch.randint(0, 3, (8,)))
    last = traceback.extract_tb(caught.tb)[-1]
    assert (last.filename, last.name, last.lineno) == ("<step>", "step", 12)


def test_wrong_arguments():
    step, *_ = made(SOURCES["a log"])
    compiled = stowage.compile(step)
    for _ in range(8):
        compiled(torch.randn(8, 6), torch.randint(0, 3, (8,)))
    for args, kwargs in (((1,), {}), ((1, 2, 3), {}), ((1,), {"z": 2})):
        with pytest.raises(TypeError) as expected:
            step(*args, **kwargs)
        with pytest.raises(TypeError) as got:
            compiled(*args, **kwargs)
        assert str(got.value) == str(expected.value)


def test_new_code():
    """The user's function is given other code, as reloaders do."""
    step, model, _, held = made(SOURCES["a variable of outside"])
    compiled = stowage.compile(step)
    x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))
    for _ in range(8):
        compiled(x, y)
    assert compiled._cutting.halves is not None
    other, *_ = made(TRAINS + "    held.log.append('new')\n    return seen\n")
    step.__code__ = other.__code__
    before = [p.detach().clone() for p in model.parameters()]
    for _ in range(4):
        assert compiled(x, y) == 8
    assert held.log[-4:] == ["new"] * 4 and held.log[-5] != "new"
    assert not any(torch.equal(p, was) for p, was in zip(model.parameters(), before))


def test_way_that_comes_later():
    """What the recorded call had no need of."""
    source = (
        TRAINS
        + "    held.n += 1\n    if held.n == 9: held.log.append(model(x * 3).sum().item())\n    held.total += loss.item()\n"
    )
    expected, _ = run(source, compiled=False)
    got, step = run(source, compiled=True)
    assert expected == got and step._cutting.halves is not None


def test_a_step_that_draws_first_is_not_tried():
    """Its Python has to run whatever comes behind its work: no recording is spent on that."""
    draws = "    x = x * random.random()\n"
    rests = [TRAINS + "    held.log.append(loss.item())\n", draws + TRAINS + "    held.log.append(loss.item())\n"]
    eager = [run(source, compiled=True)[1].stats()["eager_steps"] for source in rests]
    assert eager[0] == eager[1] + 1


def test_accumulation_stays_in_the_plan():
    """The optimizer's step, which a call in four reaches, is never behind the cut."""
    source = (
        "    out = model(x)\n    loss = nn.functional.cross_entropy(out, y)\n    loss.backward()\n    held.n += 1\n"
        "    if held.n % 4 == 0:\n        opt.step()\n        opt.zero_grad()\n    held.log.append(loss.item())\n"
    )
    expected, _ = run(source, compiled=False)
    got, step = run(source, compiled=True)
    assert expected == got
    halves = step._cutting.halves
    assert halves is None or "zero_grad" in {i.argval for i in dis.get_instructions(halves.first)}


@pytest.mark.parametrize("told", [lambda out: out.argmax(1).float().mean().item(), lambda out: out.shape[0]])
def test_large_results_stay_inside(told):
    """What the rest would be given counts: a tensor that a plan would have let go of is not kept for a log."""
    model, log = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4000)), []
    opt = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x):
        out = model(x)
        loss = out.square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        log.append((told(out), loss.item()))

    compiled = stowage.compile(step)
    for _ in range(8):
        compiled(torch.randn(256, 8))
    assert compiled.stats()["planned_steps"] >= 3
    halves = compiled._cutting.halves
    assert halves is None or "out" not in halves.results


def test_in_threads():
    """The rest of one call may run beside another thread's next call, as in eager."""
    step, _, _, held = made(SOURCES["a log"])
    compiled, errors = stowage.compile(step), []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        try:
            for _ in range(20):
                compiled(torch.randn(8, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and len(held.log) == 60
    assert all(isinstance(value, float) for value in held.log)


@pytest.mark.parametrize("seed", range(4))
def test_random_rests(seed):
    rng = random.Random(seed)
    plain = [text for name, text in RESTS.items() if "return" not in text and "raise" not in text and "del" not in text]
    for _ in range(4):
        chosen = rng.sample(plain, rng.randrange(2, 5))
        ends = rng.choice(["", "    return loss.detach()\n", "    return held.n, loss.item()\n"])
        source = TRAINS + "".join(f"    {text}\n" for text in sorted(chosen, key=lambda t: "nonlocal" not in t)) + ends
        if "nonlocal" in source:
            source = source.replace("nonlocal seen; ", "")
            source = "    nonlocal seen\n" + source
        expected, _ = run(source, compiled=False)
        got, step = run(source, compiled=True, check=rng.choice(["auto", "never"]))
        assert expected == got, f"seed {seed}:\n{source}"
        assert step._cutting.halves is not None, source

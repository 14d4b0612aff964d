"""Actions of test_api_model.py: calls of all kinds, errors in them, and what is done beside them."""

from __future__ import annotations

import copy
import gc
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable

import torch
from api_pair import Wrong, attempt, in_thread, kind
from api_world import AROUND, a_call, action, batch_of, data, interrupted, within

import stowage
from stowage import _runtime


@action(5, lambda rng: a_call(rng) | {"times": rng.choice([1, 2, 4, 6])})
def call(world, step, seed, rows, layout, times):
    for i in range(times):
        world.main.call(step, data(seed + i, rows, layout))


@action(2, lambda rng: {"seed": rng.randrange(10**6), "times": rng.randrange(4, 9)})
def settle(world, seed, times):
    """As many calls as it takes to be planned."""
    for i in range(times):
        world.main.call("train", data(seed + i, 4))


@action(1, lambda rng: a_call(rng) | {"how": rng.choice(list(AROUND))})
def call_within(world, step, seed, rows, layout, how):
    world.main.call(step, data(seed, rows, layout), wrap=within(AROUND[how]))


@action(1, a_call)
def call_by_keyword(world, step, seed, rows, layout):
    batch = data(seed, rows, layout)

    def run(side, function):
        return lambda: function(y=batch(side)[1], x=batch(side)[0])

    settle = world.main.begin(step, run)
    with world.main.planned.its_generator():
        outcome = attempt(run(world.main.planned, world.main.compiled[step]))
    settle(outcome)


@action(1, a_call)
def call_from_thread(world, step, seed, rows, layout):
    world.main.call(step, data(seed, rows, layout), wrap=in_thread)


@action(1.5, lambda rng: {"seed": rng.randrange(10**6), "times": rng.choice([1, 3, 6])})
def two_threads(world, seed, times):
    main, other = world.main, world.other
    if world.config["draws"]:
        return
    for i in range(times):
        batch = data(seed + i, 4)
        eagerly = lambda side, step: lambda: step(*batch(side))
        settles = main.begin("train", eagerly), other.begin("train", eagerly)
        outcomes: list = []
        beside = in_thread(lambda: outcomes.append(attempt(lambda: other.compiled["train"](*batch(other.planned)))))
        with main.planned.its_generator():
            mine: list = []
            first = in_thread(lambda: mine.append(attempt(lambda: main.compiled["train"](*batch(main.planned)))))
            _both(first, beside)
        settles[0](mine[0])
        settles[1](outcomes[0])


def _both(a: Callable, b: Callable) -> None:
    found: list = []
    threads = [threading.Thread(target=lambda work=work: found.append(attempt(work)), daemon=True) for work in (a, b)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(150)
    if len(found) != 2 or any(error is not None for _, error in found):
        raise Wrong(f"threads: {found}")


@action(0.7, a_call)
def plain_call(world, step, seed, rows, layout):
    """The function itself, beside its compiled form."""
    batch = data(seed, rows, layout)
    outcomes = []
    for side in world.main.sides:
        with side.its_generator():
            outcomes.append(attempt(lambda: side.step(step)(*batch(side))))
    if kind(outcomes[0][1]) != kind(outcomes[1][1]):
        raise Wrong(f"plain calls: {outcomes}")
    world.main.same("a plain call")


@action(
    1,
    lambda rng: {
        "seed": rng.randrange(10**6),
        "how": rng.choice(["no_grad", "inference", "autocast"]),
        "rows": rng.choice([4, 7]),
    },
)
def infer(world, seed, how, rows):
    def run(side):
        with AROUND[how]():
            side.loop.model(batch_of(side, seed, rows, "plain")[0])

    world.main.both(run)


# ---- Errors


PLACES = ["begin", "forward", "body", "loss", "backward", "update", "optimizer", "end"]


@action(2.5, lambda rng: a_call(rng) | {"place": rng.choice(PLACES)})
def raise_at(world, step, seed, rows, layout, place):
    for side in world.main.sides:
        side.globals.RAISES_AT = place
    try:
        world.main.call(step, data(seed, rows, layout))
    finally:
        for side in world.main.sides:
            side.globals.RAISES_AT = ""


@action(3, lambda rng: a_call(rng) | {"at": int(10 ** rng.uniform(0, 4.2))})
def interrupt(world, step, seed, rows, layout, at):
    if sys.version_info[:2] == (3, 11):
        world.main.call(step, data(seed, rows, layout), planned_wrap=interrupted(at))


@action(0.7, lambda rng: {"seed": rng.randrange(10**6), "rows": rng.choice([4, 6])})
def bad_labels(world, seed, rows):
    """An operator raises because of the data."""
    world.main.call("train", lambda side: (batch_of(side, seed, rows, "plain")[0], torch.full((rows, 6), 9)))


# ---- What is done with the compiled steps, and beside them


@action(1.5, lambda rng: {"check": rng.choice(["auto", "auto", "always", "never", 2]), "share": rng.choice([None, None, 2.0, 0.9, 0.6, 0.3]),
                          "strict": rng.choice([False, True, "paranoid"]), "takeover": rng.random() < 0.8, "leaving": rng.choice([0.9, 0.7, 0.5, 0.35])})  # fmt: skip
def compile_anew(world, check, share, strict, takeover, leaving):
    options = {"check": check, "strict": strict, "takeover": takeover}
    if world.config["leaves"]:
        options |= {"share": leaving, "residents": "leave"}
    elif share:
        options["share"] = share
    world.main.compile(options)


@action(0.5, lambda rng: {"seed": rng.randrange(10**6), "strict": rng.choice([False, "paranoid"])})
def verify(world, seed, strict):
    pair = world.main
    batches = [batch_of(pair.planned, seed + i, 4, "plain") for i in range(2)]
    with pair.planned.its_generator():
        found, error = attempt(
            lambda: stowage.verify(lambda batch: pair.planned.loop.train(*batch), batches, strict=strict)
        )
    pair.planned.loop.seen[:] = pair.eager.loop.seen  # its own counters stay as they are
    if (found is not None and not found.equal) or isinstance(error, stowage.Error):
        raise Wrong(f"verify: {found}, {error!r}")
    pair.same("verify")


@action(
    0.8,
    lambda rng: {
        "seed": rng.randrange(10**6),
        "extra": rng.choice([1 << 15, 1 << 17, 1 << 30]),
        "times": rng.choice([1, 2]),
        "place": rng.choice(["", "", "loss"]),
        "beside": rng.choice(["", "", "save", "load", "copy"]),
    },
)
def budget_block(world, seed, extra, times, place, beside):
    pair = world.main
    for side in pair.sides:
        side.globals.RAISES_AT = place
    try:
        with pair.planned.its_generator():

            def run():
                with stowage.budget(_runtime.live_bytes() + extra, progress=False, debug=True):
                    for i in range(times):
                        result = pair.compiled["train"](*batch_of(pair.planned, seed + i, 4, "plain"))
                        _between(pair.planned, beside)
                return result

            _result, error = attempt(run)
        if isinstance(error, stowage.OutOfMemory):  # stops in between, as eager does
            pair.resync()
            return
        with pair.eager.its_generator():

            def plainly():
                for i in range(times):
                    pair.eager.loop.train(*batch_of(pair.eager, seed + i, 4, "plain"))
                    _between(pair.eager, beside)

            _expected, other = attempt(plainly)
        if kind(error) != kind(other):
            raise Wrong(f"in a block {error!r}, eager {other!r}") from error
        pair.same("a budget's block")
    finally:
        for side in pair.sides:
            side.globals.RAISES_AT = ""


def _between(side, what):
    """What a loop does between its calls."""
    loop = side.loop
    if what in ("save", "load"):
        file = io.BytesIO()
        torch.save([loop.model.state_dict(), *(o.state_dict() for o in loop.optimizers)], file)
        file.seek(0)
        if what == "load":
            model, *states = torch.load(file)
            loop.model.load_state_dict(model)
            for optimizer, state in zip(loop.optimizers, states):
                optimizer.load_state_dict(state)
    elif what == "copy":
        side.kept += copy.deepcopy(list(loop.model.state_dict().values()))


@action(0.8, lambda rng: {"seed": rng.randrange(10**6), "times": rng.choice([1, 3])})
def fork(world, seed, times):
    if torch.get_num_threads() > 1:  # OpenMP's own threads are not in the child
        return
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            for i in range(times):
                world.main.call("train", data(seed + i, 4))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status:
        raise Wrong(f"a forked child ended with status {os.waitstatus_to_exitcode(status)}")
    world.main.same("a fork")


@action(0.5, lambda rng: {"count": rng.choice([1, 2])})
def num_threads(world, count):
    torch.set_num_threads(count)


@action(0.7)
def collect(world):
    gc.collect()


@action(0.6, lambda rng: {"what": rng.choice(["stats", "explain", "summary", "graph"])})
def ask(world, what):
    step = world.main.compiled["train"]
    if what == "summary":
        step.plan and step.plan.summary()
    elif what == "graph":
        _ = step.graph and step.graph.resident_bytes
    else:
        getattr(step, what)()
    world.main.same("a question")

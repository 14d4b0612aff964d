"""A function that is cut in two does what the whole does: functions at random, at each place at which they can be cut."""

import random
import sys

import pytest
from random_functions import RandomFunction

from stowage.step.cut.halves import Halves
from stowage.step.cut.where import places

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="functions stay whole")

SEEDS = range(6)
FUNCTIONS = 25


def _plainly(step, args, kwargs):
    return step(*args, **kwargs)


def _cut(at):
    def both(step, args, kwargs):
        place = next(p for p in places(getattr(step, "__func__", step).__code__) if p.offset == at)
        halves = Halves(step, place)
        parameters = halves.parameters(*args, **kwargs)
        return halves.rest(parameters, halves.first(*args, **kwargs))

    return both


def _places(function):
    found = []
    function.outcome(lambda step, args, kwargs: found.extend(places(getattr(step, "__func__", step).__code__)))
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_random_functions(seed):
    rng, cuts = random.Random(seed), 0
    for _ in range(FUNCTIONS):
        function = RandomFunction(rng)
        whole = function.outcome(_plainly)
        for place in _places(function):
            cuts += 1
            assert function.outcome(_cut(place.offset)) == whole, (
                f"seed {seed}, cut at {place.offset}:\n{function.source}"
            )
    assert cuts >= FUNCTIONS // 2


def test_what_it_hands_over():
    log = []

    def step(x, y, *more, scale=1, **names):
        z = x + y
        unused = z * 2
        names["z"] = unused
        y = z
        log.append(scale)
        return x, y, z, more, names

    cut = {place.offset: Halves(step, place) for place in places(step.__code__)}
    assert {halves.results for halves in cut.values()} >= {("y", "names", "z"), ("names", "z")}
    for halves in cut.values():
        parameters = halves.parameters(1, 2, 3, scale=4, a=5)
        assert halves.rest(parameters, halves.first(1, 2, 3, scale=4, a=5)) == step(1, 2, 3, scale=4, a=5)


def test_first_half_names_nothing_of_the_rest():
    """What the rest alone reads is no part of what a plan has to watch."""
    log, scale = [], 2

    def step(x):
        y = x * scale
        log.append((y, "only here", lambda: 3))
        return GLOBAL_OF_REST  # noqa: F821

    cut = [Halves(step, place) for place in places(step.__code__)]
    first = next(h.first for h in cut if h.results == ("y",))
    assert first(3) == (6,)
    cells = dict(zip(first.__code__.co_freevars, first.__closure__))
    assert cells["scale"].cell_contents == 2
    with pytest.raises(ValueError):
        cells["log"].cell_contents  # noqa: B018
    assert not any(c == "only here" or hasattr(c, "co_code") for c in first.__code__.co_consts)


class Base:
    def step(self, x):
        return x + 1


class Derived(Base):
    def step(self, x):
        y = x * 2
        z = super().step(y)
        return super().step(z)


def test_super_finds_its_class():
    method = Derived().step
    for place in places(method.__func__.__code__):
        halves = Halves(method, place)
        assert halves.rest(halves.parameters(3), halves.first(3)) == 8


def test_no_place():
    def suspends():
        x = 1
        yield x

    def looks_at_its_frame():
        x = 1
        y = locals()
        return x, y

    def shares():
        x = 1
        f = lambda: x
        x = 2
        return f()

    for function in (suspends, looks_at_its_frame, shares):
        assert not places(function.__code__)


def test_a_function_that_changes():
    def step(x):
        y = x + 1
        return y * 2

    def other(x):
        return x

    halves = Halves(step, places(step.__code__)[0])
    assert halves.still
    step.__code__ = other.__code__
    assert not halves.still

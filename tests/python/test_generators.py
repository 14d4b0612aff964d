"""Steps that draw from random generators of their own: held by closures, globals, attributes of the model, handed over
as arguments, or made in each call. Eager's numbers, and after every call every generator where eager leaves it.

A program is a list of acts that its step does in order, each with one of its generators:

    draw     a number for each element of what has been made so far     read     the loss so far, as a number
    seed K   manual_seed(K)                                              count    manual_seed(how many steps there were)
    save I   keep the state as I                                         back I   set it to what was kept, before the step or in it
    keep     keep the state beyond the end of the step, and the generator where the step has made it
    copy     keep a copy of the state, a clone of the generator, or another generator that is set to the state
    drop     a dropout, which draws from the default generator           mix      another operator that draws
"""

from __future__ import annotations

import pickle
import random
import threading

import pytest
import searches
import torch
from generator_programs import CALLS, ActingProgram, assert_alike, random_acts_and_others
from torch import nn

import stowage
from stowage import _runtime

FIRST = searches.first_seed(clock=True)
GLOBAL = torch.Generator()
KINDS = ("global", "closure", "attribute", "made", "given", "anew", "held")
OUTSIDE = ("global", "closure", "attribute", "given")


class Program(ActingProgram):
    """``acts``: (what, number, generator). ``between``: acts of the user's after calls, by call."""

    def __init__(self, acts, others=None, between=None):
        torch.manual_seed(0)
        super().__init__(acts, others, nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)))
        self.between = between or {}
        self.model.noise = torch.Generator().manual_seed(11)
        self.closure = torch.Generator().manual_seed(12)
        self.held = torch.Generator()  # another one in each call, or in some
        self.given = torch.Generator().manual_seed(14)  # the same in each call
        GLOBAL.manual_seed(13)
        self.kept = [torch.Generator().manual_seed(100 + i).get_state() for i in range(3)]
        self.states = []  # that the step has taken out of generators
        self.lasting = []  # generators that it has made

    def outside(self):
        return {"global": GLOBAL, "closure": self.closure, "attribute": self.model.noise, "given": self.given}

    def copy(self, g, number):
        if number == 0:
            self.states.append(g.get_state().clone())
        elif number == 1:
            self.states.append(torch.from_numpy(g.get_state().numpy().copy()))
        elif number == 2:
            self.states.append(torch.tensor(g.get_state().tolist(), dtype=torch.uint8))
        elif number == 3:
            self.lasting.append(g.clone_state())
        elif number == 4:
            self.states.append(pickle.loads(pickle.dumps(g.get_state())))
        elif number == 5:
            self.lasting.append(pickle.loads(pickle.dumps(g)))
        else:
            other = torch.Generator()
            other.set_state(g.get_state())
            self.lasting.append(other)

    def step_function(self):
        mine = self.closure

        def step(x, given, anew):
            out = self.model(x)
            kept = list(self.kept)
            made = None
            for what, number, which in self.acts_now():
                if which == "made":
                    made = made or torch.Generator().manual_seed(1000 + number)
                    g = made
                else:
                    found = {"global": GLOBAL, "closure": mine, "attribute": self.model.noise, "given": given,
                             "held": self.held}  # fmt: skip
                    g = found.get(which, anew)
                if what == "draw":
                    out = out + torch.randn(out.shape, generator=g)
                elif what == "mix":
                    out = _mixed(out, number, g)
                elif what == "drop":
                    out = nn.functional.dropout(out, 0.3)
                elif what == "read":
                    self.read(out)
                elif what == "seed":
                    g.manual_seed(number)
                elif what == "count":
                    g.manual_seed(500 + self.count)
                elif what == "save":
                    kept[number] = g.get_state()
                elif what == "keep":
                    self.states.append(g.get_state())
                    if which == "made":
                        self.lasting.append(g)
                elif what == "copy":
                    self.copy(g, number)
                else:
                    g.set_state(kept[number])
            return self.update(out)

        return step


def _mixed(out, number, g):
    if number == 0:
        return out * torch.empty_like(out).bernoulli_(0.5, generator=g)
    if number == 1:
        return out[torch.randperm(out.shape[0], generator=g)]
    weights = torch.linspace(1, 2, out.shape[1])
    return out * torch.multinomial(weights, out.shape[1], generator=g).to(out.dtype)


def trained(acts, others=None, between=None, held=1, **options):
    program = Program(acts, others, between)
    step = program.step_function()
    run = stowage.compile(step, **options) if options else step
    torch.manual_seed(3)
    data = torch.Generator().manual_seed(1)
    history = []
    for call in range(CALLS):
        program.call = call
        if call % held == 0:
            program.held = torch.Generator().manual_seed(40 + call)
        anew = torch.Generator().manual_seed(call % 3)
        if call % 2:
            torch.rand(call, generator=anew)
        loss = run(torch.randn(8, 16, generator=data), program.given, anew)
        for what, number, which in program.between.get(call, ()):
            g = program.outside()[which]
            if program.lasting:
                torch.rand(3, generator=program.lasting[len(program.lasting) // 2])
            g.manual_seed(number) if what == "seed" else torch.rand(number + 1, generator=g)
        history.append(
            [
                loss.clone(),
                torch.get_rng_state(),
                anew.get_state(),
                program.held.get_state(),
                *(g.get_state() for g in program.outside().values()),
                *(state.clone() for state in program.states[-4:]),
                *(g.get_state() for g in program.lasting[-4:]),
                *(p.detach().clone() for p in program.model.parameters()),
            ]
        )
    return history, program.seen, run


def as_eager(acts, others=None, between=None, held=1, **options):
    expected = trained(acts, others, between, held)
    got = trained(acts, others, between, held, **(options or {"check": "auto"}))
    assert_alike(expected, got, f"{acts}, {others}, {between}")
    return got[2]


@pytest.mark.parametrize("which", KINDS)
@pytest.mark.parametrize("acts", [
    [("draw", 0)],
    [("mix", 0), ("mix", 1), ("mix", 2)],
    [("draw", 0), ("drop", 0), ("draw", 0)],
    [("seed", 5), ("draw", 0)],
    [("draw", 0), ("count", 0), ("mix", 1)],
    [("draw", 0), ("seed", 7)],
    [("draw", 0), ("keep", 0), ("draw", 0), ("keep", 0)],
    [("save", 0), ("draw", 0), ("back", 0), ("draw", 0)],
    [("draw", 0), ("read", 0), ("draw", 0), ("read", 0)],
    [("back", 1), ("draw", 0), ("save", 2), ("draw", 0), ("back", 2), ("draw", 0)],
])  # fmt: skip
@pytest.mark.parametrize("check", ["auto", "always"])
def test_own_generators_are_planned(acts, which, check):
    step = as_eager([(what, n, which) for what, n in acts], check=check)
    assert not step.refusal, step.refusal
    assert step.stats()["planned_steps"] > 4
    assert step.stats()["misses"] == 0


@pytest.mark.parametrize(
    "acts", [[("draw", 0)], [("seed", 5)], [("draw", 0), ("seed", 7)], [("save", 2), ("seed", 5), ("back", 2)]]
)
@pytest.mark.parametrize("held", [1, 3, 7])
def test_held_by_an_attribute_and_made_anew_between_calls(acts, held):
    step = as_eager([(what, n, "held") for what, n in acts], held=held, check="never")
    assert not step.refusal, step.refusal
    assert step.stats()["planned_steps"] > 4


@pytest.mark.parametrize("which", OUTSIDE)
def test_seeded_by_the_step_and_drawn_from_by_others(which):
    """The step itself draws nothing from it."""
    step = as_eager([("seed", 5, which)], between={c: [("draw", 2, which)] for c in range(CALLS)}, check="auto")
    assert step.stats()["planned_steps"] > 4


@pytest.mark.parametrize("to", ["global", "made", "anew"])
@pytest.mark.parametrize("check", ["auto", "always"])
def test_one_is_set_to_the_state_of_another(to, check):
    acts = [("draw", 0, "closure"), ("save", 2, "closure"), ("back", 2, to), ("draw", 0, to), ("draw", 0, "closure")]
    as_eager(acts, check=check)
    as_eager(acts[:3], check=check)


@pytest.mark.parametrize("how", range(7))
@pytest.mark.parametrize("which", ["closure", "made"])
@pytest.mark.parametrize("check", ["auto", "always"])
def test_copies_of_a_state_have_the_true_one(how, which, check):
    acts = [(what, n, which) for what, n in [("draw", 0), ("copy", how), ("draw", 0)]]
    as_eager(acts, check=check)
    as_eager(acts[::2], {7: acts}, check=check)  # another way of one call


@pytest.mark.parametrize("reads", [False, True])
def test_a_checkpoint_within_the_step_has_the_true_state(reads):
    def trained(planned):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        kept, numbers = [], []

        def step(x):
            loss = model(x).square().mean()
            optimizer.zero_grad()
            if reads:
                kept.append(torch.get_rng_state())
                numbers.append(loss.item())
            loss.backward()
            optimizer.step()
            kept.append(torch.get_rng_state())
            return loss.detach()

        run = stowage.compile(step) if planned else step
        losses = []
        for call in range(12):
            losses.append(run(torch.randn(8, 4)))
            if call in (7, 10):
                torch.set_rng_state(kept[call - 5])
        return [*losses, *kept]

    assert _equal(trained(False), trained(True))


@pytest.mark.parametrize("which", OUTSIDE)
def test_moved_between_calls(which):
    between = {5: [("seed", 3, which)], 7: [("draw", 3, which)], 8: [("draw", 700, which), ("seed", 9, "global")]}
    step = as_eager([("draw", 0, which), ("drop", 0, which)], between=between, check="auto")
    assert step.stats()["planned_steps"] > 4


def random_acts(r):
    kinds = ["draw"] * 3 + ["mix"] * 3 + ["read", "seed", "count", "save", "back", "drop", "keep", "copy"]
    generators = r.sample(KINDS, r.randrange(1, 4))
    acts = [(r.choice(kinds), r.randrange(3), r.choice(generators)) for _ in range(r.randrange(1, 9))]
    return [(what, r.randrange(7) if what == "copy" else n, g) for what, n, g in acts]


def random_program(seed):
    r = random.Random(seed)
    acts, others = random_acts_and_others(r, random_acts)
    moves = [("seed", r.randrange(9), r.choice(OUTSIDE)), ("draw", r.randrange(900), r.choice(OUTSIDE))]
    between = {r.randrange(CALLS): [r.choice(moves)] for _ in range(r.randrange(4))}
    return acts, others, between


def search(seed):
    r = random.Random(f"options {seed}")
    options = {"check": r.choice(["auto", "always"]), "held": r.choice([1, 1, 3, 7])}
    if r.random() < 0.3:
        options["budget"] = "1MiB"
    as_eager(*random_program(seed), **options)


@pytest.mark.parametrize("seed", range(20))
def test_random_programs(seed):
    search(seed)


def test_many_random_programs():
    for seed in searches.seeds(FIRST, max(searches.SECONDS, 3.0)):
        search(seed)


class Noisy:
    """Two noises of its own generator in each call, of which backward needs the masks. ``ids``: one that is too large
    makes a kernel raise."""

    def __init__(self, width=16, layers=2):
        torch.manual_seed(0)
        self.generator = torch.Generator().manual_seed(5)
        self.table = nn.Embedding(8, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.optimizer = torch.optim.SGD([*self.table.parameters(), *self.layers.parameters()], lr=0.1)

    def step(self, ids):
        self.optimizer.zero_grad()
        hidden = self.table(ids)
        for layer in self.layers:
            mask = torch.rand(hidden.shape, generator=self.generator) < 0.7
            hidden = torch.relu(layer(hidden)) * mask
        loss = (hidden * torch.randn(hidden.shape, generator=self.generator)).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def state(self):
        return [self.generator.get_state(), *(p.detach().clone() for p in self.optimizer.param_groups[0]["params"])]


def _equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b))


@pytest.mark.parametrize("check", ["never", "always"])
@pytest.mark.parametrize("bad", range(6))
def test_after_an_error_of_a_kernel_it_is_as_before(bad, check):
    """Recorded, rehearsed and planned calls. The first one is eager, and leaves what eager leaves."""
    eager, planned = Noisy(), Noisy()
    step = stowage.compile(planned.step, check=check)
    ids = torch.arange(8)
    for call in range(8):
        if call == bad and call > 0:
            before = planned.state()
            with pytest.raises(IndexError):
                step(ids + 1)
            assert _equal(planned.state(), before), f"call {call}"
        eager.step(ids)
        step(ids)
        assert _equal(eager.state(), planned.state()), f"call {call}"
    assert step.stats()["planned_steps"] > 2


def test_where_memory_is_short_it_is_as_before():
    noisy = Noisy()
    step = stowage.compile(noisy.step, budget="6KiB")
    before = noisy.state()
    # Whatever else is alive may make room: one result needs more than all of it
    rows = 2 * _runtime.live_bytes("cpu") // noisy.table.weight[0].nbytes + 128
    for _ in range(3):
        with pytest.raises(stowage.OutOfMemory):
            step(torch.arange(rows) % 8)
        assert _equal(noisy.state(), before)


def test_what_is_made_again_draws_the_same():
    eager, planned = Noisy(64, 6), Noisy(64, 6)
    ids = torch.arange(8).repeat(64)
    recorded = stowage.compile(Noisy(64, 6).step)
    for _ in range(4):
        recorded(ids)
    whole = recorded.stats()["arena_bytes"] + recorded.stats()["resident_bytes"]
    step = stowage.compile(planned.step, budget=whole - recorded.stats()["arena_bytes"] // 4, link_gbps=0)
    for call in range(8):
        eager.step(ids)
        step(ids)
        assert _equal(eager.state(), planned.state()), f"call {call}"
    assert step.stats()["recomputed_ops"] > 0
    assert step.stats()["planned_steps"] > 4


def test_verify_leaves_it_as_before():
    noisy = Noisy()
    before = noisy.state()
    found = stowage.verify(noisy.step, [torch.arange(8)])
    assert found and found.planned_calls > 3, found
    assert _equal(noisy.state(), before)


def test_shared_by_two_steps_and_a_loader():
    def trained(planned):
        shared = torch.Generator().manual_seed(3)
        loader = torch.utils.data.DataLoader(torch.arange(8), batch_size=4, shuffle=True, generator=shared)
        noises = [Noisy(), Noisy()]
        for noisy in noises:
            noisy.generator = shared
        steps = [stowage.compile(n.step) if planned else n.step for n in noises]
        losses = [step(batch) for _ in range(5) for batch in loader for step in steps]
        return [*losses, *noises[0].state(), *noises[1].state()], steps

    expected, _ = trained(False)
    got, steps = trained(True)
    assert _equal(expected, got)
    assert all(step.stats()["planned_steps"] > 4 for step in steps)


def test_another_one_takes_its_place_between_calls():
    def trained(planned):
        noisy = Noisy()
        step = stowage.compile(noisy.step) if planned else noisy.step
        losses = []
        for call in range(14):
            if call == 6:
                noisy.generator = torch.Generator().manual_seed(call)
            losses.append(step(torch.arange(8)))
        return [*losses, *noisy.state()], step

    expected, _ = trained(False)
    got, step = trained(True)
    assert _equal(expected, got)
    assert step.stats()["planned_steps"] > 4


def test_what_another_thread_draws_stays():
    """What a call that raises puts back is its own generator's alone."""
    noisy, other = Noisy(), torch.Generator().manual_seed(1)

    def draws():
        torch.rand(3, generator=other)
        torch.rand(5)

    def with_a_thread(ids):
        thread = threading.Thread(target=draws)
        thread.start()
        thread.join()
        noisy.step(ids)

    step = stowage.compile(with_a_thread)
    for call in range(8):
        if call > 1:
            before, theirs, default = noisy.state(), other.get_state(), torch.get_rng_state()
            with pytest.raises(IndexError):
                step(torch.arange(8) + 1)
            assert _equal(noisy.state(), before)
            assert not torch.equal(other.get_state(), theirs) and not torch.equal(torch.get_rng_state(), default)
        step(torch.arange(8))
    assert step.stats()["planned_steps"] > 2


def test_after_an_error_no_mark_is_left():
    """What the step has kept of a generator before it raises is as if nothing of it had happened."""
    kept, others = [], []

    def step(x, wrong):
        hidden = noisy.table(x * 1) + torch.randn(8, 16, generator=noisy.generator)  # an index that is not foreseen
        kept.append(noisy.generator.get_state())
        others.append(torch.Generator())
        others[-1].set_state(kept[-1])
        hidden = hidden + torch.randn(8, 16, generator=noisy.generator)
        if wrong:
            raise ValueError("of the user's")
        loss = hidden.square().mean()
        noisy.optimizer.zero_grad()
        loss.backward()
        noisy.optimizer.step()
        return loss.detach()

    def seen(compiled):
        kept.clear(), others.clear()
        run = stowage.compile(step) if compiled else step
        for call in range(8):
            if call == 6:
                with pytest.raises(IndexError):
                    run(torch.arange(8) + 1, False)
            else:
                run(torch.arange(8), False)
        return [k.clone() for k in kept], [g.get_state() for g in others]

    noisy = Noisy()
    expected_kept, expected_others = seen(False)
    noisy = Noisy()
    found_kept, found_others = seen(True)
    assert _equal(expected_kept[:6], found_kept[:6]) and _equal(expected_others[:6], found_others[:6])
    # The call that raised is as if it had not drawn; the next one is the first after it
    before = torch.Generator()
    before.set_state(found_kept[5])
    torch.randn(8, 16, generator=before)
    assert torch.equal(before.get_state(), found_kept[6]) and torch.equal(before.get_state(), found_others[6])

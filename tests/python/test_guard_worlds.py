"""Random worlds of Python state (guard_worlds.py): whenever a change alters what the step gives, the guard has noticed
it, or has said that it is blind there; and a guard never sounds where nothing at all has changed.

STOWAGE_SOAK_SECONDS: how long to try worlds, from a seed of the clock on (printed; STOWAGE_SEED: another); without it a
few hundred fixed ones."""

import warnings

import guard_survey
import guard_worlds
import pytest
import searches
import torch
import zoo
from guard_holders import HOLDERS
from guard_roots import MODULE_ROOTS, ROOTS
from guard_sources import PLACES

import stowage
from stowage.step.record.recording import record

SECONDS = searches.SECONDS  # 0: a fixed number of worlds, the same in every run
FIRST = searches.first_seed()

ALONE = pytest.mark.alone  # what other tests have left in the process can be reachable too


def test_worlds_that_went_unnoticed_once():
    """One seed for each fault that the random search has found."""
    for seed in (4, 31, 50, 95, 102, 229, 247, 380, 1094, 1097):
        guard_survey.survey(seed, 1)


def test_each_holder_and_each_root():
    """Every kind is tried in every run, whatever the seeds are."""
    seen: set[str] = set()
    for seed in range(400):
        try:
            world = guard_worlds.make(seed)
        except Exception:
            continue
        world.close()
        seen.update(world.names)
    everything = {h.name for h in HOLDERS} | set(ROOTS) | set(PLACES)
    assert everything <= seen, everything - seen


@ALONE
def test_random_worlds():
    print(f"first seed {FIRST}; again with: python tests/python/guard_survey.py {FIRST} COUNT")
    counts = guard_survey.survey(FIRST, seconds=SECONDS * 0.5) if SECONDS else guard_survey.survey(FIRST, 60)
    assert counts["noticed"] > counts.get("(blind)", 0), counts  # blindness is the exception


@ALONE
def test_modules_that_are_read_elsewhere_than_where_they_are_named():
    print(f"first seed {FIRST}")
    counts = guard_survey.survey(FIRST, None if SECONDS else 30, SECONDS * 0.1 or None, roots=MODULE_ROOTS)
    assert counts["noticed"] > counts.get("(blind)", 0), counts


@ALONE
def test_what_functions_have_cached():
    """Results of every kind, which no code that runs has made."""
    print(f"first seed {FIRST}")
    cached = [h for h in HOLDERS if h.name == "cached function"]
    kinds = [*HOLDERS, *cached * (len(HOLDERS) // 2)]
    counts = guard_survey.survey(FIRST, None if SECONDS else 30, SECONDS * 0.1 or None, kinds=kinds)
    assert counts["noticed"] > counts.get("(blind)", 0), counts


def test_random_worlds_planned():
    """The same worlds through stowage.compile: the bits of eager, before and after the change."""
    first = FIRST + 500_000
    planned = sum(_same_bits_when_planned(seed) for seed in searches.seeds(first, SECONDS * 0.4, at_least=3))
    print(f"{planned} of them planned")


def test_random_worlds_checked():
    """With check="always" nothing that the guards may have missed counts: every world, the blind ones too."""
    first = FIRST + 700_000
    planned = sum(_same_bits_when_planned(seed, "always") for seed in searches.seeds(first, at_least=3))
    print(f"{planned} of them planned")


def _same_bits_when_planned(seed: int, check: str = "auto") -> bool:
    try:
        eager, _, told = _results(seed)
        planned, step, _ = _results(seed, check)
    except _NoWorld:
        return False
    blind = any(r.recording.world.guard.blind for e in step._entries.values() for r in e.replays)
    if blind and check != "always":  # such a step is not to be trusted to its guard
        return False
    if (call := _first_difference(eager, planned)) and not _first_difference(eager, _results(seed)[0]):
        # And eager gives its own again
        raise AssertionError(f"seed {seed}: call {call} gives other bits when planned: {told}")
    return step.stats()["planned_steps"] > 0


class _NoWorld(Exception):
    pass


def _results(seed: int, check: str | None = None) -> tuple[list, stowage.CompiledStep | None, str]:
    """What each call gives, compiled where a check is given."""
    try:
        world = guard_worlds.make(seed)
    except Exception as error:
        raise _NoWorld from error
    step = world.module.step if check is None else stowage.compile(world.module.step, check=check)
    results = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call in range(7):
            try:
                if call == 5:
                    world.change()
                results.append(step(torch.tensor([[1.0, -2.0, 3.0]])))
            except Exception as error:
                results.append(repr(type(error)))
                break
    world.close()
    return results, None if check is None else step, world.told


def _first_difference(expected: list, got: list) -> int:
    """The number of the call, 0 for none."""
    for call, (a, b) in enumerate(zip(expected, got, strict=True)):
        text = isinstance(a, str) or isinstance(b, str)
        if a != b if text else not all(x is y is None or torch.equal(x, y) for x, y in zip(a, b, strict=True)):
            return call + 1
    return 0


@ALONE
@pytest.mark.parametrize("name", ["gpt2", "resnet50", "bert", "vit", "t5", "llama", "lstm", "unet"])
def test_ordinary_training_is_not_blind(name):
    model, loss_fn, batches = zoo.make(name, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch)

    def train_step(batch):
        optimizer.zero_grad()
        loss = loss_fn(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        return loss.detach()

    train_step(batches[0])
    inputs = list(batches[1] if isinstance(batches[1], tuple) else batches[1:2])
    recording = record(train_step, (batches[1],), {}, inputs)
    guard = recording.world.guard
    assert recording.refusal == "" and recording.world.changes == "" and guard.changed() == ""
    assert guard.blind == []
    scheduler.step()
    optimizer.param_groups[0]["weight_decay"] = 0.5
    assert guard.changed() == ""  # their Python runs in each call
    model.train(False)
    assert "training" in guard.changed()

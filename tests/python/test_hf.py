"""A Trainer that is planned trains as one that is not: losses, gradient norms and parameters, bit for bit."""

import pytest
import torch
from trainers import CASES, same, train, transformers

import stowage
import stowage.hf


@pytest.mark.parametrize("name", CASES)
def test_bits_of_the_unplanned_trainer(tmp_path, name):
    eager, eager_logs, _ = train(tmp_path, False, **CASES[name])
    planned, planned_logs, plan = train(tmp_path, True, **CASES[name])
    assert plan.step.refusal == ""
    assert plan.step.stats()["planned_steps"] >= 3
    assert planned_logs[:-1] == eager_logs[:-1] and len(eager_logs) == 9  # the last holds times
    assert same(eager, planned)


def test_an_epoch_that_ends_within_an_accumulation_and_evaluation_between_steps(tmp_path):
    how = {"gradient_accumulation_steps": 3, "samples": 14, "eval_strategy": "steps", "eval_steps": 3}
    eager, eager_logs, _ = train(tmp_path, False, **how)
    planned, planned_logs, plan = train(tmp_path, True, **how)
    assert planned_logs[:-1] == eager_logs[:-1]
    assert same(eager, planned)
    assert plan.step.stats()["planned_steps"] >= 1


def test_a_subclass_with_its_own_loss_and_a_watched_attribute(tmp_path):
    class Scaled(transformers.Trainer):
        factor = 2.0

        def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
            outputs = model(**inputs)
            return (self.factor * outputs.loss, outputs) if return_outputs else self.factor * outputs.loss

    class Halves(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 5:
                self.trainer.factor = 0.5

    results = []
    for planned in (False, True):
        halves = Halves()

        class Built(Scaled):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                self.factor = 2.0
                halves.trainer = self

        results.append(train(tmp_path, planned, trainer_class=Built, callbacks=[halves]))
    assert results[0][1][:-1] == results[1][1][:-1]
    assert same(results[0][0], results[1][0])


def test_within_a_budget(tmp_path):
    free, _, plan = train(tmp_path, True)
    stats = plan.step.stats()
    limit = stats["resident_bytes"] + int(0.9 * stats["arena_bytes"])
    tight, _, squeezed = train(tmp_path, True, budget=limit)
    stats = squeezed.step.stats()
    assert stats["resident_bytes"] + stats["arena_bytes"] <= limit
    assert stats["recomputed_ops"] + stats["swapped_bytes"] > 0
    assert same(free, tight)


def test_afterwards_the_trainer_is_as_it_was(tmp_path):
    _, _, plan = train(tmp_path, True)
    names = ("get_batch_samples", "training_step", "_clip_grad_norm", "_get_grad_norm")
    assert not set(names) & set(vars(plan._trainer))


class ActsWithin(transformers.TrainerCallback):
    def on_pre_optimizer_step(self, *args, **kwargs):
        pass


class ReadsState(transformers.Trainer):
    def compute_loss(self, model, inputs, **kwargs):
        return model(**inputs).loss * (1 + self.state.global_step)


@pytest.mark.parametrize(
    "how, message",
    [
        ({"callbacks": [ActsWithin]}, "ActsWithin: on_pre_optimizer_step"),
        ({"trainer_class": ReadsState}, "reads 'state' of the Trainer"),
    ],
)
def test_what_cannot_be_planned_is_refused_by_name(tmp_path, how, message):
    with pytest.raises(stowage.Unsupported, match=message):
        train(tmp_path, True, **how)


def test_only_trainers_are_planned():
    with pytest.raises(TypeError, match="needs a transformers Trainer"):
        stowage.hf.plan(torch.nn.Linear(1, 1))

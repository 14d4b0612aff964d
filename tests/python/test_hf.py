"""A Trainer that is planned trains as one that is not: losses, gradient norms and parameters, bit for bit."""

import copy
import gc
import logging
import pickle

import pytest
import torch
from trainers import CASES, Padded, same, train, transformers

import stowage
import stowage.hf
from stowage import _runtime
from stowage.integrations import transformers as integration


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


def test_checkpoints_and_resume_with_masks_accumulation_bf16_and_evaluation(tmp_path):
    how = {"gradient_accumulation_steps": 2, "data": Padded, "bf16": True, "eval_strategy": "steps", "eval_steps": 4}
    how |= {"save_strategy": "steps", "save_steps": 5, "max_steps": 10}
    found = []
    for planned in (False, True):
        folder = tmp_path / str(planned)
        _, whole, _ = train(folder, planned, **how)
        model, logs, plan = train(folder, planned, resume=str(folder / "checkpoint-5"), **how)
        assert logs[:-1] == whole[-len(logs) : -1]  # as if it had never ended
        saved = [torch.load(folder / f"checkpoint-{at}" / "optimizer.pt")["state"] for at in (5, 10)]
        found.append((model, logs[:-1], saved))
    assert plan.step.refusal == "" and plan.step.stats()["planned_steps"] >= 1
    assert found[0][1] == found[1][1] and same(found[0][0], found[1][0])
    for ours, theirs in zip(found[0][2], found[1][2]):
        for of_parameter in ours:
            assert all(torch.equal(ours[of_parameter][k], v) for k, v in theirs[of_parameter].items())


def test_as_a_callback_and_by_its_class(tmp_path, monkeypatch, caplog):
    eager, logs, _ = train(tmp_path, False)
    callback = stowage.hf.StowageCallback("16MiB")
    with caplog.at_level(logging.INFO, "stowage"):
        model, planned_logs, _ = train(tmp_path, False, callbacks=[callback])
    assert same(eager, model) and logs[:-1] == planned_logs[:-1]
    assert callback.step.stats()["planned_steps"] >= 3
    assert [r.getMessage() for r in caplog.records if "updates planned, arena" in r.getMessage()]
    monkeypatch.setenv("STOWAGE_BUDGET", "32MiB")
    made = []
    train(tmp_path, False, max_steps=1, callbacks=[stowage.hf.StowageCallback], how=lambda t: made.append(t))
    by_class = next(c for c in made[0].callback_handler.callbacks if type(c) is stowage.hf.StowageCallback)
    assert by_class.step._budget == 32 << 20 and callback.step._budget == 16 << 20
    with pytest.raises(stowage.Unsupported, match="no transformers Trainer"):
        callback.on_train_begin(None, None, None)


def of_environment(trainer):
    return next(c for c in trainer.callback_handler.callbacks if type(c) is integration._OfEnvironment)


def test_by_environment(tmp_path, monkeypatch):
    defaults = [*integration.trainer_module.DEFAULT_CALLBACKS]
    monkeypatch.setattr(integration.trainer_module, "DEFAULT_CALLBACKS", defaults)
    monkeypatch.setenv("STOWAGE_BUDGET", "16MiB")
    monkeypatch.setenv("STOWAGE_RUN", '{"budget_bytes": 16777216}')
    integration._plan_each_trainer()  # as when it is imported; `stowage run` keeps the limit by itself
    assert integration._OfEnvironment not in defaults
    monkeypatch.delenv("STOWAGE_RUN")
    integration._plan_each_trainer()
    _, _, plan = train(tmp_path, False, how=of_environment, max_steps=6)
    assert plan.step._budget == 16 << 20 and plan.step.stats()["planned_steps"] > 0
    made = []  # what is planned by name is not planned twice
    by_name = lambda trainer: made.append(of_environment(trainer)) or stowage.hf.plan(trainer, "32MiB")
    _, _, plan = train(tmp_path, True, how=by_name, max_steps=6)
    assert plan.step._budget == 32 << 20 and plan.step.stats()["planned_steps"] > 0
    assert made[0].step is None


class Reporter(transformers.integrations.TensorBoardCallback):
    """report_to=["tensorboard"] without its package."""

    def __init__(self):
        self.logs = []

    def on_train_begin(self, *args, **kwargs):
        pass

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.logs.append((state.global_step, logs))

    def on_train_end(self, *args, **kwargs):
        pass


def test_figures_reach_what_reports_and_not_the_history(tmp_path):
    reporter = Reporter()
    made = []
    how = lambda trainer: made.append(trainer) or stowage.hf.plan(trainer)
    _, _, plan = train(tmp_path, True, callbacks=[reporter], logging_steps=2, how=how)
    ours = [(at, values) for at, values in reporter.logs if "stowage/misses" in values]
    assert [at for at, _ in ours][:4] == [2, 4, 6, 8]
    stats, (_, last) = plan.step.stats(), ours[3]
    assert last["stowage/peak_bytes"] == stats["measured_peak_bytes"] > 0
    assert last["stowage/planned_steps"] == stats["planned_steps"] == 5 and last["stowage/eager_steps"] == 3
    assert not any("stowage" in key for entry in made[0].state.log_history for key in entry)


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
    made = []
    _, _, plan = train(tmp_path, True, how=lambda trainer: made.append(trainer) or stowage.hf.plan(trainer))
    assert plan.step.stats()["planned_steps"] > 0
    names = ("get_batch_samples", "training_step", "_clip_grad_norm", "_get_grad_norm")
    assert not set(names) & set(vars(made[0]))


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


@pytest.mark.parametrize("by_name", [True, False])
def test_nothing_of_a_training_waits_for_a_collection(tmp_path, by_name):
    def once(folder):
        train(tmp_path / folder, by_name, callbacks=[] if by_name else [stowage.hf.StowageCallback("16MiB")])

    once("first")
    gc.collect()
    before = _runtime.live_bytes()
    gc.disable()
    try:
        once("second")
        assert _runtime.live_bytes() == before
    finally:
        gc.enable()


class _Holder:
    """As far as it matters here, a Trainer."""


def test_a_callback_is_copied_and_sent_with_its_trainer():
    trainer = _Holder()
    trainer.callback = integration.PlannedTraining(trainer, {"budget": 1 << 20})
    for copied in (copy.deepcopy(trainer), pickle.loads(pickle.dumps(trainer))):
        assert copied.callback._trainer is copied is not trainer and copied.callback._options == {"budget": 1 << 20}
    assert pickle.loads(pickle.dumps(stowage.hf.StowageCallback("2MiB")))._trainer is None

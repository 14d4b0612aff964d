"""A Trainer that is planned trains as one that is not: losses, gradient norms and parameters, bit for bit."""

import warnings

import pytest
import torch

import stowage

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
import stowage.hf  # noqa: E402


class Sentences(torch.utils.data.Dataset):
    def __init__(self, count: int, length: int = 12):
        self.tokens = torch.randint(0, 50, (count, length), generator=torch.Generator().manual_seed(7))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, i: int) -> dict:
        return {"input_ids": self.tokens[i], "labels": self.tokens[i]}


class History(transformers.TrainerCallback):
    def __init__(self):
        self.logs = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.logs.append(
            {k: v for k, v in logs.items() if k in ("loss", "grad_norm", "learning_rate", "epoch", "eval_loss")}
        )


def train(
    directory, planned: bool, *, trainer_class=transformers.Trainer, callbacks=(), budget=None, samples=24, **arguments
):
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=2, n_positions=16, vocab_size=50, bos_token_id=0, eos_token_id=0, use_cache=False
    )
    model = transformers.GPT2LMHeadModel(config)
    history = History()
    args = transformers.TrainingArguments(
        output_dir=str(directory),
        per_device_train_batch_size=2,
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        save_strategy="no",
        max_steps=8,
        learning_rate=1e-2,
        **arguments,
    )
    trainer = trainer_class(
        model=model,
        args=args,
        train_dataset=Sentences(samples),
        eval_dataset=Sentences(4),
        callbacks=[history, *callbacks],
    )
    plan = stowage.hf.plan(trainer, budget) if planned else None
    if planned:
        with pytest.raises(stowage.Error, match="planned already"):
            stowage.hf.plan(trainer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # schedulers warn of steps out of order, stowage of steps that run eagerly
        trainer.train()
    return model, history.logs, plan


def same(a, b) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


CASES = {
    "plain": {},
    "accumulation": {"gradient_accumulation_steps": 3},
    "no clipping": {"max_grad_norm": 0.0},
    "warm-up and cosine": {"warmup_steps": 3, "lr_scheduler_type": "cosine"},
    "bf16": {"bf16": True},
    "sgd": {"optim": "sgd"},
    "label smoothing": {"label_smoothing_factor": 0.1},
}


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

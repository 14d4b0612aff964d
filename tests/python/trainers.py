"""A small GPT-2 under transformers' Trainer, planned or not: for the tests on the CPU and on a device."""

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


class Padded(Sentences):
    """Sentences of several lengths, padded to one: the mask says where they end."""

    def __getitem__(self, i: int) -> dict:
        mask = (torch.arange(self.tokens.shape[1]) < 4 + i % 9).long()
        return {"input_ids": self.tokens[i], "attention_mask": mask, "labels": self.tokens[i].where(mask == 1, -100)}


class History(transformers.TrainerCallback):
    def __init__(self):
        self.logs = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.logs.append(
            {k: v for k, v in logs.items() if k in ("loss", "grad_norm", "learning_rate", "epoch", "eval_loss")}
        )


def train(
    directory,
    planned: bool,
    *,
    trainer_class=transformers.Trainer,
    callbacks=(),
    budget=None,
    samples=24,
    data=Sentences,
    resume=None,
    how=None,
    use_cpu=True,
    filter_warnings="error",
    **arguments,
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
        disable_tqdm=True,
        use_cpu=use_cpu,
        learning_rate=1e-2,
        **{"save_strategy": "no", "max_steps": 8, "report_to": [], "logging_steps": 1, **arguments},
    )
    trainer = trainer_class(
        model=model,
        args=args,
        train_dataset=data(samples),
        eval_dataset=data(4),
        callbacks=[history, *callbacks],
    )
    if how is not None:
        plan = how(trainer)
    else:
        plan = stowage.hf.plan(trainer, budget) if planned else None
    if planned and how is None:
        with pytest.raises(stowage.Error, match="planned already"):
            stowage.hf.plan(trainer)
    with warnings.catch_warnings():
        warnings.simplefilter(
            filter_warnings
        )  # schedulers warn of steps out of order, stowage of steps that run eagerly
        trainer.train(resume_from_checkpoint=resume)
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
    "attention masks": {"data": Padded},
}

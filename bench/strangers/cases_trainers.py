"""Trainers of others that train by themselves: TRL's SFTTrainer by stowage.hf.plan, Lightning's by its callback."""

from __future__ import annotations

import os
import tempfile

import torch
import torch.nn.functional as F
from job import STEPS, Job, case, generator, pictures
from torch import nn

# ---- TRL

_WORDS = 48


def _tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<eos>": 1} | {f"w{i}": i + 2 for i in range(_WORDS)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def _sentences(count: int):
    from datasets import Dataset

    g = generator()
    lengths = torch.randint(4, 15, (count,), generator=g).tolist()
    return Dataset.from_list(
        [{"text": " ".join(f"w{i}" for i in torch.randint(0, _WORDS, (n,), generator=g).tolist())} for n in lengths]
    )


def _sft(compile, **arguments) -> Job:
    os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")
    import transformers
    from trl import SFTConfig, SFTTrainer

    class Observer(transformers.TrainerCallback):
        observe = None

        def on_step_end(self, args, state, control, **kwargs):
            self.observe(state.global_step)

    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, n_positions=16, vocab_size=_WORDS + 2, use_cache=False)
    )
    observer = Observer()
    options = SFTConfig(
        output_dir=tempfile.gettempdir(),
        per_device_train_batch_size=2,
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        save_strategy="no",
        max_steps=STEPS,
        learning_rate=1e-3,
        dataloader_pin_memory=False,
        max_length=16,
        pad_to_multiple_of=16,
        **arguments,
    )
    trainer = SFTTrainer(
        model=model,
        args=options,
        train_dataset=_sentences(64),
        processing_class=_tokenizer(),
        callbacks=[observer],
    )
    compile.trainer(trainer)

    def run(observe) -> None:
        observer.observe = observe
        trainer.train()

    kept = ("loss", "grad_norm", "learning_rate", "entropy", "mean_token_accuracy", "num_tokens")

    def more() -> dict:
        logs = [{k: entry[k] for k in kept if k in entry} for entry in trainer.state.log_history]
        return {"logs": logs, "optimizer": list(trainer.optimizer.optimizer.state.values())}

    return Job(run, [model], [], more)


@case("trl", "SFTTrainer, padded sentences")
def trl_sft(compile) -> Job:
    return _sft(compile, bf16=False)


@case("trl", "SFTTrainer, accumulation and bf16")
def trl_sft_accumulated(compile) -> Job:
    return _sft(compile, gradient_accumulation_steps=2, bf16=True)


# ---- Lightning


def _fit(compile, **arguments) -> Job:
    import lightning.pytorch as pl

    class Net(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(
                nn.Flatten(), nn.Linear(192, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10)
            )

        def training_step(self, batch, batch_idx):
            value = F.cross_entropy(self.net(batch[0]), batch[1])
            self.log("loss", value, on_step=True, on_epoch=True)
            return value

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    class Observer(pl.Callback):
        observe = None
        logged: list = []

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            self.logged.append({k: v.item() for k, v in sorted(trainer.callback_metrics.items())})
            self.observe(outputs["loss"])

    module, observer = Net(), Observer()
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[observer, *compile.callbacks()],
        **arguments,
    )

    def run(observe) -> None:
        observer.observe = observe
        trainer.fit(module, torch.utils.data.DataLoader(pictures(4, 3, 8, 8), batch_size=None))

    return Job(run, [module], [], lambda: {"logged": observer.logged})


@case("lightning", "its own Trainer")
def lightning_trainer(compile) -> Job:
    return _fit(compile)


@case("lightning", "its own Trainer, bf16-mixed, accumulation, clipping")
def lightning_trainer_accumulated(compile) -> Job:
    return _fit(compile, precision="bf16-mixed", accumulate_grad_batches=2, gradient_clip_val=0.5)

"""transformers' Trainer: evaluation, a checkpoint, resumed from it."""

import sys

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainingArguments, set_seed


class Tokens(Dataset):
    def __init__(self, count, seed):
        g = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(0, 200, (count, 48), generator=g)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i], "attention_mask": torch.ones(48, dtype=torch.long)}


def make(folder):
    set_seed(3)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=200, n_positions=64, n_embd=64, n_layer=2, n_head=2))
    args = TrainingArguments(
        folder, per_device_train_batch_size=8, gradient_accumulation_steps=2, max_steps=4, eval_strategy="steps",
        eval_steps=2, save_steps=2, logging_steps=1, use_cpu=True, disable_tqdm=True, report_to=[], seed=3,
    )  # fmt: skip
    trainer = Trainer(model=model, args=args, train_dataset=Tokens(64, 0), eval_dataset=Tokens(16, 1))
    trainer.remove_callback(PrinterCallback)  # which prints times
    return trainer


def tell(trainer):
    for entry in trainer.state.log_history:
        print({k: v for k, v in entry.items() if k in ("loss", "eval_loss", "grad_norm", "learning_rate", "step")})


torch.set_num_threads(1)
trainer = make(sys.argv[1])
trainer.train()
tell(trainer)
again = make(sys.argv[1])
again.train(resume_from_checkpoint=sys.argv[1] + "/checkpoint-2")
tell(again)

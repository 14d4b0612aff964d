"""A transformers Trainer. Planned: one added line (marked); needs transformers and accelerate."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import stowage.hf


class Counting(torch.utils.data.Dataset):
    """Sequences that count up from a random number."""

    def __len__(self):
        return 256

    def __getitem__(self, i):
        tokens = (torch.arange(16) + i) % 64
        return {"input_ids": tokens, "labels": tokens}


torch.manual_seed(0)
model = GPT2LMHeadModel(
    GPT2Config(n_layer=2, n_embd=64, n_head=2, n_positions=16, vocab_size=64, bos_token_id=0, eos_token_id=0)
)
with tempfile.TemporaryDirectory() as directory:
    arguments = TrainingArguments(
        output_dir=directory,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=20,
        learning_rate=3e-3,
        warmup_steps=5,
        logging_steps=5,
        bf16=True,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Counting())
    planned = stowage.hf.plan(trainer, budget="16MiB")  # the added line
    trainer.train()

stats = planned.step.stats()
print(
    f"planned steps: {stats['planned_steps']}, residents and arena {(stats['resident_bytes'] + stats['arena_bytes']) / 2**20:.2f} MiB"
)

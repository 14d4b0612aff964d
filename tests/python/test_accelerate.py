"""Hugging Face accelerate needs no plugin: stowage.compile takes a loop's body as it is, accumulate() included."""

import logging

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch import nn

import stowage


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 16)
        self.head = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 3))

    def forward(self, tokens, mask):
        scores = self.embed(tokens).sum(-1).masked_fill(mask == 0, float("-inf")).softmax(-1)
        return self.head((self.embed(tokens) * scores[..., None]).sum(1))


def loaders():
    numbers = torch.Generator().manual_seed(7)
    tokens = torch.randint(0, 30, (56, 8), generator=numbers)
    mask = (torch.arange(8) < torch.randint(2, 9, (56, 1), generator=numbers)).float()
    data = torch.utils.data.TensorDataset(tokens, mask, torch.randint(0, 3, (56,), generator=numbers))
    return torch.utils.data.DataLoader(data, batch_size=8), torch.utils.data.DataLoader(data, batch_size=28)


def train(compile, folder, epochs=3, resume=False):
    """(model, losses): ``compile`` is stowage.compile, or leaves the function as it is."""
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
    model = Masked()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=10)
    model, optimizer, schedule, loader, held_out = accelerator.prepare(model, optimizer, schedule, *loaders())
    if resume:
        accelerator.load_state(folder)

    def train_step(tokens, mask, labels):
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(tokens, mask), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        return loss.detach()

    step = compile(train_step)
    seen = []
    for _ in range(epochs):
        model.train()
        seen += [step(*batch).item() for batch in loader]
        model.eval()
        with torch.no_grad():
            seen += [model(tokens, mask).sum().item() for tokens, mask, _ in held_out]
        if not resume:
            accelerator.save_state(folder)
    return model, [*seen, schedule.get_last_lr()], step


@pytest.mark.filterwarnings("error::UserWarning:stowage")
def test_accumulation_masks_bf16_evaluation_checkpoints_and_resume(tmp_path, caplog):
    found = []
    for compile in (lambda step: step, lambda step: stowage.compile(step, budget="16MiB")):
        folder = tmp_path / str(len(found))
        with caplog.at_level(logging.INFO, "stowage"):
            whole, seen, _ = train(compile, folder)
            resumed, seen_again, step = train(compile, folder, resume=True)
        found.append((whole, seen, resumed, seen_again))
    (whole, seen, resumed, seen_again), planned = found[0], found[1]
    assert seen == planned[1] and seen_again == planned[3]
    assert all(map(torch.equal, whole.parameters(), planned[0].parameters()))
    assert all(map(torch.equal, resumed.parameters(), planned[2].parameters()))
    assert step.refusal == "" and step.stats()["planned_steps"] >= 7
    assert any("train_step is planned: arena" in record.getMessage() for record in caplog.records)

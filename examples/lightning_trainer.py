"""Lightning's own Trainer. Planned: one added callback (marked); needs lightning, or pytorch_lightning."""

import logging

import lightning.pytorch as pl
import torch
from torch import nn

import stowage.lightning


class LitAutoencoder(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))
        self.decoder = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 64))

    def training_step(self, batch, batch_idx):
        loss = nn.functional.mse_loss(self.decoder(self.encoder(batch)), batch)
        self.log("train_loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", nn.functional.mse_loss(self.decoder(self.encoder(batch)), batch))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)]


logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.manual_seed(0)
planned = stowage.lightning.Stowage(budget="8MiB")  # the added line, and the callback below
trainer = pl.Trainer(
    max_epochs=4,
    accelerator="cpu",
    devices=1,
    precision="bf16-mixed",
    accumulate_grad_batches=2,
    gradient_clip_val=0.5,
    callbacks=[planned],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
data = torch.randn(320, 64)
trainer.fit(
    LitAutoencoder(),
    torch.utils.data.DataLoader(data, batch_size=16),
    torch.utils.data.DataLoader(data, batch_size=64),
)
metrics = trainer.callback_metrics
print(f"loss {metrics['train_loss_epoch']:.4f}, validation {metrics['val_loss']:.4f}")
print(f"planned steps: {planned.stats()['planned_steps']}")

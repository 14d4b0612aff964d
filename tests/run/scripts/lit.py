"""Lightning's Trainer: validation, clipping, accumulation, a schedule, a checkpoint, resumed from it."""

import sys
import warnings

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Digits(lightning.LightningModule):
    def __init__(self, width=128):
        super().__init__()
        self.save_hyperparameters()
        self.body = nn.Sequential(nn.Linear(64, width), nn.GELU(), nn.Dropout(0.2), nn.Linear(width, width), nn.GELU())
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.body(x))

    def training_step(self, batch, index):
        images, labels = batch
        loss = F.cross_entropy(self(images), labels, label_smoothing=0.1)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        images, labels = batch
        self.log("right", (self(images).argmax(1) == labels).float().mean())

    def on_train_batch_end(self, outputs, batch, index):
        print(index, f"{outputs['loss'].item():.7f}")

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)]


def digits(count, seed):
    g = torch.Generator().manual_seed(seed)
    return DataLoader(
        TensorDataset(torch.rand(count, 64, generator=g), torch.randint(0, 10, (count,), generator=g)), 512
    )


def fit(folder, epochs, path=None):
    lightning.seed_everything(3, verbose=False)
    model = Digits()
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, max_epochs=epochs, gradient_clip_val=1.0, accumulate_grad_batches=2, logger=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[ModelCheckpoint(folder, save_last=True)],
    )  # fmt: skip
    trainer.fit(model, digits(2048, 0), digits(512, 1), ckpt_path=path)
    print({name: f"{value.item():.7f}" for name, value in sorted(trainer.callback_metrics.items())})
    print(sum(p.double().sum().item() for p in model.parameters()))


warnings.simplefilter("ignore")
torch.set_num_threads(1)
fit(sys.argv[1], 2)
fit(sys.argv[1], 4, sys.argv[1] + "/last.ckpt")

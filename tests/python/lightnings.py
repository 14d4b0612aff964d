"""A small module under Lightning's Trainer, planned or not."""

import logging
import warnings

import lightning.pytorch as pl
import torch
from torch import nn

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Net(pl.LightningModule):
    """Classifies what a mask leaves of a sequence."""

    def __init__(self, **how):
        super().__init__()
        self.how = how
        self.embed = nn.Embedding(30, 16)
        self.attend = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, tokens, mask):
        x = self.attend(self.embed(tokens), src_key_padding_mask=mask == 0)
        return self.head((x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))

    def training_step(self, batch, batch_idx):
        tokens, mask, labels = batch
        scores = self(tokens, mask)
        loss = nn.functional.cross_entropy(scores, labels)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        self.log("hits", (scores.argmax(1) == labels).float().mean(), on_epoch=True, on_step=False)
        self.log("batch", batch_idx, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", nn.functional.cross_entropy(self(*batch[:2]), batch[2]))

    def configure_optimizers(self):
        optimizer = self.how.get("optimizer", torch.optim.AdamW)(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class History(pl.Callback):
    """What a training shows of itself after each batch."""

    def __init__(self):
        self.seen = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        metrics = {k: v.item() for k, v in sorted(trainer.callback_metrics.items())}
        gradients = [None if p.grad is None else p.grad.sum().item() for p in module.parameters()]
        self.seen.append(
            (outputs["loss"].item(), trainer.global_step, trainer.progress_bar_metrics, metrics, gradients)
        )

    def on_train_epoch_end(self, trainer, module):
        self.seen.append({k: v.item() for k, v in sorted(trainer.logged_metrics.items())})


def loaders(samples=40):
    numbers = torch.Generator().manual_seed(7)
    tokens = torch.randint(0, 30, (samples, 8), generator=numbers)
    mask = (torch.arange(8) < torch.randint(2, 9, (samples, 1), generator=numbers)).float()
    data = torch.utils.data.TensorDataset(tokens, mask, torch.randint(0, 3, (samples,), generator=numbers))
    return torch.utils.data.DataLoader(data, batch_size=8), torch.utils.data.DataLoader(data, batch_size=20)


def train(folder, callback=None, module=None, *, resume=None, package=pl, filter_warnings="error", callbacks=(), **how):
    """(module, history): with ``callback`` planned."""
    torch.manual_seed(0)
    module = module() if module is not None else Net()
    history = History()
    arguments = {"max_epochs": 3, "logger": False, "enable_checkpointing": False, "log_every_n_steps": 1, **how}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = package.Trainer(
            default_root_dir=folder,
            accelerator="cpu",
            devices=1,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[history, *callbacks, *([callback] if callback else [])],
            **arguments,
        )
        warnings.filterwarnings(filter_warnings, message="stowage|.*lr_scheduler.step")
        trainer.fit(module, *loaders(), ckpt_path=resume)
    return module, history.seen


def same(a, b) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.state_dict().values(), b.state_dict().values(), strict=True))

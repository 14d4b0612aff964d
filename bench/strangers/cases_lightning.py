"""Lightning: its modules in a loop of one's own, and Fabric."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from job import Job, adamw, case, each_call, pictures, tokens, training, vectors
from torch import nn


def _lightning_module():
    import lightning

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(
                nn.Flatten(), nn.Linear(192, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10)
            )

        def training_step(self, batch, batch_idx):
            x, y = batch
            return F.cross_entropy(self.net(x), y)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    return Net()


@case("lightning", "LightningModule, an own loop around training_step")
def lightning_module(compile) -> Job:
    module = _lightning_module().train()
    optimizer = module.configure_optimizers()

    def train_step(batch):
        optimizer.zero_grad()
        value = module.training_step(batch, 0)
        value.backward()
        optimizer.step()
        return value.detach()

    return Job(each_call(compile(train_step), [(batch,) for batch in pictures(4, 3, 8, 8)]), [module], [optimizer])


@case("lightning", "the BoringModel of Lightning's demos")
def lightning_boring(compile) -> Job:
    from lightning.pytorch.demos.boring_classes import BoringModel

    module = BoringModel().train()
    (optimizer,), _ = module.configure_optimizers()

    def train_step(batch):
        optimizer.zero_grad()
        value = module.training_step(batch, 0)["loss"]
        value.backward()
        optimizer.step()
        return value.detach()

    return Job(each_call(compile(train_step), [(x,) for x, _ in vectors(4, 32)]), [module], [optimizer])


@case("lightning", "Fabric: setup and backward, bf16-mixed")
def lightning_fabric(compile) -> Job:
    import lightning

    fabric = lightning.Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    module = _lightning_module()
    model, optimizer = fabric.setup(module.net, torch.optim.AdamW(module.parameters(), lr=1e-3))
    model.train()

    def train_step(x, y):
        optimizer.zero_grad()
        value = F.cross_entropy(model(x), y)
        fabric.backward(value)
        optimizer.step()
        return value.detach()

    return Job(each_call(compile(train_step), pictures(4, 3, 8, 8)), [module], [optimizer.optimizer])


@case("lightning", "the Transformer of Lightning's demos")
def lightning_transformer(compile) -> Job:
    from lightning.pytorch.demos import Transformer

    model = Transformer(vocab_size=50, ninp=32, nhead=4, nhid=64, nlayers=2)
    return training(
        compile,
        model,
        tokens(50, 3, 12),
        lambda m, x: F.nll_loss(m(x[:, :-1], x[:, 1:]), x[:, 1:].flatten()),
        adamw(model),
    )

"""A module in the style of Lightning (training_step, configure_optimizers) and the loop that drives it, planned.

Lightning's own Trainer calls training_step() and backward() from its loops, hook by hook; the whole update is one
function here, which is what a planned step needs. The module stays as it is.
"""

import torch
from torch import nn

import stowage


class LitAutoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))
        self.decoder = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 64))

    def training_step(self, batch, batch_idx):
        return nn.functional.mse_loss(self.decoder(self.encoder(batch)), batch)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, step_size=10)]


class Trainer:
    """fit() as Lightning's automatic optimization does it: backward, step, zero_grad for each batch, schedules after
    each epoch."""

    def __init__(self, max_epochs: int, budget: str | None = None):
        self.max_epochs = max_epochs
        self.budget = budget

    def fit(self, module, loader):
        optimizers, schedulers = module.configure_optimizers()

        def update(batch):
            loss = module.training_step(batch, 0)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            return loss.detach()

        self.step = stowage.compile(update, self.budget)
        for epoch in range(self.max_epochs):
            for batch in loader:
                loss = self.step(batch)
            for scheduler in schedulers:
                scheduler.step()
            print(f"epoch {epoch}: loss {loss.item():.4f}")


torch.manual_seed(0)
trainer = Trainer(max_epochs=4, budget="8MiB")
trainer.fit(LitAutoencoder(), torch.utils.data.DataLoader(torch.randn(320, 64), batch_size=32))
print(f"planned steps: {trainer.step.stats()['planned_steps']}")

"""Libraries around the loop: engines, metrics, reinforcement learning, private training, augmentation, averaging."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from job import STEPS, Job, adamw, case, classed, each_call, generator, net, training
from torch import nn


def _through_engine(update, compile, model, optimizer) -> Job:
    from ignite.engine import Engine, Events

    engine, batches = Engine(compile(update)), classed(6, 8)

    def run(observe) -> None:
        engine.add_event_handler(Events.ITERATION_COMPLETED, lambda e: observe(e.state.output))
        engine.run(batches, max_epochs=1)

    return Job(run, [model], [optimizer])


@case("pytorch-ignite", "Engine, an update of one's own")
def ignite_engine(compile) -> Job:
    model = net()
    optimizer = adamw(model)

    def update(engine, batch):
        model.train()
        optimizer.zero_grad()
        x, y = batch
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return _through_engine(update, compile, model, optimizer)


@case("pytorch-ignite", "Engine, supervised_training_step")
def ignite_supervised(compile) -> Job:
    from ignite.engine import supervised_training_step

    model = net()
    optimizer = adamw(model)
    update = supervised_training_step(model, optimizer, F.cross_entropy, "cpu")
    return _through_engine(update, compile, model, optimizer)


@case("skorch", "train_step of a classifier")
def skorch_step(compile) -> Job:
    from skorch import NeuralNetClassifier

    made = NeuralNetClassifier(
        net, criterion=nn.CrossEntropyLoss, optimizer=torch.optim.Adam, lr=1e-3, train_split=None, verbose=0
    ).initialize()
    step = compile(lambda x, y: made.train_step((x, y))["loss"].detach())
    return Job(each_call(step, classed(6, 8)), [made.module_], [made.optimizer_])


@case("torchmetrics", "accuracy and mean updated in the step")
def torchmetrics_in_step(compile) -> Job:
    import torchmetrics

    accuracy, mean = torchmetrics.classification.MulticlassAccuracy(4), torchmetrics.MeanMetric()
    model = net()
    optimizer = adamw(model)

    def train_step(x, y):
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
        accuracy.update(out.detach(), y)
        mean.update(loss.detach())
        return loss.detach()

    return Job(
        each_call(compile(train_step), classed(6, 8)),
        [model],
        [optimizer],
        lambda: {"accuracy": accuracy.compute(), "mean": mean.compute()},
    )


@case("ema-pytorch", "EMA every second step")
def ema_every_second(compile) -> Job:
    from ema_pytorch import EMA

    model = net()
    average, optimizer = EMA(model, beta=0.99, update_after_step=2, update_every=2), adamw(model)

    def train_step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        average.update()
        return loss.detach()

    return Job(each_call(compile(train_step), classed(6, 8, count=3 * STEPS)), [model, average], [optimizer])


@case("opacus", "private SGD: gradients of each sample, clipped, with noise")
def opacus_private(compile) -> Job:
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    model = GradSampleModule(net())
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), 0.05), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=6
    )
    return training(compile, model, classed(6, 8), lambda m, x, y: F.cross_entropy(m(x), y), optimizer)


@case("kornia", "augmentations in the step")
def kornia_augmented(compile) -> Job:
    import kornia.augmentation as augment

    changed = augment.AugmentationSequential(
        augment.RandomBrightness((0.8, 1.2), p=1.0), augment.RandomGaussianNoise(std=0.1, p=1.0)
    )
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    return training(compile, model, classed(4, 3, 16, 16), lambda m, x, y: F.cross_entropy(m(changed(x)), y))


@case("kornia", "structural similarity and total variation")
def kornia_losses(compile) -> Job:
    import kornia

    def loss(model, x, _):
        y = model(x)
        return kornia.losses.ssim_loss(y, x, 5) + kornia.losses.total_variation(y).mean()

    return training(compile, nn.Conv2d(3, 3, 3, padding=1), classed(2, 3, 12, 12), loss)


@case("torchrl", "DQN loss and a soft update of its target")
def torchrl_dqn(compile) -> Job:
    from tensordict import TensorDict
    from torchrl.modules import QValueActor
    from torchrl.objectives import DQNLoss, SoftUpdate

    actor = QValueActor(
        nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)), in_keys=["observation"], action_space="one-hot"
    )
    loss = DQNLoss(actor, action_space="one-hot", delay_value=True)
    target, optimizer = SoftUpdate(loss, eps=0.9), torch.optim.Adam(loss.parameters(), 1e-3)
    g = generator()

    def transitions() -> TensorDict:
        never = torch.zeros(8, 1, dtype=torch.bool)
        return TensorDict(
            {
                "observation": torch.randn(8, 4, generator=g),
                "action": F.one_hot(torch.randint(0, 2, (8,), generator=g), 2),
                "next": {
                    "observation": torch.randn(8, 4, generator=g),
                    "reward": torch.randn(8, 1, generator=g),
                    "done": never,
                    "terminated": never.clone(),
                },
            },
            [8],
        )

    def train_step(batch):
        value = loss(batch)["loss"]
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        target.step()
        return value.detach()

    return Job(each_call(compile(train_step), [(transitions(),) for _ in range(STEPS)]), [loss], [optimizer])


def _quantized(name: str, **options) -> None:
    @case("vector-quantize-pytorch", name, name=f"vq_{name.lower()}")
    def build(compile) -> Job:
        import vector_quantize_pytorch

        class Autoencoder(nn.Module):
            def __init__(self):
                super().__init__()
                self.encoder, self.decoder = nn.Linear(8, 8), nn.Linear(8, 8)
                self.codes = getattr(vector_quantize_pytorch, name)(dim=8, **options)

            def forward(self, x):
                found = self.codes(self.encoder(x))
                return F.mse_loss(self.decoder(found[0]), x) + (found[-1].sum() if len(found) > 2 else 0)

        g = generator()
        batches = [(torch.randn(2, 6, 8, generator=g),) for _ in range(STEPS)]
        return training(compile, Autoencoder(), batches, lambda m, x: m(x))


_quantized("VectorQuantize", codebook_size=16, decay=0.8)
_quantized("FSQ", levels=[4, 4])
_quantized("LFQ", codebook_size=16)
_quantized("ResidualVQ", num_quantizers=2, codebook_size=16)
_quantized("SimVQ", codebook_size=16)

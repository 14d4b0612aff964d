"""Steps of people's own loops: what happens every so many calls, or between them: preconditioners and optimizer state made
anew, logs that grow, generators of an epoch, parameters that are swapped."""

from __future__ import annotations

import collections
import copy

import torch
import torch.nn.functional as F
from job import LONG, Job, adamw, case, each_call, net, vectors
from torch import nn


class Shampoo(torch.optim.Optimizer):
    """Counts in its state; every third step it makes the roots that the others go on with."""

    def __init__(self, params, lr: float = 0.05):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                g = p.grad if p.ndim == 2 else p.grad[None]
                if not state:
                    state["left"], state["right"] = torch.eye(g.shape[0]) * 1e-2, torch.eye(g.shape[1]) * 1e-2
                    state["n"] = 0
                state["left"] += g @ g.T
                state["right"] += g.T @ g
                if state["n"] % 3 == 0:
                    for side in ("left", "right"):
                        values, vectors_ = torch.linalg.eigh(state[side])
                        state[f"root of {side}"] = vectors_ @ torch.diag(values.clamp(min=1e-8) ** -0.25) @ vectors_.T
                state["n"] += 1
                update = state["root of left"] @ g @ state["root of right"]
                p.sub_(update.reshape(p.shape), alpha=group["lr"])


@case("torch", "Shampoo: roots by eigh every third step, counted in the optimizer's state")
def shampoo(compile) -> Job:
    model = net()
    optimizer = Shampoo(model.parameters())

    def train_step(x, y):
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Job(each_call(compile(train_step), vectors(6, 8, count=LONG)), [model], [optimizer])


@case("torch", "losses kept by a list, the latest averaged and printed every fourth call, as tqdm and wandb are told")
def growing_log(compile) -> Job:
    model = net()
    optimizer = adamw(model)
    losses: list = []
    told: list = []

    def train_step(x, y):
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if len(losses) % 4 == 0:
            told.append({"loss": torch.stack(losses[-4:]).mean().item(), "lr": optimizer.param_groups[0]["lr"]})
        return loss.detach()

    return Job(
        each_call(compile(train_step), vectors(6, 8, count=LONG)),
        [model],
        [optimizer],
        lambda: {"losses": losses, "told": [t["loss"] for t in told]},
    )


@case("torch", "warm restarts: optimizer.state is emptied, its counters set to zero, by the step")
def restarted_adam(compile) -> Job:
    model = net()
    optimizer = adamw(model)
    calls = {"n": 0}

    def train_step(x, y):
        calls["n"] += 1
        if calls["n"] == 8:
            for state in optimizer.state.values():
                state["exp_avg"].zero_()
                state["step"].zero_()
        if calls["n"] in (14, 26):
            optimizer.state = collections.defaultdict(dict)
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Job(each_call(compile(train_step), vectors(6, 8, count=LONG)), [model], [optimizer])


@case("torch", "a generator for each call, held by an attribute: self.g = torch.Generator().manual_seed(i)")
def generator_of_call(compile) -> Job:
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = net()
            self.g = torch.Generator()

        def forward(self, x):
            return self.body(x + torch.randn(x.shape, generator=self.g))

    model = Noisy()
    optimizer = adamw(model)

    def train_step(x, y):
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = compile(train_step)

    def run(observe) -> None:
        for i, batch in enumerate(vectors(6, 8, count=20)):
            model.g = torch.Generator().manual_seed(i)
            observe(step(*batch))

    return Job(run, [model], [optimizer], lambda: {"generator": model.g.get_state()})


@case("torch", "an ensemble by torch.vmap over stacked parameters, each with dropout of its own")
def ensemble_dropout(compile) -> Job:
    members = [nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 4)) for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(members)
    base = copy.deepcopy(members[0]).to("meta")
    optimizer = torch.optim.Adam(parameters.values(), lr=1e-2)

    def of_member(p, b, x):
        return torch.func.functional_call(base, (p, b), (x,))

    def train_step(x, y):
        out = torch.vmap(of_member, (0, 0, None), randomness="different")(parameters, buffers, x)
        loss = (out - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Job(each_call(compile(train_step), vectors(6, 8, count=20)), [], [optimizer], lambda: dict(parameters))


@case("torch", "torch.utils.swap_tensors on a parameter between calls")
def swapped_parameter(compile) -> Job:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(x, y):
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = compile(train_step)

    def run(observe) -> None:
        for i, batch in enumerate(vectors(6, 8, count=24)):
            if i in (8, 9, 16):
                torch.utils.swap_tensors(model[0].weight, nn.Parameter(torch.full_like(model[0].weight, 0.1)))
            observe(step(*batch))

    return Job(run, [model], [optimizer])

"""Ways of training: accumulation, checkpointing, mixed precision, averages, SAM, functional gradients, penalties,
hooks."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from job import STEPS, Job, adamw, case, each_call, of_images, pictures, tokens, training, vectors
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


def _net(width: int = 16) -> nn.Module:
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))


def _encoder(**options) -> nn.Module:
    return nn.TransformerEncoder(
        nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, **options), 2, enable_nested_tensor=False
    )


# ---- Accumulation


@case("torch", "accumulation: a counter of the loop's, if it % 4 == 0: optimizer.step()")
def accumulate_counter(compile) -> Job:
    model = _net()
    optimizer, it = adamw(model), 0

    def train_step(x, y):
        nonlocal it
        value = F.mse_loss(model(x), y) / 4
        value.backward()
        it += 1
        if it % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        return value.detach()

    return Job(each_call(compile(train_step), vectors(6, 8, count=40)), [model], [optimizer], lambda: {"it": it})


@case("torch", "accumulation: the step's number is an argument, if it % 4 == 0: optimizer.step()")
def accumulate_argument(compile) -> Job:
    model = _net()
    optimizer = adamw(model)

    def train_step(it, x, y):
        value = F.mse_loss(model(x), y) / 4
        value.backward()
        if it % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        return value.detach()

    step = compile(train_step)

    def run(observe) -> None:
        for it, (x, y) in enumerate(vectors(6, 8, count=40), 1):
            observe(step(it, x, y))

    return Job(run, [model], [optimizer])


@case("torch", "accumulation: a flag says when to step")
def accumulate_flag(compile) -> Job:
    model = _net()
    optimizer = adamw(model)

    def train_step(x, y, last):
        value = F.mse_loss(model(x), y) / 4
        value.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
        return value.detach()

    step = compile(train_step)

    def run(observe) -> None:
        for it, (x, y) in enumerate(vectors(6, 8, count=32), 1):
            observe(step(x, y, it % 4 == 0))

    return Job(run, [model], [optimizer])


@case("torch", "forward and backward compiled, optimizer outside")
def step_outside(compile) -> Job:
    model = _net()
    optimizer = adamw(model)

    def forward_backward(x, y):
        optimizer.zero_grad()
        value = F.mse_loss(model(x), y)
        value.backward()
        return value.detach()

    step = compile(forward_backward)

    def run(observe) -> None:
        for batch in vectors(6, 8):
            value = step(*batch)
            optimizer.step()
            observe(value)

    return Job(run, [model], [optimizer])


@case("torch", "gradients dropped by for p in model.parameters(): p.grad = None")
def drop_by_loop(compile) -> Job:
    model = _net()
    optimizer = adamw(model)

    def train_step(x, y):
        for p in model.parameters():
            p.grad = None
        value = F.mse_loss(model(x), y)
        value.backward()
        optimizer.step()
        return value.detach()

    return Job(each_call(compile(train_step), vectors(6, 8)), [model], [optimizer])


@case("torch", "plain tensors with SGD by hand under no_grad")
def sgd_by_hand(compile) -> Job:
    w, b = torch.randn(8, 4, requires_grad=True), torch.zeros(4, requires_grad=True)

    def train_step(x, y):
        value = ((x @ w + b - y) ** 2).mean()
        value.backward()
        with torch.no_grad():
            for p in (w, b):
                p -= 0.01 * p.grad
                p.grad = None
        return value.detach()

    return Job(
        each_call(compile(train_step), vectors(6, 8)), [], [], lambda: {"w": w, "b": b, "grads": [w.grad, b.grad]}
    )


# ---- Checkpointing


def _checkpointed(compile, reentrant: bool) -> Job:
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.layers, self.head = nn.Embedding(50, 32), _encoder(dropout=0.1).layers, nn.Linear(32, 50)

        def forward(self, x):
            y = self.embed(x)
            for layer in self.layers:
                y = checkpoint(layer, y, use_reentrant=reentrant)
            return self.head(y)

    return training(
        compile, Checkpointed(), tokens(50, 3, 12), lambda m, x: F.cross_entropy(m(x).flatten(0, 1), x.flatten())
    )


@case("torch", "checkpoint, reentrant, encoder layers with dropout")
def checkpoint_reentrant(compile) -> Job:
    return _checkpointed(compile, True)


@case("torch", "checkpoint, non-reentrant, encoder layers with dropout")
def checkpoint_plain(compile) -> Job:
    return _checkpointed(compile, False)


@case("torch", "checkpoint_sequential of ReLU, LayerNorm, Linear")
def checkpoint_chain(compile) -> Job:
    chain = nn.Sequential(
        *(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.LayerNorm(8)) for _ in range(4)), nn.Linear(8, 4)
    )
    return training(
        compile,
        chain,
        vectors(6, 8),
        lambda m, x, y: F.mse_loss(checkpoint_sequential(m, 2, x, use_reentrant=False), y),
    )


# ---- Mixed precision


@case("torch", "autocast to bfloat16, TransformerEncoder")
def autocast_bf16(compile) -> Job:
    model = nn.Sequential(nn.Embedding(50, 32), _encoder(), nn.Linear(32, 50))

    def loss(m, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.cross_entropy(m(x).flatten(0, 1), x.flatten())

    return training(compile, model, tokens(50, 3, 12), loss)


@case(
    "torch",
    "autocast and GradScaler",
    data_decides="GradScaler asks in each step whether a gradient overflowed, and may skip the update",
)
def grad_scaler(compile) -> Job:
    model = _net()
    optimizer = adamw(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def train_step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = F.mse_loss(model(x).float(), y)
        scaler.scale(value).backward()
        scaler.step(optimizer)
        scaler.update()
        return value.detach()

    return Job(each_call(compile(train_step), vectors(6, 8)), [model], [optimizer])


@case("torch", "a bfloat16 model")
def pure_bf16(compile) -> Job:
    model = _net().to(torch.bfloat16)
    return training(
        compile, model, [(x.bfloat16(), y.bfloat16()) for x, y in vectors(6, 8)], lambda m, x, y: F.mse_loss(m(x), y)
    )


# ---- Averages and other optimizers around optimizers


def _averaged(compile, **options) -> Job:
    model = _net()
    optimizer, average = adamw(model), torch.optim.swa_utils.AveragedModel(model, **options)

    def train_step(x, y):
        optimizer.zero_grad()
        value = F.mse_loss(model(x), y)
        value.backward()
        optimizer.step()
        average.update_parameters(model)
        return value.detach()

    return Job(each_call(compile(train_step), vectors(6, 8)), [model, average], [optimizer])


@case("torch", "AveragedModel, in the step")
def averaged_model(compile) -> Job:
    return _averaged(compile)


@case("torch", "AveragedModel with get_ema_multi_avg_fn, in the step")
def ema_model(compile) -> Job:
    return _averaged(compile, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))


@case("torch", "EMA by hand under no_grad")
def ema_by_hand(compile) -> Job:
    model = _net()
    target, optimizer = copy.deepcopy(model).requires_grad_(False), adamw(model)

    def train_step(x, y):
        optimizer.zero_grad()
        value = F.mse_loss(model(x), y)
        value.backward()
        optimizer.step()
        with torch.no_grad():
            for t, p in zip(target.parameters(), model.parameters()):
                t.mul_(0.99).add_(p, alpha=0.01)
        return value.detach()

    return Job(each_call(compile(train_step), vectors(6, 8)), [model, target], [optimizer])


@case("torch", "SAM: two backward passes, weights moved between")
def sam(compile) -> Job:
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)

    def train_step(x, y):
        value = F.mse_loss(model(x), y)
        value.backward()
        with torch.no_grad():
            norm = torch.norm(torch.stack([p.grad.norm() for p in model.parameters()]))
            moved = {p: p.grad * (0.05 / (norm + 1e-12)) for p in model.parameters()}
            for p, e in moved.items():
                p.add_(e)
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        with torch.no_grad():
            for p, e in moved.items():
                p.sub_(e)
        optimizer.step()
        optimizer.zero_grad()
        return value.detach()

    return Job(each_call(compile(train_step), vectors(6, 8)), [model], [optimizer])


@case("torch", "SAM as an optimizer that keeps its move in its state")
def sam_class(compile) -> Job:
    class SAM(torch.optim.Optimizer):
        def __init__(self, params, base, rho=0.05, **options):
            super().__init__(params, {"rho": rho, **options})
            self.base_optimizer = base(self.param_groups, **options)
            self.param_groups = self.base_optimizer.param_groups

        @torch.no_grad()
        def first_step(self):
            norm = torch.norm(torch.stack([p.grad.norm(p=2) for g in self.param_groups for p in g["params"]]), p=2)
            for group in self.param_groups:
                for p in group["params"]:
                    self.state[p]["old_p"] = p.data.clone()
                    p.add_(p.grad * (group["rho"] / (norm + 1e-12)))
            self.zero_grad()

        @torch.no_grad()
        def second_step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    p.data = self.state[p]["old_p"]
            self.base_optimizer.step()
            self.zero_grad()

    model = _net()
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=1e-2)

    def train_step(x, y):
        value = F.mse_loss(model(x), y)
        value.backward()
        optimizer.first_step()
        F.mse_loss(model(x), y).backward()
        optimizer.second_step()
        return value.detach()

    return Job(each_call(compile(train_step), vectors(6, 8)), [model], [optimizer])


@case("torch", "an optimizer that counts its steps in Python")
def counting_optimizer(compile) -> Job:
    class Counting(torch.optim.SGD):
        steps = 0

        def step(self, closure=None):
            self.steps += 1
            return super().step(closure)

    model = _net()
    optimizer = Counting(model.parameters(), lr=1e-2)
    job = training(compile, model, vectors(6, 8), lambda m, x, y: F.mse_loss(m(x), y), optimizer)
    job.more = lambda: {"steps": optimizer.steps}
    return job


# ---- Functional


@case("torch", "torch.func: gradients per sample by vmap")
def per_sample_gradients(compile) -> Job:
    from torch.func import functional_call, grad, vmap

    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    def loss_of(parameters, x, y):
        return F.mse_loss(functional_call(model, parameters, (x[None],)), y[None])

    def train_step(x, y):
        parameters = {k: v.detach() for k, v in model.named_parameters()}
        gradients = vmap(grad(loss_of), in_dims=(None, 0, 0))(parameters, x, y)
        for name, p in model.named_parameters():
            p.grad = gradients[name].clamp(-1, 1).mean(0)
        optimizer.step()
        optimizer.zero_grad()
        return gradients["0.weight"].abs().mean()

    return Job(each_call(compile(train_step), vectors(6, 8)), [model], [optimizer])


@case("torch", "torch.func: grad_and_value, update by hand")
def functional_training(compile) -> Job:
    from torch.func import functional_call, grad_and_value

    model = _net()

    def train_step(x, y):
        parameters = dict(model.named_parameters())
        gradients, value = grad_and_value(lambda p: F.mse_loss(functional_call(model, p, (x,)), y))(
            {k: v.detach() for k, v in parameters.items()}
        )
        with torch.no_grad():
            for name, p in parameters.items():
                p -= 0.01 * gradients[name]
        return value

    return Job(each_call(compile(train_step), vectors(6, 8)), [model])


@case("torch", "MAML: inner step by functional_call and autograd.grad")
def maml(compile) -> Job:
    from torch.func import functional_call

    model = _net()
    optimizer = adamw(model)

    def train_step(x, y):
        optimizer.zero_grad()
        total = 0.0
        for part in range(2):
            inner = dict(model.named_parameters())
            a, b = slice(part, None, 2), slice(1 - part, None, 2)
            for _ in range(2):
                value = F.mse_loss(functional_call(model, inner, (x[a],)), y[a])
                gradients = torch.autograd.grad(value, tuple(inner.values()), create_graph=True)
                inner = {k: p - 0.1 * g for (k, p), g in zip(inner.items(), gradients)}
            total = total + F.mse_loss(functional_call(model, inner, (x[b],)), y[b])
        total.backward()
        optimizer.step()
        return total.detach()

    return Job(each_call(compile(train_step), vectors(8, 8)), [model], [optimizer])


@case("higher", "MAML by higher.innerloop_ctx")
def higher_maml(compile) -> Job:
    import higher

    model = _net()
    inner, outer = torch.optim.SGD(model.parameters(), lr=0.1), adamw(model)

    def train_step(x, y):
        outer.zero_grad()
        with higher.innerloop_ctx(model, inner, copy_initial_weights=False) as (fast, steps):
            for _ in range(2):
                steps.step(F.mse_loss(fast(x[::2]), y[::2]))
            value = F.mse_loss(fast(x[1::2]), y[1::2])
            value.backward()
        outer.step()
        return value.detach()

    return Job(each_call(compile(train_step), vectors(8, 8)), [model], [inner, outer])


@case("torch", "Reptile: a copy trains, the model moves towards it")
def reptile(compile) -> Job:
    model, fast = _net(), _net()

    def train_step(x, y):
        with torch.no_grad():
            for f, p in zip(fast.parameters(), model.parameters()):
                f.copy_(p)
        for _ in range(3):
            gradients = torch.autograd.grad(F.mse_loss(fast(x), y), list(fast.parameters()))
            with torch.no_grad():
                for f, g in zip(fast.parameters(), gradients):
                    f.sub_(0.1 * g)
        with torch.no_grad():
            for f, p in zip(fast.parameters(), model.parameters()):
                p.lerp_(f, 0.5)
            return F.mse_loss(model(x), y)

    return Job(each_call(compile(train_step), vectors(8, 8)), [model, fast])


@case("torch", "a physics-informed net: second derivatives by autograd.grad")
def physics_informed(compile) -> Job:
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))

    def loss(m, x, _):
        x = x.clone().requires_grad_(True)
        u = m(x)
        first = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
        second = torch.autograd.grad(first[:, 0].sum(), x, create_graph=True)[0][:, 0]
        return (first[:, 1] - 0.1 * second).pow(2).mean() + u.pow(2).mean()

    return training(compile, model, vectors(16, 2), loss)


# ---- Modules that compute their weights, hooks, own autograd functions


@case("torch", "spectral_norm and weight_norm by parametrization")
def parametrized(compile) -> Job:
    norms = nn.utils.parametrizations
    model = nn.Sequential(
        norms.spectral_norm(nn.Linear(8, 16)),
        nn.ReLU(),
        norms.weight_norm(nn.Linear(16, 16)),
        nn.ReLU(),
        norms.orthogonal(nn.Linear(16, 4)),
    )
    return training(compile, model, vectors(6, 8), lambda m, x, y: F.mse_loss(m(x), y))


@case("torch", "the older spectral_norm, by forward pre-hooks")
def hooked_spectral_norm(compile) -> Job:
    norm = nn.utils.spectral_norm
    model = nn.Sequential(norm(nn.Linear(8, 16)), nn.ReLU(), norm(nn.Linear(16, 4)))
    return training(compile, model, vectors(6, 8), lambda m, x, y: F.mse_loss(m(x), y))


@case("torch", "hooks that scale and clip gradients")
def gradient_hooks(compile) -> Job:
    model = _net()
    for p in model.parameters():
        p.register_hook(lambda g: g.clamp(-0.1, 0.1))
    kept = {}
    model[2].register_forward_hook(lambda m, i, o: kept.update(activation=o))

    def loss(m, x, y):
        value = F.mse_loss(m(x), y)
        return value + 1e-2 * kept.pop("activation").abs().mean()

    return training(compile, model, vectors(6, 8), loss)


@case("torch", "an autograd.Function of the user: straight-through binary weights")
def own_function(compile) -> Job:
    class Sign(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sign()

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * (x.abs() <= 1).to(g.dtype)

    class Binary(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(8, 16), nn.Linear(16, 4)

        def forward(self, x):
            return self.two(F.relu(F.linear(x, Sign.apply(self.one.weight), self.one.bias)))

    return training(compile, Binary(), vectors(6, 8), lambda m, x, y: F.mse_loss(m(x), y))


@case("torch", "optimizer.step in a post-accumulate hook")
def step_in_backward(compile) -> Job:
    model = _net()
    optimizers = {p: torch.optim.SGD([p], lr=1e-2, momentum=0.9) for p in model.parameters()}

    def update(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(update)

    def train_step(x, y):
        value = F.mse_loss(model(x), y)
        value.backward()
        return value.detach()

    return Job(each_call(compile(train_step), vectors(6, 8)), [model], list(optimizers.values()))


@case("torch", "channels_last, in-place activations of every kind")
def inplace_activations(compile) -> Job:
    kinds = (
        nn.ReLU(True),
        nn.ReLU6(True),
        nn.SiLU(True),
        nn.Hardswish(True),
        nn.ELU(inplace=True),
        nn.LeakyReLU(0.1, True),
        nn.Mish(True),
        nn.Hardtanh(inplace=True),
    )
    layers = [
        layer
        for i, kind in enumerate(kinds)
        for layer in (nn.Conv2d(3 if i == 0 else 8, 8, 3, padding=1), nn.BatchNorm2d(8), kind)
    ]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)).to(
        memory_format=torch.channels_last
    )
    return of_images(compile, model, size=16)


@case("torch", "a scripted model")
def scripted(compile) -> Job:
    return training(compile, torch.jit.script(_net()), vectors(6, 8), lambda m, x, y: F.mse_loss(m(x), y))


@case("torch", "gradient norms by class: multi-task losses with autograd.grad")
def multi_task(compile) -> Job:
    body, heads = nn.Linear(8, 16), nn.ModuleList(nn.Linear(16, 4) for _ in range(2))
    model = nn.ModuleDict({"body": body, "heads": heads})
    weights = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([*model.parameters(), weights], lr=1e-2)

    def train_step(x, y):
        optimizer.zero_grad()
        z = F.relu(body(x))
        losses = torch.stack([F.mse_loss(head(z), y) * w for head, w in zip(heads, weights)])
        norms = torch.stack(
            [torch.autograd.grad(loss, body.weight, create_graph=True, retain_graph=True)[0].norm() for loss in losses]
        )
        (losses.sum() + 0.1 * (norms - norms.mean().detach()).abs().sum()).backward()
        optimizer.step()
        return losses.detach()

    return Job(each_call(compile(train_step), vectors(6, 8)), [model], [optimizer], lambda: {"weights": weights})


@case("torch", "two learning rates, a layer frozen half-way")
def frozen_later(compile) -> Job:
    model = _net()
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 1e-3}, {"params": model[2:].parameters()}], lr=1e-2, momentum=0.9
    )

    def train_step(x, y):
        optimizer.zero_grad()
        value = F.mse_loss(model(x), y)
        value.backward()
        optimizer.step()
        return value.detach()

    step = compile(train_step)

    def run(observe) -> None:
        for i, batch in enumerate(vectors(6, 8, count=2 * STEPS)):
            if i == STEPS:
                model[0].requires_grad_(False)
            observe(step(*batch))

    return Job(run, [model], [optimizer])


@case(
    "torch",
    "stochastic depth drawn by torch.rand(1).item()",
    data_decides="a drawn number decides whether a block runs",
)
def drawn_depth(compile) -> Job:
    model = _net()

    def loss(m, x, y):
        h = F.relu(m[0](x))
        if torch.rand(1).item() < 0.5:
            h = F.relu(m[2](h))
        return F.mse_loss(m[4](h), y)

    return training(compile, model, vectors(6, 8), loss)


@case("torch", "mixup with a weight from NumPy's beta")
def mixup(compile) -> Job:
    import numpy

    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 10))
    optimizer = adamw(model)

    def train_step(x, y, weight):
        optimizer.zero_grad()
        order = torch.randperm(x.shape[0])
        out = model(weight * x + (1 - weight) * x[order])
        value = weight * F.cross_entropy(out, y) + (1 - weight) * F.cross_entropy(out, y[order])
        value.backward()
        optimizer.step()
        return value.detach()

    step = compile(train_step)

    def run(observe) -> None:
        for x, y in pictures(4, 3, 8, 8):
            observe(step(x, y, torch.tensor(numpy.random.beta(0.2, 0.2), dtype=torch.float32)))

    return Job(run, [model], [optimizer])

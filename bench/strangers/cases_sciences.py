"""Libraries of the sciences: Gaussian processes, differential equations, flows, probabilistic programs, spiking and
equivariant networks, neural operators."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from job import STEPS, Job, case, classed, each_call, generator, training
from torch import nn


def _normal(*shapes: tuple[int, ...], count: int = STEPS) -> list[tuple]:
    g = generator()
    return [tuple(torch.randn(shape, generator=g) for shape in shapes) for _ in range(count)]


# ---- gpytorch


@case("gpytorch", "exact Gaussian process")
def gpytorch_exact(compile) -> Job:
    import gpytorch

    class Process(gpytorch.models.ExactGP):
        def __init__(self, x, y, likelihood):
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.covariance = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.covariance(x))

    x = torch.linspace(0, 1, 30)
    y = torch.sin(6.28 * x) + 0.1 * torch.randn(30)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = Process(x, y, likelihood)
    likelihood.train()
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    return training(compile, model, [()] * STEPS, lambda m: -marginal(m(x), y), optimizer)


@case("gpytorch", "sparse variational Gaussian process")
def gpytorch_variational(compile) -> Job:
    import gpytorch

    class Process(gpytorch.models.ApproximateGP):
        def __init__(self, points):
            distribution = gpytorch.variational.CholeskyVariationalDistribution(len(points))
            super().__init__(gpytorch.variational.VariationalStrategy(self, points, distribution))
            self.mean = gpytorch.means.ConstantMean()
            self.covariance = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel())

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.covariance(x))

    process, likelihood = Process(torch.rand(8, 2)), gpytorch.likelihoods.GaussianLikelihood()
    bound = gpytorch.mlls.VariationalELBO(likelihood, process, num_data=100)
    both = nn.ModuleList([process, likelihood])
    return training(compile, both, _normal((16, 2), (16,)), lambda _, x, y: -bound(process(x), y))


# ---- Differential equations


class _Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, t, y):
        return self.net(y**3)


def _solved(title: str, name: str, method: str, adjoint: bool, data_decides: str = "") -> None:
    @case("torchdiffeq", title, name=f"torchdiffeq_{name}", data_decides=data_decides)
    def build(compile) -> Job:
        import torchdiffeq

        solve = torchdiffeq.odeint_adjoint if adjoint else torchdiffeq.odeint
        times = torch.linspace(0, 1, 6)
        return training(
            compile,
            _Field(),
            _normal((5, 2), (6, 5, 2)),
            lambda m, y, target: (solve(m, y, times, method=method) - target).abs().mean(),
        )


_solved("Runge-Kutta of fixed steps", "rk4", "rk4", False)
_solved("Runge-Kutta, adjoint", "adjoint", "rk4", True)
_solved("adaptive steps", "dopri5", "dopri5", False, "how many steps the solver takes follows from the error")


@case("torchsde", "stochastic differential equation, Euler")
def torchsde_euler(compile) -> Job:
    import torchsde

    class Equation(nn.Module):
        noise_type, sde_type = "general", "ito"

        def __init__(self):
            super().__init__()
            self.drift, self.diffusion = nn.Linear(3, 3), nn.Linear(3, 6)

        def f(self, t, y):
            return self.drift(y)

        def g(self, t, y):
            return self.diffusion(y).view(-1, 3, 2)

    times, start = torch.linspace(0, 1, 8), torch.full((4, 3), 0.1)
    return training(
        compile,
        Equation(),
        [(start,)] * STEPS,
        lambda m, y: torchsde.sdeint(m, y, times, method="euler", dt=0.1).square().mean(),
    )


# ---- Densities


def _flow(name: str, **options) -> None:
    @case("zuko", f"flow {name}", name=f"zuko_{name.lower()}")
    def build(compile) -> Job:
        import zuko

        flow = getattr(zuko.flows, name)(3, **options)
        return training(compile, flow, _normal((16, 3)), lambda m, x: -m().log_prob(x).mean())


_flow("NSF", transforms=2, hidden_features=[16, 16])
_flow("MAF", transforms=2, hidden_features=[16])
_flow("NAF", transforms=1, hidden_features=[16])
_flow("GMM", components=3)


@case("pyro-ppl", "variational autoencoder, Trace_ELBO")
def pyro_autoencoder(compile) -> Job:
    import pyro
    import pyro.distributions as distributions
    from pyro.infer import Trace_ELBO

    pyro.clear_param_store()

    class Autoencoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = nn.Linear(8, 8), nn.Linear(4, 8)

        def model(self, x):
            pyro.module("decoder", self.decoder)
            with pyro.plate("rows", len(x)):
                z = pyro.sample("z", distributions.Normal(torch.zeros(len(x), 4), 1.0).to_event(1))
                pyro.sample("x", distributions.Normal(self.decoder(z), 1.0).to_event(1), obs=x)

        def guide(self, x):
            pyro.module("encoder", self.encoder)
            with pyro.plate("rows", len(x)):
                mean, spread = self.encoder(x).chunk(2, -1)
                pyro.sample("z", distributions.Normal(mean, spread.exp()).to_event(1))

    model, bound = Autoencoder(), Trace_ELBO()
    return training(compile, model, _normal((6, 8)), lambda m, x: bound.differentiable_loss(m.model, m.guide, x))


@case("pyro-ppl", "SVI.step with a guide of its own")
def pyro_svi(compile) -> Job:
    import pyro
    import pyro.distributions as distributions
    from pyro.infer import SVI, Trace_ELBO
    from pyro.infer.autoguide import AutoNormal

    pyro.clear_param_store()

    def model(x, y):
        weights = pyro.sample("weights", distributions.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", distributions.Normal(x @ weights, 0.5), obs=y)

    inference = SVI(model, AutoNormal(model), pyro.optim.Adam({"lr": 0.02}), Trace_ELBO())
    step = compile(lambda x, y: inference.step(x, y))
    return Job(each_call(step, _normal((6, 3), (6,))), [], more=lambda: dict(pyro.get_param_store().items()))


# ---- Networks with a structure


@case("snntorch", "leaky neurons, states passed on")
def snntorch_leaky(compile) -> Job:
    import snntorch

    class Spiking(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(8, 16), nn.Linear(16, 4)
            self.first, self.second = snntorch.Leaky(beta=0.9), snntorch.Leaky(beta=0.9)

        def forward(self, x):
            a, b, potentials = self.first.reset_mem(), self.second.reset_mem(), []
            for _ in range(5):
                spikes, a = self.first(self.one(x), a)
                _, b = self.second(self.two(spikes), b)
                potentials.append(b)
            return potentials

    return training(compile, Spiking(), classed(6, 8), lambda m, x, y: sum(F.cross_entropy(p, y) for p in m(x)))


@case("snntorch", "states that the neurons keep")
def snntorch_kept(compile) -> Job:
    import snntorch
    from snntorch import utils

    net = nn.Sequential(
        nn.Linear(8, 16),
        snntorch.Leaky(beta=0.9, init_hidden=True),
        nn.Linear(16, 4),
        snntorch.Leaky(beta=0.9, init_hidden=True, output=True),
    )

    def loss(m, x, y):
        utils.reset(m)
        return sum(F.cross_entropy(m(x)[1], y) for _ in range(4))

    return training(compile, net, classed(6, 8), loss)


@case("e3nn", "tensor product of spherical harmonics")
def e3nn_product(compile) -> Job:
    from e3nn import o3

    class Equivariant(nn.Module):
        def __init__(self):
            super().__init__()
            self.product = o3.FullyConnectedTensorProduct("4x0e+2x1o", "1x0e+1x1o", "4x0e+2x1o")
            self.linear = o3.Linear("4x0e+2x1o", "1x0e")

        def forward(self, x, directions):
            harmonics = o3.spherical_harmonics([0, 1], directions, True, normalization="component")
            return self.linear(self.product(x, harmonics))

    return training(compile, Equivariant(), _normal((6, 10), (6, 3), (6, 1)), lambda m, x, v, y: F.mse_loss(m(x, v), y))


@case("neuraloperator", "Fourier neural operator")
def neuralop_fourier(compile) -> Job:
    from neuralop.models import FNO

    model = FNO(n_modes=(4, 4), hidden_channels=8, in_channels=1, out_channels=1, n_layers=2)
    batches = _normal((2, 1, 16, 16), (2, 1, 16, 16))
    return training(compile, model, batches, lambda m, x, y: F.mse_loss(m(x), y))


# ---- SciPy in the step's own functions


class _Convolution(torch.autograd.Function):
    """As PyTorch's tutorial of functions by NumPy and SciPy has it."""

    @staticmethod
    def forward(ctx, x, kernel, bias):
        from scipy.signal import correlate2d

        ctx.save_for_backward(x, kernel)
        found = correlate2d(x.detach().numpy(), kernel.detach().numpy(), mode="valid")
        return torch.as_tensor(found + bias.detach().numpy(), dtype=x.dtype)

    @staticmethod
    def backward(ctx, grad):
        from scipy.signal import convolve2d, correlate2d

        x, kernel = ctx.saved_tensors
        grad = grad.detach().numpy()
        of_x = convolve2d(grad, kernel.t().numpy(), mode="full")
        of_kernel = correlate2d(x.numpy(), grad, mode="valid")
        return tuple(torch.from_numpy(a).to(torch.float) for a in (of_x, of_kernel, grad.sum(keepdims=True)))


class _ScipyNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kernel, self.bias = nn.Parameter(torch.randn(3, 3)), nn.Parameter(torch.randn(1, 1))
        self.head = nn.Linear(64, 4)

    def forward(self, x):
        return self.head(torch.tanh(_Convolution.apply(x, self.kernel, self.bias)).flatten())


@case("scipy", "a convolution of SciPy's as an autograd.Function")
def scipy_function(compile) -> Job:
    g = generator()
    batches = [(torch.randn(10, 10, generator=g), torch.randn(4, generator=g)) for _ in range(STEPS)]
    return training(compile, _ScipyNet(), batches, lambda m, x, y: nn.functional.mse_loss(m(x), y))

"""Steps of strangers by the kinds of operators that they run. Each is compared with eager, call by call, to the bit."""

import pytest
import torch
import torch.nn.functional as F
from strange import agrees, net, nothing, same, trained
from torch import nn

import stowage


def activations():
    return {
        "mul_": lambda h: h.clone().mul_(h.sigmoid()),
        "div_": lambda h: h.clone().div_(h.abs() + 1),
        "pow_": lambda h: h.clone().pow_(2),
        "silu_": lambda h: F.silu(h.clone(), inplace=True),
        "relu6_": lambda h: F.relu6(h.clone(), inplace=True),
        "hardswish_": lambda h: F.hardswish(h.clone(), inplace=True),
        "leaky_relu_": lambda h: F.leaky_relu(h.clone(), 0.2, inplace=True),
        "elu_": lambda h: F.elu(h.clone(), inplace=True),
        "addcmul_": lambda h: h.clone().addcmul_(h, h),
        "square_ of a number": lambda h: h * (h.mean() * 1).square_(),
        "mul_ of a number": lambda h: h + (h.sum() * 1).mul_(h.mean()),
        "exp_": lambda h: h.clone().exp_(),
        "copy_": lambda h: torch.zeros_like(h).copy_(h),
        "index_put_": lambda h: h.clone().index_put_((torch.tensor([1, 2]),), h[:2]),
        "checkpoint": lambda h: torch.utils.checkpoint.checkpoint(
            lambda v: F.dropout(F.relu(v), 0.3), h, use_reentrant=False
        ),
        "saved on cpu": lambda h: offloaded(h),
        "complex": lambda h: torch.fft.ifft(torch.fft.fft(h).conj() * 2).real,
        "vmap": lambda h: torch.func.vmap(lambda row: row * row.sum())(h),
        "jvp": lambda h: torch.func.grad(lambda v: (v**3).sum())(h.detach()) + h,
    }


def laid_over_nothing():
    """What eager has filled with something else than zeros before, or never, is read nowhere."""

    def rows(h):
        return torch.arange(len(h)).flip(0)

    def all_of(h):
        return torch.ones_like(h, dtype=torch.bool)

    return {
        "index_copy": lambda h: torch.empty_like(h).index_copy(0, rows(h), h),
        "half an index_copy": lambda h: h.new_empty(2 * len(h), h.shape[1]).index_copy(0, rows(h), h)[: len(h)],
        "index_put": lambda h: h.new_empty(h.shape).index_put((rows(h),), h),
        "index_fill": lambda h: torch.empty_like(h).index_fill(0, rows(h), 2.0) * h,
        "put": lambda h: torch.empty_like(h).put(torch.arange(h.numel()).view(h.shape), h),
        "masked_fill": lambda h: torch.empty_like(h).masked_fill(all_of(h), 0.5) + h,
        "masked_scatter": lambda h: torch.empty_like(h).masked_scatter(all_of(h), h),
        "scatter": lambda h: torch.empty_like(h).scatter(0, rows(h)[:, None].expand(h.shape), h),
        "slice_scatter": lambda h: torch.empty_like(h).slice_scatter(h, 0, 0, len(h)),
        "select_scatter": lambda h: h.new_empty(1, *h.shape).select_scatter(h, 0, 0)[0],
        "diagonal_scatter": lambda h: h.new_empty(1, 1).diagonal_scatter(h.sum().view(1)) + h,
        "as_strided_scatter": lambda h: torch.empty_like(h).as_strided_scatter(h, h.shape, h.stride()),
    }


def offloaded(h):
    with torch.autograd.graph.save_on_cpu():
        return h.sigmoid() * h


@pytest.mark.parametrize("name", [*sorted(activations()), *laid_over_nothing()])
def test_operators(name):
    import torch.utils.checkpoint  # noqa: F401

    def make():
        model, optimizer = net()
        act = (activations() | laid_over_nothing())[name]

        def step(x, y, i):
            loss = F.cross_entropy(model[2](act(model[0](x))), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return step, model, nothing

    agrees(make, 8, planned=3, strict=True)


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
def test_recurrent(kind):
    def make():
        layer = kind(16, 16, 2)
        optimizer = torch.optim.AdamW(layer.parameters())

        def step(x, y, i):
            loss = layer(x.reshape(4, 2, 16))[0].square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return step, layer, nothing

    agrees(make, 8, planned=3)


def test_a_negated_argument():
    def make():
        model, optimizer = net()

        def step(x, y, i):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        def called(x, y, i):
            z = torch.view_as_complex(torch.stack([x, x.flip(0)], -1))
            return compiled(z.conj().imag if i >= 6 else z.imag, y, 0)

        compiled = stowage.compile(step) if make.planned else step
        return called, model, nothing

    make.planned = False
    eager, _ = trained(make, 12, False)
    make.planned = True
    assert same(eager, trained(make, 12, False)[0])


def test_a_scripted_module():
    def make():
        model = torch.jit.script(nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4)))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step(x, y, i):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return step, model, nothing

    agrees(make, 12, planned=0)

"""Kernels of the stand-in: the bits of the CPU's, of results, of gradients, and of what is changed in place."""

import copy
import io
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

A = torch.Generator().manual_seed(0)
X = torch.randn(6, 8, generator=A)
IMAGES = torch.randn(2, 4, 9, 9, generator=A)
TOKENS = torch.randint(0, 6, (3, 5), generator=A)
SQUARE = torch.randn(5, 5, generator=A)

# Each of (x, move): move takes a tensor of the host to where x is.
DIFFERENTIABLE = {
    "view": (X, lambda x, move: x.view(2, 24)[1:].t().reshape(-1, 3)),
    "in place on a view": (X, lambda x, move: (y := x * 1, y[1:3].mul_(2).add_(1), y)[-1]),
    "expand and stride": (X, lambda x, move: (x[::2, ::3].unsqueeze(0).expand(4, -1, -1) * 2).sum(0)),
    "mask": (X, lambda x, move: x[x > 0]),
    "index": (X, lambda x, move: x[move(torch.tensor([3, 1, 1]))]),
    "index on the host": (X, lambda x, move: x[torch.tensor([3, 1, 1])]),
    "index_put": (X, lambda x, move: (x * 1).index_put((move(torch.tensor([0, 2])),), move(torch.ones(8)))),
    "gather, scatter": (X, lambda x, move: torch.zeros_like(x).scatter_add(1, x.argsort(1), x).gather(0, x.argsort(0))),
    "sort, topk, cumsum": (X, lambda x, move: torch.cat([x.sort(1)[0], x.topk(3)[0], x.cumsum(0)], 1)),
    "reductions": (
        X,
        lambda x, move: torch.stack([x.sum(), x.mean(), x.std(), x.norm(), x.logsumexp(0).max(), x.prod()]),
    ),
    "softmax": (X, lambda x, move: x.softmax(1).log_softmax(0)),
    "layer norm": (X, lambda x, move: F.layer_norm(x, (8,), move(torch.ones(8)), move(torch.zeros(8)))),
    "batch norm": (X, lambda x, move: F.batch_norm(x, move(torch.zeros(8)), move(torch.ones(8)), training=True)),
    "group norm": (IMAGES, lambda x, move: F.group_norm(x, 2)),
    "convolution": (IMAGES, lambda x, move: F.conv2d(x, move(IMAGES[:, :, :3, :3]), stride=2, padding=1)),
    "transposed": (IMAGES, lambda x, move: F.conv_transpose2d(x, move(IMAGES[:, :, :3, :3].transpose(0, 1)), stride=2)),
    "pools": (IMAGES, lambda x, move: F.max_pool2d(x, 2) + F.avg_pool2d(x, 2) + F.adaptive_avg_pool2d(x, 4)),
    "interpolate": (IMAGES, lambda x, move: F.interpolate(x, scale_factor=1.5, mode="bilinear")),
    "pad and roll": (IMAGES, lambda x, move: F.pad(x, (1, 2, 0, 1), mode="reflect").roll(2, 3)),
    "embedding": (X, lambda x, move: F.embedding(move(TOKENS), x, padding_idx=1)),
    "embedding bag": (X, lambda x, move: F.embedding_bag(move(TOKENS), x, mode="mean")),
    "products": (
        SQUARE,
        lambda x, move: torch.einsum("ij,jk,lk->il", x, x, x) + x.addmm(x, x) + torch.outer(x[0], x[1]),
    ),
    "linalg": (SQUARE, lambda x, move: torch.linalg.solve(x @ x.T + 9 * move(torch.eye(5)), x) + torch.linalg.inv(x)),
    "fft": (SQUARE, lambda x, move: torch.fft.rfft(x).abs()),
    "complex": (SQUARE, lambda x, move: (torch.complex(x, x).conj() @ torch.complex(x, -x)).imag),
    "attention": (IMAGES, lambda x, move: F.scaled_dot_product_attention(x, x, x, is_causal=True)),
    "masked attention": (
        IMAGES,
        lambda x, move: F.scaled_dot_product_attention(x, x, x, attn_mask=move(torch.ones(9, 9).tril().bool())),
    ),
    "double": (SQUARE, lambda x, move: (x.double() / 3).sin().float()),
    "half": (SQUARE, lambda x, move: (x.bfloat16() @ x.bfloat16()).float()),
    "where, clamp, lerp": (X, lambda x, move: torch.where(x > 0, x.clamp(max=1), x.lerp(x * x, 0.3))),
    "losses": (
        X,
        lambda x, move: (
            F.cross_entropy(x, move(torch.tensor([0, 1, 2, 3, -100, 7])), label_smoothing=0.1)
            + F.kl_div(x.log_softmax(1), x.softmax(1).detach(), reduction="batchmean")
            + F.huber_loss(x, x.detach().flip(0))
        ),
    ),
}


def same_bits(a, b):
    return a.dtype == b.dtype and torch.equal(a.detach().cpu(), b.detach().cpu())


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_results_and_gradients(name):
    value, function = DIFFERENTIABLE[name]
    outcomes = []
    for device in ("cpu", "standin"):
        x = value.clone().to(device).requires_grad_()
        y = function(x, lambda t: t.to(device))
        assert y.device.type == device
        torch.manual_seed(0)
        (gradient,) = torch.autograd.grad((y * torch.randn(y.shape).to(device)).sum(), x)
        outcomes.append((y, gradient))
    (y, gradient), (y_device, gradient_device) = outcomes
    assert y.shape == y_device.shape and y.stride() == y_device.stride()
    assert same_bits(y, y_device)
    assert same_bits(gradient, gradient_device)


OPTIMIZERS = [
    (torch.optim.SGD, {"momentum": 0.9}, ("foreach", "fused")),
    (torch.optim.Adam, {"amsgrad": True}, ("foreach", "fused")),
    (torch.optim.AdamW, {}, ("foreach", "fused")),
    (torch.optim.Adagrad, {}, ("foreach", "fused")),
    (torch.optim.RMSprop, {"centered": True}, ("foreach",)),
    (torch.optim.NAdam, {}, ("foreach",)),
]


def three_steps(device, make, **options):
    parameters = [nn.Parameter(t.clone().to(device)) for t in (X, SQUARE)]
    optimizer = make(parameters, lr=0.1, **options)
    for _ in range(3):
        sum(p.sin().sum() for p in parameters).backward()
        optimizer.step()
        optimizer.zero_grad()
    return parameters


@pytest.mark.parametrize("make, options, forms", OPTIMIZERS)
def test_optimizers_in_all_their_forms(make, options, forms):
    for form in ({"foreach": False}, *({form: True} for form in forms)):
        a, b = (three_steps(device, make, **options, **form) for device in ("cpu", "standin"))
        assert all(same_bits(x, y) for x, y in zip(a, b)), form


def test_capturable_optimizers_run_and_repeat_their_bits():
    for foreach in (False, True):  # the CPU has none of these
        a, b = (three_steps("standin", torch.optim.AdamW, capturable=True, foreach=foreach) for _ in range(2))
        assert all(same_bits(x, y) for x, y in zip(a, b))


def test_autocast_lowers_products_as_the_cpu_does():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(294, 5))
    gradients = []
    for device in ("cpu", "standin"):
        m = copy.deepcopy(model).to(device)
        with torch.autocast(device, dtype=torch.bfloat16):
            y = m(IMAGES.to(device))
        assert y.dtype == torch.bfloat16
        y.float().square().sum().backward()
        gradients.append([p.grad for p in m.parameters()])
    assert all(same_bits(a, b) for a, b in zip(*gradients))


def test_autocast_has_the_lists_of_cuda():
    x = torch.randn(4, 4, device="standin")
    with torch.autocast("standin", dtype=torch.bfloat16):
        y = x @ x
        assert y.dtype == torch.bfloat16
        for wide in (y.softmax(0), F.layer_norm(y, (4,)), y.exp(), y.sum(), y.norm(), F.mse_loss(y, y)):
            assert wide.dtype == torch.float32


def test_devices_do_not_mix(loaded):
    x = torch.ones(3, device="standin")
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        x + torch.ones(3)
    assert loaded.counters()["refusals"] == 1
    assert (x * torch.tensor(2.0)).tolist() == [2, 2, 2]  # a scalar may come from the host
    with loaded.settings(strict=False):
        assert (x + torch.ones(3)).tolist() == [2, 2, 2]


def test_recurrent_layers_run_and_repeat_their_bits():
    for make in (nn.LSTM, nn.GRU, nn.RNN):
        outcomes = []
        for _ in range(2):
            torch.manual_seed(0)
            layer = make(8, 5, num_layers=2).to("standin")
            y, _ = layer(X.to("standin")[None])
            y.square().sum().backward()
            outcomes.append([y, *(p.grad for p in layer.parameters())])
        assert all(same_bits(a, b) for a, b in zip(*outcomes))


def test_backward_runs_on_a_thread_of_the_device():
    seen = []
    x = torch.ones(3, device="standin", requires_grad=True)
    y = x * 2
    y.register_hook(lambda _: seen.append(threading.get_ident()))
    y.sum().backward(retain_graph=True)
    with torch.autograd.set_multithreading_enabled(False):
        y.sum().backward()
    assert seen[0] != threading.get_ident() == seen[1]


def test_kernels_change_shapes_and_storages_of_their_arguments():
    x = torch.arange(4.0, device="standin")
    x.resize_(2, 3)
    assert x.shape == (2, 3) and x.flatten()[:4].tolist() == [0, 1, 2, 3]
    out = torch.empty(0, device="standin")
    torch.add(x, 1, out=out)
    assert out.shape == (2, 3)
    y = torch.empty(0, device="standin")
    y.set_(x)
    y.fill_(5)
    assert x.tolist() == [[5] * 3] * 2
    x.untyped_storage().resize_(0)
    x.untyped_storage().resize_(24)
    x.zero_()
    assert y.sum().item() == 0


def test_ops_of_other_libraries_come_through_the_fallback():
    library = torch.library.Library("standin_test", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x + x, "CPU")
    y = torch.ops.standin_test.twice(torch.ones(2, device="standin"))
    assert y.device.type == "standin" and y.tolist() == [2, 2]


def test_tensors_are_saved_loaded_copied_shown_and_faked():
    from torch._subclasses import FakeTensorMode

    x = X.to("standin")
    file = io.BytesIO()
    torch.save({"x": x}, file)
    file.seek(0)
    assert same_bits(torch.load(file)["x"], X) and torch.load(io.BytesIO(file.getvalue()))["x"].device == x.device
    assert same_bits(copy.deepcopy(x), X)
    assert "device='standin:0'" in repr(x)
    with pytest.raises(TypeError, match="can't convert standin"):
        x.numpy()
    with FakeTensorMode():
        assert (torch.empty(2, 2, device="standin") @ torch.empty(2, 2, device="standin")).device.type == "standin"


def test_modules_keep_their_ties_when_they_move(loaded):
    model = nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 4, bias=False))
    model[1].weight = model[0].weight
    weight = model[0].weight
    loaded.move(model)
    assert model[1].weight is model[0].weight is weight and weight.device.type == "standin"
    model.to("cpu")
    assert weight.device.type == "standin"  # without the switch: new Parameters

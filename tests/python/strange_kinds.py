"""What is strange to a step: transforms of torch.func, tensors without storage or with several, other layouts and devices, traced and
compiled functions, what looks past the dispatcher. By name, functions of a [ROWS, WIDTH] tensor."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.func import (
    functional_call,
    functionalize,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vmap,
)
from torch.fx.experimental.proxy_tensor import make_fx
from torch.masked import masked_tensor
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint
from torch.utils.dlpack import to_dlpack

ROWS, WIDTH = 256, 32
KINDS: dict[str, Callable[[torch.Tensor], Any]] = {}


def kind(make):
    KINDS[make.__name__.strip("_")] = make
    return make


_WEIGHTS = torch.randn(6, WIDTH, WIDTH, generator=torch.Generator().manual_seed(0))


def weight(i=0):
    return _WEIGHTS[i].clone()


def _wave(row):
    return (row @ weight()).tanh()


# ---- Transforms


@kind
def vmap_(x):
    return vmap(lambda row: _wave(row).sum())(x)


@kind
def vmap_of_grad(x):
    return vmap(grad(lambda row: _wave(row).sum()))(x)


@kind
def vmap_random(x):
    return vmap(lambda row: F.dropout(row, 0.5) + torch.randn(WIDTH), randomness="different")(x)


@kind
def hessian_(x):
    return hessian(lambda row: _wave(row).sum())(x[0])


@kind
def jacobians(x):
    return jacrev(_wave)(x[0]), jacfwd(_wave)(x[0]), jvp(_wave, (x,), (x,)), linearize(_wave, x)[1](x)


@kind
def functionalized(x):
    return functionalize(lambda row: (row.clone().add_(1) @ weight()).relu_())(x)


@kind
def ensemble(x):
    torch.manual_seed(5)
    models = [nn.Linear(WIDTH, 8) for _ in range(3)]
    parameters, buffers = stack_module_state(models)
    return vmap(lambda p, b: functional_call(models[0], (p, b), (x,)))(parameters, buffers)


@kind
def dual(x):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual((forward_ad.make_dual(x, x * 2) @ weight()).tanh())


# ---- Tensors that are not one block of memory


@kind
def nested(x):
    made = torch.nested.nested_tensor([x[:3], x[3:9]])
    return torch.nested.to_padded_tensor(made * 2 + made, 0.0), torch.softmax(made, -1).to_padded_tensor(0.0)


@kind
def nested_linear(x):
    torch.manual_seed(5)
    layer = nn.Linear(WIDTH, 4)
    layer(torch.nested.nested_tensor([x[:3], x[3:9]])).to_padded_tensor(0.0).square().sum().backward()
    return layer.weight.grad


@kind
def nested_attention(x):
    """Encoders make nested tensors of padded ones."""
    torch.manual_seed(5)
    layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 4, 64, batch_first=True, dropout=0.0), 2).eval()
    mask = torch.zeros(2, 8, dtype=torch.bool)
    mask[0, 5:] = True
    with torch.no_grad():
        return layers(x[:16].reshape(2, 8, WIDTH), src_key_padding_mask=mask)


@kind
def jagged(x):
    made = torch.nested.as_nested_tensor([x[:3], x[3:9]], layout=torch.jagged)
    return (made @ weight()).relu().values(), made.to_padded_tensor(0.0)


@kind
def mkldnn(x):
    return torch.relu(x.to_mkldnn()).to_dense()


@kind
def quantized(x):
    scales, zeros = torch.full((WIDTH,), 0.1), torch.zeros(WIDTH, dtype=torch.long)
    by_channel = torch.quantize_per_channel(x, scales, zeros, 1, torch.qint8)
    return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).relu().dequantize(), by_channel.dequantize()


@kind
def sparse_coo(x):
    made = x.relu().to_sparse()
    return made @ weight(), (made * 2).to_dense(), made.coalesce().values()


@kind
def sparse_csr(x):
    made = x.relu().to_sparse_csr()
    return made @ weight(), (made * 2).to_dense()


@kind
def sparse_others(x):
    return x.relu().to_sparse_csc().to_dense(), x.relu().to_sparse_bsr((4, 4)).to_dense()


@kind
def sparse_gradients(x):
    torch.manual_seed(5)
    table = nn.Embedding(100, WIDTH, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters())
    for _ in range(2):
        table(torch.arange(50)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return table.weight.detach()


@kind
def masked(x):
    return masked_tensor(x, x > 0).sum(0).get_data()


@kind
def wrapped(x):
    made = (TwoTensor(x, x * 2) @ weight()).relu()
    return made.a, made.b


@kind
def fake(x):
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        made = mode.from_tensor(x)
        assert (made @ made.T).relu().shape == (ROWS, ROWS)
    return x + 1


@kind
def meta(x):
    made = x.to("meta")
    assert (made @ made.T).relu().shape == (ROWS, ROWS)
    return x * 2


# ---- Layouts and types


@kind
def complex_(x):
    made = torch.complex(x, x * 2)
    return (
        torch.view_as_real((made @ made.mH).conj().resolve_conj()),
        torch.fft.ifft(torch.fft.fft(made)).real,
        made.conj().imag,
    )


@kind
def channels_last(x):
    torch.manual_seed(5)
    layer = nn.Conv3d(1, 4, 3).to(memory_format=torch.channels_last_3d)
    out = layer(x[:128].reshape(1, 1, 16, 16, 16).to(memory_format=torch.channels_last_3d))
    out.sum().backward()
    return out, layer.weight.grad


@kind
def overlapping(x):
    return x[:1].expand(ROWS, WIDTH).clone(), x.as_strided((10, 10), (1, 1)) + 1, x.unfold(0, 4, 2).sum(-1)


@kind
def empty(x):
    return x[:0] @ weight(), torch.cat([x[:0], x]), x.new_empty(0, 5).sum()


@kind
def small_floats(x):
    return (x.half() @ weight().half()).float(), x.bfloat16().float(), x.to(torch.float8_e4m3fn).float()


@kind
def integers(x):
    return (x > 0).sum(0), (x > 0).to(torch.uint8).cumsum(0), x.topk(3).indices, torch.unique((x * 2).int())


@kind
def resized(x):
    made = x.clone()
    made.resize_(10, 10)
    other = torch.empty(0)
    other.set_(x.clone().untyped_storage(), 0, (8, 8), (8, 1))
    return made + 0, other + 1


@kind
def data_set(x):
    made = x.clone()
    made.data = x * 3
    return made + 1, x.clone().view(torch.int32).bitwise_and(0xFF).float()


# ---- Past the dispatcher


@kind
def numpy_(x):
    array = (x + 1).numpy()
    array[0] = 5
    return torch.from_numpy(array) + 1


@kind
def shared(x):
    return (x + 1).share_memory_() * 2, torch.from_dlpack(to_dlpack(x + 1)) * 2


@kind
def copies(x):
    file = io.BytesIO()
    torch.save([x + 1], file)
    file.seek(0)
    return copy.deepcopy([x + 1, {"a": x * 2}]), torch.load(file), torch.tensor((x + 1).tolist())


# ---- Traced and compiled functions


@kind
def jit_traced(x):
    """The numbers in a graph are tensors that Python holds."""
    traced = torch.jit.trace(lambda a: (a @ weight()).relu() * 2 + 1, (x,))
    return traced(x), traced(x)


@kind
def jit_scripted(x):
    layer = torch.jit.script(nn.Sequential(nn.Linear(WIDTH, 4), nn.ReLU()))
    with torch.no_grad():
        for p in layer.parameters():
            p.fill_(0.1)
    return layer(x).detach()


@kind
def fx_traced(x):
    return torch.fx.symbolic_trace(nn.Sequential(nn.Flatten(), nn.ReLU()))(x), make_fx(lambda a: (a @ weight()).relu())(
        x
    )(x)


@kind
def compiled(x):
    return torch.compile(lambda a: (a @ weight()).relu() * 2, backend="aot_eager")(x)


@kind
def branches(x):
    return torch.cond(x.sum() > 0, lambda a: a @ weight(), lambda a: a @ weight(1), (x,))


# ---- Autograd


@kind
def checkpointed(x):
    w = weight().requires_grad_()
    checkpoint(lambda a: (a @ w).tanh(), x, use_reentrant=False).sum().backward()
    return w.grad


@kind
def saved_on_cpu(x):
    w = weight().requires_grad_()
    with torch.autograd.graph.save_on_cpu():
        (x @ w).tanh().sum().backward()
    return w.grad


@kind
def hooks(x):
    w, found = weight().requires_grad_(), []
    out = (x @ w).tanh()
    out.register_hook(lambda gradient: found.append(gradient * 2))
    out.sum().backward()
    return [*found, w.grad]


@kind
def twice(x):
    w = weight().requires_grad_()
    (gradient,) = torch.autograd.grad((x @ w).tanh().sum(), w, create_graph=True)
    gradient.square().sum().backward()
    return w.grad


@kind
def in_place(x):
    a = x.clone().requires_grad_()
    b = a * 2
    b[:10].mul_(3)
    b[20:].zero_()
    b.sum().backward()
    return a.grad


@kind
def packed(x):
    torch.manual_seed(5)
    layer = nn.LSTM(WIDTH, 8)
    out, _ = layer(nn.utils.rnn.pack_sequence([x[:5], x[5:8]]))
    return nn.utils.rnn.pad_packed_sequence(out)


@kind
def ctc(x):
    rows = x.reshape(16, 16, WIDTH).log_softmax(-1)
    return F.ctc_loss(rows, torch.randint(1, WIDTH, (16, 5)), torch.full((16,), 16), torch.full((16,), 5))


@kind
def lists(x):
    tensors = [x + i for i in range(4)]
    torch._foreach_mul_(tensors, 2.0)
    torch._foreach_add_(tensors, [tensors[0].clone()] * 4)
    return [*tensors, *torch._foreach_norm(tensors)]


def flat(value):
    if isinstance(value, torch.Tensor):
        return [value.detach()]
    values = value.values() if isinstance(value, dict) else value if hasattr(value, "__iter__") else ()
    return [t for inner in values for t in flat(inner)]


def alike(found, expected):
    return all(torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) for a, b in zip(found, expected, strict=True))

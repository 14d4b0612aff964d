"""Hooks of saved tensors under a limit: autograd calls them inside an operator, and yet what they do is seen. What they read
comes back, and what they make may leave."""

import contextlib
import copy
import gc
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._C import TensorBase
from torch.autograd.graph import saved_tensors_hooks

import stowage
from stowage import _runtime
from stowage._torch.private import address

LAYERS, WIDE, ROWS = 8, 128, 640


class Errors:
    """Compression that carries its rounding errors over: a hook that reads and writes tensors of its own, in place."""

    def __init__(self):
        self.carried: dict[torch.Size, torch.Tensor] = {}

    def pack(self, tensor):
        carried = self.carried.setdefault(tensor.shape, torch.zeros_like(tensor))
        wanted = tensor + carried
        rounded = wanted.bfloat16()
        carried.copy_(wanted.float() - rounded.float())
        carried.mul_(0.5)
        return rounded

    def unpack(self, rounded):
        return rounded.float()


class Quantized:
    """Whole numbers and their scales: a hook that gives several tensors, in a dictionary."""

    def pack(self, tensor):
        scale = tensor.abs().amax(-1, keepdim=True).clamp_min(1e-6) / 127
        return {"numbers": (tensor / scale).round().to(torch.int8), "scale": scale}

    def unpack(self, packed):
        return packed["numbers"].float() * packed["scale"]


class Filed:
    def pack(self, tensor):
        file = io.BytesIO()
        torch.save(tensor.detach().half(), file)
        file.seek(0)
        return torch.load(file)

    def unpack(self, read):
        return read.float()


class Plain:
    def __init__(self, pack, unpack=lambda packed: packed):
        self.pack, self.unpack = pack, unpack


PACKERS = {
    "clone": lambda: Plain(lambda t: t.detach().clone()),
    "copy": lambda: Plain(lambda t: copy.deepcopy(t.detach())),
    "half": lambda: Plain(lambda t: t.half(), lambda t: t.float()),
    "half filed": Filed,
    "quantized": Quantized,
    "errors carried over": Errors,
    "inner gradient": lambda: Plain(inner_gradient),
}


def inner_gradient(tensor):
    with torch.enable_grad(), saved_tensors_hooks(lambda t: t, lambda t: t):
        x = tensor.detach().requires_grad_()
        return torch.autograd.grad(x.square().sum(), x)[0] * 0.5


class Net(nn.Module):
    """Operators in place among those that save what they read, what they give, and parts of either. One of them saves a part
    of what it is about to write to, which autograd allows where a hook has made something else of it."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDE, WIDE) for _ in range(LAYERS))

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = layer(x)
            x = F.gelu(x) if i % 2 else x.tanh().mul_(x[:, :1]).sigmoid_()
            if i % 3 == 0:
                x = x * 1.5
                x.mul_(x.detach()[:, :64].repeat(1, 2)).mul_(x.detach())
        return x.square().mean()


def trained(packer, limit_bytes=None, **options):
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)
    losses = []

    def loop():
        for _ in range(4):
            with saved_tensors_hooks(packer.pack, packer.unpack):
                loss = net(torch.randn(ROWS, WIDE))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach().clone())

    block = None
    before = _runtime.live_bytes()
    _runtime.reset_peak()
    if limit_bytes is None:
        loop()
    else:
        with stowage.budget(before + limit_bytes, progress=False, **options) as block:
            loop()
        assert not any(block.alive().values())
    return losses, list(net.parameters()), _runtime.peak_bytes() - before, block


@pytest.mark.parametrize("how", PACKERS)
@pytest.mark.parametrize("release", ["both", "swap"])
def test_what_hooks_make_leaves_too(how, release):
    plain_losses, plain_parameters, plain_bytes, _ = trained(PACKERS[how]())
    if how == "copy":  # outside of budgets nobody counts what copies are made of
        plain_bytes = trained(PACKERS["clone"]())[2]
    for part in (0.6, 0.4, 0.3):
        limit_bytes = int(plain_bytes * part)
        losses, parameters, peak_bytes, block = trained(PACKERS[how](), limit_bytes, release=release, debug=True)
        assert block.stats()["evictions"] > 0
        assert peak_bytes <= limit_bytes
        assert all(map(torch.equal, losses, plain_losses))
        assert all(map(torch.equal, parameters, plain_parameters))


def test_a_budget_that_a_hook_wakes():
    """It sleeps through small batches; with a large one, what a hook makes passes the limit first, inside an operator that
    nobody watches."""

    def losses_of(limit_bytes):
        torch.manual_seed(0)
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), 1e-2)
        packer = PACKERS["quantized"]()
        losses, seen = [], []
        before = _runtime.live_bytes()
        _runtime.reset_peak()
        block = stowage.budget(before + limit_bytes, progress=False, debug=True) if limit_bytes else None
        with block or contextlib.nullcontext():
            for rows in [4] * 8 + [ROWS] * 2:
                ops = block.stats()["ops"] if block else 0
                with saved_tensors_hooks(packer.pack, packer.unpack):
                    loss = net(torch.randn(rows, WIDE))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.detach())
                seen.append(block is None or block.stats()["ops"] > ops)
        return losses, seen, _runtime.peak_bytes() - before

    plain, _, plain_bytes = losses_of(None)
    for part in (0.4, 0.5, 0.6, 0.7):
        losses, seen, peak_bytes = losses_of(int(plain_bytes * part))
        assert not seen[7] and seen[8], "it has not slept"
        assert peak_bytes <= int(plain_bytes * part)
        assert all(map(torch.equal, losses, plain))


@pytest.fixture
def block():
    with stowage.budget(_runtime.live_bytes() + 2**26, progress=False, debug=True) as block:
        yield block


def test_a_hook_reads_what_its_operator_is_about_to_write(block):
    """What it makes of that must not be made again: it would be made of what the operator has written."""
    x = torch.randn(64, 64, requires_grad=True)
    made, meant = [], []

    def pack(tensor):
        for earlier in made:
            block._runtime.evict(address(earlier), True)
        made.append(tensor.half())
        meant.append(made[-1].tolist())
        return made[-1]

    with saved_tensors_hooks(pack, torch.Tensor.float):
        y = x * 2
        y.mul_(y)
        y.addcmul_(y, y)
    assert len(made) == 4
    assert [half.tolist() for half in made] == meant


def test_what_an_operator_has_written_is_its_result(block):
    """Though a hook has met it before."""
    x = torch.randn(64, 64, requires_grad=True)
    with saved_tensors_hooks(torch.Tensor.half, torch.Tensor.float):
        y = x * 2
        y.mul_(y.detach())
    assert block._runtime.describe(address(y)) == "recomputable"
    assert block._runtime.evict(address(y), True) == "dropped"
    assert torch.equal(y, (x * 2).square())


@pytest.mark.skipif(torch.__version__ < "2.13", reason="a storage does not tell before PyTorch 2.13")
def test_an_address_that_a_hook_takes(block):
    x = torch.randn(64, 64, requires_grad=True)
    y = x.exp()
    with saved_tensors_hooks(lambda t: (t, TensorBase.data_ptr(t)), lambda packed: packed[0]):
        y.sin()
    assert block._runtime.evict(address(y), True) == "kept"


def test_the_operands_of_an_operator_that_nobody_watched_stay():
    """The hook inside it has woken the budget, and uses what it does."""
    x = torch.randn(512, 128, requires_grad=True)
    large_bytes = 2**20
    live_bytes = _runtime.live_bytes()
    limit_bytes = 8 * live_bytes + 4 * large_bytes

    def pack(tensor):
        filled = [torch.zeros(large_bytes // 4) for _ in range(limit_bytes // large_bytes)]
        return tensor.clone(), filled

    with stowage.budget(limit_bytes, progress=False, debug=True) as block:
        optimizer = torch.optim.SGD([x], 1e-3)
        for _ in range(12):
            (x * 2).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        ops = block.stats()["ops"]
        y = x * 2
        assert block.stats()["ops"] == ops, "it has not slept"
        with (
            pytest.raises(torch.OutOfMemoryError, match="short by"),
            saved_tensors_hooks(pack, lambda packed: packed[0]),
        ):
            y.sin()
        assert torch.equal(y, x * 2)


@pytest.mark.parametrize("how", ["half", "errors carried over"])
def test_a_step_within_a_budget_that_sets_hooks(how):
    """Its eager calls are within blocks, its planned ones are not; the hooks are those that it sets."""

    def results(budget):
        torch.manual_seed(0)
        net, packer = Net(), PACKERS[how]()
        optimizer = torch.optim.SGD(net.parameters(), 1e-2)

        def step(x):
            with saved_tensors_hooks(packer.pack, packer.unpack):
                loss = net(x)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        run = stowage.compile(step, budget=budget) if budget else step
        losses = [run(torch.randn(ROWS, WIDE)).detach() for _ in range(8)]
        return losses, list(net.parameters()), run

    plain_bytes = trained(PACKERS[how]())[2]
    losses, parameters, _ = results(None)
    for part in (0.8, 0.6):
        planned_losses, planned_parameters, step = results(int(plain_bytes * part) + 8 * WIDE * WIDE * 4)
        assert step.stats()["planned_steps"] >= 3, step.stats()
        assert all(map(torch.equal, planned_losses, losses))
        assert all(map(torch.equal, planned_parameters, parameters))


def test_pytorch_asks_for_hooks_there():
    """The private name that stowage.eviction.packing replaces."""
    asked = []
    push = torch._C._autograd._push_saved_tensors_default_hooks
    try:
        torch._C._autograd._push_saved_tensors_default_hooks = lambda *hooks: (asked.append(hooks), push(*hooks))
        with saved_tensors_hooks(torch.Tensor.half, torch.Tensor.float):
            assert torch._C._autograd._top_saved_tensors_default_hooks(False) == (torch.Tensor.half, torch.Tensor.float)
    finally:
        torch._C._autograd._push_saved_tensors_default_hooks = push
    assert asked == [(torch.Tensor.half, torch.Tensor.float)]


@pytest.mark.parametrize("how", PACKERS)
def test_hooks_that_were_set_before(how):
    """What they read is there, and they are the program's again afterwards."""
    plain_bytes = trained(PACKERS["clone"]())[2]

    def looped(limit_bytes):
        torch.manual_seed(0)
        net, losses = Net(), []
        optimizer = torch.optim.SGD(net.parameters(), 1e-2)
        mine = PACKERS[how]()
        with saved_tensors_hooks(mine.pack, mine.unpack):
            block = (
                stowage.budget(_runtime.live_bytes() + limit_bytes, progress=False, debug=True) if limit_bytes else None
            )
            with block or contextlib.nullcontext():
                for _ in range(3):
                    loss = net(torch.randn(ROWS, WIDE))
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    losses.append(loss.detach())
            assert torch._C._autograd._top_saved_tensors_default_hooks(False) == (mine.pack, mine.unpack)
        return losses, list(net.parameters())

    losses, parameters = looped(None)
    limited_losses, limited_parameters = looped(int(plain_bytes * 0.5))
    assert all(map(torch.equal, limited_losses, losses))
    assert all(map(torch.equal, limited_parameters, parameters))


@pytest.mark.parametrize("budget", [None, "64MiB"])
def test_hooks_around_a_step_are_not_held(budget):
    """Made anew for each call, they are another signature each time, and what they have packed is theirs."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    run = stowage.compile(step, budget=budget)
    lives = []
    for _ in range(24):
        packed = []

        def pack(tensor, packed=packed):
            packed.append(tensor.clone())
            return packed[-1]

        with saved_tensors_hooks(pack, lambda t: t):
            run(torch.randn(256, 64))
        del pack, packed
        gc.collect()
        lives.append(_runtime.live_bytes())
    assert lives[-1] <= lives[8] + 4096, lives


@pytest.mark.parametrize("how", ["functions", "methods", "descriptors"])
def test_the_same_hooks_around_a_step_are_one_signature(how):
    model, packer = nn.Linear(64, 64), PACKERS["quantized"]()

    def pack(tensor):
        return tensor.half()

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    run = stowage.compile(step)
    for _ in range(8):
        hooks = {
            "functions": (pack, torch.Tensor.float),
            "methods": (packer.pack, packer.unpack),
            "descriptors": (torch.Tensor.half, torch.Tensor.float),
        }[how]
        with saved_tensors_hooks(*hooks):
            run(torch.randn(32, 64))
    assert run.stats()["planned_steps"] >= 4

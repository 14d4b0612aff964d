"""Modes of torch that are open around a step, or inside it: what they change and count is as in eager."""

import contextlib
import warnings

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import stowage

BEFORE_2_13 = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)
CALLS = 14
CHANGE = 9  # the call from which on the mode does something else


class ScaledFunctions(TorchFunctionMode):
    def __init__(self, scale: float):
        super().__init__()
        self.scale, self.calls = scale, 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        out = func(*args, **(kwargs or {}))
        return out * self.scale if func is torch.relu else out


class ScaledOperators(TorchDispatchMode):
    def __init__(self, scale: float):
        super().__init__()
        self.scale, self.calls = scale, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        out = func(*args, **(kwargs or {}))
        return out * self.scale if func is torch.ops.aten.relu.default else out


class Flops(FlopCounterMode):
    def __init__(self, scale: float):
        super().__init__(display=False)

    @property
    def calls(self) -> int:
        return self.get_total_flops()


class Kept:
    """One mode for all calls, whose attribute changes."""

    def __init__(self, mode):
        self._mode = mode

    def __call__(self, scale: float):
        self._mode.scale = scale
        return self._mode


MODES = {
    "functions": lambda: ScaledFunctions,
    "operators": lambda: ScaledOperators,
    "flops": lambda: Flops,
    "kept functions": lambda: Kept(ScaledFunctions(1.0)),
    "kept operators": lambda: Kept(ScaledOperators(1.0)),
}


def trained(kind: str, where: str, check: str | None) -> tuple[list, list, object]:
    """Results, what the modes have counted, and the compiled step. ``check``: None for eager."""
    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    make, scale, counts = MODES[kind](), [2.0], []

    def opened(inside: bool):
        now = where == ("inside" if inside else "outside") or (where == "later" and not inside and scale[0] == 3.0)
        return make(scale[0]) if now else contextlib.nullcontext()

    def plain(x):
        with opened(True) as mode:
            loss = (torch.relu(model(x)) + torch.ones(8)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if mode is not None:
            counts.append(mode.calls)
        return loss.detach()

    step = plain if check is None else stowage.compile(plain, check=check)
    generator, results = torch.Generator().manual_seed(1), []
    for call in range(CALLS):
        scale[0] = 2.0 if call < CHANGE else 3.0
        with opened(False) as mode:
            results.append(step(torch.randn(4, 8, generator=generator)))
        if mode is not None:
            counts.append(mode.calls)
    return results, counts, step


@pytest.mark.filterwarnings("ignore::stowage.errors.UnsupportedWarning")
@pytest.mark.parametrize("check", ["auto", "always", "never"])
@pytest.mark.parametrize("where", ["outside", "inside", "later"])
@pytest.mark.parametrize("kind", list(MODES))
def test_as_in_eager(kind, where, check):
    expected, counted, _ = trained(kind, where, None)
    got, counts, step = trained(kind, where, check)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert counts == counted
    refused = (
        BEFORE_2_13 and where == "inside" and "functions" not in kind
    )  # what such a mode makes passes the hook unseen
    assert step.stats()["planned_steps"] > 0 or where == "outside" or (refused and step.refusal)


def test_a_call_within_a_mode_says_so_once():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        trained("operators", "outside", "auto")
    assert [str(w.message) for w in told if "mode of yours" in str(w.message)] == [
        "stowage: this call runs eagerly, as any within a mode of yours that sees each operation (ScaledOperators)"
    ]


@pytest.mark.filterwarnings("ignore::stowage.errors.UnsupportedWarning")
@pytest.mark.parametrize("transform", ["grad", "vmap", "jvp", "grad of vmap", "jacobian"])
def test_within_a_transform(transform):
    """A planned step under torch.func: its tensors are the transform's, so the call is eager."""
    torch.manual_seed(0)
    model, x = nn.Linear(4, 4), torch.randn(3, 4)

    def step(x):
        return model(x).sin().sum()

    transforms = {
        "grad": lambda f: torch.func.grad(f)(x),
        "vmap": lambda f: torch.func.vmap(f)(x[None].repeat(2, 1, 1)),
        "jvp": lambda f: torch.stack(torch.func.jvp(f, (x,), (x,))),
        "grad of vmap": lambda f: torch.func.grad(lambda y: torch.func.vmap(f)(y).sum())(x[None].repeat(2, 1, 1)),
        "jacobian": lambda f: torch.autograd.functional.jacobian(f, x),
    }
    compiled = stowage.compile(step)
    for _ in range(8):
        compiled(x)
    planned = compiled.stats()["planned_steps"]
    assert planned > 0
    assert torch.equal(transforms[transform](compiled), transforms[transform](step))
    assert torch.equal(compiled(x), step(x)) and compiled.stats()["planned_steps"] == planned + 1


def test_a_call_within_a_mode_says_that_it_has_no_budget():
    model = nn.Linear(4, 4)
    step = stowage.compile(lambda x: model(x).sum().detach(), budget="1GiB")
    with ScaledOperators(1.0), pytest.warns(stowage.errors.UnsupportedWarning, match="eagerly and without its budget"):
        step(torch.ones(2, 4))


def test_capture_is_refused_within_a_mode():
    model = nn.Linear(2, 2)
    with ScaledOperators(1.0), pytest.raises(stowage.Unsupported, match="mode of yours .*ScaledOperators.* outside"):
        stowage.capture(lambda x: model(x).sum().backward(), torch.ones(1, 2))


@pytest.mark.parametrize("check", ["auto", "never"])
def test_another_default_device(check):
    """What a step makes without naming a device is made elsewhere: a planned call fails as eager does, and the next goes on."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4)

    def plain(x):
        loss = (model(x) + torch.ones(4)).sum()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad = None
        return loss.detach()

    step = stowage.compile(plain, check=check)
    torch.set_default_device("cpu")
    try:
        for _ in range(8):
            step(torch.ones(2, 4))
        assert step.stats()["planned_steps"] > 0
        torch.set_default_device("meta")
        with pytest.raises(RuntimeError, match="meta"):
            step(torch.ones(2, 4, device="cpu"))
        torch.set_default_device("cpu")
        planned = step.stats()["planned_steps"]
        assert step(torch.ones(2, 4)).device.type == "cpu" and step.stats()["planned_steps"] == planned + 1
        # A default device that is named in each call is no other signature.
        for _ in range(8):
            with torch.device("cpu"):
                step(torch.ones(2, 4))
        assert step.refusal == ""
    finally:
        torch.set_default_device(None)


def test_arguments_with_tangents():
    """Forward-mode differentiation around a step, whose Python does not know of it."""

    def trained(compiled: bool) -> list:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def train_step(x):
            out = model(x)
            out.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                return out * 2

        step = stowage.compile(train_step, check="never") if compiled else train_step
        seen = []
        for call in range(9):
            x = torch.randn(3, 4, generator=torch.Generator().manual_seed(call))
            if call not in (5, 6):
                seen.append(step(x))
                continue
            with forward_ad.dual_level():
                out = forward_ad.unpack_dual(step(forward_ad.make_dual(x, torch.ones_like(x))))
                seen += [out.primal.clone(), out.tangent.clone()]
        if compiled:
            assert step.stats()["planned_steps"] >= 4
        return [*seen, *model.parameters()]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert all(torch.equal(a, b) for a, b in zip(trained(False), trained(True), strict=True))


def teachers(x):
    """Modules that take a fast path of PyTorch's where nobody listens and no gradient is wanted."""
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)
    attention = nn.MultiheadAttention(16, 2, batch_first=True)
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[1, 3:] = True
    return {
        "encoder": (encoder, lambda: encoder(x())),
        "layer": (encoder.layers[0], lambda: encoder.layers[0](x())),
        "attention": (attention, lambda: attention(x(), x(), x(), need_weights=False)[0]),
        "padded": (encoder, lambda: encoder(x(), src_key_padding_mask=padding)[:, :2]),
    }


@pytest.mark.parametrize("check", ["auto", "never"])
@pytest.mark.parametrize("kind", ["encoder", "layer", "attention", "padded"])
def test_paths_that_pytorch_takes_where_no_mode_is_open(kind, check):
    """Ours is no mode of the user's: a teacher in eval mode gives the bits that it gives without Stowage."""

    def trained(compile):
        torch.manual_seed(0)
        batch = []
        teacher, target = teachers(lambda: batch[-1])[kind]
        teacher.eval()
        student = nn.Linear(16, 16)
        optimizer = torch.optim.SGD(student.parameters(), 0.1)

        def step(x):
            batch[:] = [x]
            with torch.no_grad():
                wanted = target()
            loss = (student(x)[:, : wanted.shape[1]] - wanted).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach(), wanted

        run = compile(step)
        seen = [t for _ in range(8) for t in run(torch.randn(3, 5, 16))]
        return seen, run

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors are a prototype, and refused
        expected, _ = trained(lambda step: step)
        found, run = trained(lambda step: stowage.compile(step, check=check))
    assert all(map(torch.equal, expected, found))
    assert run.refusal if kind == "padded" else run.stats()["planned_steps"] >= 4

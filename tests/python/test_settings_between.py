"""PyTorch's global settings, changed by the caller before the first call of a step and between its calls, by the older and
the newer names of precisions mixed as a program may mix them. Compared with eager, call by call, to the bit."""

import itertools
import random
import warnings

import pytest
import searches
import torch
import torch.nn.functional as F
from torch import nn

import stowage

CALLS = 10
PRECISIONS = {
    "torch.backends": lambda: torch.backends,
    "cuda.matmul": lambda: torch.backends.cuda.matmul,
    "cudnn": lambda: torch.backends.cudnn,
    "cudnn.conv": lambda: torch.backends.cudnn.conv,
    "cudnn.rnn": lambda: torch.backends.cudnn.rnn,
    "mkldnn": lambda: torch.backends.mkldnn,
    "mkldnn.matmul": lambda: torch.backends.mkldnn.matmul,
    "mkldnn.conv": lambda: torch.backends.mkldnn.conv,
    "mkldnn.rnn": lambda: torch.backends.mkldnn.rnn,
}
FLAGS = {
    "deterministic": torch.use_deterministic_algorithms,
    "oneDNN": torch._C._set_mkldnn_enabled,
    "NNPACK": torch.backends.nnpack.set_flags,
    "cuDNN": lambda on: setattr(torch.backends.cudnn, "enabled", on),
    "cuDNN's benchmark": lambda on: setattr(torch.backends.cudnn, "benchmark", on),
    "TF32 of cuBLAS": lambda on: setattr(torch.backends.cuda.matmul, "allow_tf32", on),
    "TF32 of cuDNN": lambda on: setattr(torch.backends.cudnn, "allow_tf32", on),
    "flash attention": torch.backends.cuda.enable_flash_sdp,
    "two threads": lambda on: torch.set_num_threads(1 + on),
    "denormals": torch.set_flush_denormal,
    "anomalies": torch.autograd.set_detect_anomaly,
}


def settings_of():
    """By name: what sets it."""
    found = {
        f"{name}={on}": lambda write=write, on=on: write(on) for name, write in FLAGS.items() for on in (True, False)
    }
    for name, value in itertools.product(PRECISIONS, ["ieee", "tf32", "bf16"]):
        found[f"{name}={value}"] = lambda name=name, value=value: setattr(PRECISIONS[name](), "fp32_precision", value)
    for value in ("highest", "high", "medium"):
        found[f"products={value}"] = lambda value=value: torch.set_float32_matmul_precision(value)
    return found


SETTINGS = settings_of()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.rnn, self.head = nn.Conv2d(3, 8, 3), nn.GRU(8, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x):
        h = F.relu(self.conv(x)).mean(3).transpose(1, 2)
        h = self.rnn(h)[0]
        h = F.scaled_dot_product_attention(h, h, h)
        return self.head(h.mean(1))


def training():
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step(x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, net


def set_to(name):
    """False where PyTorch has refused: some do not go together."""
    try:
        SETTINGS[name]()
    except (RuntimeError, AttributeError):
        return False
    return True


def compared(changes, check, where=""):
    """``changes``: names of settings, by call. How many calls were planned."""
    (eager, theirs), (ours, net) = training(), training()
    planned = stowage.compile(ours, check=check)
    generator = torch.Generator().manual_seed(1)
    for call in range(CALLS):
        for name in changes.get(call, ()):
            set_to(name)
        x = torch.randn(4, 3, 12, 12, generator=generator)
        assert torch.equal(eager(x), planned(x)), f"{where} call {call}: {changes}"
        assert all(map(torch.equal, theirs.parameters(), net.parameters())), f"{where} call {call}: {changes}"
    return planned.stats()["planned_steps"]


@pytest.mark.alone
def test_each_setting_before_the_first_call_and_between_calls():
    for i, (name, other) in enumerate(itertools.pairwise(SETTINGS)):
        assert compared({0: [name], 6: [other]}, ("auto", "never")[i % 2]) > 0, name


@pytest.mark.alone
def test_random_settings_between_calls():
    first = searches.first_seed()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in searches.seeds(first, at_least=5):
            draw = random.Random(seed)
            changes = {call: draw.sample(sorted(SETTINGS), draw.randint(1, 3)) for call in draw.sample(range(CALLS), 3)}
            compared(changes, draw.choice(["auto", "never"]), f"seed {seed},")

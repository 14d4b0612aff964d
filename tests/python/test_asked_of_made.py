"""Whatever Python asks of a tensor that the step makes or has written, it hears what eager would tell: within a handler of the
step's and outside, in calls that are recorded, checked and planned. asked.py knows the questions."""

import random

import pytest
import searches
import torch
from asked import function_of, kept, questions, shown
from torch import nn

import stowage

CALLS = 9
SOURCES = ("made", "detached", "gradient", "parameter", "buffer", "state", "argument")
KINDS = tuple(f"{source}, {how}" for source in SOURCES for how in ("caught", "free"))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4, 4))

    def forward(self, x):
        with torch.no_grad():
            self.mean.lerp_(x, 0.5)
        return self.linear(x)


def heard_until_it_raised(heard, error):
    """Eager leaves a step half done; a planned one is taken back."""
    return [*(shown(value) for value in heard), type(error).__name__]


def trained(question, kind, compiled, **options):
    torch.manual_seed(0)
    source, how = kind.split(", ")
    ask = function_of(question)
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), 0.1)
    heard = []

    def step(x):
        with torch.no_grad():
            x.mul_(2)
        made = net(x)
        loss = made.square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tensor = {
            "made": lambda: net(x),
            "detached": lambda: net(x).detach(),
            "gradient": lambda: net.linear.weight.grad,
            "parameter": lambda: net.linear.weight,
            "buffer": lambda: net.mean,
            "state": lambda: optimizer.state[net.linear.weight]["exp_avg"],
            "argument": lambda: x,
        }[source]()
        if how == "caught":
            try:
                answer = ask(tensor)
            except Exception as error:
                answer = type(error).__name__
        else:
            answer = ask(tensor)
        heard.append(kept(answer))
        return net(x).detach()

    run = stowage.compile(step, **options) if compiled else step
    data = torch.Generator().manual_seed(1)
    for _ in range(CALLS):
        try:
            heard.append(run(torch.randn(4, 4, generator=data)))
        except Exception as error:
            return heard_until_it_raised(heard, error), torch.get_rng_state(), run
        heard += [p.detach().clone() for p in (*net.parameters(), net.mean)]
    return [shown(value) for value in heard], torch.get_rng_state(), run


ALL = [(question, kind) for question in questions() for kind in KINDS]
OPTIONS = [{}, {"check": "always"}, {"budget": "1MiB"}]
ASKED_FOR_PYTHON = [
    (f"python: {name}", kind)
    for name in ("a capsule", "a versioned capsule", "memory of ctypes", "repr", "save")
    for kind in KINDS
]


def agrees(question, kind, options):
    expected, state, _ = trained(question, kind, False)
    if trained(question, kind, False)[0] != expected:  # what it leaves is in no order of calls
        return
    got, state_too, _ = trained(question, kind, True, **options)
    for at, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        assert ours == theirs, f"{question}, {kind}, {options}: the first that differs is {at} of {len(got)}"
    assert torch.equal(state, state_too) or isinstance(expected[-1], str)


@pytest.mark.filterwarnings("ignore")
def test_questions_drawn_at_random():
    first = searches.first_seed()
    for seed in searches.seeds(first, at_least=16):
        draw = random.Random(seed)
        question, kind = draw.choice(ALL)
        agrees(question, kind, draw.choice(OPTIONS))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("question, kind", ASKED_FOR_PYTHON)
def test_what_has_no_operator(question, kind):
    agrees(question, kind, {"check": "always"})

"""torch.utils.swap_tensors, which refuses tensors that somebody beside Python holds, on parameters of planned steps: by
hand, and as modules that are converted or loaded do it."""

import pytest
import torch
from torch import nn

import stowage


def _by_hand(model, optimizer):
    torch.utils.swap_tensors(model[0].weight, nn.Parameter(torch.full_like(model[0].weight, 0.1)))


def _converted(model, optimizer):
    model.to(torch.float64)
    model.to(torch.float32)


def _loaded(model, optimizer):
    model.load_state_dict({name: value * 0.5 for name, value in model.state_dict().items()})


def trained(change, compile):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = compile(step)
    left = []
    for call in range(30):
        if call in (0, 7, 8, 16):
            change(model, optimizer)
        left.append(run(torch.randn(6, 8)))
        left += [p.detach().clone() for p in model.parameters()]
    return left, run


@pytest.mark.parametrize("change", [_by_hand, _converted, _loaded])
@pytest.mark.parametrize("swapped", [False, True])
def test_between_calls(change, swapped):
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(swapped)
    try:
        expected, _ = trained(change, lambda step: step)
        found, step = trained(change, stowage.compile)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)
    assert all(map(torch.equal, expected, found))
    assert not step.refusal
    assert step.stats()["planned_steps"] >= 10


def test_a_tensor_that_somebody_else_holds_is_refused_as_before():
    weight = nn.Parameter(torch.ones(4))
    keeps = weight * weight  # holds it for backward
    with pytest.raises(RuntimeError, match="use_count"):
        torch.utils.swap_tensors(weight, nn.Parameter(torch.zeros(4)))
    del keeps

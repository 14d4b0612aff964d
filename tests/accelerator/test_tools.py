"""The tools that trainings use beside ops find in the stand-in what they find in a GPU."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def test_loss_scaling():
    model = nn.Linear(4, 4).to("standin")
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("standin", init_scale=64)
    before = model.weight.detach().clone()
    for factor, moves in ((1.0, True), (float("inf"), False)):
        with torch.autocast("standin", dtype=torch.float16):
            loss = model(torch.ones(2, 4, device="standin")).sum() * factor
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert torch.equal(model.weight, before) != moves
        before = model.weight.detach().clone()
    assert scaler.get_scale() == 32


def test_loaders_pin_their_batches(loaded):
    data = TensorDataset(torch.arange(40.0).view(20, 2))
    for workers in (0, 2):  # forked workers have no device, and need none
        sums = []
        for (batch,) in DataLoader(data, batch_size=5, num_workers=workers, pin_memory=True):
            assert batch.is_pinned()
            sums.append(batch.to("standin", non_blocking=True).sum().item())
        assert sums == [45, 145, 245, 345]
    assert loaded.counters()["async_copies"] == 8


def test_saved_tensors_go_to_the_host_and_come_back(loaded):
    x = torch.ones(3, device="standin", requires_grad=True)
    with torch.autograd.graph.save_on_cpu(pin_memory=True, device_type="standin"):
        y = x.sin().sum()
    copies = loaded.counters()["copies_to_host"]
    y.backward()
    assert torch.equal(x.grad.cpu(), torch.ones(3).cos()) and copies == 1
    assert loaded.counters()["copies_to_device"] >= 1


def test_inference_transforms_and_graphs():
    x = torch.ones(3, device="standin")
    with torch.inference_mode():
        assert (x + 1).is_inference()
    assert torch.func.vmap(lambda a: a * 2)(x).tolist() == [2] * 3
    assert torch.func.grad(lambda a: (a**2).sum())(x).tolist() == [2] * 3
    assert torch.compile(lambda a: a * 2 + 1, backend="aot_eager")(x).tolist() == [3] * 3


def test_factories_take_the_default_device():
    torch.set_default_device("standin")
    try:
        assert torch.ones(2).device.type == torch.tensor([1.0]).device.type == torch.arange(3).device.type == "standin"
    finally:
        torch.set_default_device(None)
    assert torch.ones(2).device.type == "cpu"
    assert torch.accelerator.current_accelerator().type == "standin" and torch.accelerator.device_count() == 1

"""What code for any accelerator finds in c10 and ATen works on the stand-in (probe.cpp knows nothing of it)."""

import threading

import pytest
import torch
from programs import Program


@pytest.fixture(scope="module")
def probe(loaded):
    path = loaded.build(loaded._HERE / "probe", "libprobe.so")
    torch.ops.load_library(str(path))
    return torch.ops.standin_probe


def test_a_front_of_the_allocator_serves_everything_from_an_arena(loaded, probe):
    probe.interpose()
    for seed in range(12):
        program = Program(seed)
        wanted = list(program.run("standin", loaded.move))
        arena = torch.empty(64 << 20, dtype=torch.uint8, device="standin")
        taken = torch.accelerator.memory_allocated()
        torch.accelerator.reset_peak_memory_stats()
        probe.serve_from(arena)
        steps = list(program.run("standin", loaded.move))
        hits, misses = probe.served()
        assert torch.accelerator.max_memory_allocated() == taken, "an allocation went past the front"
        probe.serve_from(None)
        assert hits > 50 and misses == 0
        assert all(torch.equal(a, b) for x, y in zip(steps, wanted) for a, b in zip(x, y) if not a.isnan().any())


@pytest.mark.parametrize("gbps", [0.0, 0.05])
def test_streams_events_and_pinned_memory(loaded, probe, gbps):
    x = torch.arange(1 << 16, device="standin", dtype=torch.float32)
    with loaded.settings(link_gbps=gbps, poison=True, check_order=True):
        for _ in range(5):
            assert torch.equal(probe.swapped(x), x)
    assert loaded.counters()["async_copies"] == 10
    assert loaded.counters()["races"] == 0, loaded.first_race()
    torch.accelerator.synchronize()
    assert loaded.counters()["pinned_bytes"] == 0


def test_the_generator(probe):
    assert probe.generator_goes_back()


def test_threads_train_at_once(loaded):
    loaded.configure(poison=True)
    failures = []

    def train(seed):
        try:
            generator = torch.Generator().manual_seed(seed)
            x = torch.randn(16, 8, generator=generator).to("standin")
            w = torch.randn(8, 8, generator=generator)
            results = []
            for device in ("cpu", "standin"):
                p = w.clone().to(device).requires_grad_()
                with torch.Stream("standin"):
                    for _ in range(30):
                        (x.to(device) @ p).tanh().square().sum().backward()
                        torch.nn.functional.dropout(p.detach(), 0.5)
                results.append(p.grad.cpu())
            assert torch.equal(*results)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=train, args=(seed,)) for seed in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures, failures[0]

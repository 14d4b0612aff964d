"""Fails loudly when a private PyTorch interface that Stowage leans on has changed."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from stowage import _runtime, torch_private


def test_cdata_is_the_address_of_the_tensor():
    t = torch.ones(3)
    assert isinstance(t._cdata, int) and t._cdata == torch_private.address(t)
    assert torch_private.address(t) != torch_private.address(t.clone())
    assert torch_private.address(None) == 0


def test_pytree_round_trip():
    value = {"a": [torch.ones(1), (2, None)], "b": "x"}
    leaves, spec = torch_private.flatten(value)
    assert torch_private.unflatten(leaves, spec) == value


def test_modes_are_seen():
    assert not torch_private.fake_mode_active() and not torch_private.dispatch_mode_active()
    with FakeTensorMode():
        assert torch_private.fake_mode_active() and torch_private.dispatch_mode_active()
        assert torch_private.is_fake(torch.ones(2))


def test_the_hook_key_is_free():
    """The dispatch key of the hook has no other fallback, and the hook sees leaf ops of forward and backward."""
    recorder = _runtime.Recorder(False, [])
    recorder.start()
    x = torch.ones(3, requires_grad=True)
    (x * 2).sum().backward()
    recorder.stop()
    tape = recorder.finish([])
    assert tape.ops >= 4


def test_list_ops_run_element_by_element_with_the_same_bits():
    """Recording splits list ops; this is the promise it rests on."""
    torch.manual_seed(0)
    a = [torch.randn(n) for n in (1, 7, 64, 1000)]
    b = [torch.randn(n) for n in (1, 7, 64, 1000)]
    whole = torch._foreach_addcmul(a, b, b, 0.3)
    parts = [torch._foreach_addcmul([x], [y], [y], 0.3)[0] for x, y in zip(a, b)]
    assert all(torch.equal(x, y) for x, y in zip(whole, parts))


def test_fused_optimizer_is_elementwise():
    torch.manual_seed(0)
    sizes = (1, 7, 64, 1000, 100_000)
    lists = [[torch.rand(n) for n in sizes] for _ in range(4)]
    copies = [[t.clone() for t in column] for column in lists]
    options = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01, "eps": 1e-8, "amsgrad": False, "maximize": False}
    torch._fused_adamw_(*lists, [], [torch.tensor(3.0) for _ in sizes], **options)
    for i in range(len(sizes)):
        torch._fused_adamw_(*[[column[i]] for column in copies], [], [torch.tensor(3.0)], **options)
    assert all(torch.equal(x, y) for p, q in zip(lists, copies) for x, y in zip(p, q))


def test_allocator_counts_every_byte():
    before = _runtime.live_bytes()
    t = torch.empty(1000)
    assert _runtime.live_bytes() == before + 4000
    _runtime.reset_peak()
    u = torch.empty(5000)
    del u
    assert _runtime.peak_bytes() == before + 4000 + 20000
    del t
    assert _runtime.live_bytes() == before

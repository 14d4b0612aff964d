"""Fails loudly when a private PyTorch interface that Stowage leans on has changed."""

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import _functional_collectives as collectives
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from stowage import _runtime
from stowage._torch import distributed, fakes, function_modes, settings
from stowage._torch import private as torch_private


def test_cdata_is_the_address_of_the_tensor():
    t = torch.ones(3)
    assert isinstance(t._cdata, int) and t._cdata == torch_private.address(t)
    assert torch_private.address(t) != torch_private.address(t.clone())
    assert torch_private.address(None) == 0


def test_who_has_a_storage_is_counted():
    whole = torch.zeros(3)
    assert hasattr(torch._C, "_storage_Use_Count") and not torch_private.is_shared_storage(whole)
    row = whole[:1]
    assert torch_private.is_shared_storage(whole) and torch_private.is_shared_storage(row)
    del row
    assert not torch_private.is_shared_storage(whole)


def test_hashes_of_fake_tensors_are_told():
    with fakes.FakeTensorMode():
        fake = torch.zeros(3)
    told = []
    with fakes.hashes_told(lambda tensor, frame: told.append((tensor is fake, frame.f_code.co_name))):
        assert fake not in {torch.zeros(3)} and hash(fake) == id(fake)
    assert told == [(True, "test_hashes_of_fake_tensors_are_told")] * 2
    assert hash(fake) == id(fake) and len(told) == 2


def test_function_modes_are_a_stack():
    class Mode(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    seen = []
    assert function_modes.within_function_mode(Mode(), lambda: torch.ones(2).tolist()) == [1, 1]
    torch.ones(2).tolist()
    assert torch.Tensor.tolist in seen and len(seen) == len(set(seen))


def test_a_function_mode_may_hear_what_is_asked_within_it():
    class Mode(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            if func is torch.Tensor.abs:
                return function_modes.heard_by(self, lambda: args[0].neg().exp())
            return func(*args, **(kwargs or {}))

    seen = []
    before = torch._C._len_torch_function_stack()
    function_modes.within_function_mode(Mode(), lambda: torch.ones(2).abs())
    assert seen == [torch.ones, torch.Tensor.abs, torch.Tensor.neg, torch.Tensor.exp]
    assert torch._C._len_torch_function_stack() == before


@pytest.mark.parametrize(
    "tensor",
    [torch.tensor(0.5), torch.arange(6.0).view(2, 3), torch.zeros(40, 60), torch.zeros(0, 2), torch.ones(2) > 0],
)
def test_elements_as_text_are_those_of_repr(tensor):
    text = torch_private.elements_as_text(tensor)
    assert repr(tensor) == torch.Tensor.__repr__(tensor, tensor_contents=text)
    graph = tensor.float().requires_grad_()
    text = torch_private.elements_as_text(graph.detach())
    assert repr(graph * 1) == torch.Tensor.__repr__(graph * 1, tensor_contents=text)


def test_subclasses_are_unheard_and_heard_again():
    from stowage._torch.subclasses import heard, unheard

    class Told(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            asked.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    asked = []
    told = torch.ones(2).as_subclass(Told)
    with unheard():
        told.sum()
        assert asked == []
        heard(lambda: told.mean(), (), {})
        assert asked == ["mean"]
        told.sum()
    told.amax()
    assert asked == ["mean", "amax"]
    with torch._C.DisableTorchFunctionSubclass(), unheard():
        heard(lambda: told.sum(), (), {})
    assert asked == ["mean", "amax"]


@pytest.mark.parametrize("start", [torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad])
def test_the_backward_pass_is_within_the_function_mode(start):
    class Mode(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    class Hooked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return torch.cosh(grad)

    def backward():
        x = torch.zeros(1, requires_grad=True)
        start(Hooked.apply(x), **({"inputs": [x]} if start is not torch.Tensor.backward else {}))

    seen = []
    run = torch.autograd._engine_run_backward
    function_modes.within_function_mode(Mode(), backward)
    assert seen.count(torch.cosh) == 1
    assert torch.autograd._engine_run_backward is run
    backward()
    assert seen.count(torch.cosh) == 1


def test_operators_written_in_python_let_the_hook_s_keys_pass():
    import torch._higher_order_ops.while_loop

    known = torch._ops._higher_order_ops
    assert "cond" in known and "while_loop" in known
    for key in torch_private._HOOK_KEYS:
        assert not any(op.non_fallthrough_keys.has(key) for op in known.values())


def test_one_mode_is_taken_off_the_stack():
    class Mode(TorchFunctionMode):
        pass

    modes = [Mode(), Mode(), Mode()]

    def within():
        function_modes.take_off(modes[1])
        return [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]

    with modes[0], modes[1], modes[2]:
        left = within()
        assert left == [modes[0], modes[2]]
        torch._C._push_on_torch_function_stack(modes[1])  # for the blocks to take off


def test_what_sees_each_operation():
    class Mode(TorchFunctionMode):
        pass

    assert settings.foreign_mode() == ""
    with torch.device("cpu"):
        assert settings.foreign_mode() == ""
        with Mode():
            assert settings.foreign_mode() == "Mode"
    seen = []
    torch.func.grad(lambda x: (seen.append(settings.foreign_mode()), x.sum())[1])(torch.ones(2))
    assert seen == ["torch.func's grad"] and settings.foreign_mode() == ""


def test_function_modes_that_pytorch_has_lost_are_not_missed():
    """As where an interrupt comes between the lines of torch.overrides that take a mode off and put it back."""
    before = torch._C._len_torch_function_stack()
    for lose in (
        torch._C._pop_torch_function_stack,
        lambda: torch._C._push_on_torch_function_stack(TorchFunctionMode()),
    ):
        with pytest.raises(KeyboardInterrupt):
            function_modes.within_function_mode(TorchFunctionMode(), lambda: _interrupted_after(lose))
        assert torch._C._len_torch_function_stack() == before


def _interrupted_after(lose):
    lose()
    raise KeyboardInterrupt


def test_pytree_round_trip():
    value = {"a": [torch.ones(1), (2, None)], "b": "x"}
    leaves, spec = torch_private.flatten(value)
    assert torch_private.unflatten(leaves, spec) == value


def test_modes_are_seen():
    assert not fakes.fake_mode_active() and not torch_private.dispatch_mode_active()
    with FakeTensorMode():
        assert fakes.fake_mode_active() and torch_private.dispatch_mode_active()
        assert fakes.is_fake(torch.ones(2))


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
    options = {
        "lr": 1e-3,
        "beta1": 0.9,
        "beta2": 0.999,
        "weight_decay": 0.01,
        "eps": 1e-8,
        "amsgrad": False,
        "maximize": False,
    }
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


# ---- What stowage.shard leans on (one rank is enough; what ranks do together is in test_shard.py)


@pytest.fixture(scope="module")
def mesh(tmp_path_factory):
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(tmp_path_factory.mktemp("ranks") / "store"), 1), rank=0, world_size=1
    )
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_a_dtensor_is_made_over_a_part(mesh):
    local = torch.arange(6.0).reshape(3, 2)
    t = distributed.make_dtensor(local, mesh, [Shard(0)], (3, 2), (2, 1))
    assert isinstance(t, DTensor) and t.placements == (Shard(0),) and t.shape == (3, 2)
    assert t._local_tensor is local and torch_private.local_tensor(t) is local
    assert torch_private.address(t) == local._cdata
    assert torch_private.storage_address(t) == local.untyped_storage()._cdata
    parameter = torch.nn.Parameter(t)
    assert torch_private.storage_address(parameter) == local.untyped_storage()._cdata


def test_a_dtensor_is_redistributed_below_autograd(mesh):
    local = torch.randn(4, 2)
    t = distributed.make_dtensor(local, mesh, [Shard(0)], (4, 2), (2, 1))
    moved = distributed.redistribute(t, [Replicate()])
    assert moved.placements == (Replicate(),) and not moved.requires_grad and torch.equal(moved._local_tensor, local)
    summed = distributed.redistribute(
        distributed.make_dtensor(local, mesh, [Partial("sum")], (4, 2), (2, 1)), [Replicate()]
    )
    assert torch.equal(summed._local_tensor, local)
    assert distributed.local_shape((4, 2), mesh, [Shard(0)]) == (4, 2)


def test_a_group_has_a_timeout_that_can_be_set(mesh):
    group = torch.distributed.group.WORLD
    before = distributed.group_timeout(group)
    distributed.set_group_timeout(group, before / 2)
    assert distributed.group_timeout(group) == before / 2
    distributed.set_group_timeout(group, before)


def test_waiting_collectives_give_plain_tensors(mesh):
    lazy = collectives._maybe_wrap_tensor
    with distributed.waiting_collectives():
        result = collectives.all_reduce(torch.ones(3), "sum", mesh)
        assert type(result) is torch.Tensor and torch.equal(result, torch.ones(3))
    assert collectives._maybe_wrap_tensor is lazy


def test_a_dtensor_whose_data_is_set_shows_it_by_its_shell(mesh):
    p = torch.nn.Parameter(DTensor.from_local(torch.ones(3), mesh, [Replicate()]))
    before = torch_private.shell_address(p)
    with torch.no_grad():
        p.mul_(2)
    assert torch_private.shell_address(p) == before
    p.data = p.data * 2
    assert torch_private.shell_address(p) != before and torch.equal(p.to_local(), torch.full((3,), 2.0))


def test_dtensor_works_by_its_rules_alone(mesh):
    """The op that shows it has none: its decomposition is run, or nothing is."""
    x, y = (DTensor.from_local(torch.rand(2, n), mesh, [Shard(0)]) for n in (3, 4))
    assert torch.nn.functional.mse_loss(x, x).item() == 0
    with distributed.rules_alone():
        assert torch.equal((y + y).to_local(), y.to_local() * 2)
        with pytest.raises(NotImplementedError, match="mse_loss"):
            torch.nn.functional.mse_loss(y, y)
    assert torch.nn.functional.mse_loss(y, y).item() == 0


def test_what_dtensor_counts_is_no_operator_of_the_steps():
    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    part = _StridedShard(0, split_factor=2)
    names = ("local_shard_size_and_offset", "_local_shard_size_and_offset")
    counts = next(name for name in names if name in vars(_StridedShard))
    with Mode():
        with distributed.counting_unseen():
            size = getattr(part, counts)(8, 2, 0)[0]
        assert size == 4 and not seen
        assert getattr(part, counts)(8, 2, 0)[0] == 4 and "aten.arange.default" in seen


def test_a_dispatch_mode_closes_the_hook_and_it_can_be_opened():
    closed = []

    def note():
        closed.append(torch._C._dispatch_tls_is_dispatch_key_excluded(torch_private._HOOK_KEYS[0]))

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            note()
            with torch_private.hook_open():
                note()
                result = func(*args, **(kwargs or {}))
            note()
            return result

    x = torch.ones(3)
    recorder = _runtime.Recorder(False, [], True)  # of a sharded step: above autograd
    recorder.start()
    with Mode():
        x.neg()
    recorder.stop()
    assert closed == [True, False, True]
    assert recorder.finish([]).ops == 1


def test_parts_of_a_schema_that_sharding_reads():
    """Names of arguments, their defaults, what is written to; tags that tell random numbers; the dicts of a module."""
    arguments = torch.ops.aten.add_.Tensor._schema.arguments
    assert [a.name for a in arguments] == ["self", "other", "alpha"] and arguments[2].default_value == 1
    assert [a.alias_info is not None and a.alias_info.is_write for a in arguments] == [True, False, False]
    assert torch.ops.aten.add_.Tensor._schema.name == "aten::add_"
    assert torch.Tag.nondeterministic_seeded in torch.ops.aten.native_dropout.default.tags
    assert torch.Tag.nondeterministic_seeded not in torch.ops.aten.mm.default.tags
    norm = torch.nn.BatchNorm1d(2)
    assert list(norm._parameters) == ["weight", "bias"] and list(norm._buffers) == [
        "running_mean",
        "running_var",
        "num_batches_tracked",
    ]


def test_backward_is_told_from_forward():
    x = torch.ones(2, requires_grad=True)
    seen = []
    x.register_hook(lambda grad: seen.append(torch_private.in_backward()))
    assert not torch_private.in_backward()
    x.sum().backward()
    assert seen == [True]


def test_a_backward_in_two_halves_is_the_whole_one():
    x, layer = torch.randn(3, 4, requires_grad=True), torch.nn.Linear(4, 2)
    layer(x).square().sum().backward()
    whole = [x.grad, layer.weight.grad, layer.bias.grad]
    x.grad = layer.weight.grad = layer.bias.grad = None
    outputs = (layer(x).square().sum(),)
    groups = distributed.backward_of_input(outputs, [torch.ones(())], (x,), list(layer.parameters()))
    assert torch.equal(x.grad, whole[0]) and layer.weight.grad is None
    distributed.backward_of_weights(list(layer.parameters()), groups)
    assert torch.equal(layer.weight.grad, whole[1]) and torch.equal(layer.bias.grad, whole[2])


def test_operations_are_counted():
    a, b = torch.zeros(2, 3), torch.zeros(3, 5)
    assert torch_private.flops_of(torch.ops.aten.mm.default, (a, b), {}, a @ b) == 2 * 2 * 3 * 5
    assert torch_private.flops_of(torch.ops.aten.neg.default, (a,), {}, -a) == 0

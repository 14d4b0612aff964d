"""What PyTorch itself offers to train in less memory, each form as its documentation tells to use it, and their
combinations.

A rival is a dict of what is done to the step, and nothing else differs between two rivals:

    blocks   {"every": k}       torch.utils.checkpoint around every k blocks
             {"save": ratio}    selective checkpointing around each block: products, convolutions and attention are saved, but not
                                those whose output is more than ``ratio`` times as large as their input
    inside   True               the optimizer steps inside backward, a parameter at a time
    host     True               saved tensors wait in numpy memory, outside PyTorch's allocator; one copy of each storage
    offload  True               the optimizer's state waits there, too, and comes for the update of its parameter: with "inside", as
                                ZeRO-Offload (arXiv 2101.06840) keeps it, but for its own kernel on the host, whose bits differ
    chunks   n                  head and loss of a language model in n checkpointed pieces (other bits: sums are split)
    ratio    b                  activation_memory_budget, with "solver" and "decompose"

``torch.autograd.graph.save_on_cpu`` is not among them: on CPU tensors it copies nothing.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from bench import models

RATIOS = (0, 0.1, 0.25, 0.5, 0.75, 0.9, 1)
LANGUAGE = ("gpt2", "bert", "llama")


# ---- The list


def rivals(model: str) -> dict[str, dict]:
    """Name to form. Plain eager is not among them."""
    blocks = {f"checkpoint/{k}": {"blocks": {"every": k}} for k in (1, 2, 3, 4)}
    blocks |= {
        "selective": {"blocks": {"save": 1e9}},
        "selective<4": {"blocks": {"save": 3.5}},
        "selective<=1": {"blocks": {"save": 1}},
    }
    host = {"host": {"host": True}}
    made = {"inside": {"inside": True}} | blocks | host
    made |= {f"inside+{name}": form | {"inside": True} for name, form in (blocks | host).items()}
    if model in LANGUAGE:
        made |= {
            f"{name}+chunks": made[name] | {"chunks": 8}
            for name in (
                "checkpoint/1",
                "inside+checkpoint/1",
                "inside+checkpoint/3",
                "inside+selective<=1",
                "host",
                "inside+host",
            )
        }
    for ratio, solver in itertools.product(RATIOS, ("dp", "ilp")):
        made[f"activation budget {ratio} {solver}"] = {"ratio": ratio, "solver": solver, "decompose": True}
    # There its backward refuses BatchNorm's statistics, changed in place
    for ratio in RATIOS if model != "resnet50" else ():
        made[f"activation budget {ratio} whole ops"] = {"ratio": ratio, "solver": "dp", "decompose": False}
    return made


# ---- Blocks


class _Span(nn.Module):
    """Consecutive blocks that are checkpointed as one. All models here pass one tensor from block to block."""

    def __init__(self, blocks: list[nn.Module], context_fn: Callable | None):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self._options = {"context_fn": context_fn} if context_fn else {}

    def forward(self, hidden, *args, **kwargs):
        def run(hidden):
            for block in self.blocks:
                hidden = block(hidden, *args, **kwargs)
            return hidden

        # Dropout is off, so there is no generator state to keep: it would only cost time.
        return checkpoint(run, hidden, use_reentrant=False, preserve_rng_state=False, **self._options)


def _block_lists(name: str, model: nn.Module) -> list[tuple[nn.Module, str]]:
    """Where the blocks are: (module, attribute) of each list."""
    places = {
        "gpt2": lambda m: [(m.transformer, "h")],
        "bert": lambda m: [(m.bert.encoder, "layer")],
        "llama": lambda m: [(m.model, "layers")],
        "vit": lambda m: [
            (next(c for c in m.modules() if isinstance(getattr(c, "layers", None), nn.ModuleList)), "layers")
        ],
        "resnet50": lambda m: [(stage, "layers") for stage in m.resnet.encoder.stages],
    }
    return places[name](model)


def _wrap_blocks(name: str, model: nn.Module, every: int = 1, save: float | None = None) -> None:
    context_fn = None if save is None else lambda: create_selective_checkpoint_contexts(_policy(save))
    for owner, attribute in _block_lists(name, model):
        old = getattr(owner, attribute)
        blocks = list(old)
        spans = [_Span(blocks[i : i + every], context_fn) for i in range(0, len(blocks), every)]
        setattr(owner, attribute, nn.Sequential(*spans) if isinstance(old, nn.Sequential) else nn.ModuleList(spans))


_aten = torch.ops.aten
_PRODUCTS = {_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default}
_ATTENTION = {_aten._scaled_dot_product_flash_attention_for_cpu.default, _aten.scaled_dot_product_attention.default}


def _policy(limit: float) -> Callable:
    def decide(ctx, op, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE if _widening(op, args) <= limit else CheckpointPolicy.PREFER_RECOMPUTE

    return decide


def _widening(op, args) -> float:
    """Elements of the output over those of the input; infinite for what is never saved."""
    if op in _ATTENTION:
        return 1.0
    if op in _PRODUCTS:
        left, right = args[-2:] if op in (_aten.mm.default, _aten.bmm.default) else args[1:3]
        return right.shape[-1] / left.shape[-1]
    if op == _aten.convolution.default:
        x, weight, stride = args[0], args[1], args[3]
        return weight.shape[0] / x.shape[1] / (stride[0] * stride[-1])
    return float("inf")


# ---- Saved tensors on the host


class OnHost:
    """Saved-tensor hooks. A storage is copied once, however many views of it are saved, and comes back once."""

    def __init__(self, stay: set[int]):
        self._stay = stay  # parameters, buffers and inputs: they are there anyway
        # By address of the storage
        self._copies: weakref.WeakValueDictionary[int, _HostCopy] = weakref.WeakValueDictionary()
        self.bytes = self.peak_bytes = 0

    def hooks(self):
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, t: torch.Tensor):
        storage = t.untyped_storage()
        if storage._cdata in self._stay or t.numel() == 0:
            return t
        copy = self._copies.get(storage._cdata)
        if copy is None or not copy.is_of(t):
            copy = self._copies[storage._cdata] = _HostCopy(t, self)
        return copy, t.dtype, t.size(), t.stride(), t.storage_offset()

    @staticmethod
    def _unpack(packed):
        if isinstance(packed, torch.Tensor):
            return packed
        copy, dtype, size, stride, offset = packed
        return torch.empty(0, dtype=dtype).set_(copy.storage(), offset, size, stride)


class _HostCopy:
    def __init__(self, t: torch.Tensor, owner: OnHost):
        storage = t.untyped_storage()
        self._origin, self._version = StorageWeakRef(storage), t._version
        self._data = torch.empty(0, dtype=torch.uint8).set_(storage).numpy().copy()
        self._owner, self._back = owner, None
        owner.bytes += self._data.nbytes
        owner.peak_bytes = max(owner.peak_bytes, owner.bytes)

    def is_of(self, t: torch.Tensor) -> bool:
        return not self._origin.expired() and self._version == t._version

    def storage(self) -> torch.UntypedStorage:
        if self._back is not None and not self._back.expired():
            return torch.UntypedStorage._new_with_weak_ptr(self._back.cdata)
        data = torch.empty(self._data.nbytes, dtype=torch.uint8)
        data.numpy()[:] = self._data
        self._back = StorageWeakRef(data.untyped_storage())
        return data.untyped_storage()

    def __del__(self):
        self._owner.bytes -= self._data.nbytes


# ---- Head and loss in pieces


def _chunked_loss(name: str, model: nn.Module, pieces: int) -> Callable:
    body, head = {"gpt2": ("transformer", "lm_head"), "bert": ("bert", "cls"), "llama": ("model", "lm_head")}[name]
    body, head = getattr(model, body), getattr(model, head)

    def piece(hidden, labels):
        return F.cross_entropy(head(hidden), labels, reduction="sum", ignore_index=-100)

    def loss_fn(model, tokens):
        labels = tokens if name == "bert" else F.pad(tokens, (0, 1), value=-100)[..., 1:]
        hidden, labels = body(input_ids=tokens).last_hidden_state.flatten(0, 1), labels.flatten()
        total = sum(
            checkpoint(piece, h, part, use_reentrant=False, preserve_rng_state=False)
            for h, part in zip(hidden.chunk(pieces), labels.chunk(pieces))
        )
        return total / (labels != -100).sum()

    return loss_fn


# ---- activation_memory_budget


def _compiled(loss_fn: Callable, ratio: float, solver: str, decompose: bool, partition: Any) -> Callable:
    """torch.compile with what the backend ``aot_eager_decomp_partition`` does; ``decompose=False``: the same, but ops
    stay whole."""
    from functorch.compile import min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.backends.debugging import boxed_nop
    from torch._functorch import config

    config.activation_memory_budget = ratio
    config.activation_memory_budget_solver = solver

    def run_as_it_is(graph, inputs):
        partition.update(graph.code.encode())
        return boxed_nop(graph, inputs)

    def split(*args, **kwargs):
        return min_cut_rematerialization_partition(*args, compiler="inductor", **kwargs)

    def decompositions():
        from torch._inductor.compile_fx import select_decomp_table

        return select_decomp_table()

    extra = {"decompositions": decompositions} if decompose else {}
    return torch.compile(
        loss_fn, backend=aot_autograd(fw_compiler=run_as_it_is, bw_compiler=run_as_it_is, partition_fn=split, **extra)
    )


# ---- Optimizer state on the host


class Offloaded:
    """AdamW of one parameter. Between its steps the moments are in numpy memory."""

    def __init__(self, parameter: torch.Tensor):
        self._adamw = _adamw([parameter])
        self._parameter = parameter
        self._away: dict[str, Any] = {}

    @property
    def state(self) -> dict:
        """Brought back for whoever asks."""
        self._bring_back()
        return self._adamw.state

    def step(self) -> None:
        self._bring_back()
        self._adamw.step()
        state = self._adamw.state[self._parameter]
        for name, tensor in list(state.items()):
            if tensor.numel() > 1:
                self._away[name] = tensor.numpy().copy()
                del state[name]

    def _bring_back(self) -> None:
        for name, array in self._away.items():
            tensor = torch.empty(self._parameter.shape, dtype=self._parameter.dtype)
            tensor.numpy()[...] = array
            self._adamw.state[self._parameter][name] = tensor
        self._away.clear()

    def zero_grad(self) -> None:
        self._adamw.zero_grad()


# ---- The step


class Step:
    """A rival's training step. All parts of the state can be asked for, so that bits can be compared."""

    def __init__(self, name: str, form: dict):
        self.model, self.loss_fn, self.batch = models.make(name)
        without_dropout(self.model)
        self._partition = hashlib.md5() if "ratio" in form else None
        self._host = None
        if "blocks" in form:
            _wrap_blocks(name, self.model, **form["blocks"])
        if "chunks" in form:
            self.loss_fn = _chunked_loss(name, self.model, form["chunks"])
        if "ratio" in form:
            self.loss_fn = _compiled(self.loss_fn, form["ratio"], form["solver"], form["decompose"], self._partition)
        if form.get("host"):
            self._host = OnHost({t.untyped_storage()._cdata for t in self.stateless_residents()})
        parameters = list(self.model.parameters())
        if form.get("inside"):
            self.optimizers = [Offloaded(p) if form.get("offload") else _adamw([p]) for p in parameters]
            for p, optimizer in zip(parameters, self.optimizers):
                p.register_post_accumulate_grad_hook(functools.partial(_step_inside, optimizer))
        else:
            self.optimizers = [_adamw(parameters)]
        self._inside = bool(form.get("inside"))

    def __call__(self, batch):
        if self._host:
            with self._host.hooks():
                loss = self.loss_fn(self.model, batch)
        else:
            loss = self.loss_fn(self.model, batch)
        loss.backward()
        if not self._inside:
            self.optimizers[0].step()
            self.optimizers[0].zero_grad()
        return loss.detach()

    @property
    def host_bytes(self) -> int:
        return self._host.peak_bytes if self._host else 0

    @property
    def partition(self) -> str | None:
        """Digest of forward and backward graph, equal for two budgets that give the same partition."""
        return self._partition.hexdigest() if self._partition else None

    def stateless_residents(self) -> list[torch.Tensor]:
        batch = self.batch if isinstance(self.batch, tuple) else (self.batch,)
        return [*self.model.parameters(), *self.model.buffers(), *batch]

    def optimizer_state(self) -> list[torch.Tensor]:
        """In the order of the parameters."""
        states: dict[int, dict] = {}
        for optimizer in self.optimizers:
            states |= {id(p): state for p, state in optimizer.state.items()}
        return [t for p in self.model.parameters() for t in states.get(id(p), {}).values()]


def without_dropout(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0


def _step_inside(optimizer: torch.optim.Optimizer, _parameter: torch.Tensor) -> None:
    optimizer.step()
    optimizer.zero_grad()


def _adamw(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4, fused=True)

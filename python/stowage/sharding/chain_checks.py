"""What a pipeline takes for granted of a chain, looked at before anything is planned.

    the layers       hand tensors on, and pass gradients back: what is cut off would have zeros where alone it has none
    the loss         of two micro-batches together is the mean of each alone
    the optimizer    gives each parameter the same options, whether it is made of all of them or of a stage's
                     works on the parameters of each layer alone: clipping by a norm over all would see a stage's
                     draws no numbers, where ranks have copies of a parameter: these would part

An optimizer of torch.optim without hooks does the last. Another one steps once on tensors without memory, and each of its
ops must meet tensors of one layer (of layers that share a buffer); of a foreach or fused op, the n-th of each list.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from stowage._torch.fakes import DATA_DEPENDENT, FakeTensorMode, is_fake
from stowage._torch.optimizer_steps import only_torchs
from stowage._torch.private import flatten, storage_address
from stowage.errors import Unsupported
from stowage.sharding.chain import Chain, as_tuple, handed_on, trainable
from stowage.sharding.program import takes_lists
from stowage.sharding.ties import joined, ties

_MOST_PAIRS = 8
_TOLERANCE = 1e-3


def refuse_what_parts_change(chain: Chain, parts: list[tuple]) -> None:
    """``parts``: the micro-batches."""
    try:
        output = _output(chain, parts[0][:-1])
    except DATA_DEPENDENT:
        output = None
    if output is not None and not any(is_fake(t) for t in parts[0]):  # else no loss can be computed
        _refuse_other_losses(chain, parts, output)
    _refuse_sums_over_layers(chain)


def refuse_other_options(chain: Chain, stages: list[dict]) -> None:
    """Where a stage's optimizer would treat a parameter otherwise than one of all of them."""
    whole = _options(chain, trainable(chain.layers))
    for s, stage in enumerate(stages):
        own = _options(chain, trainable(chain.layers[stage["first"] : stage["end"]]))
        for p, options in own.items():
            for key, value in options.items():
                if value is not whole[p].get(key) and repr(value) != repr(whole[p].get(key)):
                    raise Unsupported(
                        f"the optimizer of stage {s} has another '{key}' for a parameter of {tuple(_by_id(chain)[p].shape)} than one "
                        f"of all parameters ({value} for {whole[p].get(key)}): choose groups by what a parameter is, not by "
                        "its place among others"
                    )


def _options(chain: Chain, parameters: list[Any]) -> dict[int, dict]:
    if not parameters:
        return {}
    groups = chain.optimizer(parameters).param_groups
    return {id(p): {k: v for k, v in g.items() if k != "params"} for g in groups for p in g["params"]}


def _by_id(chain: Chain) -> dict[int, torch.Tensor]:
    return {id(p): p for p in trainable(chain.layers)}


# ---- The loss


def _refuse_other_losses(chain: Chain, parts: list[tuple], output: tuple) -> None:
    """On numbers made up for the last layer's output: they differ much from part to part, as a mean may hide what is like."""
    one = parts[0][-1]
    for *_, other in parts[1 : 1 + _MOST_PAIRS]:
        for spread in (8.0, 1.0):  # as logits; between 0 and 1
            try:
                together, apart = _losses(chain, one, other, output, spread)
            except (RuntimeError, ValueError):
                continue
            if abs(together - sum(apart) / 2) > _TOLERANCE * max(abs(together), *map(abs, apart)) + 1e-6:
                raise Unsupported(
                    f"the loss is no mean over the batch: of two micro-batches it is {together:.6g} together, {apart[0]:.6g} and "
                    f"{apart[1]:.6g} alone; a pipeline takes the mean of these (targets that are left out must be as many in each)"
                )
            break


def _output(chain: Chain, inputs: tuple) -> tuple:
    """Of the last layer, as tensors without memory. Raises Unsupported where layers hand on what a pipeline cannot."""
    with FakeTensorMode(allow_non_fake_inputs=True), torch.random.fork_rng(devices=[]), torch.enable_grad():
        values: tuple = tuple(torch.empty_like(t) for t in inputs)
        trained = False
        for i, layer in enumerate(chain.layers):
            given = tuple(v.detach().requires_grad_(v.is_floating_point() and trained) for v in values)
            state = {
                name: torch.empty_like(t).requires_grad_(t.requires_grad)
                for name, t in [*layer.named_parameters(), *layer.named_buffers()]
            }
            values = as_tuple(torch.func.functional_call(layer, state, handed_on(given)))
            for value in values:
                if not isinstance(value, torch.Tensor):
                    raise Unsupported(
                        f"layer {i} returns {type(value).__name__}: only tensors pass from layer to layer"
                    )
            if trained:
                _refuse_cut(i, layer, given, values)
            trained = trained or any(p.requires_grad for p in layer.parameters())
    return values


def _refuse_cut(i: int, layer: torch.nn.Module, given: tuple, values: tuple) -> None:
    """No gradient reaches the layers before."""
    made = [v.sum() for v in values if v.requires_grad]
    asked = [v for v in given if v.requires_grad]
    found = torch.autograd.grad(made, asked, allow_unused=True) if made and asked else ()
    if asked and all(g is None for g in found):
        raise Unsupported(
            f"layer {i} ({type(layer).__name__}) passes no gradient to what comes before it: alone those have none, in a pipeline they "
            "would have zeros; freeze them (requires_grad_(False))"
        )


def _losses(chain: Chain, one: Any, other: Any, output: tuple, spread: float) -> tuple[float, list[float]]:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        first = tuple(_made(t, one.device) for t in output)
        second = tuple(_made(t, one.device) ** (1 if spread > 1 else 8) * spread for t in output)

        def loss(values: tuple, target: Any) -> float:
            return chain.loss(values[0] if len(values) == 1 else values, target).item()

        both = tuple(torch.cat([a, b]) for a, b in zip(first, second))
        return loss(both, torch.cat([one, other])), [loss(first, one), loss(second, other)]


def _made(like: torch.Tensor, device: torch.device) -> torch.Tensor:
    dtype = like.dtype if like.dtype.is_floating_point else torch.get_default_dtype()
    return torch.rand(like.shape, dtype=torch.float32, device=device).to(dtype)


# ---- The optimizer's step


class _Apart(TorchDispatchMode):
    """Whose each tensor is, by its storage: the piece of the chain that its parameter belongs to."""

    def __init__(self, has_ties: bool):
        super().__init__()
        self._has_ties = has_ties
        self.owners: dict[int, int] = {}
        self._keep: list[Any] = []  # storages stay, so that their addresses are theirs

    def give(self, tensor: torch.Tensor, owner: int) -> None:
        self.owners[storage_address(tensor)] = owner
        self._keep.append(tensor.untyped_storage())

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self._has_ties and torch.Tag.nondeterministic_seeded in func.tags:
            raise Unsupported(
                f"the optimizer's step draws random numbers ({func}), and layers share a parameter: its copies on the ranks of a "
                "pipeline would be updated by other numbers"
            )
        result = func(*args, **(kwargs or {}))
        given = [[t for t in flatten(a)[0] if isinstance(t, torch.Tensor)] for a in (*args, *(kwargs or {}).values())]
        made = [t for t in flatten(result)[0] if isinstance(t, torch.Tensor)]
        by_place = takes_lists(func)
        length = max((len(ts) for ts in given), default=0) if by_place else 1
        for n in range(length):
            met = [ts[n] for ts in given if len(ts) == length] if by_place else [t for ts in given for t in ts]
            owners = {self.owners[storage_address(t)] for t in met if storage_address(t) in self.owners}
            if len(owners) > 1:
                raise Unsupported(
                    f"the optimizer's step looks at parameters of several layers together ({func}), and each rank of a pipeline "
                    "has those of its stage: clip each parameter by its own norm or value, or all by max_norm= of the chain"
                )
            for t in (made[n : n + 1] if by_place else made) if owners else ():
                self.give(t, *owners)
        return result


def _refuse_sums_over_layers(chain: Chain) -> None:
    parameters = chain.parameters()
    made = chain.optimizer(parameters) if parameters else None
    if made is None or (only_torchs(made) and not isinstance(made, torch.optim.LBFGS)):
        return
    apart, mode = _Apart(bool(ties(chain.layers))), FakeTensorMode(allow_non_fake_inputs=True)
    pieces, fakes = joined(chain.layers), {}
    with mode:
        piece = -1
        for layer, with_last in zip(chain.layers, pieces):
            piece += not with_last
            for p in trainable([layer]):
                if id(p) not in fakes:
                    fake = fakes[id(p)] = torch.nn.Parameter(torch.empty_like(p, device=p.device))
                    fake.grad = torch.empty_like(fake)
                    apart.give(fake, piece)
                    apart.give(fake.grad, piece)
        optimizer = chain.optimizer(list(fakes.values()))
        try:
            with apart:
                optimizer.step()
        except DATA_DEPENDENT:
            raise Unsupported(
                f"{type(optimizer).__name__}.step() reads numbers of its parameters, so it is not known whether it looks at those of "
                "several layers together; each rank of a pipeline has those of its stage"
            ) from None

"""stowage.compile: what a user gives, and what comes of wrong options."""

from __future__ import annotations

from collections.abc import Callable

from stowage.errors import Error
from stowage.sizes import parse_bytes
from stowage.step.checking import Checking
from stowage.step.compiled import CompiledStep
from stowage.step.replay.step_plan import StepOptions


def compile(
    train_step: Callable,
    budget: int | str | None = None,
    *,
    check: str | int = "auto",
    check_every: int = 0,
    link_gbps: float | None = None,
    strict: bool | str = False,
    in_place_reuse: bool = True,
    lean_kernels: bool = True,
    takeover: bool | None = None,
    residents: str = "stay",
    tile_loss: bool = False,
    tile_mlp: bool = False,
    graphs: bool = False,
) -> CompiledStep:
    """Wraps ``train_step`` (forward, backward, optimizer step, zero_grad: the user's own function) so that it is
    planned.

    The first calls run eagerly and record; later ones execute the plan, with the numbers of eager, bit for bit. A
    planned call does not run the function's Python, except for the optimizers' and schedulers' step(), or it runs it
    once, over tensors without memory, and compares each operation with the recording. Two fences keep the numbers
    right: what the Python could read (flags, hyperparameters, globals, closures, parameters) is watched, and ``check``
    runs it.

    Args:
        train_step: the function. Its arguments may be tensors of any shape; each set of shapes has a plan of its own.
        budget: what residents and arena together may take in planned steps, in bytes or as "2GiB"; None: no limit. It
            holds from the first call on: calls that run eagerly do so as in a stowage.budget block.
        check: how often a planned call runs the function's Python: "auto" (calls 1, 2, 4, 8, ... of a plan, and every
            one where guards cannot see what it reads), "always" (any Python, at the price of running it), a number N
            (every N-th), "never" (only where guards cannot see). Where it does something new, that call has happened
            eagerly, and is recorded when it comes again.
        check_every: the same as check=N; 0: as ``check`` says.
        link_gbps: bandwidth of the host link in 10^9 bytes a second, for swapping under a budget: copies are held to
            it.
            None: as fast as copies are on this machine, measured once.
        strict: raise Error instead of warning when an allocation was not as planned or bits differ. "paranoid":
            besides, poison lies in the arena where no buffer is, and after each operator it is seen to that it has
            written nothing but its own memory. Else the call raises Error, which names the operator and its line, and
            has changed nothing. This costs a look at all of the arena after each operator.
        in_place_reuse: let kernels that work element by element write their result over an input that dies there.
        lean_kernels: let kernels that work row by row run on some rows at a time, so that a loss head holds its logits
            once. The bits are those of the recorded kernels; where a rehearsal finds other ones, the plan is made anew
            without, and stats() says so.
        takeover: the older name of in_place_reuse.
        residents: "leave": where the budget cannot be met otherwise, parameters, optimizer state, buffers and kept
            gradients wait on the host (STOWAGE_HOST_STORE names a directory; else memory that the budget does not
            count), are fetched before their first use in the step and written back after their last write. Between
            calls they are whole for whoever looks. Needs a budget, and a model on the CPU.
        tile_loss: do the loss head (the product that makes logits, cross entropy, the gradients) some rows at a time, so
            that logits never exist whole. Planned calls then give other bits than eager: sums over rows are made in
            another order. stats() has the largest error, measured against the recorded kernels. On the CPU. Where no
            head can be tiled, a warning says why, and the plan is exact.
        tile_mlp: the same for MLP blocks (a linear layer that makes rows at least twice as wide, functions of single
            elements, a linear layer back; gated ones, too): hidden units never exist whole, nor do their gradients.
            They are made again for the gradients.
        graphs: on an accelerator that has graphs (CUDA; others from torch 2.13 on), launch pieces of the plan as graphs of the
            device, which the host starts at once, instead of kernel by kernel. Bits and addresses are those of the plan:
            a rehearsal with graphs is compared with the step without them first. For trial: it has not run on a GPU
            yet. stats() has how many operations run in graphs, and why not more.

    Returns:
        A CompiledStep, called like ``train_step``.

    Raises:
        TypeError: train_step is no function.
        OutOfMemory: by a call that runs eagerly: the budget is not enough for it. Model and optimizer are as before.
        Infeasible: by every call after the recorded one, when no plan fits the budget. It has the smallest budget for
            which a plan was found. Model and optimizer are as before.
        Error: the same, when none fitting was found and that is not proven; or an option that is none of those above.
    """
    if not callable(train_step):
        raise TypeError(f"compile() needs a function, not {type(train_step).__name__}")
    if strict not in (True, False, "paranoid"):
        raise Error(f"strict must be True, False or 'paranoid', not {strict!r}")
    if residents not in ("stay", "leave"):
        raise Error(f"residents must be 'stay' or 'leave', not {residents!r}")
    if residents == "leave" and budget is None:
        raise Error("residents leave only to keep a budget: give one, as budget=")
    if residents == "leave" and link_gbps == 0:
        raise Error("residents cannot leave without a link to the host: leave link_gbps=0 out")
    if tile_loss not in (True, False):
        raise Error(f"tile_loss must be True or False, not {tile_loss!r}")
    if tile_mlp not in (True, False):
        raise Error(f"tile_mlp must be True or False, not {tile_mlp!r}")
    if graphs not in (True, False):
        raise Error(f"graphs must be True or False, not {graphs!r}")
    options = StepOptions(
        parse_bytes(budget),
        in_place_reuse=in_place_reuse if takeover is None else takeover,
        lean_kernels=lean_kernels,
        leaving=residents == "leave",
        tile_loss=tile_loss,
        tile_mlp=tile_mlp,
        graphs=graphs,
    )
    return CompiledStep(train_step, options, Checking(check_every or check), link_gbps, strict)


__all__ = ["compile"]

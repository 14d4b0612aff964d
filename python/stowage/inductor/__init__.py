"""A byte limit inside torch.compile.

    model = torch.compile(model, options=stowage.inductor.options(budget="1GiB"))
    stowage.inductor.report(model)

``budget`` is what forward and backward of the compiled graph may take together, above parameters and inputs. Inductor
compiles as always; only what is saved for backward, and so what is recomputed, is chosen here."""

from __future__ import annotations

from typing import Any

from stowage.errors import Error
from stowage.sizes import parse_bytes


def options(budget: int | str | None = None) -> dict[str, Any]:
    """Options for ``torch.compile(model, options=...)``.

    Args:
        budget: bytes, or text such as "1GiB": what forward and backward of a compiled graph may take above parameters
            and inputs. None: no limit, but ``report`` tells what the graphs take.

    Returns:
        A dict, to which other options of Inductor may be added.

    Raises:
        stowage.Infeasible: later, by the first call of the compiled model, where no partition keeps the budget; it has
            the smallest that works.
    """
    budget_bytes = parse_bytes(budget)
    from stowage.inductor import private

    missing = private.missing()
    if missing:
        import torch

        from stowage.errors import warn

        warn(f"no budget for compiled models: PyTorch {torch.__version__} lacks {missing[0]}; compiled as always")
        return {}
    from stowage.inductor import partitioner

    found = {"custom_partitioner_fn": partitioner.make(partitioner.NO_LIMIT if budget_bytes is None else budget_bytes)}
    if private.order_pass() is not None:
        found["_post_fusion_custom_pass"] = private.order_pass()
    return found


def report(model: Any) -> Any:
    """What was chosen for each graph of a compiled model: text where it is printed, a page where it is shown.

    Args:
        model: what torch.compile returned, or the options that it was compiled with.

    Raises:
        stowage.Error: it was not compiled with these options.
    """
    from stowage.inductor.reports import Report, records_of

    found = records_of(model)
    if found is None:
        raise Error("the model was not compiled with stowage.inductor.options: there is nothing to report")
    return Report(found)


__all__ = ["options", "report"]

"""Errors, all of them ``stowage.Error``, and a warning."""

from stowage._core import Error, InvalidGraph, InvalidPlan


class Infeasible(Error):
    """No plan fits the budget.

    ``smallest_bytes``: the smallest budget for which a plan was found.
    ``bound_bytes``: proven, nothing fits below it.
    """

    def __init__(self, message: str, smallest_bytes: int, bound_bytes: int):
        super().__init__(message)
        self.smallest_bytes = smallest_bytes
        self.bound_bytes = bound_bytes

    def __reduce__(self) -> tuple:  # copied where it is raised again, and pickled by process pools
        return type(self), (str(self), self.smallest_bytes, self.bound_bytes)


class Unsupported(Error):
    """The step does something that a replay cannot reproduce. The message names it, with the source line where known."""


class UnsupportedWarning(UserWarning):
    """A step cannot be planned and runs eagerly; the message says why."""


__all__ = ["Error", "Infeasible", "InvalidGraph", "InvalidPlan", "Unsupported", "UnsupportedWarning"]

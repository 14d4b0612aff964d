"""What the doctor has to say of each case of scripts/dies.py: the cause that comes first, a piece of the source line that
it names, and the change that comes first, which the case makes when it is given a second argument."""

from __future__ import annotations

import linecache
import re
from dataclasses import dataclass

from launched import SCRIPTS, by_us, plainly, run, told

KEPT, HELD = "of steps that are over are still held", r"are held by `%s`"
EVALUATION = "autograd keeps for a backward pass, of a module in eval mode"
ACTIVATIONS, STATE = "of activations, which backward needs", "of parameters, gradients and optimizer state"
LOSS, REQUEST, STALE = "the loss: .* of logits", "one request of", "of gradients live through the forward pass"
UPDATE = "of temporaries of the update"

LET_GO, NO_GRAD, PLANNED = "let go of what", "no notes of autograd", "a planned step"
PIECES_OF_LOSS, PIECES, ZERO = "the loss in 8 pieces", "in 8 pieces, each used", "no gradients between steps"


@dataclass(frozen=True)
class Case:
    cause: str
    source: str
    change: str


CASES = {
    "outputs_kept": Case(KEPT + ".*`kept`", "out = net(", LET_GO),
    "hidden_state_grows": Case(KEPT, "torch.tanh(cell(", LET_GO),
    "features_of_a_hook": Case(KEPT + ".*`features`", "", LET_GO),
    "outputs_in_a_class": Case(KEPT + r".*`\w+.seen`", "", LET_GO),
    "weights_of_each_step": Case(".*`history`", "", LET_GO),
    "gradients_of_each_step": Case(KEPT + ".*`norms`", "p.grad.clone()", LET_GO),
    "memory_bank": Case(KEPT + ".*`bank`", "net(", LET_GO),
    "replay_memory": Case(KEPT + ".*`memory`", "", LET_GO),
    "losses_with_graphs": Case(KEPT + ".*`losses`", "", LET_GO),
    "checkpoint_kept": Case(HELD % "checkpoint", "", LET_GO),
    "data_set_in_memory": Case(HELD % "data", "", LET_GO),
    "validation_without_no_grad": Case(EVALUATION, "", NO_GRAD),
    "predictions_without_no_grad": Case(EVALUATION, "", NO_GRAD),
    "losses_of_validation_summed": Case(EVALUATION, "", NO_GRAD),
    "recurrent_inference": Case(EVALUATION, "", NO_GRAD),
    "generation_without_no_grad": Case(EVALUATION, "", NO_GRAD),
    "outputs_of_evaluation_kept": Case(HELD % "outputs", "", LET_GO),
    "batch_too_large": Case(ACTIVATIONS, "", PLANNED),
    "sequence_too_long": Case(ACTIVATIONS, "", PLANNED),
    "large_pictures": Case(ACTIVATIONS, "", PLANNED),
    "unrolled_recurrence": Case(ACTIVATIONS, "", PLANNED),
    "micro_batches_summed": Case(ACTIVATIONS, "", PLANNED),
    "generator_not_detached": Case(ACTIVATIONS, "", PLANNED),
    "logits": Case(LOSS, "", PIECES_OF_LOSS),
    "logits_in_float": Case(LOSS, "", PIECES_OF_LOSS),
    "soft_targets": Case(LOSS, "", PIECES_OF_LOSS),
    "attention": Case(REQUEST, "(rows @ x.T)", PIECES),
    "loss_that_broadcasts": Case(REQUEST, "(net(x) - y)", PIECES),
    "distances_of_all_pairs": Case(REQUEST, "rows[:, None]", PIECES),
    "wide_dtype": Case(REQUEST, "rows.double()", PIECES),
    "pictures_stacked": Case(REQUEST, "torch.stack", PIECES),
    "state_too_large": Case(STATE, "", "optimizer state in 8 bits"),
    "model_too_large": Case(STATE, "", "parameters of 16 bits"),
    "gradients_through_forward": Case(STALE, "", ZERO),
    "update_of_all_at_once": Case(UPDATE, "", "an update without temporaries"),
}


@dataclass(frozen=True)
class Verdict:
    """cause, change: those that came first. fits: what the doctor said of the change."""

    said: str
    cause: str
    change: str
    fits: bool
    right_cause: bool
    right_line: bool
    right_change: bool


def ask(name: str) -> Verdict:
    """The case, dead, and what the doctor says."""
    case = CASES[name]
    done = run(by_us(["dies.py", name], "--watch"))
    said = told(done)
    assert done.returncode == 1 and "Why\n" in said, done.stderr
    cause = re.search(r"Why\n  1\. (.*)\n", said)
    change = re.search(r"What to change\n  (\S.*); (fits|not enough alone); (?:the same|other) numbers\n", said)
    first, line = cause[1] if cause else "", re.search(r"dies\.py:(\d+)", cause[1] if cause else "")
    source = linecache.getline(str(SCRIPTS / "dies.py"), int(line[1])) if line else ""
    return Verdict(
        said, first, change[1] if change else "", change is not None and change[2] == "fits",
        re.search(case.cause, first) is not None, case.source in source,
        change is not None and case.change in change[1],
    )  # fmt: skip


def lives(name: str) -> bool:
    """The case with its change, in the same memory."""
    return run(plainly(["dies.py", name, "changed"])).returncode == 0


__all__ = ["CASES", "Case", "Verdict", "ask", "lives"]

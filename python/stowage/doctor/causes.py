"""What made the bytes too many, and what to change: from one moment, by rules that each look at one thing.

    shortage = request - what the device had left - segments that nobody uses (PyTorch gives those back first)

    cause                 it is this when
    kept                  one line's blocks of three steps or more are live: something holds on to each step
    held                  one variable keeps a quarter of all in several tensors, or two fifths in one; no parameter
    evaluation            autograd notes what a module in eval mode does, and that is a fifth of all
    fragments             holes, an eighth of what is reserved or more, would do for the request, and none of them does
    loss, request         one request, or the loss's buffers, is a third of all
    gradients kept        gradients of the step before are live while the next one runs forward
    activations, state    what most of the live bytes are

Each suggestion says how many bytes it frees, and how that is known: counted (these blocks go away), or estimated (a
part of them, named). A suggestion fits when it frees the shortage, up to what allocators add to a request. O(blocks)."""

from __future__ import annotations

import collections
import dataclasses

from stowage.doctor.moment import ACTIVATIONS, GRADIENTS, PARAMETERS, STATE, UPDATE, Holder, Moment
from stowage.sizes import in_words

_PIECES = 8  # of a loss
_STATE_PART = 4  # of optimizer state in 8 bits instead of 32
_PART_OF_ONE, _PART_OF_MANY = 0.4, 0.25  # of all bytes: what one tensor, or several, must be to be the cause
_PADDING_BYTES = 4096  # of a request: allocators round up


@dataclasses.dataclass(frozen=True)
class Cause:
    """name: one of the table above. bytes: that are to blame. line: of the user's code, or ""."""

    name: str
    bytes: int
    line: str
    text: str


@dataclasses.dataclass(frozen=True)
class Suggestion:
    """change: in words; code: to be copied. frees_bytes: counted or estimated, as ``known`` says. same_numbers: the
    training gives the same bits as before."""

    change: str
    code: str
    frees_bytes: int
    known: str
    same_numbers: bool
    fits: bool


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """by_kind, by_line: (name, bytes), largest first. causes: the likeliest first. suggestions: those that fit first, the
    smallest change first."""

    moment: Moment
    shortage_bytes: int
    by_kind: tuple[tuple[str, int], ...]
    by_line: tuple[tuple[str, str, int, int], ...]  # line, kind, bytes, blocks
    causes: tuple[Cause, ...]
    suggestions: tuple[Suggestion, ...]


def diagnose(moment: Moment, script: str = "", limit_bytes: int | None = None) -> Diagnosis:
    """script: that stowage run was in front of, under limit_bytes where it kept a limit."""
    kinds: collections.Counter = collections.Counter()
    lines: dict[tuple[str, str], list[int]] = {}
    for block in moment.blocks:
        kinds[block.kind] += block.bytes
        lines.setdefault((block.line, block.kind), []).append(block.bytes)
    by_line = sorted(((*key, sum(sizes), len(sizes)) for key, sizes in lines.items()), key=lambda row: -row[2])
    shortage = max(moment.request_bytes - moment.device_free_bytes - moment.empty_segments_bytes, 0)
    facts = _Facts(moment, shortage, kinds, script, limit_bytes)
    return Diagnosis(
        moment, shortage, tuple(kinds.most_common()), tuple(by_line), tuple(facts.causes()), tuple(facts.suggestions())
    )


def _called(holder: Holder) -> str:
    return f"`{holder.name}` ({holder.place})"


def _line_of_request(moment: Moment) -> str:
    return moment.request_line or "a line that is not known"


class _Facts:
    def __init__(self, moment: Moment, shortage: int, kinds: collections.Counter, script: str, limit_bytes: int | None):
        self.moment, self.shortage, self.kinds = moment, shortage, kinds
        self.script, self.limit_bytes = script, limit_bytes
        self.all_bytes = moment.live_bytes + moment.request_bytes
        self.holes = sum(moment.free_blocks)
        self.largest_hole = max(moment.free_blocks, default=0)
        self.loss = sum(b.bytes for b in moment.blocks if b.of_loss) + moment.request_bytes * moment.request_of_loss
        # What is of the step before while the next one runs forward
        self.stale_gradients = kinds[GRADIENTS] if moment.in_forward else 0

    @property
    def holder(self) -> Holder | None:
        """The variable that keeps so much that it is the cause."""
        holder = self.moment.holder
        if holder is None or holder.bytes <= self.all_bytes * (_PART_OF_ONE if holder.tensors == 1 else _PART_OF_MANY):
            return None
        return holder

    @property
    def noted(self) -> int:
        """What autograd keeps for a backward pass of a module in eval mode."""
        noted = self._with_request(ACTIVATIONS) if self.moment.evaluating else 0
        return noted if noted > self.all_bytes // 5 else 0

    @property
    def fragmented(self) -> bool:
        enough = self.holes + self.moment.empty_segments_bytes + self.moment.device_free_bytes
        return self.shortage > 0 and self.largest_hole < self.moment.request_bytes <= enough

    # ---- Causes

    def causes(self) -> list[Cause]:
        found = []
        line, kept = self.moment.kept
        holder = self.holder
        if kept > self.all_bytes // 20 or (kept and kept >= self.shortage > 0):
            of = f", in {_called(holder)}" if holder is not None else ""
            text = f"{in_words(kept)} of steps that are over are still held, made at {line}{of}"
            found.append(Cause("kept", kept, line, text))
        elif holder is not None:
            what = "one tensor" if holder.tensors == 1 else f"{holder.tensors} tensors"
            if holder.graph_bytes:
                what += f", and what autograd keeps for their backward pass ({in_words(holder.graph_bytes)})"
            text = f"{in_words(holder.bytes)} are held by {_called(holder)}: {what}"
            found.append(Cause("held", holder.bytes, holder.place, text))
        if self.noted:
            text = f"{in_words(self.noted)} that autograd keeps for a backward pass, of a module in eval mode"
            of_graph = holder is None or holder.graph_bytes > holder.bytes // 2
            found.insert(
                0 if of_graph else len(found), Cause("evaluation", self.noted, _line_of_request(self.moment), text)
            )
        if self.fragmented and self.holes > self.moment.reserved_bytes // 8:
            text = (
                f"fragments: {in_words(self.holes)} of what PyTorch had reserved are free, but the largest piece is "
                f"{in_words(self.largest_hole)}"
            )
            found.append(Cause("fragments", self.holes, "", text))
        m = self.moment
        if self.loss > self.all_bytes // 3:
            text = f"the loss: {in_words(self.loss)} of logits, their logarithms and gradients"
            found.append(Cause("loss", self.loss, m.request_line, text))
        elif m.request_bytes > self.all_bytes // 3:
            text = f"one request of {in_words(m.request_bytes)} at {_line_of_request(m)}"
            found.append(Cause("request", m.request_bytes, m.request_line, text))
        if self.stale_gradients > self.all_bytes // 20 or self.stale_gradients >= self.shortage > 0:
            text = f"{in_words(self.stale_gradients)} of gradients live through the forward pass"
            found.append(Cause("gradients kept", self.stale_gradients, "", text))
        sizes = [
            ("activations", self._with_request(ACTIVATIONS), "activations, which backward needs"),
            ("state", self._with_request(PARAMETERS, STATE, GRADIENTS), "parameters, gradients and optimizer state"),
            ("update", self._with_request(UPDATE), "temporaries of the update"),
        ]
        for name, size, what in sorted(sizes, key=lambda row: -row[1]):
            if size > 0:
                found.append(Cause(name, size, "", f"{in_words(size)} of {what}"))
        return found

    def _with_request(self, *kinds: str) -> int:
        request = self.moment.request_bytes if self.moment.request_kind in kinds else 0
        return sum(self.kinds[kind] for kind in kinds) + request

    # ---- Suggestions

    def suggestions(self) -> list[Suggestion]:
        m, found = self.moment, []
        act = self.kinds[ACTIVATIONS]

        def add(size: int, change: str, code: str, known: str = "counted", same: bool = True) -> None:
            if size > 0:
                found.append(Suggestion(change, code, size, known, same, size + _PADDING_BYTES >= self.shortage))

        line, kept = m.kept
        holder = self.holder
        add(self.noted, "no notes of autograd where nothing is trained", "with torch.no_grad(): ...      # around the evaluation", "counted, less what one operator needs")  # fmt: skip
        if holder is not None:
            let_go = holder.bytes if holder.graph_bytes < holder.bytes // 2 else holder.graph_bytes
            add(
                max(kept, holder.bytes),
                f"let go of what `{holder.name}` holds, or keep it elsewhere",
                self._less(holder),
            )
            if let_go < holder.bytes:
                add(let_go, f"let go of the graphs in `{holder.name}` alone", f"{holder.name}: x.detach() instead of x")
        else:
            add(kept, f"let go of what {line} makes once its step is over", "total += loss.item()      # or .detach()")
        if self.limit_bytes is not None and self.shortage > 0:
            needed = f"{-(-(self.limit_bytes + self.shortage) >> 20)}MiB"
            add(self.shortage, "a larger limit", f"stowage run --budget {needed} {self.script}", "what the error names")
        if self.fragmented:
            add(self.holes, "segments that grow, so that no holes stay", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py")  # fmt: skip
        add(self.stale_gradients, "no gradients between steps", "optimizer.zero_grad(set_to_none=True)      # before the forward pass")  # fmt: skip
        add(self._with_request(UPDATE), "an update without temporaries of all parameters at once", "torch.optim.AdamW(..., fused=True)", "estimated: those of the moment", False)  # fmt: skip
        pieces = self.loss - self.loss // _PIECES
        add(pieces, f"the loss in {_PIECES} pieces, each with its own backward", "for piece in hidden.chunk(8): ...", f"estimated: {_PIECES - 1} of {_PIECES} pieces", False)  # fmt: skip
        if self.limit_bytes is None and self.script and not m.on_host:
            limit = f"{max((m.live_bytes + m.device_free_bytes) >> 20, 1)}MiB"
            add(act, "a limit around the script as it is: tensors wait on the host, or are computed again", f"stowage run --budget {limit} {self.script}", "counted, less what one operator needs")  # fmt: skip
        elif self.limit_bytes is None and self.script:
            add(act, "a planned step: activations are computed again, or wait in a file", 'step = stowage.compile(train_step, budget="...")      # STOWAGE_HOST_STORE=/a/fast/disk', "counted, less what one operator needs")  # fmt: skip
        if not m.on_host:
            add(act, "a planned step: activations wait on the host, or are computed again", 'step = stowage.compile(train_step, budget="..."); see docs/guides/accelerators.md', "counted, less what one operator needs")  # fmt: skip
        add(act // 2, "checkpointing of each block", "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)", "estimated: half of the activations")  # fmt: skip
        if m.request_bytes > self.all_bytes // 3 and not self.loss > self.all_bytes // 3:
            pieces = m.request_bytes - m.request_bytes // _PIECES
            add(pieces, f"what {_line_of_request(m)} makes, in {_PIECES} pieces, each used before the next is made", "for rows in x.split(len(x) // 8): ...", f"estimated: {_PIECES - 1} of {_PIECES} pieces")  # fmt: skip
        half = self._with_request(ACTIVATIONS) // 2
        add(half, "half the batch, and two steps accumulated", "loss = model(half) / 2; loss.backward()      # twice, then optimizer.step()", "estimated: half of what grows with the batch", False)  # fmt: skip
        add(self.kinds[GRADIENTS] - m.largest_gradient_bytes, "the update inside backward, so that gradients are never all there", "parameter.register_post_accumulate_grad_hook(...)", "counted, less the largest one")  # fmt: skip
        state = self.kinds[STATE]
        add(state - state // _STATE_PART, "optimizer state in 8 bits", "bitsandbytes.optim.AdamW8bit(...)", "counted: three quarters of it", False)  # fmt: skip
        weights = self._with_request(PARAMETERS) // 2
        add(weights, "parameters of 16 bits", "model.to(torch.bfloat16)      # before the optimizer is made", "counted: half of what set-up holds", False)  # fmt: skip
        return sorted(found, key=lambda s: not s.fits)

    def _less(self, holder: Holder) -> str:
        if holder.tensors == 1:
            return f"del {holder.name}      # or a piece of it at a time"
        if holder.graph_bytes:
            return f"{holder.name}: x.item(), or x.detach().cpu(), instead of x"
        return (
            f"{holder.name}: a number of each, or a file"
            if self.moment.on_host
            else f"{holder.name}: x.cpu() instead of x"
        )


__all__ = ["Cause", "Diagnosis", "Suggestion", "diagnose"]

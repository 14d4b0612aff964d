"""Steps recorded, planned and replayed above CUDA's real dispatch and allocator, without kernels: every allocation is
served from the arena, at the size that was planned, and nothing is asked of the device meanwhile."""

import gc

import nullcuda
import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

import stowage

FORMS = {"for-loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


def gpt2(form, autocast=False, dropout=0.1):
    """(step, batch)"""
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=3, n_embd=64, n_head=4, n_positions=64, vocab_size=500, resid_pdrop=dropout, embd_pdrop=dropout,
        attn_pdrop=dropout, bos_token_id=0, eos_token_id=0, use_cache=False,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **FORMS[form])

    def step(tokens):
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step, torch.zeros(4, 64, dtype=torch.int64, device="cuda")


def planned(step, batch, calls=6, **options):
    compiled = stowage.compile(step, strict=True, **options)
    for _ in range(calls):
        compiled(batch)
    stats = compiled.stats()
    assert stats["planned_steps"] >= 2, compiled.refusal
    assert stats["misses"] == 0 and stats["measured_peak_bytes"] == stats["planned_peak_bytes"]
    return compiled


def allocations():
    """Blocks that came from CUDA's allocator so far, and what it has of the device."""
    stats = torch.cuda.memory_stats()
    return stats["allocation.all.allocated"], stats["reserved_bytes.all.current"], nullcuda.counters()["device_bytes"]


@pytest.mark.parametrize("share", [1.0, 0.6])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("autocast", [False, True])
def test_a_gpt2_step_allocates_only_from_the_arena(form, share, autocast):
    step, batch = gpt2(form, autocast)
    compiled, budget = planned(step, batch), None
    if share < 1:
        stats = compiled.stats()
        budget = stats["resident_bytes"] + int(share * stats["arena_bytes"])
        compiled = planned(step, batch, budget=budget)
        assert compiled.stats()["resident_bytes"] + compiled.stats()["arena_bytes"] <= budget
        assert compiled.stats()["recomputed_ops"] + compiled.stats()["swapped_bytes"] > 0
    gc.collect()
    blocks, reserved, device = allocations()
    launches = nullcuda.counters()["launches"]
    eager_before = blocks
    loss = compiled(batch)
    blocks, now_reserved, now_device = allocations()
    assert nullcuda.counters()["launches"] > launches + 50, "no kernels were asked for"
    assert blocks - eager_before <= 2, "more than the result came from beside the arena"
    assert (now_reserved, now_device) == (reserved, device)
    step(batch)
    assert allocations()[0] - blocks > 100, "the counter counts nothing"
    del loss


def launches_of(call):
    torch.cuda.synchronize()
    before = nullcuda.counters()["launches"]
    call()
    torch.cuda.synchronize()
    return nullcuda.counters()["launches"] - before


@pytest.mark.parametrize("form", ["foreach", "fused"])
def test_lists_of_an_optimizer_are_not_launched_tensor_by_tensor(form):
    """320 parameters, of which none is large: at most 32 pieces of each list, where eager has a launch for some tens of
    tensors."""
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(160)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **FORMS[form])

    def step(x):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    x = torch.zeros(8, 64, device="cuda")
    compiled = planned(step, x)
    lists = {"foreach": 10, "fused": 2}[form]
    assert launches_of(lambda: compiled(x)) <= launches_of(lambda: step(x)) + 33 * lists


def test_a_library_s_workspace_is_there_before_the_first_recording():
    """The first product on a stream takes 32 MiB, which must not count as the step's."""
    torch._C._cuda_clearCublasWorkspaces()
    step, batch = gpt2("fused")
    assert planned(step, batch).stats()["arena_bytes"] < 32 << 20


def test_other_lengths_take_nothing_more_from_the_device():
    """After each length has been seen: what is reserved stays."""
    step, batch = gpt2("fused")
    compiled = stowage.compile(step, strict=True)
    lengths = [64, 32, 48]
    for _ in range(6):
        for n in lengths:
            compiled(batch[:, :n].contiguous())
    assert compiled.stats()["planned_steps"] >= 6
    _, reserved, device = allocations()
    for n in lengths * 3:
        compiled(batch[:, :n].contiguous())
    assert allocations()[1:] == (reserved, device)


def test_an_eager_step_is_captured_with_the_front_in_place():
    step, batch = gpt2("fused", dropout=0.0)
    planned(step, batch)
    model, optimizer = nn.Linear(8, 8).cuda(), None
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, capturable=True)

    def plain(x):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    x = torch.zeros(4, 8, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            plain(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plain(x)
    assert nullcuda.counters()["nodes"] > 10
    graph.replay()


def test_pieces_of_a_plan_are_launched_as_graphs():
    """Forward and backward are noted by CUDA's own rules of capture, with nothing taken beside the arena."""
    step, batch = gpt2("fused", dropout=0.0)
    plain, noted = planned(step, batch, calls=12), planned(step, batch, calls=14, graphs=True)
    stats = noted.stats()
    assert stats["graph_ops"] > 150 and stats["graph_refusal"] == "", stats["graph_refusal"]
    gc.collect()
    before, graphs = allocations(), nullcuda.counters()["graph_launches"]
    launches = launches_of(lambda: noted(batch))
    assert 1 <= nullcuda.counters()["graph_launches"] - graphs <= 16
    assert launches < launches_of(lambda: plain(batch)) / 3
    assert allocations()[0] - before[0] <= 4 and allocations()[1:] == before[1:]

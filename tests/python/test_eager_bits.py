"""stowage.budget changes no bit: losses, parameters, buffers, optimizer state and generator state equal an unlimited
run."""

from __future__ import annotations

import budgeted
import pytest
import torch
from budgeted import Gpt, ResNet, adamw, assert_same_under, sgd

import stowage

POLICIES = ["default", "delta", "dtr", "capuchin", "lru", "size", "random"]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_at_half_the_peak(policy):
    assert_same_under(Gpt, 0.5, policy=policy)


@pytest.mark.parametrize(("make_model", "share"), [(Gpt, 0.75), (Gpt, 0.5), (Gpt, 0.25), (ResNet, 0.75), (ResNet, 0.5)])
@pytest.mark.parametrize("release", ["both", "swap"])
def test_shares_of_the_peak(make_model, share, release):
    stats = assert_same_under(make_model, share, release=release)
    assert release != "swap" or stats["recomputed_ops"] == 0


@pytest.mark.parametrize(("make_model", "share"), [(Gpt, 0.65), (lambda: ResNet(4, 16), 0.6)])
@pytest.mark.parametrize("policy", ["default", "lru", "delta"])
def test_recomputation_alone(make_model, share, policy):
    stats = assert_same_under(make_model, share, release="recompute", policy=policy)
    assert stats["recomputed_ops"] > 0
    assert stats["swapped_out"] == 0


@pytest.mark.parametrize("form", ["loop", "foreach", "fused"])
@pytest.mark.parametrize("optimizer", [adamw, sgd])
def test_forms_of_the_optimizer(optimizer, form):
    options = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}[form]
    assert_same_under(Gpt, 0.5, optimizer=lambda p: optimizer(p, **options))


@pytest.mark.parametrize("how", ["reentrant", "not"])
def test_checkpointed_blocks(how):
    assert_same_under(lambda: Gpt(how=how), 0.6)


def accumulating(model, optimizer, batch):
    optimizer.zero_grad(set_to_none=False)
    for part in batch.chunk(2):
        loss = model.loss(part) / 2
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


def twice_backward(model, optimizer, batch):
    optimizer.zero_grad()
    loss = model.loss(batch)
    loss.backward(retain_graph=True)
    (loss * 0.5).backward()
    optimizer.step()
    return loss.detach()


def gradient_of_gradient(model, optimizer, batch):
    optimizer.zero_grad()
    loss = model.loss(batch)
    gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    (loss + sum(g.square().sum() for g in gradients)).backward()
    optimizer.step()
    return loss.detach()


def autocast(model, optimizer, batch):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model.loss(batch)
    loss.backward()
    optimizer.step()
    return loss.detach()


def of_any_depth(model, optimizer, batch):
    """As many blocks as the data says, and as many tokens."""
    optimizer.zero_grad()
    depth = 1 + int(batch.sum()) % len(model.blocks)
    loss = model.loss(batch[:, : 12 + 4 * depth], depth)
    loss.backward()
    optimizer.step()
    return loss.detach()


@pytest.mark.parametrize("release", ["both", "swap"])
@pytest.mark.parametrize("step", [accumulating, twice_backward, gradient_of_gradient, autocast, of_any_depth])
def test_ways_of_training(step, release):
    assert_same_under(Gpt, 0.5, step=step, release=release)


@pytest.mark.parametrize("link_gbps", [4.0, 0.4])
def test_over_a_link(link_gbps):
    stats = assert_same_under(Gpt, 0.4, release="swap", link_gbps=link_gbps, steps=3)
    assert stats["stall_ns"] > 0


def test_two_kernel_threads():
    torch.set_num_threads(2)
    assert_same_under(ResNet, 0.5)


def test_without_replaying_the_generator_the_bits_differ():
    """The negative control: what the tests above compare does depend on what they are about."""
    expected, peak = budgeted.train(Gpt)
    budget = stowage.budget(budgeted.share(peak, 0.65), release="recompute", policy="lru", _replay_generator=False)
    got, _ = budgeted.train(Gpt, budget)
    assert budget.stats()["recomputed_ops"] > 0
    assert expected != got

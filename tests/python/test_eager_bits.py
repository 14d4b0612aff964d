"""stowage.budget changes no bit: losses, parameters, buffers, optimizer state and generator state equal an unlimited run."""

from __future__ import annotations

import pytest

from budgeted import Gpt, ResNet, adamw, assert_same_under, sgd

POLICIES = ["default", "delta", "dtr", "capuchin", "lru", "size", "random"]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_at_half_the_peak(policy):
    assert_same_under(Gpt, 0.5, policy=policy)


@pytest.mark.parametrize("make_model", [Gpt, ResNet])
@pytest.mark.parametrize("share", [0.75, 0.5, 0.35])
@pytest.mark.parametrize("release", ["both", "swap"])
def test_shares_of_the_peak(make_model, share, release):
    stats = assert_same_under(make_model, share, release=release)
    assert release != "swap" or stats["recomputed_ops"] == 0


@pytest.mark.parametrize("form", ["loop", "foreach", "fused"])
@pytest.mark.parametrize("optimizer", [adamw, sgd])
def test_forms_of_the_optimizer(optimizer, form):
    options = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}[form]
    assert_same_under(Gpt, 0.5, optimizer=lambda p: optimizer(p, **options))


@pytest.mark.parametrize("how", ["reentrant", "not"])
def test_checkpointed_blocks(how):
    assert_same_under(lambda: Gpt(how=how), 0.6)

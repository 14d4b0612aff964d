"""Wrong arguments of stowage.shard(): one line that names the argument, before anything is done."""

import math

import pytest

import stowage
from stowage.sharding.arguments import as_plan, refuse_wrong_arguments

GIVEN = {"mesh": (2,), "eps": None, "links": None, "link_gbps": None, "plan": None, "options": {}}


@pytest.mark.parametrize("name", ["eps", "link_gbps", "relative_gap", "time_limit_seconds"])
@pytest.mark.parametrize("value", ["a", True, -1, -0.5, math.nan, math.inf])
def test_numbers(name, value):
    given = {**GIVEN, "options": {name: value}} if name not in GIVEN else {**GIVEN, name: value}
    with pytest.raises((TypeError, ValueError), match=f"^{name}= must be a number"):
        refuse_wrong_arguments(**given)


@pytest.mark.parametrize("mesh", [None, "2", (2.0,), (True,), 2.5, {"a": 2}])
def test_meshes(mesh):
    with pytest.raises(TypeError, match=r"^mesh= must be a DeviceMesh, or whole numbers"):
        refuse_wrong_arguments(**{**GIVEN, "mesh": mesh})


@pytest.mark.parametrize("links", [[1], "fast", {0: 50}])
def test_links(links):
    with pytest.raises(TypeError, match=r"^links="):
        refuse_wrong_arguments(**{**GIVEN, "links": links})


@pytest.mark.parametrize("plan", [3, {}, ["{}"]])
def test_plans_of_a_wrong_kind(plan):
    with pytest.raises(TypeError, match=r"^plan= must be the text of a plan, or a function"):
        refuse_wrong_arguments(**{**GIVEN, "plan": plan})


@pytest.mark.parametrize(
    "text, words",
    [
        (None, "gave no text of a plan, but NoneType"),
        ("{", "it is no JSON"),
        ("[]", "no list 'tensors'"),
        ('{"tensors": []}', "it has 0 tensors, and the step 2"),
        ('{"tensors": [{}, {}]}', "no list 'ops'"),
        ('{"tensors": [{}, {}], "ops": [null, null]}', "it has 2 ops, and the step 1"),
    ],
)
def test_plans_that_are_none(text, words):
    with pytest.raises(stowage.Error, match=words):
        as_plan(text, 2, 1)


def test_what_is_right_is_taken():
    for mesh in (2, (2,), [1, 2]):
        refuse_wrong_arguments(mesh, 0.5, {0: {"gbps": 5}, "tflops": 1.0}, 0, "{}", {"relative_gap": 1, "seed": 3})
    assert as_plan('{"tensors": [{}], "ops": [null]}', 1, 1)

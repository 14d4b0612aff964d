"""Whatever a replay assumes may change between steps; the numbers stay those of eager."""

import functools
import importlib
import sys
import types

import pytest
import torch
import zoo
from torch import nn
from training import OPTIMIZERS, assert_same_state, plain_step, train

import stowage
from stowage.step.reach.world import World

COUNT = 12


def compare(between, name="gpt2", make_step=plain_step, form="loop", optimizer="adamw"):
    """Trains eagerly and compiled, with ``between(i, model, optimizer)`` before each step."""
    eager = train(name, make_step, optimizer, form, count=COUNT, between=between)
    planned = train(name, make_step, optimizer, form, count=COUNT, between=between, compiled=True)
    assert_same_state(eager, planned)
    assert planned.step.refusal == ""
    stats = planned.step.stats()
    assert stats["planned_steps"] >= 2 and stats["misses"] == 0, stats
    return planned


def at(step, change):
    return lambda i, model, optimizer: change(model, optimizer) if i == step else None


def test_dropout_probability():
    def change(model, optimizer):
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.35

    planned = compare(at(6, change))
    assert planned.step.stats()["checked_steps"] > 3  # its Python was run


def test_training_flag():
    def between(i, model, optimizer):
        model.train(i not in (5, 6, 7))

    compare(between)


@pytest.mark.parametrize("form", ["loop", "foreach", "fused"])
@pytest.mark.parametrize("key,value", [("lr", 0.02), ("weight_decay", 0.3), ("betas", (0.8, 0.9)), ("eps", 1e-4)])
def test_hyperparameters(form, key, value):
    def change(model, optimizer):
        optimizer.param_groups[0][key] = value

    planned = compare(at(6, change), form=form)
    assert planned.step.stats()["eager_steps"] == 3  # no new recording: the numbers are matched in every step


def test_hyperparameter_that_changes_the_operations():
    def change(model, optimizer):
        optimizer.param_groups[0]["maximize"] = True

    compare(at(6, change))


def test_requires_grad():
    def change(model, optimizer):
        model.transformer.wte.weight.requires_grad_(False)
        model.transformer.wte.weight.grad = None

    compare(at(6, change))


def test_parameter_replaced():
    def change(model, optimizer):
        old = model.transformer.h[0].mlp.c_fc.weight
        new = nn.Parameter(old.detach() * 0.5)
        model.transformer.h[0].mlp.c_fc.weight = new
        group = optimizer.param_groups[0]
        group["params"] = [new if p is old else p for p in group["params"]]
        optimizer.state.pop(old)

    compare(at(6, change))


def test_parameter_data_replaced():
    def change(model, optimizer):
        weight = model.transformer.h[0].mlp.c_fc.weight
        weight.data = weight.data.clone() * 0.5

    compare(at(6, change))


def test_parameters_changed_in_place():
    def change(model, optimizer):
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(0.9)

    planned = compare(at(6, change))
    assert planned.step.stats()["eager_steps"] == 3


def test_module_replaced():
    def change(model, optimizer):
        model.transformer.h[0].mlp.dropout = nn.Identity()

    compare(at(6, change))


def test_state_loaded():
    saved = {}

    def between(i, model, optimizer):
        if i == 2:
            saved["model"] = {k: v.clone() for k, v in model.state_dict().items()}
            saved["optimizer"] = {
                k: v if k != "state" else {p: {n: t.clone() for n, t in s.items()} for p, s in v.items()}
                for k, v in optimizer.state_dict().items()
            }
        if i == 7:
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])

    compare(between)


def test_parameter_group_added():
    def change(model, optimizer):
        model.extra = nn.Linear(4, 4)
        optimizer.add_param_group({"params": list(model.extra.parameters()), "lr": 0.1})

    compare(at(6, change))


class _Settings:
    def __init__(self):
        self.scale = 1.0


def test_flag_in_the_closure():
    flags = {}

    def make_step(model, optimizer, loss_fn):
        double = False
        settings = _Settings()

        def train_step(batch):
            optimizer.zero_grad()
            loss = loss_fn(model, batch) * settings.scale
            if double:
                loss = loss * 2
            loss.backward()
            optimizer.step()
            return loss.detach()

        def flip():
            nonlocal double
            double = not double

        flags["flip"], flags["settings"] = flip, settings
        return train_step

    def between(i, model, optimizer):
        if i in (5, 8):
            flags["flip"]()
        if i == 10:
            flags["settings"].scale = 0.5

    compare(between, make_step=make_step)


def test_flag_flipped_back_uses_the_old_recording():
    flags = {"double": False}

    def make_step(model, optimizer, loss_fn):
        def train_step(batch):
            optimizer.zero_grad()
            loss = loss_fn(model, batch) * (2 if flags["double"] else 1)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return train_step

    def between(i, model, optimizer):
        flags["double"] = i in (4, 5, 6)

    planned = compare(between, make_step=make_step)
    assert planned.step.stats()["eager_steps"] <= 5  # the other factor is a number that is taken over


def test_model_configuration():
    def change(model, optimizer):
        for block in model.transformer.h:
            block.mlp.act = nn.ReLU()
            block.attn.scale_attn_weights = False

    compare(at(6, change))


def test_other_shapes_and_back():
    model, loss_fn, _ = zoo.make("gpt2")
    twin, _, _ = zoo.make("gpt2")
    sizes = [(2, 32)] * 5 + [(1, 32)] * 4 + [(2, 16)] + [(2, 32)] * 3 + [(1, 32)] * 2
    generator = torch.Generator().manual_seed(3)
    batches = [torch.randint(0, 211, size, generator=generator) for size in sizes]
    results = []
    for net, compiled in ((model, False), (twin, True)):
        step = plain_step(net, OPTIMIZERS["adamw"](net.parameters()), loss_fn)
        step = stowage.compile(step, strict=True) if compiled else step
        torch.manual_seed(5)
        results.append([step(b) for b in batches])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert step.stats()["planned_steps"] == len(sizes) - 1 - 2 * 2 - 1


_GLOBAL_SCALE = 1.0


def test_global():
    def make_step(model, optimizer, loss_fn):
        def train_step(batch):
            optimizer.zero_grad()
            loss = loss_fn(model, batch) * _GLOBAL_SCALE
            loss.backward()
            optimizer.step()
            return loss.detach()

        return train_step

    def between(i, model, optimizer):
        global _GLOBAL_SCALE
        _GLOBAL_SCALE = 3.0 if i >= 6 else 1.0

    compare(between, make_step=make_step)


def test_step_that_changes_all_the_time_runs_eagerly():
    model, loss_fn, _ = zoo.make("unet")
    batch = zoo.make("unet")[2][0]
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    factor = {"value": 1}

    def train_step(batch):
        optimizer.zero_grad()
        result = loss_fn(model, batch)
        for _ in range(factor["value"]):
            result = result * 0.5
        result.backward()
        optimizer.step()
        return result.detach()

    step = stowage.compile(train_step)
    with pytest.warns(UserWarning, match="recorded 8 times"):
        for i in range(20):
            factor["value"] = 1 + i
            step(batch)
    assert step.stats()["planned_steps"] == 0


loss = None  # a global of the name of an attribute that the step reads: no business of the guards


def test_global_that_only_shares_an_attribute_name():
    from transformers import GPT2Config, GPT2LMHeadModel

    global loss
    torch.manual_seed(0)
    config = GPT2Config(n_layer=1, n_embd=32, n_head=2, n_positions=16, vocab_size=50, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    optimizer = OPTIMIZERS["adamw"](model.parameters())

    def train_step(batch):
        optimizer.zero_grad()
        result = model(input_ids=batch, labels=batch, use_cache=False).loss
        result.backward()
        optimizer.step()
        return result.detach()

    step = stowage.compile(train_step, strict=True)
    for _ in range(6):
        loss = step(torch.randint(0, 50, (2, 16)))
    assert step.stats()["planned_steps"] == 3


@pytest.mark.parametrize("seen", [True, False])
def test_checks_find_what_guards_cannot_see(tmp_path, seen):
    """A number in a file is not watched. Guards know that they cannot see it; where they did not, a check finds the
    change and says so."""
    hidden = tmp_path / "scale"

    def losses(compiled):
        hidden.write_text("1.0")
        model, loss_fn, batches = zoo.make("gpt2", 12)
        optimizer = OPTIMIZERS["adamw"](model.parameters())

        def train_step(batch):
            optimizer.zero_grad()
            loss = loss_fn(model, batch) * float(hidden.read_text())
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = stowage.compile(train_step, check_every=1 if seen else 2) if compiled else train_step
        torch.manual_seed(3)
        found = [step(batch) for batch in batches[:6]]
        if compiled and not seen:
            (entry,) = step._entries.values()
            for replay in entry.replays:
                replay.shadowed_because = ""
        found += [step(batch) for batch in batches[6:8]]
        if compiled and not seen and not entry.unchecked:
            found.append(step(batches[7]))
            assert entry.unchecked, step.stats()
        hidden.write_text("2.0")
        return found + [step(batch) for batch in batches[8:]]

    eager = losses(False)
    if seen:
        assert all(torch.equal(a, b) for a, b in zip(eager, losses(True), strict=True))
    else:
        with pytest.warns(UserWarning, match="in a way that is not watched"):
            losses(True)


def test_compiled_step_is_garbage_collected():
    import gc
    import weakref

    model, loss_fn, batches = zoo.make("unet", 5)
    step = stowage.compile(plain_step(model, OPTIMIZERS["adamw"](model.parameters()), loss_fn))
    for batch in batches:
        step(batch)
    gone = weakref.ref(model)
    del model, step, loss_fn
    gc.collect()
    assert gone() is None


_FACTOR_3 = 1.0


@pytest.mark.parametrize(
    "way", ["exists", "isfile", "isdir", "getsize", "access", "listdir", "path", "glob", "globals", "__globals__"]
)
def test_files_and_names_that_guards_cannot_see(way, tmp_path, monkeypatch):
    """Functions of os.path are frozen, and look as if they were Python's own machinery."""
    import glob
    import os
    import pathlib

    def helper(): ...

    file = str(tmp_path / "flag")
    number = 3
    there = {
        "exists": lambda: os.path.exists(file),
        "isfile": lambda: os.path.isfile(file),
        "isdir": lambda: os.path.isdir(file),
        "getsize": lambda: os.path.getsize(tmp_path / "always") > 0,
        "access": lambda: os.access(file, os.R_OK),
        "listdir": lambda: len(os.listdir(tmp_path)) > 1,
        "path": lambda: pathlib.Path(file).exists(),
        "glob": lambda: bool(glob.glob(file + "*")),
        "globals": lambda: globals()[f"_FACTOR_{number}"] > 1,
        "__globals__": lambda: helper.__globals__[f"_FACTOR_{number}"] > 1,
    }[way]

    def begin():
        if way == "isdir":
            os.mkdir(file)
        else:
            pathlib.Path(file).write_text("")
        (tmp_path / "always").write_text("here")
        monkeypatch.setitem(globals(), "_FACTOR_3", 3.0)

    (tmp_path / "always").write_text("")
    net = nn.Linear(4, 1, bias=False)

    def plain(x):
        loss = (net(x) * (3.0 if there() else 1.0)).sum()
        loss.backward()
        net.weight.grad = None
        return loss.detach()

    step = stowage.compile(plain, check="never")
    x = torch.ones(2, 4)
    for call in range(10):
        if call == 6:
            begin()
        assert torch.equal(step(x), plain(x)), call
    assert step.stats()["planned_steps"] > 3


@pytest.mark.parametrize("holder", ["instance", "function", "namespace"])
def test_the_first_attribute_of_an_empty_namespace(holder):
    """Later Pythons than 3.11 do not count the changes of a dict: an empty one is compared, too."""

    class Inherited:
        scale = 2.0

    class Settings(Inherited):
        pass

    def function(): ...

    owner = {"instance": Settings(), "function": function, "namespace": types.SimpleNamespace()}[holder]
    net = nn.Linear(4, 1, bias=False)

    @functools.partial(stowage.compile, check="never")
    def step(x):
        net.weight.grad = None
        scale = owner.scale if hasattr(owner, "scale") else 2.0
        (net(x).sum() * scale).backward()
        return net.weight.grad

    x = torch.ones(2, 4)
    for _ in range(8):
        assert torch.equal(step(x), torch.full((1, 4), 4.0))
    stats = step.stats()
    assert stats["planned_steps"] > stats["checked_steps"], stats  # Python does not run in each call
    owner.scale = 3.0
    assert torch.equal(step(x), torch.full((1, 4), 6.0))


def _grad_given(t):
    t.grad = torch.ones(2, 3)


LOOKS = {  # what the step's Python asks a tensor that no operator takes, and what changes that
    "shape": (lambda t: t.shape[0], lambda t: t.resize_(4, 3)),
    "size": (lambda t: len(t), lambda t: t.unsqueeze_(0)),
    "stride": (lambda t: t.stride(1), lambda t: t.set_(torch.zeros(3, 2).t())),
    "contiguous": (lambda t: t.is_contiguous() + 1, lambda t: t.set_(torch.zeros(3, 2).t())),
    "offset": (lambda t: t.storage_offset() + 1, lambda t: t.set_(torch.zeros(9)[3:].view(2, 3))),
    "type": (lambda t: t.dtype.itemsize, lambda t: setattr(t, "data", t.data.double())),
    "no gradient": (lambda t: 2.0 if t.grad is None else 3.0, _grad_given),
    "version": (lambda t: t._version + 1, lambda t: t.detach().zero_()),
    "address": (lambda t: t.data_ptr() % 1024 + 1, lambda t: setattr(t, "data", torch.zeros(4096)[100:106].view(2, 3))),
}


@pytest.mark.parametrize("check", ["never", "auto"])
@pytest.mark.parametrize("name", LOOKS)
def test_what_python_asks_a_tensor_that_no_operator_takes(name, check):
    asks, changes = LOOKS[name]

    def run(compiled):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        looked_at = torch.zeros(2, 3, requires_grad=name == "no gradient")

        def train_step(x):
            number = asks(looked_at)
            loss = model(x).square().mean() * number
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach(), number

        step = stowage.compile(train_step, check=check) if compiled else train_step
        results = []
        for i in range(10):
            if i == 6:
                changes(looked_at)
            if name == "address":
                asks_before = looked_at.data_ptr() % 1024 + 1
                results.append(step(torch.ones(2, 4) * i)[1] == asks_before)
            else:
                results += step(torch.ones(2, 4) * i)
        return results, step

    expected, _ = run(False)
    got, step = run(True)
    assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(expected, got, strict=True))
    assert step.stats()["planned_steps"] > 0


@pytest.mark.parametrize("check", ["never", "auto"])
def test_a_gradient_that_the_step_reads(check):
    """Of a tensor that no optimizer has."""

    def run(compiled):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        leaf = torch.zeros(2, requires_grad=True)
        leaf.grad = torch.ones(2)

        def train_step(x):
            loss = model(x).square().mean() * leaf.grad.sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        step = stowage.compile(train_step, check=check) if compiled else train_step
        results = []
        for i in range(12):
            if i == 6:
                leaf.grad = torch.full((2,), 3.0)
            if i == 8:
                leaf.grad.add_(1)
            results.append(step(torch.ones(2, 4) * i))
        return results

    assert all(torch.equal(a, b) for a, b in zip(run(False), run(True), strict=True))


def test_a_learning_rate_that_is_another_tensor_now():
    """Read by the step itself, without optimizer.step()."""

    def trained(wrap):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1))

        def step(x):
            gradients = torch.autograd.grad(model(x).square().mean(), list(model.parameters()))
            with torch.no_grad():
                for p, gradient in zip(model.parameters(), gradients, strict=True):
                    p.sub_(gradient * optimizer.param_groups[0]["lr"])

        step = wrap(step)
        for i in range(12):
            if i in (8, 10):
                optimizer.param_groups[0]["lr"] = torch.tensor(0.1 * i)
            step(torch.randn(5, 4))
        return [p.detach().clone() for p in model.parameters()], step

    expected, _ = trained(lambda f: f)
    found, step = trained(stowage.compile)
    assert all(map(torch.equal, expected, found))
    assert step.stats()["planned_steps"] > 3, step.refusal


def test_what_code_may_import_is_looked_through_when_it_has(monkeypatch):
    """Of modules that it imports by names which it works out; all of the program's are."""
    module = types.ModuleType("plots_of_the_program")
    source = "import torch\nclass Style:\n    weights = torch.zeros(3)\ndef get():\n    return Style.weights\n"
    exec(source, vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    settings = {"name": "math", "model": nn.Linear(3, 3)}

    def imported():
        return importlib.import_module(settings.get("name"))

    def step(x):
        y = settings.get("model")(x) * (imported().pi if settings["name"] == "math" else 1)
        if settings["name"] != "math":
            y = y + imported().get()
        return y

    def found():
        world = World(step)
        with world.noting():
            step(torch.ones(3))
        before = {id(t) for _, t in world.tensors} & world.tensors_before
        world.settle()
        return before, {id(t) for _, t in world.tensors}

    weights = id(module.Style.weights)
    before, after = found()
    assert weights not in before and weights not in after
    settings["name"] = module.__name__
    _, after = found()
    assert weights in after

"""Steps with regions that torch.compile has compiled: planned kernel by kernel, with the bits of the compiled step."""

from __future__ import annotations

import contextlib
import copy
import json
import random
import types
import warnings

import numpy as np
import pytest
import searches
import torch
import torch.nn.functional as F
from inductor_models import compiled_anew, own_inductor_cache  # noqa: F401
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import stowage
from stowage import compiled_regions

WIDTH, CLASSES = 16, 4


class Residual(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.scale = inner, 1.0

    def forward(self, x):
        return x + self.scale * self.inner(x)


class Broken(nn.Module):
    """Two graphs."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        torch._dynamo.graph_break()
        return self.second(F.gelu(x))


class Asking(nn.Module):
    """What runs depends on the data."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = self.layer(x)
        return F.gelu(x) * 2 if x.sum() > 0 else torch.tanh(x)


class Joined(nn.Module):
    """One kernel writes parts of a buffer, and reads the whole."""

    def forward(self, x):
        y = torch.cat([x[:, :1] * 0.5, x[:, :-1]], dim=1)
        return x + (y - x).abs().cumsum(dim=1)


PARTS = (
    lambda: nn.Linear(WIDTH, WIDTH),
    nn.GELU,
    lambda: nn.LayerNorm(WIDTH),
    lambda: nn.BatchNorm1d(WIDTH),
    lambda: nn.Dropout(0.2),
    lambda: Residual(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())),
    Joined,
    Broken,
    Asking,
)
FORMS = ("model", "part", "loss", "step", "optimizer", "module.compile()")
HABITS = ("plain", "accumulates", "clips", "autocast", "batches of two sizes", "changes", "seeds itself")


class Program:
    """A model, an optimizer and a step, with what is compiled; the same from the same seed."""

    def __init__(self, seed: int, form: str = "", habit: str = "", parts: list | None = None):
        draw = random.Random(seed)
        form, self.habit = form or draw.choice(FORMS), habit or draw.choice(HABITS)
        made = [draw.choice(PARTS) for _ in range(draw.randint(1, 3))] if parts is None else parts
        torch.manual_seed(seed)
        self.model = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), *(make() for make in made), nn.Tanh(), nn.Linear(WIDTH, CLASSES)
        )
        optimizer = draw.choice((torch.optim.SGD, torch.optim.AdamW))
        self.optimizer = optimizer(self.model.parameters(), lr=0.05)
        self.name = f"seed {seed}: {form}, {self.habit}, {[type(m).__name__ for m in self.model]}"
        self.called, self.update, self.loss = self.model, self.optimizer.step, F.cross_entropy
        if form == "model":
            self.called = torch.compile(self.model)
        elif form == "part":
            self.model[1] = torch.compile(self.model[1])
        elif form == "loss":
            self.called, self.loss = self._whole(), lambda result, y: result
        elif form == "optimizer":
            self.update = torch.compile(self.optimizer.step)
        elif form == "module.compile()":
            for part in self.model:
                part.compile()
        self.step = torch.compile(self._step) if form == "step" else self._step

    def _whole(self):
        model = self.model
        return torch.compile(lambda x, y: F.cross_entropy(model(x), y))

    def _step(self, x, y):
        self.optimizer.zero_grad()
        if self.habit == "seeds itself":
            torch.manual_seed(3)
        pieces = 2 if self.habit == "accumulates" else 1
        total = torch.zeros(())
        for i in range(pieces):
            with torch.autocast("cpu", torch.bfloat16, enabled=self.habit == "autocast"):
                given = (x[i::pieces], y[i::pieces]) if self.called is not self.model and self._takes_both() else None
                loss = self.called(*given) if given else self.loss(self.called(x[i::pieces]), y[i::pieces])
            loss.backward()
            total = total + loss.detach()
        if self.habit == "clips":
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.update()
        return total

    def _takes_both(self):
        return not isinstance(self.called, nn.Module)

    def batch(self, i: int):
        draws = torch.Generator().manual_seed(i)
        rows = 6 if self.habit == "batches of two sizes" and i % 3 == 2 else 10
        return torch.randn(rows, WIDTH, generator=draws), torch.randint(CLASSES, (rows,), generator=draws)

    def between(self, i: int):
        """What a user may change between calls."""
        if self.habit == "changes":
            if i == 6:
                for group in self.optimizer.param_groups:
                    group["lr"] *= 0.5
            if i == 8:
                for module in self.model.modules():
                    if isinstance(module, Residual):
                        module.scale = 0.5
            if i == 10:
                self.model.eval()

    def run(self, calls: int = 12, **options):
        torch.manual_seed(7)
        step = stowage.compile(self.step, **options) if options else self.step
        results = []
        for i in range(calls):
            self.between(i)
            results.append(step(*self.batch(i)).clone())
        state = [t.detach().clone() for t in (*self.model.parameters(), *self.model.buffers())]
        return step, [*results, *state, torch.get_rng_state()]


def check_program(seed: int, calls: int = 12, **options) -> stowage.CompiledStep:
    _, expected = Program(seed, **options).run(calls)
    torch._dynamo.reset()
    program = Program(seed, **options)
    step, got = program.run(calls, check="auto")
    torch._dynamo.reset()
    assert len(got) == len(expected) and all(map(torch.equal, got, expected)), program.name
    return step


@pytest.mark.parametrize("form", FORMS)
def test_what_is_compiled(form):
    step = check_program(1, form=form, habit="plain", parts=[nn.GELU, lambda: nn.Dropout(0.2), PARTS[5]])
    assert not step.refusal and step.stats()["planned_steps"] >= 8, (step.refusal, step.stats())
    assert step.stats()["misses"] == 0


@pytest.mark.parametrize("make", [Joined, Broken, Asking, PARTS[3]], ids=["joined", "broken", "asking", "batch norm"])
def test_what_a_region_does(make):
    calls = 30 if make is Asking else 12  # it takes both ways, and compiles each when it comes
    step = check_program(2, calls, form="model", habit="plain", parts=[make])
    assert not step.refusal and step.stats()["planned_steps"] >= calls // 2 - 1, (step.refusal, step.stats())


@pytest.mark.parametrize("seed", range(3))
def test_random_programs(seed):
    check_program(searches.first_seed(clock=False) * 100 + seed)


@searches.longer
def test_many_random_programs():
    planned = sum(check_program(seed).stats()["planned_steps"] > 0 for seed in searches.seeds(searches.first_seed()))
    print(f"{planned} of them planned")


def test_peaks_are_those_planned_and_nothing_is_compiled_twice(tmp_path):
    program = Program(5, form="model", habit="plain", parts=[nn.GELU, PARTS[0], nn.GELU])
    torch._dynamo.utils.counters.clear()
    step, _ = program.run(check="auto")
    stats = step.stats()
    assert stats["planned_steps"] >= 8 and stats["measured_peak_bytes"] == stats["planned_peak_bytes"]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    step.graph.save(tmp_path / "graph.json")
    targets = [op["target"] for op in json.loads((tmp_path / "graph.json").read_text())["ops"]]
    assert any("cpp_fused" in target for target in targets), targets


def test_within_a_budget():
    parts = [PARTS[0], nn.GELU] * 6
    _, expected = Program(3, form="model", habit="plain", parts=parts).run()
    torch._dynamo.reset()
    program = Program(3, form="model", habit="plain", parts=parts)
    step, got = program.run(check="auto")
    assert all(map(torch.equal, got, expected))
    stats = step.stats()
    torch._dynamo.reset()
    # The compiler itself works in the first calls, beside what a plan takes
    compiling_bytes = 2 * sum(p.nbytes for p in program.model.parameters())
    limit = stats["resident_bytes"] + stats["arena_bytes"] * 9 // 10 + compiling_bytes
    step, got = Program(3, form="model", habit="plain", parts=parts).run(budget=limit)
    assert all(map(torch.equal, got, expected))
    within = step.stats()
    assert within["planned_steps"] >= 8 and within["arena_bytes"] + within["resident_bytes"] <= limit


def test_a_change_that_the_compiler_sees_compiles_anew_and_is_planned_again():
    program = Program(4, form="model", habit="plain", parts=[PARTS[5]])
    twin = copy.deepcopy(program.model)
    step = stowage.compile(program.step)
    for i in range(6):
        step(*program.batch(i))
    assert step.stats()["planned_steps"] > 0
    program.model[1].scale = 0.25
    before = step.stats()["planned_steps"]
    losses = [step(*program.batch(i)) for i in range(8)]
    assert step.stats()["planned_steps"] > before
    assert all(torch.isfinite(loss) for loss in losses) and not torch.equal(twin[0].weight, program.model[0].weight)


BUFFERS = [np.zeros((3, WIDTH), np.float32) for _ in range(2)]


def reads_an_array(model, update, x, i, array):
    return update(model(x).square().mean()) * float(array.sum())


def fills_a_buffer(model, update, x, i, array, filled=BUFFERS[0], late=0):
    if i >= late:
        filled[:] = i
    loss = model(torch.from_numpy(filled)).square().mean()
    if i >= late:
        filled[:] = i + 1
    return update(loss + model(torch.from_numpy(filled)).abs().mean())


def fills_it_later(model, update, x, i, array, filled=BUFFERS[1]):
    return fills_a_buffer(model, update, x, i, array, filled, late=7)


def asks_for_versions(model, update, x, i, array):
    return update(model(x).square().mean()) * model[0].weight._version


def makes_an_array(model, update, x, i, array):
    made = model[0].weight.data.numpy()
    return update(model(x).square().mean()) * float(made.sum())


def makes_a_list(model, update, x, i, array):
    return update(model(x).square().mean()) * sum(model[0].bias.tolist())


def catches(model, update, x, i, array):
    rows = torch.tensor([0, 1, 2 if i != 9 else 12])
    try:
        loss = model(x.index_select(0, rows)).square().mean()
    except IndexError:
        loss = model(x).square().mean() * 3
    return update(loss)


@pytest.mark.filterwarnings("ignore:stowage")
@pytest.mark.parametrize(
    "what",
    [reads_an_array, fills_a_buffer, fills_it_later, asks_for_versions, makes_an_array, makes_a_list, catches],
)
def test_what_python_does_beside(what):
    """No mode listens, and nothing is noted where something is compiled: what a recording must know is known otherwise."""

    def run(planned):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES))
        compiled, optimizer = torch.compile(model), torch.optim.SGD(model.parameters(), lr=0.1)
        array = model[0].weight.detach().numpy()
        for buffer in BUFFERS:
            buffer.fill(0)

        def update(loss):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        class Called:  # the compiled model's call, the plain one's layers
            def __call__(self, x):
                return compiled(x)

            def __getitem__(self, i):
                return model[i]

        called = Called()

        def step(x, i):
            return what(called, update, x, i, array)

        step = stowage.compile(step) if planned else step
        results = [step(torch.full((3, WIDTH), i / 10), i).clone() for i in range(12)]
        return [*results, *(p.detach().clone() for p in model.parameters())]

    assert all(map(torch.equal, run(True), run(False)))
    torch._dynamo.reset()


class Checkpointed(nn.Module):
    """With fallback_random its dropout is drawn again by operators that are written in Python."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3), nn.Linear(WIDTH, WIDTH))

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)


def draws_eagerly(planned: bool, limit: int | None = None):
    torch._dynamo.reset()
    program = Program(7, form="none", habit="plain", parts=[Checkpointed, nn.GELU, Checkpointed])
    program.called = torch.compile(program.model, options={"fallback_random": True})
    with stowage.budget(limit) if limit else contextlib.nullcontext():
        return program.run(check="auto") if planned else program.run()


def test_operators_that_are_written_in_python():
    _, expected = draws_eagerly(False)
    step, got = draws_eagerly(True)
    assert all(map(torch.equal, got, expected)) and not step.refusal and step.stats()["planned_steps"] > 0
    _, got = draws_eagerly(False, limit=1 << 30)
    assert all(map(torch.equal, got, expected))
    torch._dynamo.reset()


@pytest.mark.parametrize("first", [0, 6], ids=["from the first call on", "from a planned call on"])
def test_a_function_that_compiles_by_itself(first):
    """torch.cond: nothing that was compiled can be seen beforehand, and it cannot be compiled under what records."""

    def run(planned):
        torch._dynamo.reset()
        torch.manual_seed(0)
        layer, calls = nn.Linear(WIDTH, WIDTH), 0
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

        def step(x):
            optimizer.zero_grad()
            y = layer(x)
            for _ in range(10 if calls >= first else 0):  # more often than Dynamo compiles anew
                y = torch.cond(y.sum() > 0, lambda y: y.sin() * 2, lambda y: y.cos(), (y,))
            loss = y.square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        function = stowage.compile(step) if planned else step
        results = []
        for calls in range(14):  # noqa: B007
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                results.append(function(torch.randn(8, WIDTH)).clone())
        return [*results, *(p.detach() for p in layer.parameters()), torch.get_rng_state()]

    assert all(map(torch.equal, run(True), run(False)))
    torch._dynamo.reset()


def made_module(tmp_path, text: str):
    (tmp_path / "m.py").write_text(text)
    module = types.ModuleType("m")
    module.__file__, module.empty_strided_cpu = str(tmp_path / "m.py"), None
    exec(f"import torch\ndef k(*args): return args\n{text.split('#')[0]}", vars(module))
    return module


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("#\nk = async_compile.triton('k', '''x''')", "torch.compile has made the kernel k by async_compile.triton"),
        ("#\nk = async_compile.cpp_pybinding(['const double'], r'''x''')", "a parameter of type const double"),
        ("def k(x): return isinstance(x, torch.Tensor)\n#CppWrapperCodeCache.load_pybinding(", "cpp_wrapper"),
    ],
)
def test_what_cannot_be_seen_is_told_when_it_is_used(tmp_path, line, said):
    told = []
    module = made_module(tmp_path, line)
    compiled_regions._expose(module)

    def step(x):
        with compiled_regions.seen(told.append, compiled_regions.Regions()):
            module.k(1)
            return x + 1

    module.k(1)
    assert not told
    stowage.capture(step, torch.ones(2))
    assert told and said in told[0]


def test_a_region_that_cannot_be_seen_stands_in_nobody_else_s_way():
    steps = []
    for options in ({"cpp_wrapper": True}, {}):
        program = Program(6, form="none", habit="plain", parts=[nn.GELU])
        program.called = torch.compile(program.model, options=options)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            steps.append(program.run(calls=6, check="auto")[0])
        torch._dynamo.reset()
        refused = [str(w.message) for w in told if w.category is stowage.errors.UnsupportedWarning]
        assert bool(refused) == bool(options), refused
    assert "cpp_wrapper" in steps[0].refusal and steps[0].refusal.startswith(__file__), steps[0].refusal
    assert steps[1].stats()["planned_steps"] > 0


@pytest.mark.filterwarnings("ignore:stowage")
def test_a_function_that_compiles_itself_within_the_step():
    """Dynamo then traces while the step is recorded: what listens there must not be traced."""

    class Inner(torch.optim.SGD):
        compiled = None

        @torch.no_grad()
        def step(self, closure=None):
            self.compiled = self.compiled or torch.compile(lambda p, g: torch.einsum("ij,ij->i", p, g).tanh())
            for p in self.param_groups[0]["params"]:
                p.sub_(self.compiled(p, p.grad)[:, None] * 0.1)

    def run(compiled):
        torch.manual_seed(0)
        model = nn.Linear(6, 4, bias=False)
        optimizer = Inner(model.parameters())

        def train_step(x):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        step = stowage.compile(train_step) if compiled else train_step
        return [step(torch.full((3, 6), float(i))) for i in range(5)]

    assert all(torch.equal(a, b) for a, b in zip(run(False), run(True), strict=True))


def test_private_names():
    """What compiled_regions takes from PyTorch."""
    from torch._inductor.codecache import PyCodeCache

    assert isinstance(PyCodeCache.modules, list)
    handler = torch._dynamo.callback_handler
    assert handler.start_callbacks is not None and callable(handler.register_start_callback)
    Program(8, form="model", habit="plain", parts=[nn.GELU]).run(calls=1)
    module = next(m for m in reversed(PyCodeCache.modules) if callable(getattr(m, "call", None)))
    with open(module.__file__) as file:
        source = file.read()
    kernels = compiled_regions._KERNEL.findall(source)
    assert kernels and len(kernels) == source.count("async_compile.cpp_pybinding(")
    assert "empty_strided_cpu(" in source and callable(module.empty_strided_cpu)
    check = torch._functorch._aot_autograd.runtime_wrappers._FirstInvocationContext()
    with compiled_regions.seen(print, compiled_regions.Regions()):
        assert isinstance(check(), contextlib.nullcontext)
    assert isinstance(check(), TorchDispatchMode)
    told = []
    torch._dynamo.reset()
    torch.compile(lambda x: x + 1, backend=lambda graph, inputs: told.append(compiled_regions.compiling()) or graph)(
        torch.ones(3)
    )
    assert told == [True] and not compiled_regions.compiling()

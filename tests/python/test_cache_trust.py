"""The cache against whoever may write near it: forged and misshapen entries, foreign and open directories, links, and
kills in mid-write."""

import hashlib
import itertools
import json
import os
import random
import re
import signal
import stat
import subprocess
import sys
import sysconfig
import time
import warnings
import zlib
from pathlib import Path

import pytest
import torch
from test_plan_cache import OFF, chain

import stowage
import stowage.cache.costs
from stowage._torch import runtime_build
from stowage.cache import plan_cache
from stowage.cache.costs import CostFile
from stowage.cache.directory import Refused, opened

MACHINE = {"torch": "x", "cpu": "y", "threads": 1}
NOBODY = 65534
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("STOWAGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("STOWAGE_PLAN_CACHE", "1MiB")
    monkeypatch.setattr(stowage.cache.costs, "_FILES", {})
    monkeypatch.setattr(plan_cache, "_WARNED", set())
    return tmp_path / "cache"


# What may lie under the name of an entry: each makes it, given the path and what was there.


def fifo(path, good):
    os.mkfifo(path)


def link_to_itself(path, good):
    path.symlink_to(path)


def link_elsewhere(path, good):
    elsewhere = path.parent.parent / "elsewhere"
    elsewhere.write_bytes(good)
    path.symlink_to(elsewhere)


def dangling_link(path, good):
    path.symlink_to(path.parent / "nowhere")


def empty_directory(path, good):
    path.mkdir()


def full_directory(path, good):
    (path / "below").mkdir(parents=True)
    (path / "below" / "file").write_bytes(good)


def link_to_a_device(path, good):
    path.symlink_to("/dev/zero")


def without_end(path, good):
    with open(path, "wb") as file:
        file.truncate(1 << 40)  # no disk has that, and no memory


def for_all_to_write(path, good):
    path.write_bytes(good)
    path.chmod(0o666)


def of_another_user(path, good):
    path.write_bytes(good)
    os.chown(path, NOBODY, NOBODY)


def a_socket(path, good):
    import socket

    here = os.getcwd()
    os.chdir(path.parent)  # names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(path.name)
    finally:
        os.chdir(here)


SHAPES = [
    fifo,
    link_to_itself,
    link_elsewhere,
    dangling_link,
    empty_directory,
    full_directory,
    link_to_a_device,
    without_end,
    for_all_to_write,
    a_socket,
    pytest.param(of_another_user, marks=root_only),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_plan_that_is_no_plain_file_of_ours(cache, shape):
    wanted = stowage.plan(chain())._plan.to_json()
    (path,) = (cache / "plans").iterdir()
    good = path.read_bytes()
    path.unlink()
    shape(path, good)
    with pytest.warns(UserWarning, match="is ignored") as seen:
        plan = stowage.plan(chain())
    assert len(seen) == 1
    assert not plan.from_cache and plan._plan.to_json() == wanted
    assert stowage.plan(chain()).from_cache
    assert stat.S_ISREG(path.lstat().st_mode) and path.stat().st_uid == os.geteuid()
    assert sorted(p.name for p in (cache / "plans").iterdir() if p.name != "nowhere") == [path.name]
    if shape is link_elsewhere:
        assert (cache / "elsewhere").read_bytes() == good


@pytest.mark.parametrize("shape", SHAPES)
def test_costs_that_are_no_plain_file_of_ours(cache, shape):
    first = CostFile(cache / "costs.json", MACHINE)
    first.add([("k", 5)])
    first.save()
    good = first.path.read_bytes()
    first.path.unlink()
    shape(first.path, good)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        costs = CostFile(first.path, MACHINE)
    assert costs.ops == {} and len(seen) == (0 if shape is dangling_link and not seen else 1)
    costs.add([("k", 7)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        costs.save()
    assert CostFile(first.path, MACHINE).cost_ns("k") == 7


# ---- Forged content, with a right digest


def sealed(body: bytes) -> bytes:
    return b"stowage-plan 1 " + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def split(content: bytes) -> tuple[dict, dict]:
    head, plan = zlib.decompress(content.partition(b"\n")[2]).split(b"\n", 1)
    return json.loads(head), json.loads(plan)


def forged(head, plan) -> bytes:
    return sealed(
        zlib.compress(
            json.dumps(head).encode() + b"\n" + (plan if isinstance(plan, bytes) else json.dumps(plan).encode())
        )
    )


WRONG = [None, True, -1, 1 << 70, 0.5, "", "x", [], {}, [[]], {"": None}, 10**4000, float("nan"), float("inf")]


def random_change(rng, value, depth=0):
    """Somewhere in it something is of another kind, left out, or added."""
    if isinstance(value, dict) and value and depth < 4 and rng.random() < 0.85:
        key = rng.choice(sorted(value))
        if rng.random() < 0.2:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: random_change(rng, value[key], depth + 1)}
    if isinstance(value, list) and value and depth < 4 and rng.random() < 0.85:
        i = rng.randrange(len(value))
        if rng.random() < 0.2:
            return value[:i] + value[i + 1 :]
        return [*value[:i], random_change(rng, value[i], depth + 1), *value[i + 1 :]]
    return rng.choice(WRONG)


def as_good_as(plan, graph) -> bool:
    stowage.check(graph, plan)
    summary = plan.summary()
    return summary["peak_bytes"] >= 0 and isinstance(repr(plan), str) and isinstance(json.dumps(summary), str)


def test_forged_plans_are_absent_or_right(cache):
    """Whatever a forger writes below a right digest: the plan is a valid one, no error comes of it, and nothing takes
    long."""
    graph = chain()
    wanted = stowage.plan(graph)
    (path,) = (cache / "plans").iterdir()
    head, plan = split(path.read_bytes())
    deep = b"[" * 200_000 + b"]" * 200_000
    bomb = zlib.compressobj(9)
    bomb = bomb.compress(b" " * (1 << 28)) + bomb.flush()
    contents = [
        sealed(b""),
        sealed(b"x"),
        sealed(zlib.compress(b"")),
        sealed(zlib.compress(deep)),
        sealed(zlib.compress(b"\n")),
        sealed(zlib.compress(b"[]\n[]")),
        sealed(zlib.compress(b"null\n" + deep)),
        sealed(bomb),
        sealed(zlib.compress(b"\xff\xfe\n{}")),
        sealed(zlib.compress(b"1" * 100_000 + b"\n{}")),
        forged(head, deep),
        forged(head, b'{"a":' * 100_000),
        forged({**head, "summary": []}, plan),
        forged({**head, "costs_ns": head["costs_ns"][:-1]}, plan),
        forged({**head, "summary": {"peak_bytes": head["summary"]["peak_bytes"]}}, plan),
        sealed(zlib.compress(json.dumps(head).encode() + b"\n" + json.dumps(plan).encode()) + b"more"),
    ]
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    contents += [
        forged(random_change(rng, head), plan) if rng.random() < 0.6 else forged(head, random_change(rng, plan))
        for _ in range(200)
    ]
    for content in contents:
        path.write_bytes(content)
        start = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for budget in (None, 1 << 20):
                assert as_good_as(stowage.plan(graph, budget), graph)
        assert time.monotonic() - start < 10
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert stowage.plan(graph).summary()["peak_bytes"] == wanted.summary()["peak_bytes"]


def test_a_forged_plan_must_fit_the_budget(cache):
    """A valid plan of the graph, but for another budget."""
    graph = chain(12, scale=4096)
    peak = stowage.plan(graph).summary()["peak_bytes"]
    (path,) = (cache / "plans").iterdir()
    head, plan = split(path.read_bytes())
    path.unlink()
    with pytest.raises(stowage.Infeasible):
        stowage.plan(graph, peak - 64)
    key = plan_cache._key(graph, {**OFF, "budget_bytes": peak - 64})
    (cache / "plans" / f"{key[:32]}.plan").write_bytes(
        forged({**head, "key": key, "summary": {**head["summary"], "budget_bytes": peak - 64}}, plan)
    )
    with pytest.warns(UserWarning, match="does not fit the budget"), pytest.raises(stowage.Infeasible):
        stowage.plan(graph, peak - 64)


@pytest.mark.parametrize("content", [
    "[" * 200_000, '{"a":' * 200_000, "1" * 100_000, '"\\ud800"', "\0" * 1000, "NaN",
    *(json.dumps({"format": "stowage-costs", "version": 1, "machine": MACHINE, "ops": ops, "link_gbps": link}) for ops, link in [
        ([], {}), ({"k": "123"}, {}), ({"k": {"1": 2}}, {}), ({"k": [-1]}, {}), ({"k": [1 << 70]}, {}), ({"k": [float("inf")]}, {}), ({"k": [True]}, {}),
        ({"k": [[1]]}, {}), ({"k": [None]}, {}), ({}, {"memory": 0}), ({}, {"memory": -1}), ({}, {"memory": float("nan")}),
        ({}, {"memory": float("inf")}), ({}, {"memory": "fast"}), ({}, {"memory": None}), ({}, [])]),
])  # fmt: skip
def test_forged_costs_are_absent(cache, content):
    cache.mkdir(mode=0o700)
    path = cache / "costs.json"
    path.write_text(content)
    with pytest.warns(UserWarning, match="ignored"):
        costs = CostFile(path, MACHINE)
    assert costs.ops == {} and costs.link_gbps == {}


# ---- Directories


def open_to_all(path):
    path.chmod(0o777)


def open_to_the_group(path):
    path.chmod(0o770)


def given_away(path):
    os.chown(path, NOBODY, NOBODY)


OPEN = [open_to_all, open_to_the_group, pytest.param(given_away, marks=root_only)]


def test_directories_are_made_for_the_user_alone(cache, monkeypatch):
    monkeypatch.setattr(os, "umask", os.umask)
    old = os.umask(0)
    try:
        stowage.plan(chain())
        costs = CostFile(cache / "costs.json", MACHINE)
        costs.add([("k", 5)])
        costs.save()
    finally:
        os.umask(old)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in [cache, *cache.rglob("*")]}
    assert {modes.pop("cache"), modes.pop("plans")} == {0o700} and set(modes.values()) == {0o600}


@pytest.mark.parametrize("below", [(), ("plans",)])
@pytest.mark.parametrize("spoil", OPEN)
def test_a_directory_that_others_may_write_to_keeps_no_plans(cache, spoil, below):
    stowage.plan(chain())
    spoil(cache.joinpath(*below))
    before = sorted((p.name, p.stat().st_mtime_ns) for p in cache.rglob("*"))
    with pytest.warns(UserWarning, match="no plans are kept: .*(chmod go-w|belongs to user)") as seen:
        assert not stowage.plan(chain()).from_cache
        assert not stowage.plan(chain(7)).from_cache
    assert len(seen) == 1
    assert sorted((p.name, p.stat().st_mtime_ns) for p in cache.rglob("*")) == before


@pytest.mark.parametrize("spoil", OPEN)
def test_a_directory_that_others_may_write_to_keeps_no_costs(cache, spoil):
    costs = CostFile(cache / "costs.json", MACHINE)
    costs.add([("k", 5)])
    costs.save()
    spoil(cache)
    with pytest.warns(UserWarning, match="no costs are kept: .*STOWAGE_CACHE") as seen:
        other = CostFile(cache / "costs.json", MACHINE)
        other.add([("k", 7)])
        other.save()
    assert len(seen) == 1 and json.loads((cache / "costs.json").read_text())["ops"] == {"k": [5]}


def test_a_link_below_the_cache_is_not_followed(cache, tmp_path):
    stowage.plan(chain())
    (cache / "plans").rename(tmp_path / "elsewhere")
    (cache / "plans").symlink_to(tmp_path / "elsewhere")
    with pytest.warns(UserWarning, match="is a link"):
        assert not stowage.plan(chain()).from_cache


def test_the_cache_itself_may_be_a_link_of_the_users_choice(cache, tmp_path):
    (tmp_path / "scratch").mkdir(mode=0o700)
    cache.symlink_to(tmp_path / "scratch")
    stowage.plan(chain())
    assert stowage.plan(chain()).from_cache


def test_descriptors_do_not_pile_up(cache):
    stowage.plan(chain())
    (path,) = (cache / "plans").iterdir()
    before = len(os.listdir("/proc/self/fd"))
    for length in range(3, 30):
        stowage.plan(chain(length))
        path.write_bytes(b"x")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            stowage.plan(chain())
            CostFile(cache / "costs.json", MACHINE).save()
    (cache / "plans").chmod(0o777)
    with pytest.warns(UserWarning):
        stowage.plan(chain(40))
    for _ in range(5):
        with pytest.raises(Refused), opened(cache, "plans"):
            pass
    assert len(os.listdir("/proc/self/fd")) == before


# ---- The runtime

MODULE = """
#include <Python.h>
static struct PyModuleDef def = {PyModuleDef_HEAD_INIT, "_runtime", 0, -1, 0, 0, 0, 0, 0};
PyMODINIT_FUNC PyInit__runtime(void) { PyObject* m = PyModule_Create(&def); PyModule_AddIntConstant(m, "answer", ANSWER); return m; }
"""


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    folder = tmp_path_factory.mktemp("modules")
    (folder / "m.c").write_text(MODULE)
    paths = []
    for answer in (42, 13):
        paths.append(folder / f"m{answer}.so")
        subprocess.run(
            [
                *os.environ.get("CC", "gcc").split(),
                "-shared",
                "-fPIC",
                f"-DANSWER={answer}",
                "-I" + sysconfig.get_path("include"),
                str(folder / "m.c"),
                "-o",
                str(paths[-1]),
            ],
            check=True,
        )
    return paths


@pytest.fixture
def built(cache, modules, monkeypatch):
    """A cache in which the runtime was built; loading it gives a module whose answer is 42."""
    monkeypatch.setattr(runtime_build, "_SOURCES", cache.parent)
    monkeypatch.setattr(runtime_build, "_key", lambda torch: "key")

    def build(compiler, torch_folder, folder, version):
        folder.mkdir(mode=0o700)
        (folder / "_runtime.so").write_bytes(modules[0].read_bytes())
        (folder / "_runtime.so").chmod(0o700)

    monkeypatch.setattr(runtime_build, "_build", build)
    assert runtime_build.load("_runtime").answer == 42
    return cache / "runtime" / f"{torch.__version__}-key"


def test_the_runtime_is_loaded_and_says_where_from(built):
    module = runtime_build.load("_runtime")
    assert module.answer == 42 and module.__file__ == str(built / "_runtime.so")
    lock = built.with_name(built.name + ".lock")
    assert stat.S_IMODE(lock.stat().st_mode) == 0o600 and lock.read_bytes() == b""


@pytest.mark.parametrize("level", range(3))
@pytest.mark.parametrize("spoil", OPEN)
def test_no_code_is_loaded_from_where_others_may_write(built, modules, spoil, level):
    (built / "_runtime.so").unlink()  # which is loaded
    (built / "_runtime.so").write_bytes(modules[1].read_bytes())
    spoil([built, built.parent, built.parent.parent][level])
    with pytest.raises(stowage.Error, match="chmod go-w|belongs to user"):
        runtime_build.load("_runtime")


@pytest.mark.parametrize("shape", SHAPES)
def test_no_code_is_loaded_from_what_is_no_plain_file_of_ours(built, modules, shape):
    (built / "_runtime.so").unlink()
    shape(built / "_runtime.so", modules[1].read_bytes())
    if shape is without_end:
        (built / "_runtime.so").chmod(0o606)
    with pytest.raises(stowage.Error, match="is not loaded: .*remove"):
        runtime_build.load("_runtime")


def test_a_build_that_is_a_link_is_not_loaded(built, tmp_path):
    built.rename(tmp_path / "elsewhere")
    built.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(stowage.Error, match="is a link"):
        runtime_build.load("_runtime")


@pytest.mark.parametrize("shape", [link_elsewhere, fifo, full_directory, link_to_itself, for_all_to_write, a_socket])
def test_the_lock_is_no_way_to_write_elsewhere(built, shape):
    (built / "_runtime.so").unlink()
    built.rmdir()
    lock = built.with_name(built.name + ".lock")
    lock.unlink()
    shape(lock, b"important")
    with pytest.raises(stowage.Error, match="not used as a lock.*remove it"):
        runtime_build.load("_runtime")
    if shape is link_elsewhere:
        assert (lock.parent.parent / "elsewhere").read_bytes() == b"important"


def test_a_lock_file_with_content_keeps_it(built):
    (built / "_runtime.so").unlink()
    built.rmdir()
    lock = built.with_name(built.name + ".lock")
    lock.write_bytes(b"important")
    lock.chmod(0o600)
    assert runtime_build.load("_runtime").answer == 42
    assert lock.read_bytes() == b"important"


def test_what_is_replaced_after_the_look_is_not_loaded(built, modules, monkeypatch):
    """Somebody who may rename directories above puts another one in its place, between the look and the load."""
    top = built.parent.parent
    look = runtime_build.Folder.open

    def look_then_swap(self, name, flags):
        descriptor = look(self, name, flags)
        top.rename(top.with_name("moved"))
        built.mkdir(parents=True)
        (built / "_runtime.so").write_bytes(modules[1].read_bytes())
        return descriptor

    monkeypatch.setattr(runtime_build.Folder, "open", look_then_swap)
    assert runtime_build.load("_runtime").answer == 42


# ---- Kills


def plan_cache_writer(cache, target):
    return lambda i: stowage.plan(chain(3 + i % 40))


def costs_writer(cache, target):
    costs = CostFile(cache / "costs.json", MACHINE)

    def write(i):
        costs.add([(f"k{n}", i) for n in range(3000)])
        costs.save()

    return write


def plan_writer(cache, target):
    plan = stowage.plan(chain(400))
    return lambda i: plan.save(target)


def graph_writer(cache, target):
    graph = chain(400)
    return lambda i: graph.save(target)


def report_writer(cache, target):
    plan = stowage.plan(chain(400))
    return lambda i: plan.report(target)


def whole(cache, target, writer):
    """How many files there are, all of which are read without a word."""
    kept = [*(cache / "plans").glob("*.plan")] if writer is plan_cache_writer else []
    for path in kept:
        split(path.read_bytes())
    if writer is costs_writer and (cache / "costs.json").exists():
        kept.append(CostFile(cache / "costs.json", MACHINE))
    if target.exists():
        kept.append(target)
        if writer is plan_writer:
            stowage._core.check(chain(400), stowage._core.Plan.load(str(target)))
        elif writer is graph_writer:
            assert stowage.Graph.load(target).structure_sha256 == chain(400).structure_sha256
        else:
            assert re.search(r"</html>\s*\Z", target.read_text())
    return len(kept)


@pytest.mark.parametrize(("writer", "suffix"), [(plan_cache_writer, ""), (costs_writer, ""), (plan_writer, ".plan.json"), (graph_writer, ".graph.json"),
                                                (report_writer, ".html")])  # fmt: skip
def test_a_kill_leaves_no_half_file(cache, tmp_path, writer, suffix):
    """Killed at random moments of writing, again and again: what is there is read, or is not there; no warning, no
    error."""
    target = tmp_path / f"target{suffix}"
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    seen = 0
    for attempt in range(60):
        if attempt >= 10 and seen:
            break
        write = writer(cache, target)
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write_end, b"x")
            try:
                for i in itertools.count():
                    write(i)
            finally:
                os._exit(1)
        os.read(read_end, 1)
        time.sleep(rng.random() * 0.02 * min(attempt + 5, 50))  # a busy machine may need longer for the first file
        os.kill(child, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        os.close(read_end)
        os.close(write_end)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            seen += whole(cache, target, writer)
    assert seen > 0


def test_leftovers_of_kills_are_removed_in_time(cache):
    stowage.plan(chain())
    old, new = cache / "plans" / ".x.plan.1-a", cache / "plans" / ".y.plan.2-b"
    for path, age_s in ((old, 7200), (new, 60)):
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age_s,) * 2)
    plan_cache._spare_bytes.clear()  # as in another process, which looks at the directory when it first writes
    stowage.plan(chain(9))
    assert not old.exists() and new.exists()


def test_a_full_disk_keeps_nothing_and_says_nothing(cache):
    """No file may grow beyond some bytes, as where the disk is full: training goes on, and what was kept before
    stays."""
    code = f"""
import resource, signal, sys, warnings
sys.path.insert(0, {os.path.dirname(__file__)!r})
warnings.simplefilter("error")
import stowage
from pathlib import Path
from test_plan_cache import chain
from stowage.cache.costs import CostFile
stowage.plan(chain(5))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
plan = stowage.plan(chain(6))
assert not stowage.plan(chain(6)).from_cache and stowage.plan(chain(5)).from_cache
costs = CostFile(Path({str(cache / "costs.json")!r}), {MACHINE!r})
costs.add([("k" * 200, 5)]); costs.save()
try:
    plan.save({str(cache / "x.plan.json")!r})
except stowage.Error as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "x.plan.json: cannot be written: File too large" in done.stdout
    names = sorted(p.name for p in cache.rglob("*") if p.is_file())
    assert len(names) == 1 and names[0].endswith(".plan"), names


def test_off_looks_at_nothing(cache, monkeypatch):
    monkeypatch.setenv("STOWAGE_PLAN_CACHE", "off")
    cache.mkdir(mode=0o777)
    cache.chmod(0o777)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not stowage.plan(chain()).from_cache
    assert list(cache.iterdir()) == []
    assert plan_cache.find(chain(), OFF) is None
    assert isinstance(cache, Path)

"""Under stowage run the process is the script's own: arguments, modules, streams, exit codes, signals, tracebacks."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from launched import SCRIPTS, by_us, environment, finish, plainly, read, run, start, told

LIMIT = "--budget=64MiB"


def both(script: list, *options: str, stdin: bytes = b"", **how) -> tuple:
    """(without us, with us), side by side."""
    alone, ours = start(plainly(script), **how), start(by_us(script, *options), **how)
    return finish(alone, stdin), finish(ours, stdin)


def test_a_script_finds_what_it_finds_without_us():
    alone, ours = both(["tells.py", "a b", "--budget=1", "--", "-m"], LIMIT, stdin=b"three\nlines\nin\n")
    assert alone.returncode == ours.returncode == 0, ours.stderr
    expected = alone.stdout.splitlines()
    got = ours.stdout.splitlines()
    finder = [line for line in got if line not in expected]
    # one finder waits for torch, until that comes
    assert len(got) == len(expected) and len(finder) == 1 and finder[0].startswith("['_Finder', "), (
        finder,
        ours.stdout,
    )
    assert alone.stderr == "" and told(ours) == ours.stderr
    assert "has not imported torch" in ours.stderr


def test_a_module_and_a_path_with_spaces(tmp_path):
    folder = tmp_path / "with spaces"
    shutil.copytree(SCRIPTS / "asmodule", folder / "asmodule")
    shutil.copy(SCRIPTS / "tells.py", folder / "tell it.py")
    for script in (["-m", "asmodule.train", "an argument"], ["tell it.py", "x"]):
        alone, ours = both(script, "--watch", cwd=folder)
        assert alone.returncode == ours.returncode == 0, ours.stderr
        assert ours.stdout.replace("['_Finder', ", "[") == alone.stdout


SOAK = bool(os.environ.get("STOWAGE_SOAK_SECONDS"))
ENDS = [["raise"], ["numpy"], ["exit", "3"], ["os_exit"], ["SIGINT"]]
MORE_ENDS = [["exit", "0"], ["text"], ["handled"], ["SIGTERM"]]


@pytest.mark.parametrize("how", [*ENDS, *(MORE_ENDS if SOAK else [])], ids=" ".join)
@pytest.mark.parametrize("option", [LIMIT, *(["--watch"] if SOAK else [])])
def test_a_script_ends_as_it_ends_without_us(option, how):
    alone, ours = both(["ends.py", *how], option)
    assert ours.returncode == alone.returncode, ours.stderr
    assert ours.stdout == alone.stdout
    said = told(ours)
    assert ours.stderr.removesuffix(said) == alone.stderr
    assert bool(said) == (how[0] not in ("os_exit", "SIGTERM")), said


def test_a_signal_from_outside_reaches_the_script_itself():
    for number in (signal.SIGTERM, *([signal.SIGKILL] if SOAK else [])):
        ours = start(by_us(["ends.py", "waits"], LIMIT))
        assert ours.stdout.readline() == b"trained\n" and ours.stdout.readline() == b"waiting\n"
        os.kill(ours.pid, number)  # the number that stowage run was started as
        assert finish(ours).returncode == -number


def test_a_limit_that_is_too_small_says_what_is_needed(tmp_path):
    report = tmp_path / "x.json"
    done = run(by_us(["own_optimizer.py"], "--budget=3MiB", "--report", str(report)))
    assert done.returncode == 1
    last = done.stderr[: done.stderr.index("stowage run:")].splitlines()[-1]
    assert re.fullmatch(
        r"torch\.OutOfMemoryError: stowage: a limit of 3\.0 MiB is short by [\d.]+ [KM]iB: aten::\w+"
        r"(\.\w+)?( in the backward pass of own_optimizer\.py:\d+)? asks for [\d.]+ MiB, and what is in memory must stay: "
        r"[\d.]+ [KM]iB from own_optimizer\.py:\d+ \(in use\)(, [\d.]+ [KM]iB from own_optimizer\.py:\d+.*)?"
        r"\. At least \d+ bytes are needed here",
        last,
    ), last
    needed = int(re.search(r"At least (\d+) bytes", last).group(1))
    assert read(report)["needed_bytes"] == needed > 3 << 20
    assert "a request did not fit: the limit must be at least" in told(done)


def test_what_held_the_peak_is_told_by_line_and_phase(tmp_path):
    script = tmp_path / "held.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Sequential(\n"
        "    torch.nn.Linear(1024, 1024),\n"  # 4 MiB
        "    torch.nn.GELU(),\n"
        ")\n"
        "optimizer = torch.optim.Adam(model.parameters())\n"
        "def loss_of(x):\n"
        "    return model(x).square().mean()\n"
        "for _ in range(2):\n"
        "    x = torch.randn(512, 1024)\n"  # 2 MiB
        "    loss = loss_of(x)\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
    )
    report = tmp_path / "held.json"
    done = run(by_us([str(script)], "--report", str(report)), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    figures = read(report)
    held = {(row["line"], row["phase"]): row["bytes"] for row in figures["held"]}
    mib = 1 << 20
    assert held["held.py:3", "set-up"] == 4 * mib + 4096
    assert held["held.py:10", "set-up"] == 2 * mib  # of the first step, before autograd has seen anything
    assert held["held.py:13", "update"] >= 2 * (4 * mib + 4096)
    assert held["held.py:8", "backward"] >= 4 * mib  # the gradient, by the line whose gradient it is
    assert sum(held.values()) + figures["rest_bytes"] == figures["peak_bytes"]
    assert figures["phase"] == "update" and figures["line"] == "held.py:13"
    assert figures["phase_peak_bytes"]["update"] == figures["peak_bytes"]
    assert figures["optimizer_steps"] == 2 and figures["limit_bytes"] is None
    said = told(done)
    assert "in the optimizer's update, at held.py:13; 2 optimizer steps" in said
    assert re.search(r" 4\.0 MiB +\d+\.\d% +set-up +held\.py:3 +torch\.nn\.Linear\(1024, 1024\),\n", said), said


@pytest.mark.skipif(" " in torch.__file__, reason="PyTorch's Inductor cannot link in a folder with a space in its name")
def test_what_a_compiled_model_holds_is_the_user_s_own_line_s(tmp_path):
    script = tmp_path / "held.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.Linear(256, 256))\n"
        "fast = torch.compile(model)\n"
        "for _ in range(2):\n"
        "    out = fast(torch.randn(512, 256))\n"
        "    del out\n"
    )
    report = tmp_path / "held.json"
    done = run(by_us([str(script)], "--report", str(report)), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    held = read(report)["held"]
    assert held and {row["line"].split(":")[0] for row in held} == {"held.py"}, held


def test_a_page_holds_the_lines(tmp_path):
    report = tmp_path / "x.html"
    done = run(by_us(["own_optimizer.py"], "--budget=6MiB", "--report", str(report)))
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith(f"report: {report}\n")
    page = report.read_text()
    assert page.startswith("<!doctype html>") or "<html" in page[:200]
    assert 'id="run-holders"' in page


def test_a_line_while_it_runs_where_stderr_is_a_terminal(tmp_path):
    script = tmp_path / "slow.py"
    script.write_text(
        "import time, torch\n"
        "w = torch.nn.Parameter(torch.ones(100))\n"
        "optimizer = torch.optim.SGD([w], lr=0.1)\n"
        "for i in range(12):\n"
        "    w.sum().backward()\n"
        "    optimizer.step()\n"
        "    time.sleep(0.05)\n"
        "    print(i)\n"
    )
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        by_us([str(script)], LIMIT), env=environment(), stdout=subprocess.PIPE, stderr=theirs, stdin=subprocess.DEVNULL
    )
    os.close(theirs)
    out, shown = process.communicate(timeout=120)[0], b""
    while select.select([ours], [], [], 0.2)[0]:
        try:
            shown += os.read(ours, 1 << 16)
        except OSError:
            break
    assert process.returncode == 0 and out.split() == [str(i).encode() for i in range(12)]
    assert re.search(rb"\x1b7\x1b\[\d+G\x1b\[2m step \d+: 0 of 64 MiB, 0 let go, 0% lost \x1b\[0m\x1b8", shown), shown
    assert b"stowage run: peak" in shown


def test_a_sitecustomize_of_the_environment_has_its_turn(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.theirs = 'here'\n")
    (tmp_path / "script.py").write_text("import sitecustomize\nprint(theirs, sitecustomize.__file__)\n")
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    alone, ours = both([str(tmp_path / "script.py")], LIMIT, PYTHONPATH=path)
    assert alone.stdout == f"here {tmp_path}/sitecustomize.py\n"
    assert (ours.returncode, ours.stdout) == (0, alone.stdout)


def test_a_python_without_stowage_is_told(tmp_path):
    """A script of another environment: no limit would hold, so it does not run on."""
    script = tmp_path / "other.py"
    script.write_text("import sys\nsys.path[:] = [p for p in sys.path if 'python/' not in p + '/' or 'lib/python' in p]\n"
                      "import torch\nprint('trained')\n")  # fmt: skip
    clean = {"PYTHONPATH": "", "PYTHONNOUSERSITE": "1"}
    from stowage.run.launch import SITE

    settings = '{"budget_bytes": 1000, "report": "", "pid": 0, "script": true}'
    done = run([sys.executable, str(script)], **clean | {"PYTHONPATH": str(SITE), "STOWAGE_RUN": settings})
    assert done.returncode == 2 and done.stdout == "", done
    assert done.stderr.startswith("stowage run: no limit would hold: the Python that runs this, ")
    assert done.stderr.endswith("has no stowage: install it there\n")

"""The command line of stowage run: wrong options are one clear line and exit code 2, and the script does not begin."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from launched import run

import stowage
from stowage.run.arguments import Help, UsageError, parse
from stowage.run.launch import closed_by, command_of, is_script, python_options


def refused(words, environment=None):
    with pytest.raises(UsageError) as caught:
        parse(words, environment or {})
    return str(caught.value)


def test_options_end_where_the_script_begins():
    read = parse(["--budget", "6GiB", "train.py", "--budget", "1", "-m", "--", "x"], {})
    assert (read.budget_bytes, read.module, read.command) == (
        6 << 30, False, ["train.py", "--budget", "1", "-m", "--", "x"],
    )  # fmt: skip
    read = parse(["--watch", "-m", "package.train", "-h"], {})
    assert (read.budget_bytes, read.module, read.command) == (None, True, ["package.train", "-h"])
    assert parse(["--", "--strange.py"], {}).command == ["--strange.py"]
    assert parse(["train.py"], {"STOWAGE_BUDGET": "512MiB"}).budget_bytes == 512 << 20
    assert parse(["--budget=1GiB", "train.py"], {"STOWAGE_BUDGET": "512MiB"}).budget_bytes == 1 << 30
    assert parse(["--watch", "train.py"], {"STOWAGE_BUDGET": "512MiB"}).budget_bytes is None
    with pytest.raises(Help):
        parse(["-h"], {})


def test_wrong_options_are_named(tmp_path):
    assert refused([]) == "name a script: stowage run train.py"
    assert refused(["-m"]) == "name a module after -m"
    assert refused(["--budget"]) == "--budget needs a value: --budget 6GiB"
    assert refused(["--budgt", "6GiB", "x.py"]) == (
        "unknown option '--budgt' (did you mean --budget?); options of the script come after its name"
    )
    assert refused(["--lr", "1", "x.py"]) == "unknown option '--lr'; options of the script come after its name"
    assert refused(["--watch", "--budget=1GiB", "x.py"]) == "--watch is without a limit: give it or --budget, not both"
    assert refused(["--budget=0", "x.py"]) == "--budget: a limit of at least one byte is needed, not '0'"
    assert refused(["--budget=6 gigs", "x.py"]).startswith("--budget: ")
    assert refused(["x.py"], {"STOWAGE_BUDGET": "much"}).startswith("STOWAGE_BUDGET: ")
    assert refused(["--report=x.txt", "x.py"]) == "--report: 'x.txt' must end in .html or .json"
    assert refused([f"--report={tmp_path}/no/x.html", "x.py"]) == f"--report: there is no folder '{tmp_path}/no'"


def test_what_is_a_script_and_what_a_command(tmp_path):
    for name in ("train.py", "train"):
        (tmp_path / name).write_text("print()\n")
        assert is_script(str(tmp_path / name))
    executable = tmp_path / "tool"
    executable.write_text("#!/usr/bin/python3 -I\n")
    executable.chmod(0o755)
    assert not is_script(str(executable))
    assert not is_script(str(tmp_path)) and not is_script("no such file")
    with pytest.raises(UsageError, match="runs Python with -I, which keeps stowage out of it: leave that option out"):
        command_of(parse([str(executable)], {}))
    with pytest.raises(UsageError, match="'trian.py' is no file, and no command of that name was found"):
        command_of(parse(["trian.py"], {}))


def test_options_of_python_itself():
    for line, options, closed in (
        ("-u x.py -I", ["-u"], ""),
        ("-uE x.py", ["-uE"], "-E"),
        ("-S", ["-S"], "-S"),
        ("-W error -I x", ["-W", "error", "-I"], "-I"),
        ("-Werror -X dev -m train -I", ["-Werror", "-X", "dev"], ""),
        ("-um stowage run -E", ["-u"], ""),
        ("-c E", [], ""),
        ("- -I", [], ""),
        ("-- -I", [], ""),
    ):
        assert (python_options(line.split()), closed_by(options)) == (options, closed), line


def test_the_command_says_it_in_one_line():
    for words, line in (
        (["--watch"], "stowage run: name a script: stowage run train.py\n"),
        (["trian.py"], "stowage run: 'trian.py' is no file, and no command of that name was found\n"),
    ):
        done = run([sys.executable, "-m", "stowage", "run", *words])
        assert (done.returncode, done.stdout, done.stderr) == (2, "", line)


def test_the_program_names_the_verb():
    cli = os.environ.get("STOWAGE_CLI", str(Path(stowage.__file__).parent / "bin" / "stowage"))
    done = run([cli, "run", "train.py"])
    assert done.returncode == 2
    assert done.stderr == (
        "stowage: run is part of the Python package: python -m stowage run [OPTIONS] SCRIPT.py [ARGS...]\n"
    )

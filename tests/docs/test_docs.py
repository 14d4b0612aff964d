"""What README and docs say is there: the site builds strictly and asks for nothing elsewhere, its reference names what
exists, its commands run, its tables are those of bench/results."""

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import stowage

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CLI = os.environ.get("STOWAGE_CLI", str(ROOT / "build/release/bin/stowage"))
FENCE = re.compile(r"(?:<!-- run: ([\w ]+) -->\n)?```(\w*)\n(.*?)```", re.DOTALL)


# ---- The site


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("material")
    folder = tmp_path_factory.mktemp("site")
    environment = dict(os.environ, STOWAGE_CLI=CLI, NO_MKDOCS_2_WARNING="1")
    # Without -q: it would take away the warnings that --strict counts.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(ROOT / "mkdocs.yml"), "-d", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    return folder


def test_the_site_asks_for_nothing_elsewhere(site):
    for page in site.rglob("*.html"):
        text = page.read_text()
        loaded = re.findall(
            r'<(?:script|img|iframe|source)[^>]+src="(https?:[^"]+)"|<link[^>]+rel="(?:stylesheet|preconnect)"[^>]+href="(https?:[^"]+)"',
            text,
        )
        assert not loaded, f"{page.name}: {loaded}"


def test_the_reference_names_what_exists(site):
    python, cpp, command_line = (
        (site / "reference" / f"{name}.html").read_text() for name in ("python", "cpp", "command-line")
    )
    for name in set(stowage.__all__) - {"__version__"}:
        assert f"stowage.{name}" in python, name
    for name in ("hf.plan", "hf.StowageCallback", "lightning.Stowage"):
        assert f"stowage.{name}" in python
    for header in (ROOT / "include" / "stowage").glob("*.h"):
        assert f"stowage/{header.name}" in cpp
    for source in (ROOT / "cli").glob("*.cpp"):
        if "Verb add_" in source.read_text() and source.stem != "main":
            assert f"stowage {source.stem}" in command_line, source.name


def test_tables_are_shown_again(site):
    page = (site / "roam-questions.html").read_text()
    assert "1,000,013" in page or "1,000," in page, "the table of bench/scaling is missing"


# ---- Links and names


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_and_files_exist(page):
    text = FENCE.sub("", page.read_text())
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if "://" in target or target.startswith(("reference/", "../reference/")):
            continue
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
    for name in re.findall(r"`((?:examples|bench|tests|src|docs|include|python)/[\w./-]+)`", text):
        assert "NAME" in name or (ROOT / name).exists(), f"{page.name} names {name}"


def test_bench_commands_exist():
    for page in PAGES:
        for name in re.findall(r"\./dev bench ([\w/]+)", page.read_text()):
            assert name == "NAME" or [*(ROOT / "bench").glob(f"**/{name}.py")], f"{page.name}: {name}"


# ---- Commands


def blocks(language):
    for page in PAGES:
        for group, found, text in FENCE.findall(page.read_text()):
            if found == language:
                yield page, group, text


def commands():
    """Each documented `stowage VERB ...`, once."""
    found = {}
    for page, _, text in blocks(""):
        for line in text.splitlines():
            line = line.split("#")[0].strip()
            if line.startswith("stowage "):
                found.setdefault(line, page.name)
    return found


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with the files that the pages name."""
    folder = tmp_path_factory.mktemp("commands")

    def capture(batch, name):
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 10))
        optimizer = torch.optim.AdamW(model.parameters())

        def train_step(x):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        stowage.capture(train_step, torch.randn(batch, 64)).save(folder / name)

    for batch, name in ((32, "step.graph.json"), (8, "batch8.graph.json"), (16, "batch16.graph.json")):
        capture(batch, name)
    (folder / "lifetimes.csv").write_text("id,lower,upper,size\na,0,3,16\nb,1,5,32\nc,3,6,16\n")
    subprocess.run(
        [CLI, "plan", "step.graph.json", "-o", "step.plan.json"], cwd=folder, check=True, capture_output=True
    )
    return folder


@pytest.mark.parametrize("line", commands())
def test_documented_command_runs(line, workplace):
    arguments = shlex.split(line)[1:]
    done = subprocess.run([CLI, *arguments], cwd=workplace, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_commands_were_found():
    verbs = {line.split()[1] for line in commands()}
    assert {"plan", "check", "fit", "layout", "explain", "report"} <= verbs


def test_documented_python_runs(tmp_path, monkeypatch):
    """Blocks of one group run one after another in one namespace."""
    groups = {}
    for page, group, text in blocks("python"):
        if group:
            groups.setdefault((page, group), []).append(text)
    assert groups
    torch.manual_seed(0)
    monkeypatch.chdir(tmp_path)
    for (page, _), parts in groups.items():
        namespace = {}
        for part in parts:
            exec(compile(part, str(page), "exec"), namespace)
        assert namespace["step"].stats()["planned_steps"] > 0


# ---- Figures


def tables():
    sys.path.append(str(ROOT))
    try:
        return importlib.import_module("bench.tables")
    finally:
        sys.path.pop()


def results():
    return sorted(path.stem for path in (ROOT / "bench" / "results").glob("*.json"))


@pytest.mark.parametrize("name", results())
def test_tables_are_those_of_the_results(name):
    module = tables()
    if name not in module.TABLES:
        pytest.skip("no table of its own")
    page = module.PAGE.read_text()
    shown = re.search(rf"<!-- {name} -->\n\n(.*?)\n\n<!-- /{name} -->", page, re.DOTALL)
    assert shown, f"benchmarks.md has no table '{name}'"
    content = json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text())
    expected = f"{module.TABLES[name](content['results'])}\n\n{module.footer(content['environment'])}"
    assert shown.group(1) == expected, "run ./dev bench tables"

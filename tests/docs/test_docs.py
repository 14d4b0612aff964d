"""What README and docs say is there: the site builds strictly and asks for nothing elsewhere, fits a phone and is
legible, its reference names what exists, its commands, examples and notebooks run, its tables are those of
bench/results."""

import importlib
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import stowage

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CLI = os.environ.get("STOWAGE_CLI", str(ROOT / "build/release/bin/stowage"))
FENCE = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
SITE = ROOT / "docs" / "site"


def of_the_site(name):
    """A module of docs/site."""
    sys.path.append(str(SITE))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop()


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


def test_no_page_is_wider_than_a_phone_and_all_are_legible(site):
    look = of_the_site("look")
    assert not list(look.complaints(site))


def test_a_page_that_is_wide_and_faint_is_seen(tmp_path):
    wrong = '<p style="color:#aaa">faint</p><div style="width:900px">wide</div><img src="none.png">'
    (tmp_path / "page.html").write_text(f"<body style='background:#fff'><main>{wrong}</main></body>")
    found = " ".join(of_the_site("look").complaints(tmp_path))
    assert "contrast" in found and "'faint'" in found and "wide on a screen of 400" in found and "no picture" in found


def test_the_reference_names_what_exists(site):
    cpp, command_line = ((site / "reference" / f"{name}.html").read_text() for name in ("cpp", "command-line"))
    for header in (ROOT / "include" / "stowage").glob("*.h"):
        assert f"stowage/{header.name}" in cpp
    for source in (ROOT / "cli").glob("*.cpp"):
        if "Verb add_" in source.read_text() and source.stem != "main":
            assert f"stowage {source.stem}" in command_line, source.name


def test_the_reference_tells_of_each_public_name(site):
    """What it is, its arguments and where it is written."""
    reference = of_the_site("reference")
    page = (site / "reference" / "python.html").read_text()
    named = dict(entry for module in reference.MODULES for entry in reference.public(module))
    assert {f"stowage.{name}" for name in set(stowage.__all__) - {"__version__"}} | {"stowage.hf.plan"} <= {*named}
    for name, value in named.items():
        assert f'<h3 id="{reference.anchor(name)}">' in page, name
        _, sections = reference.parts(inspect.getdoc(value) or "")
        said = {n.strip("*") for names, _ in sections.get("Args:", ()) for n in names.split(", ")}
        if inspect.isfunction(value) and len(inspect.signature(value).parameters) > 2:
            assert {*inspect.signature(value).parameters} == said, name
            assert "Raises:" in sections, name
        for member_name, member in reference.members(value) if inspect.isclass(value) else ():
            assert inspect.getdoc(member) or issubclass(value, BaseException), f"{name}.{member_name}"
        assert (ROOT / reference.source(value).split("`")[1]).exists(), name


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
        if page.parent.name == "gallery" and target.endswith(".html"):  # the site's build makes them
            continue
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
    for name in re.findall(r"`((?:examples|bench|tests|src|docs|include|python|runtime|cli)/[\w./-]+)`", text):
        assert "NAME" in name or (ROOT / name).exists(), f"{page.name} names {name}"


def test_the_contributors_page_names_what_its_files_hold():
    """Rows: what happens, one file, names to look for there."""
    rows = re.findall(
        r"^\|[^|]+\| `([\w./-]+)` +\| ((?:`\w+`(?:, )?)+) +\|$", (ROOT / "docs/contributors.md").read_text(), re.M
    )
    assert len(rows) > 15
    for file, names in rows:
        text = (ROOT / file).read_text()
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"\b{name}\b", text), f"{file} holds no {name}"


def test_bench_commands_exist():
    for page in PAGES:
        for name in re.findall(r"\./dev bench ([\w/]+)", page.read_text()):
            assert name == "NAME" or [*(ROOT / "bench").glob(f"**/{name}.py")], f"{page.name}: {name}"


def test_dev_bench_finds_one():
    if not (ROOT / "build" / "release" / "build.ninja").exists():
        pytest.skip("nothing is built here")
    words = ["./dev", "bench", "fuzz", "--help"]
    assert "What the fuzz targets found" in subprocess.run(words, cwd=ROOT, capture_output=True, text=True).stdout
    none = subprocess.run(["./dev", "bench", "nothing"], cwd=ROOT, capture_output=True, text=True)
    assert (none.returncode, none.stderr) == (1, "dev: there is no benchmark named nothing\n")


# ---- Commands


def blocks(language):
    for page in PAGES:
        for found, text in FENCE.findall(page.read_text()):
            if found == language:
                yield page, text


def commands():
    """Each documented `stowage VERB ...`, once."""
    found = {}
    for page, text in blocks(""):
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


def test_examples_print_what_the_pages_show(tmp_path):
    done = subprocess.run([sys.executable, SITE / "examples.py"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_guide_begins_with_an_example_and_says_when_not_to_use_it():
    for page in sorted((ROOT / "docs" / "guides").glob("*.md")):
        text = page.read_text()
        first = text[: text.index("\n## ", text.index("```"))]
        assert "<!-- output" in first or page.stem == "accelerators", page.name  # which nobody has run
        assert re.search(r"^##+ When (not to use it|Stowage does not help)", text, re.MULTILINE), page.name


def test_notebooks_run(tmp_path):
    """And give outputs of the kinds that the files hold."""
    for path in of_the_site("notebooks").notebooks():
        shutil.copy(path, tmp_path)
    copies = sorted(tmp_path.glob("*.ipynb"))
    done = subprocess.run([sys.executable, SITE / "notebooks.py", *copies], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for copy in copies:
        kept, made = (json.loads(p.read_text()) for p in (ROOT / "docs" / "notebooks" / copy.name, copy))
        for shown, cell in zip(kept["cells"], made["cells"]):
            kinds = [
                [(o["output_type"], *sorted(o.get("data", ()))) for o in c.get("outputs", ())] for c in (shown, cell)
            ]
            assert kinds[0] == kinds[1], copy.name


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
    page = "".join(path.read_text() for path in module.pages())
    shown = re.search(rf"<!-- {name} -->\n\n(.*?)\n\n<!-- /{name} -->", page, re.DOTALL)
    assert shown, f"no page of the benchmarks has the table '{name}'"
    content = json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text())
    expected = f"{module.TABLES[name](content['results'])}\n\n{module.footer(content['environment'])}"
    assert shown.group(1) == expected, "run ./dev bench tables"

"""Figures in README and the pages of the benchmarks are those of the scripts that they name. Bytes repeat exactly and are
compared with a run; times do not, and are taken from bench/results by ./dev bench tables."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import stowage
from stowage import demo
from stowage.sizes import in_words

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "docs" / "benchmarks.md", *sorted((ROOT / "docs" / "benchmarks").glob("*.md"))]
BENCHMARKS = "".join(path.read_text() for path in PAGES)

sys.path.append(str(ROOT))


def mib(count: int) -> str:
    return f"{count / 2**20:.1f}"


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    page = tmp_path_factory.mktemp("demo") / "demo.html"
    command = [sys.executable, "-m", "stowage.demo", "--steps", "10", "--threads", "1", "--json", "--report", page]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "<html" in page.read_text()[:2000].lower()
    return json.loads(done.stdout)["ways"]


def row(page: str, label: str) -> list[str]:
    found = re.search(rf"^\| {re.escape(label)} +\|(.*)\|$", page, re.MULTILINE)
    assert found, f"no row '{label}'"
    return [cell.strip() for cell in found.group(1).split("|")]


def test_the_demo(figures):
    """What repeats exactly is as shown; what depends on measured times keeps its promise."""
    shown = {
        name.strip(): [cell.strip() for cell in cells.split("│")]
        for name, cells in re.findall(r"^│ ([a-z ]+?) +│(.*)│$", BENCHMARKS, re.MULTILINE)
    }
    eager = figures["eager"]
    for name in ("eager", "checkpointing", "stowage"):
        share = f"{figures[name]['peak_bytes'] / eager['peak_bytes']:.2f}"
        assert shown[name][:2] == [in_words(figures[name]["peak_bytes"]), share], name
    assert all(way["losses_equal"] and way["parameters_equal"] for way in figures.values())
    half, least = figures["half the bytes"], figures["the least"]
    assert half["peak_bytes"] <= half["budget_bytes"] <= eager["peak_bytes"] / 2
    assert least["peak_bytes"] <= least["budget_bytes"] < half["budget_bytes"]
    assert float(shown["the least"][1]) == pytest.approx(least["peak_bytes"] / eager["peak_bytes"], abs=0.03)


def test_models_of_the_readme():
    """Each pair of bytes and time is a row of the benchmark's table of that model."""
    models = {"GPT-2 (124 M)": "gpt2", "BERT-base": "bert", "ResNet-50": "resnet50", "Llama-style": "llama"}
    for label, name in models.items():
        eager, *pairs = row(README, label)
        table = BENCHMARKS[BENCHMARKS.index(f"| {name}, MiB ") :].split("\n\n")[0]
        assert row(table, "eager")[0] == eager
        found = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
        stowage_points = [[cells[1], cells[3]] for cells in found if "stowage" in cells[0]]
        rivals = [[cells[1], cells[3]] for cells in found[2:] if "stowage" not in cells[0]]
        assert pairs[:2] in stowage_points and pairs[2:] in rivals, label
        assert min(float(peak.replace(",", "")) for peak, _ in rivals) == float(pairs[2].replace(",", "")), label


def test_the_picture():
    from bench.order import live_bytes

    options = demo.parse([*live_bytes.OF_THE_PICTURE, "--clip", "value"])
    torch.manual_seed(0)
    graph = stowage.capture(
        demo.make_step(demo.make_model(options), "value"), next(demo.batches(demo.corpus(), options)), name="demo"
    )
    recorded, planned = stowage.plan(graph, keep_order=True), stowage.plan(graph)
    top = recorded.summary()["peak_bytes"]
    pictures = [
        live_bytes.picture(live_bytes.curve(graph, plan), top).splitlines()[:-1] for plan in (recorded, planned)
    ]
    left, right = (
        re.findall(part, README, re.MULTILINE) for part in (r"^ *\d+ \|([# ]{60,}?)\|", r"^ *\d+ \|[# ]{60,}?\|(.*)$")
    )
    for shown, drawn in ((left, pictures[0]), (right, pictures[1])):
        assert [line.rstrip() for line in shown] == [line.split("|")[1].rstrip() for line in drawn]
    bound = planned.summary()["lower_bound_bytes"]
    assert f"order of eager: peak {mib(top)} " in README
    assert f"planned: peak {mib(planned.summary()['peak_bytes'])}, proven lower bound {mib(bound)}" in README


def test_tables_of_the_benchmarks_are_those_of_their_results():
    """./dev bench tables would write what is there."""
    from bench import tables

    for name, table in tables.TABLES.items():
        path = ROOT / "bench" / "results" / f"{name}.json"
        if not path.exists():
            continue
        content = json.loads(path.read_text())
        block = re.search(rf"<!-- {name} -->\n\n(.*?)\n\n<!-- /{name} -->", BENCHMARKS, re.DOTALL)
        assert block and block.group(1).startswith(table(content["results"]).strip()), (
            f"run ./dev bench tables: '{name}' differs"
        )


def test_charts_are_those_of_the_results():
    """./dev bench charts would draw what is there."""
    from bench import charts

    kept = {path.stem: path.read_text() for path in charts.FOLDER.glob("*.svg")}
    drawn = charts.charts()
    assert {*kept} == {*drawn}
    assert [name for name, text in drawn.items() if text != kept[name]] == [], "run ./dev bench charts"
    for name in drawn:
        assert f"pictures/charts/{name}.svg" in BENCHMARKS, name

"""Figures in README and docs/benchmarks.md are those of the scripts that they name. Bytes repeat exactly and are
compared with a run; times do not, and are taken from bench/results by bench/tables.py."""

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

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
BENCHMARKS = (ROOT / "docs" / "benchmarks.md").read_text()

sys.path.append(str(ROOT / "bench"))


def mib(count: int) -> str:
    return f"{count / 2**20:.1f}"


@pytest.fixture(scope="module", params=["norm", "value"])
def figures(request):
    command = [
        sys.executable,
        "-m",
        "stowage.demo",
        "--steps",
        "6",
        "--threads",
        "2",
        "--clip",
        request.param,
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=300)
    assert done.returncode == 0, done.stderr
    return request.param, json.loads(done.stdout)


def row(page: str, label: str) -> list[str]:
    found = re.search(rf"^\| {re.escape(label)} +\|(.*)\|$", page, re.MULTILINE)
    assert found, f"no row '{label}'"
    return [cell.strip() for cell in found.group(1).split("|")]


def test_the_demo(figures):
    clip, f = figures
    eager, planned, bound = (
        mib(f[key]) for key in ("eager_step_peak_bytes", "planned_step_peak_bytes", "lower_bound_bytes")
    )
    gap = f"{100 * f['gap']:.2f} %"
    ratio = f"{f['planned_step_peak_bytes'] / f['eager_step_peak_bytes']:.3f}"
    cells = row(BENCHMARKS, f"`clip_grad_{clip}_`")
    assert [*cells[:2], *cells[3:]] == [ratio, eager, planned, bound, gap]


def test_what_the_demo_prints(figures):
    clip, f = figures
    if clip != "norm":
        pytest.skip("the page shows the run with clip_grad_norm_")

    def shown(label):
        return [
            cell.strip()
            for cell in re.search(rf"^│ {re.escape(label)} +│(.*)│$", BENCHMARKS, re.MULTILINE).group(1).split("│")
        ]

    for label, part in (
        ("peak of a step, all counted", "total_peak"),
        ("  parameters, optimizer state", "resident"),
        ("  the step's own", "step_peak"),
    ):
        eager, planned = f[f"eager_{part}_bytes"], f[f"planned_{part}_bytes"]
        assert shown(label) == [f"{mib(eager)} MiB", f"{mib(planned)} MiB", f"{planned / eager:.3f}"], label
    for label, key in (
        ("peak of the plan", "planned_peak_bytes"),
        ("peak measured in the arena", "measured_peak_bytes"),
        ("no order can need less than", "lower_bound_bytes"),
    ):
        assert shown(label)[1] == f"{mib(f[key])} MiB", label
    assert shown("gap, outcome")[1] == f"{100 * f['gap']:.2f} %, {f['outcome']}"
    assert f"{mib(f['gradient_bytes'])} MiB of the planned peak are gradients" in BENCHMARKS
    assert f"their peak, all counted: {mib(f['first_calls_peak_bytes'])} MiB" in BENCHMARKS


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
    import live_bytes

    options = demo.parse(["--clip", "value"])
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
    """bench/tables.py would write what is there."""
    import tables

    for name, table in tables.TABLES.items():
        path = ROOT / "bench" / "results" / f"{name}.json"
        if not path.exists():
            continue
        content = json.loads(path.read_text())
        block = re.search(rf"<!-- {name} -->\n\n(.*?)\n\n<!-- /{name} -->", BENCHMARKS, re.DOTALL)
        assert block and block.group(1).startswith(table(content["results"]).strip()), (
            f"run bench/tables.py: '{name}' differs"
        )

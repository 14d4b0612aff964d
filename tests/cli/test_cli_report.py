"""stowage report: which files it writes, and what it refuses. What the page does is tested in tests/report."""

import gzip
import itertools
import json

import pytest


@pytest.mark.parametrize("name", ["r.html", "r.perfetto.json", "r.perfetto.json.gz", "r.pickle"])
def test_report_writes_by_file_ending_and_repeats_itself(cli, graph, plan, tmp_path, name):
    texts = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        done = cli("report", graph, plan, "-o", tmp_path / folder / name)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        texts.append((tmp_path / folder / name).read_bytes())
    assert texts[0] == texts[1] and len(texts[0]) > 500


def test_perfetto_slices_add_up(cli, graph, plan, tmp_path):
    path = tmp_path / "r.perfetto.json.gz"
    assert cli("report", graph, plan, "-o", path).returncode == 0
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    for process in (1, 2):
        own = sorted((e for e in slices if e["pid"] == process), key=lambda e: e["ts"])
        assert len(own) == 10 and sum(e["dur"] for e in own) == pytest.approx(9.8)  # microseconds
        assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-9 for a, b in itertools.pairwise(own))
    peak = max(e["args"]["bytes"] for e in events if e["ph"] == "C" and e["name"] == "live bytes" and e["pid"] == 1)
    assert peak == cli.json("check", graph, plan)["peak_bytes"]


@pytest.mark.parametrize("name", ["r.txt", "r", "html", "r.json"])
def test_unknown_endings_are_refused(cli, graph, plan, tmp_path, name):
    done = cli("report", graph, plan, "-o", tmp_path / name)
    assert done.returncode == 3 and "must end in .html" in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / name).exists()


def test_a_plan_that_is_not_valid_is_refused(cli, graph, plan, tmp_path):
    broken = json.loads(plan.read_text())
    broken["placements"][0]["offset"] += 64
    broken["placements"][0]["to"] -= 1
    plan.write_text(json.dumps(broken))
    done = cli("report", graph, plan, "-o", tmp_path / "r.html")
    assert done.returncode == 6 and "invalid plan: rule" in done.stderr
    assert not (tmp_path / "r.html").exists()


BAD_SECTIONS = [
    (
        "--ledger",
        '{"rows": [{"tensor": "w", "bytes": 1, "placement": "R", "local_bytes": 1, "redundant_bytes": -1, "why": ""}]}',
        "row 0",
    ),
    ("--ledger", '{"rows": [{"tensor": "w"}]}', "row 0"),
    ("--ledger", "[]", "ledger"),
    ("--timeline", '{"events": [{"t_ns": 1, "event": 3, "bytes": 0, "op": ""}]}', "event 0"),
    ("--timeline", '{"live": []}', "events"),
    ("--timeline", '{"events": []} x', "timeline"),
]


@pytest.mark.badinput
@pytest.mark.parametrize("option, text, named", BAD_SECTIONS)
def test_bad_sections_are_refused_by_name(cli, graph, plan, tmp_path, option, text, named):
    section = tmp_path / "section.json"
    section.write_text(text)
    done = cli("report", graph, plan, "-o", tmp_path / "r.html", option, section)
    assert done.returncode == 3 and named in done.stderr and done.stderr.count("\n") == 1

"""Scripts of many kinds, unchanged, under stowage run: their output is, byte for byte, what it is without us, so is
their exit code, the limit holds, and something had to leave for it. The first few are run in each test run; all of
them where STOWAGE_SOAK_SECONDS says that there is time."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from launched import OURS, by_us, finish, plainly, read, start, told


@dataclass
class Script:
    """``share``: the limit, of the peak without one. ``each``: output files and the like, a name in a new folder."""

    words: list
    share: float = 0.75
    needs: str = ""
    leaves: bool = True  # so little that something has to leave

    def name(self) -> str:
        return " ".join(word for word in self.words if not word.startswith("--nproc"))


SHORT = [
    Script(["nano_gpt.py", "--block_size=48"], 0.6),
    Script(["pictures.py", "--workers", "2", "--epochs=1"]),
    Script(["adversaries.py"], 0.8),
]
ALL = [
    *SHORT,
    Script(["pictures.py", "--save-model", "FOLDER/model.pt"]),
    Script(["mixed_precision.py"], 0.6),
    Script(["own_optimizer.py"]),
    Script(["resumed.py"]),
    Script(["word_language_model.py"]),
    Script(["time_sequence.py"], 0.5),
    Script(["variational.py"]),
    Script(["reinforce.py"], 0.8),
    Script(["threads.py"]),
    Script(["spawned.py", "FOLDER/rendezvous"]),
    Script(["forked.py"]),
    Script(["-m", "asmodule.train"]),
    Script(["torchrun", "--nproc-per-node=2", "--standalone", "ranks.py"]),
    Script(["accelerated.py"], needs="accelerate"),
    Script(["accelerate", "launch", "--cpu", "accelerated.py"], needs="accelerate"),
    Script(["trainer.py", "FOLDER"], needs="transformers"),
    Script(["lit.py", "FOLDER"], needs="lightning"),
    Script(["python", "-u", "own_optimizer.py"]),
]
TRIED = ALL if os.environ.get("STOWAGE_SOAK_SECONDS") else SHORT


@pytest.mark.parametrize("script", TRIED, ids=Script.name)
def test_output_and_exit_code_are_the_scripts_own(script, tmp_path):
    if script.needs and importlib.util.find_spec(script.needs) is None:
        pytest.skip(f"{script.needs} is not installed")
    watched_report, limited_report = tmp_path / "watched.json", tmp_path / "limited.json"
    alone = start(plainly(_in_folder(script, tmp_path / "alone")))
    watched = finish(start(by_us(_in_folder(script, tmp_path / "watched"), "--watch", "--report", str(watched_report))))
    alone = finish(alone)
    assert alone.returncode == 0, alone.stderr
    assert watched.returncode == 0, watched.stderr
    peak = _of_all(watched_report)["peak_bytes"]
    limit = int(peak * script.share)
    limited = finish(
        start(by_us(_in_folder(script, tmp_path / "limited"), f"--budget={limit}", "--report", str(limited_report)))
    )
    for done in (watched, limited):
        assert done.returncode == 0, done.stderr
        assert done.stdout == alone.stdout
        assert OURS in done.stderr
    stats = _of_all(limited_report)
    assert stats["peak_bytes"] <= limit and stats["limit_bytes"] == limit, stats
    assert stats["evictions"] > 0, stats
    assert stats["optimizer_steps"] == _of_all(watched_report)["optimizer_steps"]
    assert "let go" in told(limited)


def _in_folder(script: Script, folder: Path) -> list[str]:
    folder.mkdir()
    return [word.replace("FOLDER", str(folder)) for word in script.words]


def _of_all(report: Path) -> dict:
    """Of the process that trained most: the script's own, or a child of multiprocessing."""
    written = [read(path) for path in sorted(report.parent.glob(f"{report.stem}*{report.suffix}"))]
    assert written, f"nobody has written '{report}'"
    return max(written, key=lambda figures: figures["optimizer_steps"])

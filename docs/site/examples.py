"""Runs the examples of the pages, in the order of each page, and compares what they print with what the page shows.

    PYTHONPATH=build/release/python python docs/site/examples.py [--update] [PAGE.md...]

A comment says what is done with the fence below it:

    <!-- run -->               python: runs in the page's namespace; sh: runs in the page's folder
    <!-- file: train.py -->    is written to the page's folder
    <!-- output -->            what the run before it prints; `...` stands for any text
    <!-- output: about -->     the same, where times and what follows from them may be other numbers

--update fills the outputs that are empty. All pages share a process, so that torch is imported once; a page whose first
comment is `<!-- run: first -->` goes before the others."""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import io
import linecache
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # as small as they are, threads only cost
os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()  # what was compiled before is not planned again

DOCS = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"<!-- (run|file|output)(?:: ([\w.]+))? -->\n```(\w+)\n(.*?)```", re.DOTALL)


def pages() -> list[Path]:
    """Those with examples; without that of torch.compile where this cannot link: PyTorch 2.13 does not quote the name of
    its own folder, which has a space here."""
    found = [path for path in sorted(DOCS.rglob("*.md")) if FENCE.search(path.read_text())]
    torch = importlib.util.find_spec("torch")
    if torch is not None and " " in str(torch.origin):
        print("left out: guides/torch-compile.md", file=sys.stderr)
        found = [path for path in found if path.name != "torch-compile.md"]
    return sorted(found, key=lambda path: "<!-- run: first -->" not in path.read_text())


class Place:
    """Where the examples of one page run. A command that ran before, beside the same files, is not run again."""

    ran: dict[tuple, str] = {}

    def __init__(self, folder: Path, page: Path):
        self.folder, self.page, self.namespace, self.count = folder, page, {"__name__": "__main__"}, 0

    def python(self, code: str) -> str:
        self.count += 1
        name = f"{self.page.stem}.py"
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)  # for what names lines
        said = io.StringIO()
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(said):
            exec(compile(code, name, "exec"), self.namespace)
        return said.getvalue()

    def sh(self, code: str) -> str:
        key = (code, *((path.name, path.read_text()) for path in sorted(self.folder.glob("*.py"))))
        if key not in self.ran:
            self.ran[key] = self._run(code)
        return self.ran[key]

    def _run(self, code: str) -> str:
        shim = self.folder / "bin" / "stowage"
        if not shim.exists():
            shim.parent.mkdir()
            shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m stowage "$@"\n')
            shim.chmod(0o755)
        environment = dict(os.environ, COLUMNS="110", PATH=f"{shim.parent}{os.pathsep}{os.environ['PATH']}")
        done = subprocess.run(
            ["bash", "-e", "-c", code],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{code}\nended with {done.returncode}:\n{done.stdout}")
        return done.stdout


def differences(page: Path, update: bool) -> list[str]:
    """What is not as the page shows it; with ``update``, empty outputs are filled first."""
    text, wrong, said = page.read_text(), [], ""
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder), page)
        new, end = [], 0
        for match in FENCE.finditer(text):
            what, name, language, body = match.groups()
            new.append(text[end : match.start()])
            end = match.end()
            shown = match.group(0)
            if what == "file":
                (place.folder / name).write_text(body)
            elif what == "run":
                said = getattr(place, language)(body)
            elif not body and update:
                shown = shown.removesuffix("```") + "\n".join(line.rstrip() for line in said.splitlines()) + "\n```"
            elif not same(body, said, about=name == "about"):
                wrong.append(f"{page.name} shows\n{body}\nbut the example prints\n{said}")
            new.append(shown)
    if update:
        page.write_text("".join([*new, text[end:]]))
    return wrong


def same(shown: str, said: str, about: bool) -> bool:
    said = "".join(f"{line.rstrip()}\n" for line in said.splitlines())
    if about:
        shown, said = (re.sub(r" *\d[\d.,]*", " #", text) for text in (shown, said))
    return doctest.OutputChecker().check_output(shown, said, doctest.ELLIPSIS)


def main(arguments: list[str]) -> int:
    update = "--update" in arguments
    chosen = [Path(a).resolve() for a in arguments if a != "--update"] or pages()
    wrong = [line for page in chosen for line in differences(page, update)]
    print("\n".join(wrong), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

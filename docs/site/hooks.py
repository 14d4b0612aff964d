"""What mkdocs cannot know: the reference pages, the notebooks and the gallery, made when the site is built; the figures
of bench/results; charts put into the page, so that they follow its colours. Needs the built package on PYTHONPATH and
STOWAGE_CLI (./dev docs sets both)."""

from __future__ import annotations

import atexit
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

from mkdocs.structure.files import File

sys.path.append(str(Path(__file__).parent))

import gallery
import notebooks
import reference

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FIGURES = (".svg", ".png")
OUTSIDE = re.compile(r"\]\((?:\.\./)+(README|CHANGELOG|CONTRIBUTING)\.md\)")
TABLE = re.compile(r"<!-- table: (\w+) -->\n<!-- /table -->")  # a table of the benchmarks, shown again
PICTURES = re.compile(r"(?:^!\[[^\]]*\]\((?:\.\./)*pictures/[\w/-]+\.svg\)\n)+", re.MULTILINE)
PICTURE = re.compile(r"!\[([^\]]*)\]\((?:\.\./)*(pictures/[\w/-]+\.svg)\)")
NOTEBOOK = re.compile(r"\]\(([\w./-]+)\.ipynb\)")
BUTTON = re.compile(r"\*\*(\[[^\]]+\]\([^)]+\))\*\*")


def on_files(files, config):
    for path in sorted((ROOT / "bench" / "results").iterdir()):
        if path.suffix in FIGURES:
            files.append(File.generated(config, f"results/{path.name}", abs_src_path=str(path)))
    pages = {
        "python": reference.python_page(),
        "cpp": reference.cpp_page(),
        "command-line": reference.command_line_page(),
    }
    for name, content in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content=content))
    for path in notebooks.notebooks():
        content = notebooks.page(json.loads(path.read_text()), path.name)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=content))
    folder = Path(tempfile.mkdtemp(prefix="stowage-gallery-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for path in gallery.write(folder):
        files.append(File.generated(config, f"gallery/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Links that are right in the repository and have another target on the site, and what the site shows its way."""
    markdown = re.sub(r"(?:\.\./)+bench/results/", "../results/" if "/" in page.file.src_uri else "results/", markdown)
    markdown = TABLE.sub(lambda match: _table(match.group(1)), markdown)
    markdown = PICTURES.sub(_inline, markdown)
    if page.file.src_uri not in {f"notebooks/{path.stem}.md" for path in notebooks.notebooks()}:
        markdown = NOTEBOOK.sub(r"](\1.md)", markdown)
    if page.file.src_uri == "index.md":
        markdown = BUTTON.sub(r"\1{ .md-button }", markdown)
    return OUTSIDE.sub(f"]({'../' * page.file.src_uri.count('/')}index.md)", markdown)


def _table(name: str) -> str:
    for path in [DOCS / "benchmarks.md", *sorted((DOCS / "benchmarks").glob("*.md"))]:
        if found := re.search(rf"<!-- {name} -->(.*?)<!-- /{name} -->", path.read_text(), flags=re.DOTALL):
            return found.group(1)
    raise ValueError(f"no page of the benchmarks has the table '{name}'")


def _inline(match: re.Match) -> str:
    """Pictures that stand alone, as elements of the page: an image of its own would not know that the page is dark."""
    drawn = []
    for words, name in PICTURE.findall(match.group(0)):
        svg = (DOCS / name).read_text()
        drawn.append(f'<figure title="">{svg.strip()}<figcaption hidden>{words}</figcaption></figure>')
    kind = "charts" if "/charts/" in match.group(0) else "pictures"
    return f'<div class="{kind}">{"".join(drawn)}</div>\n'

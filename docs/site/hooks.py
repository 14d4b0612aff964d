"""What mkdocs cannot know: the reference pages, written from what is there when the site is built (docstrings, headers,
--help), and the figures of bench/results. Needs the built package on PYTHONPATH and STOWAGE_CLI (./dev docs sets
both)."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
from pathlib import Path

from mkdocs.structure.files import File

from stowage.run.arguments import USAGE
from stowage.verbs import why

ROOT = Path(__file__).resolve().parents[2]
FIGURES = (".svg", ".png")
MODULES = {"stowage": None, "stowage.hf": None, "stowage.lightning": None}  # None: what __all__ says
OUTSIDE = re.compile(r"\]\((?:\.\./)+(README|CHANGELOG|CONTRIBUTING)\.md\)")

TABLE = re.compile(r"<!-- table: (\w+) -->\n<!-- /table -->")  # a table of the benchmarks, shown again


def on_files(files, config):
    for path in sorted((ROOT / "bench" / "results").iterdir()):
        if path.suffix in FIGURES:
            files.append(File.generated(config, f"results/{path.name}", abs_src_path=str(path)))
    pages = {"python": python_page(), "cpp": cpp_page(), "command-line": command_line_page()}
    for name, content in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content=content))
    return files


def on_page_markdown(markdown, page, config, files):
    """Links that are right in the repository and have another target on the site."""
    markdown = markdown.replace("../bench/results/", "results/")
    markdown = TABLE.sub(lambda match: _table(match.group(1)), markdown)
    return OUTSIDE.sub("](index.md)", markdown)


def _table(name: str) -> str:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    return re.search(rf"<!-- {name} -->(.*?)<!-- /{name} -->", page, flags=re.DOTALL).group(1)


# ---- Python: signatures and docstrings


def python_page() -> str:
    out = ["# Python", "", "Written from the docstrings of the package that this site was built with.", ""]
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        out += [f"## {module_name}", "", *_docstring(module), ""]
        for name in module.__all__:
            out += _entry(f"{module_name}.{name}", getattr(module, name))
    return "\n".join(out)


def _entry(name: str, value) -> list[str]:
    if inspect.ismodule(value) or name.endswith("__"):
        return []
    out = [f"### {name}", "", "```python", f"{name}{_signature(value)}", "```", "", *_docstring(value), ""]
    if inspect.isclass(value) and not issubclass(value, BaseException):
        for member_name, member in vars(value).items():
            if member_name.startswith("_") or not (
                inspect.isroutine(member) or isinstance(member, (property, classmethod))
            ):
                continue
            if member_name.startswith("on_"):  # callbacks of others
                continue
            member = getattr(value, member_name)
            signature = "" if isinstance(member, property) else _signature(member)
            out += [f"**`{member_name}{signature}`**", "", *_docstring(member), ""]
    return out


def _signature(value) -> str:
    try:
        return str(inspect.signature(value))
    except (TypeError, ValueError):
        return ""


def _docstring(value) -> list[str]:
    """Indented parts (examples, descriptions of arguments) keep their lines."""
    text = inspect.getdoc(value) or ""
    return ["```text", text, "```"] if text else []


# ---- C++: the public headers


def cpp_page() -> str:
    out = ["# C++", "", "The public headers. `find_package(stowage)` gives `stowage::core`.", ""]
    for path in sorted((ROOT / "include" / "stowage").glob("*.h")):
        text = path.read_text()
        head = re.match(r"(?://[^\n]*\n)+", text)
        comment = head.group(0) if head else ""
        body = re.sub(r"^#(?:pragma once|include [^\n]*)\n", "", text[len(comment) :], flags=re.MULTILINE).strip()
        words = "\n".join(line.removeprefix("//").removeprefix(" ") for line in comment.splitlines())
        out += [f"## stowage/{path.name}", "", "```text", words, "```", "", "```cpp", body, "```", ""]
    return "\n".join(out)


# ---- The command line


def command_line_page() -> str:
    executable = os.environ.get("STOWAGE_CLI", str(ROOT / "build/release/bin/stowage"))
    out = ["# Command line", "", "```text", _help(executable), "```", ""]
    in_python = {"run": USAGE, "why": why.options().format_help()}
    for verb in verbs(executable):
        text = in_python[verb].strip() if verb in in_python else _help(executable, verb)
        out += [f"## stowage {verb}", "", "```text", text, "```", ""]
    return "\n".join(out)


def verbs(executable: str) -> list[str]:
    listed = _help(executable).split("SUBCOMMANDS:")[-1].split("Subcommands:")[-1]
    return re.findall(r"^  (\w+) +\S", listed, flags=re.MULTILINE)


def _help(executable: str, *verb: str) -> str:
    return subprocess.run([executable, *verb, "--help"], capture_output=True, text=True, check=True).stdout.strip()

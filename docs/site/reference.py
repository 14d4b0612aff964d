"""The reference pages, written from what is there when the site is built: docstrings, public headers, --help.

A docstring has paragraphs and, where there is something to say, the sections "Args:", "Returns:" and "Raises:" with an
entry a line, indented:

    Args:
        budget: bytes, or "2GiB"; a long entry
            goes on with more indentation."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
import re
import subprocess
from pathlib import Path

from stowage.run.arguments import USAGE
from stowage.verbs import why

ROOT = Path(__file__).resolve().parents[2]
MODULES = ("stowage", "stowage.inductor", "stowage.hf", "stowage.lightning")
BEHIND = {  # functions that only import the one that does the work
    "stowage.shard": ("stowage.sharding.step", "shard"),
    "stowage.shard_plan": ("stowage.sharding.paper", "shard_plan"),
}
SECTIONS = {"Args:": "Arguments", "Returns:": "Returns", "Raises:": "Raises"}


# ---- Python: signatures and docstrings


def python_page() -> str:
    out = ["# Python", "", "Written from the docstrings of the package that this site was built with.", ""]
    named = {module: list(public(module)) for module in MODULES}
    out += ["| name | what it is |", "|------|------------|"]
    for entries in named.values():
        out += [f"| [`{name}`](#{anchor(name)}) | {summary(value)} |" for name, value in entries]
    for module, entries in named.items():
        out += ["", f"## {module}", "", *prose(inspect.getdoc(importlib.import_module(module)) or ""), ""]
        for name, value in entries:
            out += _entry(name, value)
    return "\n".join(out) + "\n"


def public(module_name: str):
    """(name, what it is) of each public name, `stowage.` in front."""
    module = importlib.import_module(module_name)
    for name in module.__all__:
        full = f"{module_name}.{name}"
        value = getattr(module, name)
        if full in BEHIND:
            place, real = BEHIND[full]
            value = getattr(importlib.import_module(place), real)
        if not inspect.ismodule(value) and not name.endswith("__"):
            yield full, value


def anchor(name: str) -> str:
    return name.lower().replace(".", "")


def summary(value) -> str:
    text = (inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " ")
    return words(re.match(r".*?[.?!](?= |$)|.*", text).group(0)).replace("|", "\\|")


def members(value):
    """(name, member) of what a class offers: no private names, no callbacks of others."""
    for name, member in vars(value).items():
        offered = inspect.isroutine(member) or isinstance(member, (property, classmethod, staticmethod))
        if not name.startswith(("_", "on_")) and (offered or type(member).__name__.startswith("nb_")):
            yield name, getattr(value, name)


def _entry(name: str, value) -> list[str]:
    out = [f"### {name}", "", "```python", f"{name}{signature(value)}", "```", ""]
    out += prose(inspect.getdoc(value) or "", value)
    if inspect.isclass(value) and not issubclass(value, BaseException):
        for member_name, member in members(value):
            shown, text = "" if isinstance(member, property) else signature(member), inspect.getdoc(member) or ""
            if text.startswith(f"{member_name}("):  # what is written in C++ has its signature there
                first, _, text = text.partition("\n")
                shown = (
                    first.removeprefix(member_name)
                    .replace("(self, ", "(")
                    .replace("(self)", "()")
                    .replace("._core.", ".")
                )
            out += [f"#### {name}.{member_name}", "", "```python", f".{member_name}{shown}", "```", ""]
            out += prose(text.strip(), member)
    return [*out, f"Source: {source(value)}", ""]


def signature(value) -> str:
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    given = [p for p in found.parameters.values() if p.name != "self" and not p.name.startswith("_")]
    each = [_plain(str(p)) for p in given]
    kinds = [p.kind for p in given]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        each.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    nothing = inspect.isclass(value) or found.return_annotation is found.empty
    result = "" if nothing else f" -> {_plain(str(found.return_annotation))}"
    text = ", ".join(each)
    return f"({text}){result}" if len(text) <= 70 else "(\n" + "".join(f"    {p},\n" for p in each) + f"){result}"


def _plain(text: str) -> str:
    """Annotations are text in the sources."""
    return re.sub(r"(: |^)'([^']*)'", r"\1\2", text).replace("NoneType", "None")


def source(value) -> str:
    """File and line in this repository."""
    value = inspect.unwrap(value)
    module = getattr(value, "__module__", "") or ""
    if module.startswith("stowage._core"):
        return "`python/bindings/core.cpp`"
    try:
        file, line = inspect.getsourcefile(value), inspect.getsourcelines(value)[1]
    except (TypeError, OSError):
        return f"`{module}`"
    return f"`python/{file[file.rindex('stowage' + os.sep) :]}`, line {max(line, 1)}"


def parts(text: str) -> tuple[list[str], dict[str, list[tuple[str, str]]]]:
    """A docstring's paragraphs, and the entries of its sections; what a section says without a name has the name ""."""
    paragraphs, sections, lines = [], {}, []
    blocks = re.split(r"\n\n", text)
    for block in blocks:
        head, _, rest = block.partition("\n")
        if head in SECTIONS:
            lines = inspect.cleandoc("\n" + rest).split("\n")
            entries: list[tuple[str, str]] = []
            for line in lines:
                match = re.match(r"([\w, *]+): (.*)", line)
                if line.startswith("    ") or (entries and not match and head == "Returns:"):
                    name, before = entries.pop()
                    entries.append((name, f"{before} {line.strip()}"))
                elif match and head != "Returns:":
                    entries.append((match.group(1), match.group(2)))
                else:
                    entries.append(("", line))
            sections[head] = entries
        else:
            paragraphs.append(block)
    return paragraphs, sections


def prose(text: str, value=None) -> list[str]:
    """A docstring as Markdown."""
    paragraphs, sections = parts(text)
    out = []
    for paragraph in paragraphs:
        if paragraph.startswith("    "):
            out += ["```python", inspect.cleandoc("\n" + paragraph), "```", ""]
        else:
            out += [words(paragraph.replace("\n", " ")), ""]
    for head, entries in sections.items():
        title = (
            "Fields"
            if head == "Args:" and inspect.isclass(value) and dataclasses.is_dataclass(value)
            else SECTIONS[head]
        )
        out += [f"**{title}**", ""]
        out += [f"- `{name}`: {words(said)}" if name else words(said) for name, said in entries]
        out.append("")
    return out


def words(text: str) -> str:
    """Text in which nothing but ``code`` is markup."""
    pieces = text.split("``")
    for i in range(0, len(pieces), 2):
        pieces[i] = re.sub(r"([*_<\[\]])", r"\\\1", pieces[i])
    return "".join(piece if i % 2 == 0 else f"`{piece}`" for i, piece in enumerate(pieces))


# ---- C++: the public headers


def cpp_page() -> str:
    out = ["# C++", "", "The public headers. `find_package(stowage)` gives `stowage::core`.", ""]
    for path in sorted((ROOT / "include" / "stowage").glob("*.h")):
        text = path.read_text()
        head = re.match(r"(?://[^\n]*\n)+", text)
        comment = head.group(0) if head else ""
        body = re.sub(r"^#(?:pragma once|include [^\n]*)\n", "", text[len(comment) :], flags=re.MULTILINE).strip()
        said = "\n".join(line.removeprefix("//").removeprefix(" ") for line in comment.splitlines())
        out += [f"## stowage/{path.name}", "", "```text", said, "```", "", "```cpp", body, "```", ""]
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

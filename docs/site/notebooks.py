"""Runs the notebooks of docs/notebooks as Jupyter would, and shows them as pages of the site.

    PYTHONPATH=build/release/python python docs/site/notebooks.py [NOTEBOOK.ipynb...]     runs them, and writes their outputs

A cell is Python without magics. What it prints, and how its last expression displays itself (`_repr_html_`), are its
outputs, so that nothing of Jupyter need be installed to make them; the files are plain nbformat 4."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import linecache
import os
import re
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # as small as they are, threads only cost

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"


def notebooks() -> list[Path]:
    return sorted(FOLDER.glob("*.ipynb"))


def run(notebook: dict) -> dict:
    """The same notebook with the outputs of one run from top to bottom. Raises what a cell raises."""
    namespace = {"__name__": "__main__"}
    cells, count = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            outputs = _outputs("".join(cell["source"]), namespace, count)
            cell = {**cell, "execution_count": count, "outputs": outputs}
        cells.append(cell)
    return {**notebook, "cells": cells}


def _outputs(source: str, namespace: dict, count: int) -> list[dict]:
    name = f"cell {count}"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    said, value = io.StringIO(), None
    with contextlib.redirect_stdout(said):
        exec(compile(tree, name, "exec"), namespace)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
    outputs = []
    if said.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": _lines(said.getvalue())})
    if value is not None:
        data = {"text/plain": _lines(re.sub(r" at 0x\w+", "", repr(value)))}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = _lines(value._repr_html_())
        outputs.append({"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": data})
    return outputs


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def page(notebook: dict, file_name: str) -> str:
    """As Markdown, with the outputs that the file holds."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source.replace(".ipynb)", ".md)"))
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "text/html" in data:
                parts.append(f'<div class="shown">{"".join(data["text/html"])}</div>')
            else:
                text = "".join(output.get("text") or data["text/plain"])
                parts.append(f"```text\n{text.rstrip()}\n```")
    parts.append(f"[The notebook]({file_name}), to run it yourself.")
    return "\n\n".join(parts) + "\n"


def main(paths: list[Path]) -> None:
    for path in paths or notebooks():
        made = run(json.loads(path.read_text()))
        path.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main([Path(a) for a in sys.argv[1:]])

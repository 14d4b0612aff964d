"""The command line's progress: one line on a terminal after a second, nothing in a pipe (test_cli_results sees to
stderr there)."""

import json
import os
import pty
import subprocess
import time


def layered_graph(layers, width):
    """Forward and backward through `layers` layers of `width` branches: planned under a tight budget it takes a
    while."""
    buffers, ops, kept, previous = [], [], [], None

    def buffer(size):
        buffers.append({"name": f"b{len(buffers)}", "bytes": size, "kind": "activation"})
        return len(buffers) - 1

    for layer in range(layers):
        made = [buffer(1000 + 37 * (layer % 7) + i) for i in range(width)]
        ops.append(
            {
                "name": f"f{layer}",
                "target": "f",
                "reads": previous or [],
                "creates": made,
                "cost_ns": 1000 + 13 * (layer % 11),
            }
        )
        kept.append(made)
        previous = made
    last = None
    for layer in reversed(range(layers)):
        made = [buffer(900 + layer % 5)]
        ops.append(
            {
                "name": f"g{layer}",
                "target": "g",
                "reads": [*kept[layer], *([last] if layer < layers - 1 else [])],
                "creates": made,
                "cost_ns": 2000,
            }
        )
        last = made[0]
    return {
        "format": "stowage-graph",
        "version": 1,
        "name": "layered",
        "align": 64,
        "meta": {},
        "buffers": buffers,
        "ops": ops,
    }


def test_a_terminal_sees_one_line_that_goes_away(cli, tmp_path):
    graph = tmp_path / "g.graph.json"
    graph.write_text(json.dumps(layered_graph(260, 3)))
    ours, theirs = pty.openpty()
    start = time.monotonic()
    command = [cli.executable, "explain", str(graph), "--no-advice"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                chunk = os.read(ours, 4096)
            except OSError:
                break
            if not chunk:
                break
            seen += chunk
        process.stdout.read()
    seconds = time.monotonic() - start
    os.close(ours)
    assert process.returncode == 0
    text = seen.decode()
    assert bool(text) == (seconds > 1) or 0.9 < seconds < 1.4
    if not text:
        return
    assert "stowage explain: " in text and text.endswith("\r\x1b[K")
    assert "\n" not in text

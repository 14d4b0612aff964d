"""Headless Chromium driven over a pipe: the DevTools protocol is JSON messages with a NUL between them, so no package
is needed.

    with Browser() as browser:
        page = browser.open("file:///.../report.html")
        page.evaluate("document.title")
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
_FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--remote-debugging-pipe",
]


class Browser:
    def __init__(self, width: int = 1400, height: int = 900):
        self._size = (width, height)

    def __enter__(self) -> Browser:
        self._profile = tempfile.mkdtemp(prefix="stowage-chromium-")
        out_read, self._write = os.pipe()
        self._read, in_write = os.pipe()

        def move_pipes():  # the browser reads descriptor 3 and writes 4
            a, b = os.dup(out_read), os.dup(in_write)
            os.dup2(a, 3)
            os.dup2(b, 4)

        command = [
            CHROMIUM,
            *_FLAGS,
            f"--user-data-dir={self._profile}",
            f"--window-size={self._size[0]},{self._size[1]}",
            "about:blank",
        ]
        self._process = subprocess.Popen(
            command, preexec_fn=move_pipes, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(out_read)
        os.close(in_write)
        self._buffer = b""
        self._next = 0
        self.events: list[dict] = []
        return self

    def __exit__(self, *_) -> None:
        try:
            self.call("Browser.close")
        except (OSError, RuntimeError):
            self._process.kill()
        self._process.wait(20)
        os.close(self._write)
        os.close(self._read)
        shutil.rmtree(self._profile, ignore_errors=True)

    def call(self, method: str, session: str | None = None, timeout: float = 60, **params) -> dict:
        self._next += 1
        message = {"id": self._next, "method": method, "params": params, **({"sessionId": session} if session else {})}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + timeout
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._next:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.events.append(answer)

    def _receive(self, deadline: float) -> dict:
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], max(0, deadline - time.monotonic()))[0]:
                raise RuntimeError("the browser does not answer")
            piece = os.read(self._read, 1 << 20)
            if not piece:
                raise RuntimeError("the browser has gone")
            self._buffer += piece
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def open(self, url: str, dark: bool = False) -> Page:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(f"{domain}.enable")
        page.prefer("dark" if dark else "light")
        page.call("Page.navigate", url=url)
        page.wait("document.readyState === 'complete'")
        return page


class Page:
    def __init__(self, browser: Browser, session: str):
        self._browser = browser
        self._session = session

    def call(self, method: str, **params) -> dict:
        return self._browser.call(method, self._session, **params)

    def prefer(self, scheme: str) -> None:
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def resize(self, width: int, height: int, scale: float = 1) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )

    def evaluate(self, expression: str):
        """The value of an expression; a promise is waited for. Raises with the page's own message when it throws."""
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            details = result["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description") or details["text"])
        return result["result"].get("value")

    def wait(self, condition: str, timeout: float = 30) -> None:
        deadline = time.monotonic() + timeout
        while not self.evaluate(condition):
            if time.monotonic() > deadline:
                raise TimeoutError(condition)
            time.sleep(0.02)

    def key(self, key: str) -> None:
        text = key if len(key) == 1 else None
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, **({"text": text} if text and kind == "keyDown" else {})
            )

    def mouse(self, kind: str, x: float, y: float, **more) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1)

    def screenshot(self, path: Path, whole: bool = False) -> None:
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        Path(path).write_bytes(base64.b64decode(data))

    def events(self, method: str) -> list[dict]:
        self.evaluate("0")  # what was sent before has come
        return [
            e["params"]
            for e in self._browser.events
            if e.get("method") == method and e.get("sessionId") == self._session
        ]

    def complaints(self) -> list[str]:
        """What the console, the log and uncaught exceptions say."""
        thrown = [
            e["exceptionDetails"].get("exception", {}).get("description", e["exceptionDetails"]["text"])
            for e in self.events("Runtime.exceptionThrown")
        ]
        logged = [e["entry"]["text"] for e in self.events("Log.entryAdded")]
        return thrown + logged + [str(e["args"]) for e in self.events("Runtime.consoleAPICalled")]

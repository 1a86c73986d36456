"""A headless Chromium driven over its DevTools pipe, with nothing but the standard library.

The browser reads commands from its file descriptor 3 and writes answers to 4, as JSON that ends in NUL.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE = 60.0
"""Seconds after which a browser that does not answer is given up."""


def find_chromium() -> str | None:
    """The browser of this machine, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One page of a running browser."""

    def __init__(self, to: int, answers: int) -> None:
        self._to, self._from = to, answers
        self._last, self._read = 0, b""
        self._session = ""
        self.complaints: list[str] = []
        """What the page logged as errors (a refusal of its policy is one), and exceptions nobody caught."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its result."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._last:
            self._listen(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while b"\0" not in self._read:
            ready, _, _ = select.select([self._from], [], [], max(0.0, until - time.monotonic()))
            more = os.read(self._from, 1 << 20) if ready else b""
            if not more:
                raise TimeoutError("the browser does not answer")
            self._read += more
        message, _, self._read = self._read.partition(b"\0")
        return json.loads(message)

    def _listen(self, event: dict[str, Any]) -> None:
        said = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(said["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded" and said["entry"]["level"] == "error":
            self.complaints.append(said["entry"]["text"])

    def open(
        self, path: Path, fragment: str = "", width: int = 1300, dark: bool = False, height: int = 900
    ) -> None:
        """Show a file, and wait until its script says that it is ready."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=path.as_uri() + (f"#{fragment}" if fragment else ""))
        self.wait("document.documentElement?.dataset.ready !== undefined")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, promises awaited."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Until an expression is true."""
        until = time.monotonic() + PATIENCE
        while not self.evaluate(condition):
            if time.monotonic() > until:
                raise TimeoutError(condition)
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        """The visible text of the first element that a selector finds."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))

    def press(self, key: str) -> None:
        """One key, where the focus is."""
        text = {"Enter": "\r", "Tab": "\t"}.get(key, "")
        codes = {"Enter": 13, "Tab": 9, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39}
        codes |= {"ArrowDown": 40, "End": 35, "Home": 36, "PageUp": 33, "PageDown": 34}
        key_event = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        self.call("Input.dispatchKeyEvent", type="keyDown", **key_event, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **key_event)

    def screenshot(self, path: Path, whole: bool = False) -> None:
        """A picture of what is in sight, or of the whole page."""
        taken = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(taken["data"]))


_PLACED = """
import os, sys
commands, answers = os.dup(int(sys.argv[1])), os.dup(int(sys.argv[2]))
while commands < 5: commands = os.dup(commands)
while answers < 5: answers = os.dup(answers)
os.dup2(commands, 3)
os.dup2(answers, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Puts the two pipes where the browser looks for them, and becomes the browser."""


@contextlib.contextmanager
def browser(directory: Path) -> Iterator[Page]:
    """A browser with a fresh profile in `directory`, closed at the end."""
    program = find_chromium()
    assert program is not None
    theirs_in, to = os.pipe()
    answers, theirs_out = os.pipe()
    words = [
        program,
        *["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"],
        *["--disable-background-networking", "--disable-extensions", "--remote-debugging-pipe"],
        f"--user-data-dir={directory}",
    ]
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", _PLACED, str(theirs_in), str(theirs_out), *words],
        pass_fds=(theirs_in, theirs_out),
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        page = Page(to, answers)
        yield page
        page._session = ""
        page.call("Browser.close")
        process.wait(10)
    finally:
        process.kill()
        process.wait()
        os.close(to)
        os.close(answers)

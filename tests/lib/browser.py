"""A headless browser, driven through a pipe by the DevTools protocol.

Reference: https://chromedevtools.github.io/devtools-protocol
"""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

NAMES = (
    "chromium-headless-shell",
    "chrome-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
)
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars")


def find_browser():
    """The path of a browser that can be driven; None if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class BrowserError(Exception):
    """The browser refused a command, or did not answer."""


class Browser:
    """One page of a separate browser process; use it as a context manager.

    Attributes:
        events: events sent by the browser: pairs of a method and its parameters.
    """

    def __init__(self, limit_seconds=60.0):
        self.events, self._limit, self._number, self._rest = [], limit_seconds, 0, b""
        self._session = None

    def __enter__(self):
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        # The browser reads commands from its file 3 and writes answers to its file 4.
        command = [find_browser(), *OPTIONS, "--remote-debugging-pipe"]
        command += [f"--user-data-dir={self._profile.name}", "about:blank"]
        shell = ["sh", "-c", 'exec "$@" 3<&0 4>&1 </dev/null >/dev/null', "sh", *command]
        self._process = subprocess.Popen(
            shell, stdin=to_read, stdout=to_write, stderr=subprocess.DEVNULL
        )
        os.close(to_read)
        os.close(to_write)
        try:
            target = self.send("Target.createTarget", url="about:blank")["targetId"]
            attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
            self._session = attached["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
                self.send(f"{domain}.enable")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error):
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        self._profile.cleanup()

    def send(self, method, **parameters):
        """Sends a command and returns its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._receive(method)).get("id") != self._number:
            self.events.append((answer["method"], answer["params"]))
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']}")
        return answer["result"]

    def _receive(self, method):
        until = time.monotonic() + self._limit
        while b"\0" not in self._rest:
            if not select.select([self._from], [], [], max(until - time.monotonic(), 0))[0]:
                raise BrowserError(f"{method}: no answer within {self._limit:g} s")
            if not (data := os.read(self._from, 1 << 20)):
                raise BrowserError(f"{method}: the browser has ended")
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def open(self, path, *, width=1280, height=900, dark=False, scale=1):
        """Opens a file in a window of that size, and waits until it is loaded."""
        self.events.clear()
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send("Page.navigate", url=path.resolve().as_uri())
        until = time.monotonic() + self._limit
        while not any(method == "Page.loadEventFired" for method, _ in self.events):
            if time.monotonic() > until:
                raise BrowserError(f"{path} was not loaded within {self._limit:g} s")
            self.run("0")
            time.sleep(0.02)

    def run(self, script):
        """The value of a JavaScript expression. The page's own policy does not apply to it."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in found:
            raise BrowserError(str(found["exceptionDetails"]))
        return found["result"].get("value")

    def wait_for(self, script):
        """Waits until a JavaScript expression is true, and returns its value."""
        until = time.monotonic() + self._limit
        while not (value := self.run(script)):
            if time.monotonic() > until:
                raise BrowserError(f"not within {self._limit:g} s: {script}")
            time.sleep(0.02)
        return value

    def press(self, key):
        """Presses a key."""
        codes = {"Tab": (9, ""), "Enter": (13, "\r"), " ": (32, " ")}
        for kind in ("rawKeyDown", "keyUp"):
            about = {"key": key, "code": "Space" if key == " " else key}
            about["windowsVirtualKeyCode"], text = codes[key]
            self.send("Input.dispatchKeyEvent", type=kind, **about)
            if text and kind == "rawKeyDown":
                self.send("Input.dispatchKeyEvent", type="char", text=text, **about)

    def point(self, kind, x, y):
        """Moves the mouse to a place, or presses or releases its left button there."""
        about = {"x": x, "y": y, "button": "none" if kind == "mouseMoved" else "left"}
        self.send("Input.dispatchMouseEvent", type=kind, clickCount=1, **about)

    def picture(self, path, *, whole=False):
        """Writes the visible part of the page, or all of it, as PNG."""
        data = self.send("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        with contextlib.closing(open(path, "wb")) as file:
            file.write(base64.b64decode(data))

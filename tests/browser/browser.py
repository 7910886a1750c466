"""A real Chromium, and all that a page in it asked for, was told, and complained of."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Response, sync_playwright
from tests.waiting import PATIENCE

ADDRESS: Final = re.compile(r"http://127\.0\.0\.1:\d+/\?token=\S+")
ELSEWHERE: Final = "somewhere.example"
"""A name that is this machine's in the browser alone, as an attacker's may be."""
OPTIONS: Final = ("--disable-dev-shm-usage", f"--host-resolver-rules=MAP {ELSEWHERE} 127.0.0.1")
_VIOLATIONS: Final = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(`${event.violatedDirective}: ${event.blockedURI} ${event.sample}`);
  console.error(`policy: ${event.violatedDirective} ${event.blockedURI} ${event.sample}`);
});
"""


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    program = shutil.which("chromium")
    assert program is not None, "chromium is not installed: apt-get install chromium (.ci/run installs it)"
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=[*sandbox, *OPTIONS])
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Looked:
    """A page, and what came and went while it was open."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    """Of its console, its scripts, its policy, and answers that are errors."""
    traffic: list[str] = field(default_factory=list)
    """Addresses and headers of requests and answers, and the bodies of answers that ended."""

    def go(self, address: str) -> None:
        self.page.goto(address, wait_until="domcontentloaded")


@contextlib.contextmanager
def looking(browser: Browser, **options: Any) -> Iterator[Looked]:
    """A browser window of its own, with no cookies."""
    context = browser.new_context(viewport={"width": 1360, "height": 860}, reduced_motion="reduce", **options)
    context.set_default_timeout(PATIENCE * 1000)
    context.add_init_script(_VIOLATIONS)
    looked = Looked(context.new_page())
    _listen(context, looked)
    try:
        yield looked
    finally:
        context.close()


def _listen(context: BrowserContext, looked: Looked) -> None:
    def said(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            looked.complaints.append(f"{message.type}: {message.text} {message.location}")

    def answered(response: Response) -> None:
        looked.traffic.append(f"{response.url} {response.request.headers} {response.status} {response.headers}")

    context.on("console", said)
    context.on("weberror", lambda error: looked.complaints.append(f"script: {error.error}"))
    context.on("response", answered)


class Inspect:
    """A running `rolloutfleet inspect`, or another program that prints such an address."""

    def __init__(self, process: "subprocess.Popen[str]", output: Path) -> None:
        self._process, self._output = process, output
        self._seen = 0

    def address(self, until: Callable[[Callable[[], Any]], Any]) -> str:
        """One that was not opened yet."""
        found = until(lambda: ADDRESS.findall(self._output.read_text())[self._seen :])
        self._seen += 1
        return str(found[0])

    @property
    def root(self) -> str:
        return str(ADDRESS.findall(self._output.read_text())[0]).split("?")[0]


@contextlib.contextmanager
def inspecting(folder: Path, *command: str) -> Iterator[Inspect]:
    """The command's process; it is ended when the block is."""
    output = folder / "inspect.out"
    with output.open("w") as file:
        process = subprocess.Popen([sys.executable, "-m", *command], stdout=file, stderr=subprocess.STDOUT, text=True)
    try:
        yield Inspect(process, output)
    finally:
        process.terminate()
        process.wait(PATIENCE)

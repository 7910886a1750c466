"""The pictures in README and docs: `make pictures` runs the quickstart's fleet and agents, looks at them with the page,
`top` and `show`, and writes docs/pictures.
"""

import asyncio
import io
import re
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from examples.quickstart.agents import Agent
from examples.quickstart.record import Record
from playwright.sync_api import Browser, Page, expect
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text
from tests.browser.browser import Inspect, chromium, inspecting, looking
from tests.browser.scenes import annotate
from tests.browser.terminals import PROMPT, terminal
from tests.commands import CLI
from tests.local_fleets import Up, running
from tests.paths import ROOT
from tests.waiting import PATIENCE

from rolloutfleet.fleet import Fleet, Group

PICTURES: Final = ROOT / "docs" / "pictures"
RESOURCE: Final = ROOT / "examples" / "quickstart" / "fleet.yaml"
GROUPS: Final = 6
SIBLINGS: Final = 6
LARGEST: Final = 200_000
"""Bytes of a picture."""
VERSION: Final = 8
BRANCHES: Final = 8
"""Number of the agent that forgets what came before its last request."""
# Letters are those of whoever looks at it: a picture fetches nothing.
_SVG: Final = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


class Work:
    """Agents at work, in a thread of their own."""

    def __init__(self, groups: Iterable[Group]) -> None:
        record = Record()
        self.sessions = [session for group in groups for session in group.sessions]
        self._agents = [
            Agent(
                number=number,
                session_id=session.session_id,
                base_url=session.base_url,
                api_key=session.api_key,
                record=record,
                progress=lambda: None,
            )
            for number, session in enumerate(self.sessions)
        ]
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()

    async def _run(self) -> None:
        await asyncio.gather(*(agent.run() for agent in self._agents))

    def wait(self) -> None:
        self._thread.join(300)
        assert all(agent.done for agent in self._agents), "not all agents came to their end"


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, running(Path(scratch), RESOURCE.read_text()) as up:
        up.book()
        command = ("rolloutfleet", "inspect", "--port", "0", "--state-dir", str(up.state))
        with Fleet.from_file(up.state) as fleet, inspecting(Path(scratch), *command) as inspect, chromium() as browser:
            _take_all(up, fleet, inspect, browser)
    for file in sorted(PICTURES.iterdir()):
        print(f"{file.name}: {file.stat().st_size:,} bytes")
        assert file.stat().st_size <= LARGEST, f"{file} is too large"


def _take_all(up: Up, fleet: Fleet, inspect: Inspect, browser: Browser) -> None:
    with looking(browser, color_scheme="light") as light, looking(browser, color_scheme="dark") as dark:
        light.go(inspect.address(up.until))
        dark.go(inspect.address(up.until))
        work = Work(fleet.start_group(SIBLINGS, f"trip-{number}") for number in range(GROUPS))
        expect(light.page.locator("#turns li")).to_have_count(12, timeout=1000 * PATIENCE)
        with fleet.weight_update(version=VERSION):
            pass
        _top(up)
        _take(light.page, "fleet.png")
        work.wait()
        for number, session in enumerate(work.sessions):
            fleet.reward(session, number % 3 / 2)
        shown = work.sessions[BRANCHES]
        for turn in fleet.turns(shown):
            annotate(fleet, shown, turn.turn_id, note="")
        _show(up, shown.session_id)
        _pages(light.page, inspect, shown, dark=False)
        _pages(dark.page, inspect, shown, dark=True)


def _pages(page: Page, inspect: Inspect, session: Any, *, dark: bool) -> None:
    page.set_viewport_size({"width": 1280, "height": 760})
    page.goto(f"{inspect.root}sessions.html")
    page.wait_for_selector("#sessions .row .reward")
    if not dark:
        _take(page, "sessions.png")
    address = f"{inspect.root}sessions/{session.session_id}.html"
    page.goto(address)
    page.wait_for_selector(".message")
    if dark:
        _take(page, "conversation-dark.png")
    page.goto("about:blank")
    page.goto(f"{address}#view=tokens")
    sampled = page.locator("#tokens .t[data-p]")
    sampled.first.wait_for()
    page.locator("#tokens .t[data-p='4']").first.hover()
    _take(page, f"tokens{'-dark' if dark else ''}.png")


def _take(page: Page, name: str) -> None:
    """Once nothing moves any more."""
    page.wait_for_timeout(1500)
    page.screenshot(path=PICTURES / name)


def _top(up: Up) -> None:
    with terminal(columns=124, lines=16) as screen:
        screen.run(*CLI, "top", "--state-dir", str(up.state), "--interval", "1")
        screen.until(lambda text: re.search(r"Calls +[1-9]", text) and re.search(r"[1-9]\S* sampled", text))
        _draw(screen.coloured(), "rolloutfleet top", "top.svg", 124)


def _show(up: Up, session: str) -> None:
    with terminal(columns=110, lines=34) as screen:
        screen.run(*CLI, "show", session, "--tokens", "--state-dir", str(up.state))
        screen.until(lambda text: text.rstrip().endswith(PROMPT.strip()) and "turn" in text)
        _draw(screen.coloured().rsplit(PROMPT.strip(), 1)[0], f"rolloutfleet show {session} --tokens", "show.svg", 110)


def _draw(text: str, title: str, name: str, width: int) -> None:
    screen = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    screen.print(Text.from_ansi(text.rstrip()))
    (PICTURES / name).write_text(screen.export_svg(title=title, code_format=_SVG))


if __name__ == "__main__":
    main()

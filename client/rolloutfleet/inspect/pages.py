"""Pages as HTML: templates of a document each. The same live and in a bundle; all links are relative."""

import asyncio
import functools
from collections import OrderedDict
from collections.abc import Sequence
from importlib.resources import as_file, files
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from rolloutfleet.inspect.documents import last_words
from rolloutfleet.inspect.sources import Json, NotNow, NotThere, Source
from rolloutfleet.viewing import safe

TAIL: Final = 1_000
"""Characters of an answer's end that a group's page shows of each session."""
MOST_TAILS: Final = 64
"""Sessions of a group of which answers are shown."""
TAILS_AT_ONCE: Final = 4
MOST_KEPT: Final = 1024
"""Ends of answers that are kept."""


@functools.cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("rolloutfleet.inspect"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["shown"] = safe
    return made


def _html(template: str, *, root: str, live: bool, **context: Any) -> bytes:
    text = _environment().get_template(template).render(root=root, live=live, **context)
    # Half a character can't be sent, and may stand in a file.
    return text.encode("utf-8", "replace")


def static_folder() -> Path:
    """Modules and styles, served and copied as they are."""
    with as_file(files("rolloutfleet.inspect") / "static") as folder:
        return folder


async def fleet_page(source: Source) -> bytes:
    return fleet_html(await source.overview(), live=source.live)


def fleet_html(found: Json, *, live: bool) -> bytes:
    of_fleet = found["source"] == "fleet"
    context = {"fleet": found if of_fleet else None, "files": None if of_fleet else found}
    return _html("fleet.html", root="", live=live, **context)


async def sessions_page(source: Source) -> bytes:
    lines, _ = await source.sessions()
    return sessions_html(len(lines), live=source.live)


def sessions_html(total: int, *, live: bool) -> bytes:
    return _html("sessions.html", root="", live=live, total=total)


async def group_page(source: Source, group: str, tails: "Tails", *, only: frozenset[str] | None = None) -> bytes:
    """The sessions of a group side by side; `only` these, by key. Raises NotThere."""
    lines, _ = await source.sessions()
    members = [line for line in lines if line["group"] == group and (only is None or line["key"] in only)]
    if not members:
        raise NotThere
    members.sort(key=lambda line: (line["created_at"] or 0.0, line["session_id"]))
    ends = await asyncio.gather(*(tails.of(source, line) for line in members[:MOST_TAILS]))
    shown = [line | tail for line, tail in zip_longest(members, ends, fillvalue=_NO_TAIL)]
    return _html("group.html", root="../", live=source.live, group=members[0]["group_id"], sessions=shown)


async def session_page(source: Source, key: str) -> bytes:
    """Raises NotThere, NotNow."""
    tree = await source.tree(key)
    curl = await source.command(key)
    return _html("session.html", root="../", live=source.live, session=tree["session"], tree=tree, curl=curl)


def error_page(text: str, *, root: str) -> bytes:
    return _html("error.html", root=root, live=False, text=text)


_NO_TAIL: Final[Json] = {"tail": None, "last_turn": None}


class Tails:
    """How the newest answer of a session's main loop ends. That is read again once it has a new turn."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, int], Json] = OrderedDict()
        self._places = asyncio.Semaphore(TAILS_AT_ONCE)

    async def of(self, source: Source, line: Json) -> Json:
        name = line["key"], line["turns"]
        if name not in self._kept:
            async with self._places:
                try:
                    found = await _tail(source, line["key"])
                except (NotThere, NotNow):
                    return _NO_TAIL
            while len(self._kept) >= MOST_KEPT:
                self._kept.popitem(last=False)
            self._kept[name] = found
        return self._kept[name]


async def _tail(source: Source, key: str) -> Json:
    last = _newest((await source.tree(key))["turns"])
    if last is None:
        return _NO_TAIL
    return {"tail": last_words(await source.turn(key, last["name"]), TAIL), "last_turn": last["turn_id"]}


def _newest(turns: Sequence[Json]) -> Json | None:
    own = [turn for turn in turns if turn["lineage"]["kind"] == "main"] or turns
    return max(own, key=lambda turn: int(turn["number"]), default=None)

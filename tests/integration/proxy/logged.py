"""A proxy's log, read as it grows."""

import json
from collections import Counter
from typing import Any

from tests.fleets import ProxyProcess
from tests.waiting import eventually

Line = dict[str, Any]

STARTED, ENDED = "call_started", "call_ended"


def lines(proxy: ProxyProcess, event: str | None = None, **fields: Any) -> list[Line]:
    """The lines so far, of one event with these values of its fields; all of them are JSON, each whole."""
    text = proxy.log.read_text()
    read = [json.loads(line) for line in text[: text.rfind("\n") + 1].split("\n")[:-1]]
    return [
        line
        for line in read
        if event in (None, line["event"]) and all(line.get(name) == value for name, value in fields.items())
    ]


async def comes(proxy: ProxyProcess, event: str, *, count: int = 1, **fields: Any) -> list[Line]:
    """Wait for so many such lines."""
    await eventually(lambda: len(lines(proxy, event, **fields)) >= count)
    return lines(proxy, event, **fields)


def calls_told_otherwise_than_once(proxy: ProxyProcess) -> list[str]:
    """Chat calls without exactly one line at their start and one at their end, the start first."""
    orders: dict[str, list[str]] = {}
    for line in lines(proxy):
        if line["event"] in (STARTED, ENDED):
            orders.setdefault(line["call_id"], []).append(line["event"])
    return [call for call, order in orders.items() if order != [STARTED, ENDED]]


def counted(proxy: ProxyProcess, event: str, *names: str) -> Counter[tuple[str, ...]]:
    """How many lines of an event there are, by the values of some fields."""
    return Counter(tuple(str(line[name]) for name in names) for line in lines(proxy, event))

"""What is wrong with an answer, whatever was asked. Pure."""

import re
from collections.abc import Iterable
from functools import cache
from typing import Any

from tests.integration.fuzz.wire import Answer
from tests.paths import ROOT

from rolloutfleet import errors

API = ROOT / "docs" / "api.md"
BY_DESIGN = frozenset({(503, errors.DRAINING), (503, errors.PAUSED), (507, errors.STORE_FULL)})
"""Answers of 500 and more that a proxy gives on purpose while all around it is well, as a fuzz has it."""

KEY = re.compile(rb"rf-(?:0|[1-9]\d{0,5})-[0-9a-f]{12}-[A-Za-z0-9_-]{43}")
"""A session's key, whoever's."""
INSIDE = re.compile(rb"Traceback \(most recent|\bFile \"/|object at 0x[0-9a-f]|RequestInfo\(|sqlite3\.|pydantic")
"""What no answer shows of the program behind it."""
_ERROR_FIELDS = {"message", "type", "param", "code"}


@cache
def statuses_by_code() -> dict[str, set[int]]:
    """What docs/api.md says: error code -> the statuses that it comes with."""
    found: dict[str, set[int]] = {}
    table = API.read_text().partition("| code | status |")[2].partition("\n\n")[0]
    for row in table.splitlines():
        cells = [cell.strip() for cell in row.split("|")]
        if len(cells) < 4 or "`" not in cells[1]:
            continue
        codes = re.findall(r"`(\w+)`", cells[1])
        told = [int(number) for number in re.findall(r"\b[45]\d\d\b", cells[2])]
        more = {int(number) for number in re.findall(r"(?:^|\. )([45]\d\d) (?:where|while)", cells[3])}
        for index, code in enumerate(codes):
            own = {told[index]} if len(told) == len(codes) else set(told)
            found[code] = own | more
    return found


@cache
def calls() -> frozenset[str]:
    """Every call of docs/api.md, as it is written there."""
    return frozenset(re.findall(r"`((?:GET|PUT|POST|DELETE) /[^\s`]*)`", API.read_text()))


def error_of(answer: Answer) -> dict[str, Any] | None:
    """The documented error in an answer's body; None where it is not of that form."""
    told = answer.json
    error = told.get("error") if isinstance(told, dict) else None
    return error if isinstance(error, dict) and error.keys() >= _ERROR_FIELDS else None


def stream_error(answer: Answer) -> dict[str, Any] | None:
    """The error that ends a stream of events."""
    if not answer.headers.get("content-type", "").startswith("text/event-stream"):
        return None
    for event in events(answer):
        if isinstance(event, dict) and "error" in event:
            error: dict[str, Any] = event["error"]
            return error
    return None


def events(answer: Answer) -> list[Any]:
    """The events of a stream, `[DONE]` as None."""
    told = [line[6:] for line in answer.body.split(b"\n") if line.startswith(b"data: ")]
    return [None if data == b"[DONE]" else Answer(200, {}, data, False).json for data in told]


def code_of(answer: Answer) -> str | None:
    error = stream_error(answer) or (error_of(answer) if answer.status >= 400 else None)
    return None if error is None else str(error["code"])


def faults_of(
    answer: Answer, *, method: str, secrets: Iterable[bytes], shows_keys: bool, by_responses: bool = False
) -> list[str]:
    """Everything that no answer may be, in words. `shows_keys`: it is a start's, which alone tells a session's key.
    `by_responses`: it is of the Responses API, where what is 410 elsewhere may be 400."""
    return [
        *_forms(answer, bodiless=method == "HEAD" or answer.status in (204, 304), by_responses=by_responses),
        *_leaks(answer, secrets, shows_keys),
    ]


def _forms(answer: Answer, *, bodiless: bool, by_responses: bool) -> list[str]:
    if not 200 <= answer.status < 600 or 300 <= answer.status < 400:
        return [f"status {answer.status} is nowhere in the documentation"]
    if answer.status < 400:
        error = stream_error(answer)
        return [] if error is None else [f"a stream ended with {error.get('code')}"]
    if bodiless:
        return []
    error = error_of(answer)
    if error is None:
        return [f"an error of status {answer.status} without the documented form: {answer.body[:200]!r}"]
    return [
        *_of_the_documented_kind(answer.status, error, by_responses),
        *(
            ["an error that is not application/json"]
            if answer.headers.get("content-type") != "application/json"
            else []
        ),
    ]


def _of_the_documented_kind(status: int, error: dict[str, Any], by_responses: bool) -> list[str]:
    code, found = error["code"], []
    documented = statuses_by_code().get(code, set())
    if by_responses and 410 in documented:
        documented = documented | {400}
    if status not in documented:
        found.append(f"code {code!r} with status {status}, which docs/api.md does not say")
    if status >= 500 and (status, code) not in BY_DESIGN:
        found.append(f"an unhandled {status}: {code}: {error['message'][:300]}")
    if not isinstance(error["message"], str) or not error["message"]:
        found.append("an error without a message")
    if not isinstance(error["type"], str) or not error["type"].endswith("_error"):
        found.append(f"an error of type {error['type']!r}")
    return found


def _leaks(answer: Answer, secrets: Iterable[bytes], shows_keys: bool) -> list[str]:
    raw = answer.raw
    found = [f"it shows a secret of the fleet, {secret[:12]!r}..." for secret in secrets if secret in raw]
    if not shows_keys and KEY.search(raw):
        found.append("it shows a session's key")
    inside = INSIDE.search(raw)
    if inside:
        found.append(f"it shows the inside of the program: {raw[max(0, inside.start() - 40) : inside.end() + 80]!r}")
    return found

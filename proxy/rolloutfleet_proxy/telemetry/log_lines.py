"""What a line of the log looks like: JSON, or plain `name=value`. One line an event, whatever is in it."""

import logging
import re
import sqlite3
import time
import traceback
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from typing import Literal

import msgspec
from msgspec.structs import astuple

from rolloutfleet_proxy.telemetry.events import Event

LONGEST = 16_384
"""Characters of a message or traceback at the most."""

_LEVELS = {level: logging.getLevelName(level).lower() for level in (10, 20, 30, 40, 50)}
_SECRETS = (
    (re.compile(r"rf-\d+-[0-9a-f]{12}-[A-Za-z0-9_-]{43}|rfa-[A-Za-z0-9_-]{20,}"), "[key]"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[^\s\"',;]+"), r"\1 [key]"),
    (re.compile(r"(?i)((?:authorization|x-api-key)[\"']?\s*[:=,]\s*b?[\"']?)(?!bearer|basic)[^\s\"',;]+"), r"\1[key]"),
)
_SAFE = (
    OSError,
    sqlite3.Error,
    MemoryError,
    TypeError,
    AttributeError,
    NameError,
    ImportError,
    IndexError,
)
"""Exceptions that speak of files, tables, types and names. Others may quote the value that they found fault with."""
_encode = msgspec.json.Encoder().encode


class JsonForm:
    """A JSON object a line. `time` is UTC."""

    def __init__(self, *, pid: int, ordinal: int) -> None:
        self._heads = {
            level: b'","level":"%s","pid":%d,"ordinal":%d,' % (name.encode(), pid, ordinal)
            for level, name in _LEVELS.items()
        }

    def event(self, wall: float, level: int, event: Event) -> bytes:
        return b"".join((b'{"time":"', _stamp(wall), self._heads[level], _encode(event)[1:], b"\n"))

    def message(self, wall: float, level: int, logger: str, text: str, trace: str) -> bytes:
        fields = {"event": "message", "logger": logger, "message": text} | ({"trace": trace} if trace else {})
        return b"".join((b'{"time":"', _stamp(wall), self._head(level), _encode(fields)[1:], b"\n"))

    def _head(self, level: int) -> bytes:
        return self._heads.get(level) or self._heads[min(max(level // 10 * 10, 10), 50)]


class PlainForm:
    """`time LEVEL event pid=1 ordinal=0 name=value …`; a value with spaces or marks of the form is a JSON string."""

    def __init__(self, *, pid: int, ordinal: int) -> None:
        self._process = f" pid={pid} ordinal={ordinal}"

    def event(self, wall: float, level: int, event: Event) -> bytes:
        texts = [
            str(value) if type(value) is not str and type(value) is not bool else _plain(value)
            for value in astuple(event)
        ]
        # All names with their places, made once for each kind of event.
        said = _template(type(event), level) % (self._process, *texts)
        return _stamp(wall) + said.encode()

    def message(self, wall: float, level: int, logger: str, text: str, trace: str) -> bytes:
        said = f"{text} | {trace}" if trace else text
        line = f" {logging.getLevelName(level)} message{self._process} logger={_plain(logger)} {_in_one_line(said)}\n"
        return _stamp(wall) + line.encode("utf-8", "backslashreplace")


Form = JsonForm | PlainForm
"""Makes lines, each ended by a newline."""
FORMS: dict[Literal["json", "plain"], Callable[..., Form]] = {"json": JsonForm, "plain": PlainForm}


def message_line(form: Form, record: logging.LogRecord) -> bytes:
    """What a library or a module of ours says, as a line: without keys, and cut where it is very long."""
    text = _clean(record.getMessage())
    error = None if record.exc_info is None else record.exc_info[1]
    behind = "" if error is None else _clean(trace(error))
    return form.message(record.created, record.levelno, record.name, text, behind)


def trace(error: BaseException) -> str:
    """The tracebacks of an exception and of those behind it, the first one first.

    What it says is written where it can't quote a conversation.
    """
    behind = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    parts = [] if behind is None else [trace(behind)]
    said = f": {error}" if isinstance(error, _SAFE) else ""
    frames = "".join(traceback.format_tb(error.__traceback__))
    parts.append(f"Traceback:\n{frames}{type(error).__qualname__}{said}")
    parts += [trace(each) for each in getattr(error, "exceptions", ())]
    return "\n".join(parts)


def _clean(text: str) -> str:
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]} […] {text[-LONGEST // 2 :]}"
    return text.encode("utf-8", "backslashreplace").decode()


@cache
def _template(event: type[Event], level: int) -> str:
    fields = "".join(f" {name}=%s" for name in event.__struct_fields__)
    return f" {logging.getLevelName(level)} {event.__struct_config__.tag}%s{fields}\n"


def _plain(value: str | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if _BARE.fullmatch(value) else _in_one_line(value, quoted=True)


_BARE = re.compile(r"[A-Za-z0-9._~:/+@{}?&%#,;-]+")


def _in_one_line(text: str, *, quoted: bool = False) -> str:
    """Line ends and control characters escaped, as JSON has them."""
    escaped = _encode("".join(_visible(text))).decode()
    return escaped if quoted else escaped[1:-1].replace('\\"', '"')


def _visible(text: str) -> Iterable[str]:
    # JSON's encoder leaves what is not a control character for it, such as the line ends of Unicode.
    return (each if each.isprintable() or each in "\n\t\r" else f"<U+{ord(each):04X}>" for each in text)


def _stamp(wall: float) -> bytes:
    """Times to the millisecond."""
    second = int(wall)
    return b"%s%03dZ" % (_second(second), int((wall - second) * 1000))


@lru_cache(maxsize=2)
def _second(second: int) -> bytes:
    return time.strftime("%Y-%m-%dT%H:%M:%S.", time.gmtime(second)).encode()

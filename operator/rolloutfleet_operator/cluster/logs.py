"""The operator's log: one line an event on standard error, as a JSON object or as text."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final

from kopf._cogs.clients.errors import APINotFoundError

logger: Final = logging.getLogger("rolloutfleet_operator")

DefinitionGone = APINotFoundError
"""What kopf ends with when the kind that it watches is not there any more."""

_QUIET: Final = ("kopf", "aiohttp", "asyncio", "kubernetes")
_EXTRAS: Final = ("fleet", "generation")


def set_up(form: str, level: str) -> None:
    """Libraries say what goes wrong, and no more."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_is_news)
    handler.setFormatter(_Json() if form == "json" else _Plain())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def _is_news(record: logging.LogRecord) -> bool:
    """kopf tells with two tracebacks that what it watches is not there any more; one sentence of ours says it."""
    return record.exc_info is None or not isinstance(record.exc_info[1], DefinitionGone)


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        line |= {name: getattr(record, name) for name in _EXTRAS if hasattr(record, name)}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.name != logger.name:
            line["logger"] = record.name
        return json.dumps(line, ensure_ascii=False)


class _Plain(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        where = getattr(record, "fleet", None)
        line = f"{_time(record)} {record.levelname.lower()} {f'{where}: ' if where else ''}{record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

"""What callers give a fleet object, checked before anything is asked of the fleet."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from rolloutfleet.explain import explain
from rolloutfleet.fleet.base import Options
from rolloutfleet.fleet.exceptions import BadArgument
from rolloutfleet.fleet.prefetching import ExportOptions
from rolloutfleet.fleet.sessions import Handle
from rolloutfleet.fleet.trajectories import Leased
from rolloutfleet.wire import AskExport, Request, SessionStatus

Asked = TypeVar("Asked", bound=Request)

Named = Handle | SessionStatus | str
"""A session, what the fleet says of one, or its id."""

RETRY_SECONDS: Final = 60.0
LOST_AFTER: Final = 60.0


def checked(form: type[Asked], values: Mapping[str, Any]) -> Asked:
    """A request of this form. Raises BadArgument, which names the argument at fault."""
    try:
        return form.model_validate({name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        argument, _, why = explain(error, form)[0].partition(": ")
        raise BadArgument(argument, why) from None


def name_of(session: Named) -> str:
    """The id. Raises BadArgument."""
    name = session if isinstance(session, str) else session.session_id
    if not name or not all(letter.isalnum() or letter in "-_" for letter in name):
        raise BadArgument("session", f"{name[:80]!r} is not a valid session id")
    return name


def by_lease(trajectories: Iterable[Leased]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for each in trajectories:
        found.setdefault(each.lease_id, []).append(each.trajectory_id)
    return found


def check_choice(argument: str, value: object, choices: Sequence[str | None]) -> None:
    if value not in choices:
        raise BadArgument(argument, f"is {value!r}; it can be {' or '.join(map(str, choices))}")


def ask_export(
    *, session_ids: Iterable[Named] | None, discount: float, lease_seconds: float, **others: object
) -> AskExport:
    """Raises BadArgument."""
    values = {
        "session_ids": None if session_ids is None else list(map(name_of, session_ids)),
        "discount": number(discount),
        "lease_seconds": number(lease_seconds),
    }
    return checked(AskExport, values | others)


def check_export_options(wanted: ExportOptions) -> None:
    """Raises BadArgument."""
    check_choice("on_exit", wanted.on_exit, ("acknowledge", "keep"))
    for argument, value in (("count", wanted.count), ("page", wanted.page), ("prefetch", wanted.prefetch)):
        if value is not None:
            whole(argument, value)
    if wanted.count is not None and wanted.named:
        raise BadArgument("count", "goes with neither session_ids nor group_id; keep one")
    if wanted.timeout is not None:
        positive("timeout", wanted.timeout)


def checked_options(options: Options) -> None:
    """Raises BadArgument."""
    unknown = set(options) - set(Options.__annotations__)
    if unknown:
        known = ", ".join(Options.__annotations__)
        raise BadArgument(sorted(unknown)[0], f"is not an option of a fleet; there are {known}")
    check_choice("too_old", options.get("too_old", "drop"), ("drop", "keep"))
    positive("patience", options.get("patience", RETRY_SECONDS))
    positive("lost_after", options.get("lost_after", LOST_AFTER))


def whole(argument: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadArgument(argument, f"is {value!r}; it must be a whole number of at least 1")
    return value


def positive(argument: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise BadArgument(argument, f"is {value!r}; it must be a number of seconds above 0")
    return float(value)


def number(value: object) -> object:
    """A whole number where a float is meant is one; a boolean is not."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value

"""What callers give a fleet object, checked before anything is asked of the fleet."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ConfigDict, SkipValidation, ValidationError

from rolloutfleet.explain import explain
from rolloutfleet.fleet.admission import TooOld
from rolloutfleet.fleet.exceptions import BadArgument
from rolloutfleet.fleet.sessions import Handle
from rolloutfleet.staleness import StalenessManager
from rolloutfleet.wire import AboveZero, Request, SessionStatus

Asked = TypeVar("Asked", bound=Request)

Named = Handle | SessionStatus | str
"""A session, what the fleet says of one, or its id."""


class FleetOptions(Request):
    """`Options`, and what holds where nothing is said."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    staleness: SkipValidation[StalenessManager | None] = None
    too_old: TooOld = "drop"
    patience: AboveZero = 60.0
    lost_after: AboveZero = 60.0
    progress: bool | None = None


def valid(form: type[Asked], values: Mapping[str, Any]) -> Asked:
    """A request of this form. Raises BadArgument, which names the argument at fault."""
    try:
        return form.model_validate({name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        argument, _, why = explain(error, form)[0].partition(": ")
        raise BadArgument(argument, why) from None


def check_names(call: str, given: Mapping[str, object], known: type) -> None:
    """Raises TypeError for an argument by a name that the TypedDict lacks, as Python does for parameters."""
    for name in given.keys() - known.__annotations__.keys():
        raise TypeError(f"{call}() got an unexpected keyword argument {name!r}")


def name_of(session: Named) -> str:
    """The id. Raises BadArgument."""
    name = session if isinstance(session, str) else session.session_id
    if not name or not all(letter.isalnum() or letter in "-_" for letter in name):
        raise BadArgument("session", f"{name[:80]!r} is not a valid session id")
    return name


def check_choice(argument: str, value: object, choices: Sequence[str | None]) -> None:
    """Raises BadArgument."""
    if value not in choices:
        raise BadArgument(argument, f"is {value!r}; it can be {' or '.join(map(str, choices))}")

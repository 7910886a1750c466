"""One warning for each request to the gateway that brought no turn."""

import logging
from time import perf_counter

from rolloutfleet.errors import EVIDENCE_REFUSED
from rolloutfleet_proxy.domain.errors import DomainError
from rolloutfleet_proxy.engines.client import GenerateRequest, shown
from rolloutfleet_proxy.engines.evidence import Refused
from rolloutfleet_proxy.telemetry.calls import milliseconds
from rolloutfleet_proxy.telemetry.events import EngineFailure, emit
from rolloutfleet_proxy.telemetry.request_ids import REQUEST_ID


def tell(error: DomainError | Refused, request: GenerateRequest, *, url: str, began: float) -> str:
    """Log a failure of a round that began at `began` (perf_counter); returns its error code.

    What the engine said is left out: it may quote the conversation.
    """
    code = EVIDENCE_REFUSED if isinstance(error, Refused) else error.code
    emit(
        EngineFailure(
            request_id=request.headers.get(REQUEST_ID, ""),
            session_id=request.routing_key,
            turn_id=request.rid,
            url=shown(url),
            elapsed_ms=milliseconds(perf_counter() - began),
            error_type=error_type(error),
            code=code,
        ),
        logging.WARNING,
    )
    return code


def error_type(error: DomainError | Refused) -> str:
    """The reason of a refusal; the name of the exception behind an error where there is one, else its code."""
    if isinstance(error, Refused):
        return error.reason
    return type(error.__context__).__name__ if error.__context__ is not None else error.code

"""Whether calls are traced: OpenTelemetry's own variables say it. Where they don't, its SDK is not imported.

Tracing is an aid: what is wrong with its variables is said in the log, and the proxy serves without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from rolloutfleet.installed import how_to_add
from rolloutfleet.settings import ProxySettings
from rolloutfleet_proxy.telemetry import logger

if TYPE_CHECKING:
    from rolloutfleet_proxy.telemetry.spans import Spans

_OTLP: Final = "OTEL_EXPORTER_OTLP_"
_ENDPOINT, _PROTOCOL = ("TRACES_ENDPOINT", "ENDPOINT"), ("TRACES_PROTOCOL", "PROTOCOL")
_SPOKEN: Final = "http/protobuf"


def begin(settings: ProxySettings, environment: Mapping[str, str]) -> Spans | None:
    """What writes the spans of a proxy; None where none are wanted, or can be written."""
    if not is_wanted(environment):
        return None
    mistake = _mistake(environment)
    if mistake is None:
        try:
            from rolloutfleet_proxy.telemetry.spans import Spans

            return Spans.begin(settings)
        except ImportError as error:
            mistake = f"{error}; {how_to_add('otel')}"
        except (ValueError, RuntimeError, OSError) as error:
            mistake = f"the SDK refuses its environment variables: {error}"
    logger.warning("calls are not traced: %s", mistake)
    return None


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Whether a collector is named, and nothing says that it is not to be used."""
    exporters = environment.get("OTEL_TRACES_EXPORTER") or "otlp"
    is_disabled = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return bool(_first(environment, _ENDPOINT)[1]) and "otlp" in exporters and not is_disabled


def _mistake(environment: Mapping[str, str]) -> str | None:
    """What would keep spans from ever arriving, and how to mend it."""
    name, endpoint = _first(environment, _ENDPOINT)
    if not endpoint.startswith(("http://", "https://")):
        return f"{name} must be a URL such as http://collector:4318, not {endpoint!r}"
    name, protocol = _first(environment, _PROTOCOL)
    if protocol and protocol != _SPOKEN:
        return f"{name} is {protocol!r}, and this proxy speaks {_SPOKEN} alone: name the collector's port for it (4318)"
    return None


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, str]:
    """The first of these variables that is set, and what it says; else an empty text."""
    said = ((f"{_OTLP}{name}", environment.get(f"{_OTLP}{name}", "").strip()) for name in names)
    return next((each for each in said if each[1]), ("", ""))

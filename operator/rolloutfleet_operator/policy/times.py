"""Times as Kubernetes writes them (RFC 3339, UTC, whole seconds), and as seconds since 1970."""

from datetime import UTC, datetime


def text_of(time: float) -> str:
    """`2026-11-21T18:00:00Z`; parts of a second are left out."""
    return datetime.fromtimestamp(int(time), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_of(text: str) -> float:
    """Seconds since 1970; 0 for a text that is no time, so that a status written by hand stops nothing."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0

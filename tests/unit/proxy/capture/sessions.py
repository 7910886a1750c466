"""Sessions of a registry, without a store."""

from rolloutfleet_proxy.domain.session import OPEN
from rolloutfleet_proxy.sessions.registry import Session


def open_session(created_at: float = 0.0) -> Session:
    return Session(
        id=1,
        name="s",
        key_hash=b"",
        group="g",
        task_id=None,
        metadata_json=None,
        limits={},
        agent_may=frozenset(),
        stale_after=None,
        state=OPEN,
        tokens=0,
        created_at=created_at,
    )

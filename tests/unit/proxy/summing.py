"""What the columns of sessions have to say, worked out of their turns in another way than the store does."""

import json
from typing import Any

from tests.unit.proxy.stores import SyncStore

from rolloutfleet_proxy.domain.matching import Matching

COLUMNS = "branches, output_tokens, rewarded, reward, version_min, version_max"


def said(store: SyncStore) -> dict[int, tuple[Any, ...]]:
    """The columns of each session, by row id."""
    return {session: tuple(columns) for session, *columns in store.rows(f"SELECT id, {COLUMNS} FROM sessions")}


def summed(store: SyncStore) -> dict[int, tuple[Any, ...]]:
    """What its turns say of each session."""
    return {session: _of_turns(store, session) for (session,) in store.rows("SELECT id FROM sessions")}


def _of_turns(store: SyncStore, session: int) -> tuple[Any, ...]:
    turns = store.rows(
        "SELECT number, parent, reward, length(output_ids) / 4, matching, CAST(versions AS TEXT) FROM turns"
        " WHERE session = ? ORDER BY number",
        session,
    )
    parents = {parent for _, parent, *_ in turns}
    rewards = [(matching, reward) for _, _, reward, _, matching, _ in turns if reward is not None]
    of_main = [reward for matching, reward in rewards if Matching.decode(matching).lineage.kind == "main"]
    telling = of_main or [reward for _, reward in rewards]
    versions = [version for turn in turns for version, tokens in json.loads(turn[5]) if tokens]
    return (
        sum(number not in parents for number, *_ in turns),
        sum(tokens for *_, tokens, _, _ in turns),
        len(rewards),
        telling[-1] if telling else None,
        min(versions, default=None),
        max(versions, default=None),
    )

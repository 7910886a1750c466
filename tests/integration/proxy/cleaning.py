"""Sessions that are cleaned up soon, and their dumps."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import libfaketime
from tests.fleets import AgentSession, ProxyProcess
from tests.integration.proxy import judge
from tests.waiting import PATIENCE, until

from rolloutfleet.dumps.checks import verify
from rolloutfleet.dumps.reading import decode
from rolloutfleet_proxy.failpoints import VARIABLE
from rolloutfleet_proxy.services.sweeping import BATCH

SESSIONS = 6
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Tell me something"}], "max_tokens": 20}
SOON: dict[str, Any] = {"stale_after": 1.0, "unclaimed_after": 1.0, "cleanup_interval": 0.2}
LIVES = 6.0
"""`stale_after` of a session that must live from one call to the next: a busy machine may take a second in between."""


def is_gone(session: AgentSession) -> bool:
    return session.proxy.is_gone(session.session_id)


def dump_folder(proxy: ProxyProcess) -> Path:
    return Path(proxy.settings["state_dir"]) / "dumps"


def talk(session: AgentSession, *, turns: int = 1, **more: Any) -> list[str]:
    """A conversation; returns the turns' ids."""
    messages: list[dict[str, Any]] = list(CHAT["messages"])
    ids = []
    for _ in range(turns):
        reply = session.raw_chat({**CHAT, "messages": messages, **more})
        assert reply.status_code == 200, reply.text
        ids.append(reply.json()["id"])
        messages += [reply.json()["choices"][0]["message"], {"role": "user", "content": "And then?"}]
    return ids


def dumped_turns(proxy: ProxyProcess) -> Counter[str]:
    """How often each turn is in a dump as its own; every file is whole."""
    turns: Counter[str] = Counter()
    for file in dump_folder(proxy).glob("s*"):
        with file.open("rb") as opened:
            assert verify(opened, name=file.name) == []
        turns.update(turn.turn_id for turn in decode(file.read_bytes()).turns if not turn.context)
    return turns


def faketime() -> Path:
    """The library that gives one process another wall clock."""
    return Path(str(libfaketime.__file__)).parent / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"


def conversations(proxy: ProxyProcess) -> set[str]:
    """Sessions with trajectories and open turns; returns the ids of their turns."""
    turns: set[str] = set()
    for number in range(SESSIONS):
        session = proxy.start_session()
        turns.update(talk(session, turns=2))
        if number % 2:
            session.post("reward", {"reward": 1.0})
            turns.update(talk(session))
    return turns


def die_in_sweeps(proxy: ProxyProcess, places: Sequence[tuple[str, int]]) -> None:
    """Killed at each place, when it comes there for the n-th time, and at work again after the last: nothing is lost.

    The proxy is not started yet; its folder of dumps shows what the sweeps have done.
    """
    proxy.settings["sessions"] = {**SOON, "stale_after": 3600}
    proxy.start()
    turns = conversations(proxy)
    # More than one batch, so that a kill can come between two.
    with proxy.admin() as admin:
        for _ in range(BATCH):
            admin.post("/sessions", json={}).raise_for_status()
    proxy.kill()
    proxy.settings["sessions"] = {**SOON, "stale_after": 0.2}
    for place, times in places:
        proxy.environment = {VARIABLE: f"{place}:{times}"}
        proxy.launch()
        proxy.wait_until_killed(PATIENCE)
        dumped = dumped_turns(proxy)
        assert set(dumped) <= turns and set(dumped.values()) <= {1}, f"{place}: what is there is whole"
    proxy.environment = {}
    proxy.start()
    until(lambda: proxy.audit()["sessions"]["live"] == 0)
    audit = proxy.audit()
    assert audit["balanced"] and audit["keys"] == 0
    assert audit["turns"]["dumped"] == len(turns) and audit["sessions"]["dumped"] == SESSIONS
    assert dumped_turns(proxy) == Counter(turns), "each turn is in one dump, once"
    assert [path.name for path in dump_folder(proxy).iterdir() if not path.name.startswith("s")] == []
    judge.assert_sound(proxy)

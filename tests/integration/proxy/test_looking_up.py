"""What looks at all that the store holds has a reader of its own: nobody who looks something up waits for it."""

import asyncio
import threading
from pathlib import Path
from typing import Any

from tests.fleets import Fleet
from tests.integration.proxy.in_process import proxy_in_process
from tests.waiting import PATIENCE

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Tell me something"}], "max_tokens": 8}
OF_ALL: tuple[tuple[str, dict[str, str]], ...] = (
    ("/audit", {}),
    ("/sessions", {"task_id": "no such"}),
    ("/sessions", {"min_reward": "2"}),
)


async def test_lookups_wait_for_no_audit_and_no_list(fleet: Fleet, tmp_path: Path) -> None:
    async with proxy_in_process(fleet, tmp_path) as (app, admin):
        assert app.opened is not None
        session = (await admin.post("/sessions", json={})).raise_for_status().json()
        path, freed = f"/sessions/{session['session_id']}", threading.Event()
        reader = app.opened.services.sessions.store.recounting
        occupied = asyncio.create_task(reader.run(lambda _: freed.wait(4 * PATIENCE)))
        looking = [asyncio.create_task(admin.get(url, params=chosen)) for url, chosen in OF_ALL]
        try:
            chat = {"authorization": f"Bearer {session['api_key']}"}
            (await admin.post(f"{path}/v1/chat/completions", json=CHAT, headers=chat)).raise_for_status()
            for url in (path, f"{path}/turns", "/metrics", "/stats", "/sessions", path):
                (await admin.get(url)).raise_for_status()
            assert not any(task.done() for task in (occupied, *looking))
        finally:
            freed.set()
        audit, *lists = [(await each).raise_for_status().json() for each in looking]
        assert audit["balanced"] and audit["turns"]["live"] == 1
        assert [each["sessions"] for each in lists] == [[], []] and await occupied

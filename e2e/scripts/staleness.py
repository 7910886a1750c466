"""Runs in the cluster: FLEET. One session that falls idle and one that stays busy, until the idle one is reclaimed.

Prints, as its last line: {"idle": session, "idle_owner": ordinal, "idle_status": of its next call,
"busy_turns": how many, "busy_errors": [text, …]}.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import openai

fleet = sys.argv[1]
admin = {"Authorization": f"Bearer {Path('/etc/rolloutfleet/keys/admin-keys').read_text().split()[0]}"}
trainer = httpx.Client(base_url=f"http://{fleet}", headers=admin, timeout=60)


def started(task: str) -> tuple[dict[str, Any], openai.OpenAI]:
    session = trainer.post("/sessions", json={"task_id": task}).raise_for_status().json()["sessions"][0]
    return session, openai.OpenAI(base_url=session["base_url"], api_key=session["api_key"])


def ask(agent: openai.OpenAI, text: str) -> None:
    agent.chat.completions.create(model="simulated", messages=[{"role": "user", "content": text}], max_tokens=20)


idle, idle_agent = started("idle")
_, busy_agent = started("busy")
ask(idle_agent, "What is one and one?")
print("begun", flush=True)

turns, errors, reclaimed = 0, [], False
deadline = time.monotonic() + 170
while not reclaimed and time.monotonic() < deadline:
    try:
        ask(busy_agent, f"What is {turns} and {turns}?")
        turns += 1
    except openai.OpenAIError as error:
        errors.append(repr(error))
    # The trainer may look: that is not a call of the agent's, and keeps nothing alive.
    seen = trainer.get(f"/sessions/{idle['session_id']}")
    reclaimed = seen.status_code != 200 or seen.json()["state"] != "open"
    time.sleep(1)

try:
    ask(idle_agent, "Are you there?")
    status = 200
except openai.APIStatusError as error:
    status = error.status_code
print(
    json.dumps(
        {
            "idle": idle["session_id"],
            "idle_owner": int(idle["session_id"].removeprefix("s").partition("-")[0]),
            "idle_status": status,
            "busy_turns": turns,
            "busy_errors": errors,
        }
    )
)

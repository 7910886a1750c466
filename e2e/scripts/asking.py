"""Runs in the cluster: FLEET MOST. One agent that goes on until it is refused, or until so many turns were answered.

It tries nothing twice, and its session stays open. Prints, as its last line,
{"answered": {session: [turn, …]}, "refused": the status, or null}.
"""

import json
import sys
from pathlib import Path
from typing import Any

import httpx
import openai

fleet, most = sys.argv[1], int(sys.argv[2])
admin = {"Authorization": f"Bearer {Path('/etc/rolloutfleet/keys/admin-keys').read_text().split()[0]}"}
answered: dict[str, list[str]] = {}


def run() -> int | None:
    """The status by which it was refused."""
    with httpx.Client(base_url=f"http://{fleet}", headers=admin, timeout=60) as trainer:
        answer = trainer.post("/sessions", json={"task_id": "until-refused"})
    if answer.is_error:
        return answer.status_code
    started = answer.json()["sessions"][0]
    agent = openai.OpenAI(base_url=started["base_url"], api_key=started["api_key"], max_retries=0)
    seen = answered.setdefault(started["session_id"], [])
    for turn in range(most):
        messages: list[Any] = [{"role": "user", "content": f"What is {turn} and {turn}?"}]
        try:
            seen.append(agent.chat.completions.create(model="simulated", messages=messages, max_tokens=40).id)
        except openai.APIStatusError as error:
            return error.status_code
    return None


refused = run()
print(json.dumps({"answered": answered, "refused": refused}))

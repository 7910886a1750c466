"""Runs in the cluster: FLEET SESSIONS TURNS. Agents one after another, streamed and not, then their rewards.

Prints, as its last line, the turns that clients saw answered: {"answered": {session: [turn, …]}}.
"""

import json
import sys
from pathlib import Path
from typing import Any

import httpx
import openai

fleet, sessions, turns = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
admin = {"Authorization": f"Bearer {Path('/etc/rolloutfleet/keys/admin-keys').read_text().split()[0]}"}
trainer = httpx.Client(base_url=f"http://{fleet}", headers=admin, timeout=60)
answered: dict[str, list[str]] = {}

for number in range(sessions):
    started = trainer.post("/sessions", json={"task_id": f"task-{number}"}).raise_for_status().json()["sessions"][0]
    agent = openai.OpenAI(base_url=started["base_url"], api_key=started["api_key"])
    model = agent.models.list().data[0].id
    messages: list[Any] = [{"role": "user", "content": f"What is {number} and {number}?"}]
    seen = answered.setdefault(started["session_id"], [])
    for turn in range(turns):
        if turn % 2:
            chunks = list(agent.chat.completions.create(model=model, messages=messages, max_tokens=30, stream=True))
            seen.append(chunks[-1].id)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
            messages.append({"role": "assistant", "content": text})
        else:
            answer = agent.chat.completions.create(model=model, messages=messages, max_tokens=30)
            seen.append(answer.id)
            messages.append(answer.choices[0].message.model_dump(exclude_none=True))
        messages.append({"role": "user", "content": "Go on."})
    trainer.post(f"/sessions/{started['session_id']}/reward", json={"reward": 1.0}).raise_for_status()
    print(f"{started['session_id']}: {len(seen)} turns", flush=True)

print(json.dumps({"answered": answered}))

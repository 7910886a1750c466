"""Runs in the cluster: FLEET AGENTS RETRIES CHARACTERS. Agents side by side, one session after another, until SIGUSR1.

An agent knows nothing of proxies: the stock client, streamed and not in turn. RETRIES is the client's `max_retries`;
its own default is 2. Each session begins with a text of so many CHARACTERS, unlike any other. Whoever starts sessions
and rewards them is not an agent: that is tried until it works.

Prints, as its last line: {"answered": {session: [turn, …]}, "errors": [text, …], "at": [when, …] of these in seconds
since the epoch, "slowest": seconds of a call}.
"""

import json
import secrets
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import openai

fleet, agents, retries, characters = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
admin = {"Authorization": f"Bearer {Path('/etc/rolloutfleet/keys/admin-keys').read_text().split()[0]}"}
stop = threading.Event()
answered: dict[str, list[str]] = {}
errors: list[str] = []
at: list[float] = []
slowest = 0.0


def tell(path: str, body: dict[str, Any]) -> Any:
    """The trainer's part."""
    deadline = time.monotonic() + 120
    while True:
        try:
            with httpx.Client(base_url=f"http://{fleet}", headers=admin, timeout=60) as trainer:
                return trainer.post(path, json=body).raise_for_status().json()
        except httpx.HTTPError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def call(agent: openai.OpenAI, messages: list[Any], *, streamed: bool) -> tuple[str, str]:
    """The turn's id, and its text."""
    if not streamed:
        answer = agent.chat.completions.create(model="simulated", messages=messages, max_tokens=40)
        return answer.id, answer.choices[0].message.content or ""
    chunks = list(agent.chat.completions.create(model="simulated", messages=messages, max_tokens=40, stream=True))
    return chunks[-1].id, "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def session(number: int, serial: int) -> None:
    global slowest
    started = tell("/sessions", {"task_id": f"task-{number}-{serial}"})["sessions"][0]
    seen = answered.setdefault(started["session_id"], [])
    text = secrets.token_hex(characters // 2)
    messages: list[Any] = [{"role": "user", "content": f"What is {number} and {serial}? {text}"}]
    with openai.OpenAI(base_url=started["base_url"], api_key=started["api_key"], max_retries=retries) as agent:
        for turn in range(6):
            began = time.monotonic()
            try:
                name, text = call(agent, messages, streamed=turn % 2 == 1)
            except openai.OpenAIError as error:
                at.append(time.time())
                errors.append(f"{started['session_id']} turn {turn} after {time.monotonic() - began:.1f} s: {error!r}")
                break
            slowest = max(slowest, time.monotonic() - began)
            seen.append(name)
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Go on."}]
            time.sleep(0.2)
    if seen:  # of a session without a turn nothing can be rewarded
        tell(f"/sessions/{started['session_id']}/reward", {"reward": 1.0})


def go_on(number: int) -> None:
    serial = 0
    try:
        while not stop.is_set():
            session(number, serial)
            serial += 1
    except Exception as error:
        at.append(time.time())
        errors.append(f"agent {number}: {error!r}")


signal.signal(signal.SIGUSR1, lambda *_: stop.set())
threads = [threading.Thread(target=go_on, args=(number,)) for number in range(agents)]
for thread in threads:
    thread.start()
print("begun", flush=True)
while not stop.wait(1):
    pass
for thread in threads:
    thread.join()
print(json.dumps({"answered": answered, "errors": errors, "at": at, "slowest": round(slowest, 1)}))

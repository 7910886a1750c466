"""An agent that notes each answer: a function, or a program with a child, `python -m … FOLDER LIFE TURNS`.

FOLDER/answers has a line for each answer, `SESSION TURN`, which ends before the next call begins.
"""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import Any

from tests.waiting import PATIENCE, until

ANSWERS = "answers"
TIMEOUT = 20.0
AGAIN = 0.2
"""Seconds until a call that failed is made again, with its key."""

Json = Any


def converse(base_url: str, key: str, *, turns: int, patient: bool, folder: Path) -> int:
    """So many turns, each after the other; where it is `patient`, through every restart of its proxy."""
    messages: list[Json] = []
    session_id = base_url.rstrip("/").split("/")[-2]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Tell me about {session_id}, {turn}."})
        reply = _asked_until_told(base_url, key, messages) if patient else _ask(base_url, key, messages, call="")
        append(folder / ANSWERS, f"{session_id} {reply['id']}")
        messages.append(reply["choices"][0]["message"])
    return turns


def append(file: Path, line: str) -> None:
    """A line, whole, by whichever process."""
    with file.open("ab", buffering=0) as opened:
        opened.write(f"{line}\n".encode())


def _asked_until_told(base_url: str, key: str, messages: list[Json]) -> Json:
    call = uuid.uuid4().hex

    def told() -> Json:
        try:
            return _ask(base_url, key, messages, call=call)
        except urllib.error.HTTPError as error:
            if error.code not in (409, 429, 503):
                raise
        except OSError:
            pass
        return None

    return until(told, seconds=PATIENCE, rest=AGAIN)


def _ask(base_url: str, key: str, messages: list[Json], *, call: str) -> Json:
    body = {"model": "simulated", "messages": messages, "max_tokens": 8}
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    headers |= {"idempotency-key": call} if call else {}
    request = urllib.request.Request(f"{base_url}/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT) as reply:
        return json.load(reply)


def main() -> None:
    folder, life, turns = sys.argv[1:]
    # A child that never ends by itself, with the life in its command line.
    subprocess.Popen(["sh", "-c", "sleep 1000; :", folder, life])
    base_url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
    converse(base_url, key, turns=int(turns), patient=int(turns) % 2 == 0, folder=Path(folder))


if __name__ == "__main__":
    main()

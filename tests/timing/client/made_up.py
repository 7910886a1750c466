"""A source as large as pages must be able to show, without a fleet: `python -m tests.timing.client.made_up` serves it.

Its sessions are lines of a list; the first one has 200,000 tokens, in turns that branch.
"""

import asyncio
import math
import random
from typing import Any, Final

from rolloutfleet.inspect.documents import chunk_document, newest, strip, tree_document, turn_document
from rolloutfleet.inspect.serving import listen, serve
from rolloutfleet.inspect.sources import NotThere
from rolloutfleet.inspect.tabs import Tabs
from rolloutfleet.wire import ShownTurn

Json = dict[str, Any]

SESSIONS: Final = 10_000
GROUP: Final = 8
TURNS: Final = 40
PROMPT: Final = 1_000
"""New tokens of a turn's prompt; with its output, TURNS of them are 200,000 tokens."""
OUTPUT: Final = 4_000
FIRST: Final = 1_790_000_000.0
_WORDS: Final = (
    "the",
    "of",
    "to",
    "and",
    "in",
    "that",
    "is",
    "was",
    "for",
    "it",
    "with",
    "as",
    "his",
    "had",
    "which",
    "there",
)


def line(number: int) -> Json:
    """A session of the list; all of it follows from its number."""
    known = random.Random(number)
    turns = known.randint(1, 30)
    return {
        "key": f"made-{number}",
        "session_id": f"s{number % 4}-0123456789ab-{number:016x}",
        "task_id": f"task-{number // GROUP % 400}",
        "group_id": f"group-{number // GROUP}",
        "group": f"group-{number // GROUP}",
        "state": known.choice(["open", "closed"]),
        "outcome": None,
        "outcome_reason": None,
        "fate": known.choice(["live", "live", "leased", "acknowledged"]),
        "ordinal": number % 4,
        "source": "fleet",
        "created_at": FIRST - number,
        "turns": turns,
        "tokens": turns * known.randint(200, 4000),
        "branches": known.choice([1, 1, 1, 2, 3]),
        "reward": known.choice([None, 0.0, 0.5, 1.0]),
        "version_min": number // 1000,
        "version_max": number // 1000 + 1,
        "in_flight": 0,
        "rewarded": 1,
        "output_tokens": 1,
        "last_activity_at": FIRST,
    }


def turn(number: int) -> ShownTurn:
    """Of the long session. Each tenth parts from the turn before the last."""
    branches = number % 10 == 0
    known = random.Random(number)
    return ShownTurn.model_validate(
        {
            "turn_id": f"turn-{number}",
            "parent_id": None if number == 1 else f"turn-{number - 2 if branches else number - 1}",
            "number": number,
            "trajectory_id": None,
            "trajectory_state": None,
            "discarded": False,
            "delivered": True,
            "reward": None,
            "finish_reason": "stop",
            "mixed_cache": False,
            "branch_reason": {"message": number, "field": "content"} if branches else None,
            "created_at": FIRST + 10 * number,
            "prompt_tokens": number * PROMPT,
            "completion_tokens": OUTPUT,
            "new_prompt_tokens": PROMPT,
            "timing": {
                "queue": 0.01,
                "tokenise_in": 0.004,
                "pause": 0.0,
                "engine": known.random() * 5,
                "tokenise_out": 0.003,
            },
            "leases": [],
            "tools": None,
            "template_kwargs": None,
            "messages": [
                {"index": 2 * number, "message": {"role": "user", "content": _text(known, 700)}},
                {"index": 2 * number + 1, "message": {"role": "assistant", "content": _text(known, 3000)}},
            ],
            "tokens": _tokens(known),
        }
    )


def _text(known: random.Random, words: int) -> str:
    return " ".join(known.choices(_WORDS, k=words))


def _tokens(known: random.Random) -> Json:
    count = PROMPT + OUTPUT
    logprobs = [-abs(known.gauss(0, 0.8)) for _ in range(OUTPUT)]
    return {
        "start": 0,
        "input_ids": [known.randrange(50_000) for _ in range(count)],
        "texts": [f" {word}" if at % 40 else f"{word}\n" for at, word in enumerate(known.choices(_WORDS, k=count), 1)],
        "logprobs": [0.0] * PROMPT + logprobs,
        "versions": [-1] * PROMPT + [known.choice([3, 3, 3, 4]) for _ in range(OUTPUT)],
        "loss_mask": [0] * PROMPT + [1] * OUTPUT,
        "annotations": {"logprobs": [None] * PROMPT + [each + known.gauss(0, 0.05) for each in logprobs]},
    }


class MadeUp:
    """A `Source`."""

    live = False

    def __init__(self, sessions: int = SESSIONS) -> None:
        self._lines = [line(number) for number in range(sessions)]
        self._turns = {f"turn-{number}": turn(number) for number in range(1, TURNS + 1)}

    def seen(self) -> None:
        """Nothing goes on here."""

    async def overview(self) -> Json:
        return {
            "source": "files",
            "folder": "/made/up",
            "files": 1,
            "complete": True,
            **newest(self._lines),
            "unreadable": [],
            "fleet": {},
            "proxies": [],
            "failed": {},
            "trouble": None,
        }

    async def sessions(self) -> tuple[list[Json], bool]:
        return self._lines, True

    async def tree(self, key: str) -> Json:
        if key != self._lines[0]["key"]:
            raise NotThere
        return tree_document(self._lines[0], list(self._turns.values()))

    async def turn(self, key: str, turn: str) -> Json:
        return turn_document(self._of(turn), tokens=PROMPT + OUTPUT, strip=None)

    async def strip(self, key: str, turn: str) -> Json:
        return {"strip": strip(self._of(turn).tokens.logprobs[PROMPT:])}

    async def chunk(self, key: str, turn: str, number: int) -> Json:
        if number >= math.ceil((PROMPT + OUTPUT) / 512):
            raise NotThere
        return chunk_document(self._of(turn).tokens, number)

    async def command(self, key: str) -> str | None:
        return None

    def _of(self, turn: str) -> ShownTurn:
        if turn not in self._turns:
            raise NotThere
        return self._turns[turn]


def main() -> None:
    with listen(0) as listening:
        asyncio.run(serve(MadeUp(), Tabs(), listening, lambda url: print(url, flush=True)))


if __name__ == "__main__":
    main()

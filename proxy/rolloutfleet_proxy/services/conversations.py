"""Pages of a session's conversation, for those who look on.

They are read and made on threads and connections of their own, so no call waits for a viewer; and past the parts that
calls use, so looking on changes nothing of what becomes of a session.
"""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from rolloutfleet.wire import TOKENS_A_PAGE
from rolloutfleet_proxy.domain.errors import InvalidParameter, TooManyViewers, TurnNotFound
from rolloutfleet_proxy.domain.ledger import DISCARDED
from rolloutfleet_proxy.domain.trajectory import trajectory_name
from rolloutfleet_proxy.domain.turn import shown_facts
from rolloutfleet_proxy.services.token_texts import token_texts
from rolloutfleet_proxy.store import conversations as rows
from rolloutfleet_proxy.store.annotations import load_note
from rolloutfleet_proxy.store.conversations import TurnShape
from rolloutfleet_proxy.store.store import Connection, Store
from rolloutfleet_proxy.telemetry.phases import BEFORE_COMMIT

AT_ONCE: Final = 2
MOST_WAITING: Final = 8
"""Pages that wait for those that are made."""
TURNS_A_PAGE: Final = 256
BYTES_A_PAGE: Final = 1 << 20
"""Of messages as JSON, from which on no more are added."""

_encode = msgspec.json.Encoder().encode
Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which page is asked for."""

    session: str
    branch: str | None
    """Name of the branch's last turn; None: the newest."""
    cursor: str | None
    """A turn's name, and how many of its messages and tokens have been shown: `turn-1:0:4096`; or its name alone."""
    outline: bool = False
    """All turns, of every branch unless one is named, without messages and tokens."""


class Conversations:
    """Makes pages, two at once."""

    def __init__(self, store: Store, token_bytes: Callable[[int], bytes]) -> None:
        self._store = store
        self._token_bytes = token_bytes
        self._threads = ThreadPoolExecutor(max_workers=AT_ONCE, thread_name_prefix="viewers")
        self._unfinished = 0

    async def page(self, asked: Asked) -> bytes | None:
        """JSON of `wire.Conversation`; None where the session's rows are not here.

        Raises TurnNotFound, InvalidParameter for a cursor that no page has, TooManyViewers, and TurnDamaged.
        """
        if self._unfinished >= AT_ONCE + MOST_WAITING:
            raise TooManyViewers("Many pages of conversations are being read at this proxy: wait for Retry-After.")
        self._unfinished += 1
        making = self._threads.submit(self._read, asked)
        loop = asyncio.get_running_loop()
        making.add_done_callback(lambda _: loop.call_soon_threadsafe(self._finished))
        return await asyncio.wrap_future(making)

    def close(self) -> None:
        """Wait for pages that are made."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _finished(self) -> None:
        self._unfinished -= 1

    def _read(self, asked: Asked) -> bytes | None:
        with contextlib.closing(self._store.database.connect(read_only=True)) as connection:
            connection.execute("BEGIN")
            session = rows.find_session(connection, asked.session)
            if session is None:
                return None
            page = self._page(connection, session, asked)
            return _encode({"session_id": asked.session, **page, "ordinals": [self._store.owner.ordinal]})

    def _page(self, connection: Connection, session: int, asked: Asked) -> Json:
        last = rows.find_turn(connection, session, asked.branch)
        if last is None:
            if asked.branch is not None:
                raise TurnNotFound(f"This session has no turn {asked.branch[:80]!r}.", param="branch")
            return {"branch": None, "turns": [], "cursor": None}
        name, messages, tokens = _place(asked.cursor)
        begins = None if name is None else rows.find_turn(connection, session, name)
        after = 0 if begins is None else begins[0] - 1
        if asked.outline and asked.branch is None:
            branch = rows.load_numbers(connection, session, after=after, most=TURNS_A_PAGE + 1)
        else:
            branch = rows.load_branch(connection, session, last[0], after=after, most=TURNS_A_PAGE + 1)
        if name is not None and (begins is None or not branch or branch[0][1] != name):
            raise InvalidParameter("cursor", "No turn of this branch is named by this cursor.")
        made = _Page(connection, session, asked.session, self._token_bytes, asked.outline)
        for number, each in branch[:TURNS_A_PAGE]:
            if not made.has_room:
                return made.ending(last[1], f"{each}:0:0")
            if not made.add(number, messages=messages, tokens=tokens):
                return made.ending(last[1], f"{each}:{made.messages_shown}:{made.tokens_shown}")
            messages = tokens = 0
        more = f"{branch[TURNS_A_PAGE][1]}:0:0" if len(branch) > TURNS_A_PAGE else None
        return made.ending(last[1], more)


def _place(cursor: str | None) -> tuple[str | None, int, int]:
    """The turn that a page begins at, and how much of it has been shown."""
    name, *shown = (cursor or "").split(":")
    messages, tokens = map(int, shown) if shown else (0, 0)
    return name or None, messages, tokens


@dataclass(slots=True)
class _Page:
    """A page that is being made."""

    connection: Connection
    session: int
    session_name: str
    token_bytes: Callable[[int], bytes]
    outline: bool
    turns: list[Json] = field(default_factory=list)
    tokens_left: int = TOKENS_A_PAGE
    bytes_left: int = BYTES_A_PAGE
    messages_shown: int = 0
    tokens_shown: int = 0
    """Of the turn that was added last."""

    @property
    def has_room(self) -> bool:
        return self.tokens_left > 0 and self.bytes_left > 0

    def ending(self, branch: str, cursor: str | None) -> Json:
        return {"branch": branch, "turns": self.turns, "cursor": cursor}

    def add(self, number: int, *, messages: int, tokens: int) -> bool:
        """Add what fits of a turn, of which so much has been shown; whether that is all the rest."""
        if not self.outline:
            rows.check_turn(self.connection, self.session, number)
        shape = rows.load_shape(self.connection, self.session, number)
        shown = _facts(shape, self.session_name)
        note = load_note(self.connection, self.session, number)
        self.bytes_left -= len(note or "")
        if self.outline:
            self.turns.append(shown | _NOT_SHOWN | {"note": note})
            return True
        given = shape.tools if shape.tools is not None and not messages and not tokens else {}
        self.turns.append(
            shown
            | {
                "tools": given.get("tools"),
                "template_kwargs": given.get("template_kwargs"),
                "messages": self._messages(shape, messages),
                "tokens": self._tokens(shape, tokens),
                "note": note,
            }
        )
        total = shape.new_prompt_tokens + shape.completion_tokens
        return self.messages_shown >= shape.own_messages and self.tokens_shown >= total

    def _messages(self, shape: TurnShape, first: int) -> list[Json]:
        found: list[Json] = []
        self.messages_shown = first
        if first >= shape.own_messages:
            return found
        for text, cut in rows.load_messages(self.connection, self.session, shape, first):
            if self.bytes_left <= 0:
                break
            self.bytes_left -= len(text)
            index = shape.start + self.messages_shown
            found.append({"index": index, "message": msgspec.Raw(text), "cut": cut})
            self.messages_shown += 1
        else:
            self.messages_shown = shape.own_messages
        return found

    def _tokens(self, shape: TurnShape, start: int) -> Json:
        part = rows.load_tokens(self.connection, self.session, shape, start=start, most=max(0, self.tokens_left))
        prompt, output, said = part.prompt_ids, part.output_ids, part.annotations.items()
        prompt_ends = start + len(prompt) >= shape.new_prompt_tokens
        texts = token_texts(prompt, self.token_bytes, ends=prompt_ends)
        if prompt_ends:
            ends = start + len(prompt) + len(output) >= shape.new_prompt_tokens + shape.completion_tokens
            texts += token_texts(output, self.token_bytes, ends=ends)
        count = len(texts)
        trained = int(not shape.discarded and shape.trajectory_state != DISCARDED)
        before, most = len(prompt), max(0, count - len(prompt))
        self.tokens_left -= count
        self.tokens_shown = start + count
        return {
            "start": start,
            "input_ids": [*prompt, *output][:count],
            "texts": texts,
            "logprobs": [*[0.0] * before, *part.logprobs[:most]][:count],
            "versions": [*[-1] * before, *part.versions[:most]][:count],
            "loss_mask": [*[0] * before, *[trained] * most][:count],
            "annotations": {name: [*[None] * before, *numbers[:most]] for name, numbers in said if most},
        }


_NO_TOKENS: Final = {
    **dict.fromkeys(("input_ids", "texts", "logprobs", "versions", "loss_mask"), ()),
    "start": 0,
    "annotations": {},
}
_NOT_SHOWN: Final = {"tools": None, "template_kwargs": None, "messages": (), "tokens": _NO_TOKENS}
"""What an outline leaves out."""


def _facts(shape: TurnShape, session: str) -> Json:
    trajectory = None if shape.trajectory is None else trajectory_name(session, shape.trajectory)
    timing = shape.extras.timing
    return {
        "turn_id": shape.name,
        "parent_id": shape.parent,
        "number": shape.number,
        "trajectory_id": trajectory,
        "trajectory_state": shape.trajectory_state,
        "discarded": shape.discarded,
        "delivered": shape.delivered,
        "reward": shape.reward,
        "finish_reason": shape.finish_reason,
        "mixed_cache": shape.mixed_cache,
        **shown_facts(shape.extras, shape.branch_reason, shape.lineage),
        "created_at": shape.created_at,
        "prompt_tokens": shape.prompt_tokens,
        "completion_tokens": shape.completion_tokens,
        "new_prompt_tokens": shape.new_prompt_tokens,
        "timing": None if timing is None else dict(zip(BEFORE_COMMIT, timing, strict=False)),
        "leases": shape.leases,
    }

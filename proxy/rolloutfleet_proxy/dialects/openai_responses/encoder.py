"""A call's events as the answer of the Responses API: a response, or a stream of events. Pure.

What a client may act on, and what says how an item ends, leaves with the commit: every `….done` and the last event.
So clients that keep finished items of a stream that broke off, as Codex does, keep none that was recorded nowhere. From
the first call on nothing leaves before that: text may come behind a call, whose item is before it (`objects`).

Keep-alives are events, as some clients count nothing else: a bare `response.in_progress`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import msgspec

from rolloutfleet_proxy.dialects.base import Encoder, TokenBytes
from rolloutfleet_proxy.dialects.openai_responses import objects
from rolloutfleet_proxy.dialects.openai_responses.request import ResponsesRequest
from rolloutfleet_proxy.dialects.token_logprobs import token_logprobs
from rolloutfleet_proxy.domain.errors import ContextExceeded, DomainError
from rolloutfleet_proxy.domain.events import Committed, Delta, Reasoning, Started, Text, Tokens, ToolCall
from rolloutfleet_proxy.domain.turn import Turn
from rolloutfleet_proxy.http.errors import status_of

_encode = msgspec.json.Encoder().encode

_DELTAS: Final = {"reasoning": "response.reasoning_text.delta", "message": "response.output_text.delta"}
_ENDS: Final = {objects.COMPLETED: "response.completed", objects.INCOMPLETE: "response.incomplete"}


def event_bytes(kind: str, sequence_number: int, said: dict[str, Any]) -> bytes:
    """An event of a stream."""
    data = _encode({"type": kind, "sequence_number": sequence_number, **said})
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


def error_event(error: DomainError) -> bytes:
    """The last event of a stream that was begun elsewhere: its number there is not known."""
    said = {"code": error.code, "message": error.message, "param": error.param}
    return event_bytes("error", 0, said)


class ResponsesEncoder(Encoder):
    """Writes one caller's response, or stream of events."""

    def __init__(self, request: ResponsesRequest, *, model: str, token_bytes: TokenBytes) -> None:
        super().__init__(request, model=model)
        self._request = request
        self._token_bytes = token_bytes
        self._tools = msgspec.Raw(_encode(request.echo.tools))
        self._turn = ""
        self._created_at = 0.0
        self._number = 0
        """Of the next event."""
        self._places: dict[str, int] = {}
        """The output index of each item that has begun, by its id."""
        self._heads: dict[str, tuple[bytes, bytes]] = {}
        """What an item's deltas are written between, before and behind their number."""
        self._growing: objects.Item | None = None
        """The item of reasoning or text that came last."""
        self._counts = Counter[str]()
        """Items of reasoning, and of text, so far."""
        self._sent = Counter[str]()
        """Characters of each item, by its id."""
        self._holds = False
        """A call came: what follows waits for the commit."""
        self._pending: list[msgspec.Raw] = []
        """Log-probabilities that no delta of text has carried yet."""

    def started(self, event: Started) -> bytes:
        self._turn, self._created_at = event.turn_id, event.created_at
        created = self._response(objects.IN_PROGRESS)
        self._opening = self._event("response.created", {"response": created}) + self._in_progress()
        return b""

    def delta(self, event: Delta) -> bytes:
        if event.tokens is not None and self._request.logprobs:
            self._pending += token_logprobs(event.tokens, self._token_bytes, with_bytes=False)
        if isinstance(event, ToolCall):
            self._holds = True
            return b""
        if self._holds or not event.text:
            return b""
        item = self._item_of(event)
        return self._opened() + self._begun(item) + self._more(item, event.text)

    def committed(self, event: Committed) -> bytes:
        """What waited for the commit, and the end of every item and of the response."""
        turn = event.turn
        items = self._items(turn)
        told = self._told(items, event)
        rest = b"".join(self._begun(item) + self._rest(item) for item in items)
        ends = b"".join(self._ended(item, turn) for item in told)
        status = objects.status_of_turn(turn)
        return self._opened() + rest + ends + self._event(_ENDS[status], {"response": self._finished(turn, told)})

    def failed(self, error: DomainError) -> bytes:
        said = {
            "code": _failure(error),
            "message": error.message,
            "param": error.param,
            "type": error.code,
        }
        failed = objects.response_object(self._turn, self._created_at, self._model, status=objects.FAILED, error=said)
        return self._opened() + self._event("response.failed", {"response": failed})

    def silence(self) -> bytes:
        """Nothing before the prompt is made: what fails until then has a status of its own."""
        if not self._turn:
            return b""
        return self._opened() or self._in_progress()

    def whole(self, event: Committed) -> bytes:
        turn = event.turn
        self._turn, self._created_at = turn.name, turn.created_at
        return _encode(self._finished(turn, self._told(self._items(turn), event)))

    # Of a turn that is committed

    def _items(self, turn: Turn) -> list[objects.Item]:
        return list(objects.output_items(turn, self._request.declared, self._logprobs(turn, with_bytes=True)))

    def _logprobs(self, turn: Turn, *, with_bytes: bool) -> list[msgspec.Raw]:
        """Of all tokens, where they were asked for; whole parts have the tokens' bytes, too, events of text don't."""
        if not self._request.logprobs:
            return []
        tokens = Tokens(turn.output_ids, turn.logprobs, turn.extras.top_logprobs)
        return token_logprobs(tokens, self._token_bytes, with_bytes=with_bytes)

    def _told(self, items: list[objects.Item], event: Committed) -> list[objects.Item]:
        """The items as they are at their end: with the turn's ids, where they were asked for."""
        if not self._request.token_ids or event.prompt_ids is None:
            return items
        return objects.with_token_ids(items, event.turn, event.prompt_ids)

    def _finished(self, turn: Turn, items: list[objects.Item]) -> dict[str, Any]:
        return self._response(objects.status_of_turn(turn), output=items, usage=objects.usage_of(turn))

    def _response(self, status: str, **said: Any) -> dict[str, Any]:
        return objects.response_object(
            self._turn,
            self._created_at,
            self._model,
            echo=self._request.echo,
            tools=self._tools,
            status=status,
            **said,
        )

    # Of a stream

    def _in_progress(self) -> bytes:
        bare = objects.response_object(self._turn, self._created_at, self._model)
        return self._event("response.in_progress", {"response": bare})

    def _event(self, kind: str, said: dict[str, Any]) -> bytes:
        number, self._number = self._number, self._number + 1
        return event_bytes(kind, number, said)

    def _item_of(self, event: Text | Reasoning) -> objects.Item:
        """The one that this is more of, or a new one."""
        kind = "reasoning" if isinstance(event, Reasoning) else "message"
        if self._growing is None or self._growing["type"] != kind:
            make = objects.reasoning_item if kind == "reasoning" else objects.message_item
            self._growing = make(self._turn, self._counts[kind], None, objects.IN_PROGRESS)
            self._counts[kind] += 1
        return self._growing

    def _rest(self, item: objects.Item) -> bytes:
        """What deltas have not brought of an item's text; a call brings all of its own as it begins."""
        if item["type"] not in _DELTAS:
            return b""
        unsent = item["content"][0]["text"][self._sent[item["id"]] :]
        return self._more(item, unsent) if unsent else b""

    def _more(self, item: objects.Item, text: str) -> bytes:
        """More of an item's text. What is the same for all its deltas is encoded once."""
        self._sent[item["id"]] += len(text)
        head = self._heads.get(item["id"])
        if head is None:
            kind = _DELTAS[item["type"]]
            same = _encode({"type": kind, **self._part_of(item)})[:-1]
            behind = b',"delta":' if item["type"] == "reasoning" else b',"logprobs":'
            head = b'event: %b\ndata: %b,"sequence_number":' % (kind.encode(), same), behind
            self._heads[item["id"]] = head
        before, behind = head
        number, self._number = self._number, self._number + 1
        if item["type"] == "reasoning":
            return b"%b%d%b%b}\n\n" % (before, number, behind, _encode(text))
        logprobs, self._pending = self._pending, []
        return b'%b%d%b%b,"delta":%b}\n\n' % (before, number, behind, _encode(logprobs), _encode(text))

    def _place(self, item: objects.Item) -> dict[str, Any]:
        return {"item_id": item["id"], "output_index": self._places[item["id"]]}

    def _part_of(self, item: objects.Item) -> dict[str, Any]:
        return {**self._place(item), "content_index": 0}

    def _begun(self, item: objects.Item) -> bytes:
        """The events by which an item begins; nothing where it has begun."""
        if item["id"] in self._places:
            return b""
        place = self._places[item["id"]] = len(self._places)
        kind = item["type"]
        begins = item | ({"status": objects.IN_PROGRESS} if "status" in item else {})
        if kind == "reasoning" or kind == "message":
            empty = objects.text_part("", []) if kind == "message" else {"type": "reasoning_text", "text": ""}
            added = self._event("response.output_item.added", {"output_index": place, "item": begins | {"content": []}})
            return added + self._event("response.content_part.added", {**self._part_of(item), "part": empty})
        field, more = (
            ("input", "custom_tool_call_input") if "input" in item else ("arguments", "function_call_arguments")
        )
        added = self._event("response.output_item.added", {"output_index": place, "item": begins | {field: ""}})
        if not item[field]:
            return added
        return added + self._event(f"response.{more}.delta", {**self._place(item), "delta": item[field]})

    def _ended(self, item: objects.Item, turn: Turn) -> bytes:
        kind = item["type"]
        if kind == "reasoning" or kind == "message":
            [part] = item["content"]
            said: dict[str, Any] = {**self._part_of(item), "text": part["text"]}
            if kind == "message":
                said["logprobs"] = self._logprobs(turn, with_bytes=False) if part["logprobs"] else []
            done = "response.output_text.done" if kind == "message" else "response.reasoning_text.done"
            ends = self._event(done, said)
            ends += self._event("response.content_part.done", {**self._part_of(item), "part": part})
        elif kind == "function_call":
            said = {**self._place(item), "arguments": item["arguments"]}
            ends = self._event("response.function_call_arguments.done", said)
        else:
            ends = self._event("response.custom_tool_call_input.done", {**self._place(item), "input": item["input"]})
        return ends + self._event("response.output_item.done", {"output_index": self._places[item["id"]], "item": item})


def _failure(error: DomainError) -> str:
    """The API's own word; which of our errors it is stands under `type`. Codex reads the first of these."""
    if isinstance(error, ContextExceeded):
        return error.code
    return "rate_limit_exceeded" if status_of(error) == 429 else "server_error"

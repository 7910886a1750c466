"""The input of a request as messages in the canonical form (`domain.messages`). Pure.

Items are flat: what a model said in one turn is a run of them, reasoning, a message, calls, in this order. Such a run
is one message of the assistant. Another begins where an item can't be of the same turn: a message, or reasoning, behind
a message or a call. That one turn made both is known by their ids (`item_ids`): it may have thought again behind
its text.

- What has no text here is refused by name: files, images as far as `images` says, and items of what servers run. Items
  that are taken are those of `ITEMS`.
- Reasoning is the text that answers have it in, `content`. What others give instead, a summary or `encrypted_content`,
  can't be rendered; it is named as ignored.
- An item that is named alone is read as the one that it names, of which its id says what it is (`references`).
- Ids, statuses and phases say nothing to a model.
"""

from __future__ import annotations

from typing import Any, Final

from rolloutfleet_proxy.dialects.depth import check_depth, check_json
from rolloutfleet_proxy.dialects.images import Images
from rolloutfleet_proxy.dialects.mistakes import kind_of, text_of
from rolloutfleet_proxy.dialects.openai_responses.item_ids import MESSAGE, REASONING, made_by
from rolloutfleet_proxy.dialects.openai_responses.references import Reference, joined, read_reference, turns_of
from rolloutfleet_proxy.dialects.openai_responses.tools import RAW, arguments_of, known_as
from rolloutfleet_proxy.domain.errors import InvalidParameter, MissingParameter, UnsupportedParameter
from rolloutfleet_proxy.domain.messages import Message, lacks_arguments

ITEMS: Final = (
    *("message", "reasoning", "function_call", "function_call_output"),
    *("custom_tool_call", "custom_tool_call_output", "item_reference"),
)
ROLES: Final = ("user", "system", "developer", "assistant")

Item = dict[str, Any]

_EVERY = frozenset({"type", "id", "status", "prompt_token_ids", "generation_token_ids", "generation_log_probs"})
_BARE = frozenset({"type", "id"})
_FIELDS = {
    "message": _EVERY | {"role", "content", "phase"},
    "reasoning": _EVERY | {"summary", "content", "encrypted_content"},
    "function_call": _EVERY | {"call_id", "name", "namespace", "arguments"},
    "custom_tool_call": _EVERY | {"call_id", "name", "namespace", "input"},
    "function_call_output": _EVERY | {"call_id", "name", "namespace", "output"},
    "custom_tool_call_output": _EVERY | {"call_id", "name", "namespace", "output"},
    "item_reference": _BARE,
}
"""What is read of an item, and what changes nothing."""
_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
"""Parts that have text, and where."""
_PART_FIELDS = frozenset({"type", "text", "refusal", "logprobs", "prompt_cache_breakpoint"})
_IMAGE = "input_image"
_IMAGE_FIELDS = frozenset({"type", "image_url", "file_id", "detail", "prompt_cache_breakpoint"})


def read_input(given: str | list[Any], ignored: list[str], images: Images) -> tuple[list[Message], tuple[str, ...]]:
    """The messages, and the names of the turns whose items are in them by reference (`references`).

    Raises DomainError that names the item at fault; adds to `ignored` the paths of what has no effect.
    """
    if isinstance(given, str):
        return [{"role": "user", "content": given}], ()
    reading = _Reading(ignored, images)
    for index, item in enumerate(given):
        reading.read(item, at=f"input[{index}]")
    reading.finish()
    return reading.messages, turns_of(reading.references.values())


def _kind_of(item: Item) -> Any:
    """A reference may have no type: it is an id alone."""
    if item.get("type") is None and item.keys() <= _BARE and "id" in item:
        return "item_reference"
    return item.get("type", "message")


class _Reading:
    """Messages so far. The last one grows while the items of one turn come."""

    def __init__(self, ignored: list[str], images: Images) -> None:
        self.messages: list[Message] = []
        self.references: dict[str, Reference] = {}
        """By the ids of what they name."""
        self._ignored = ignored
        self._images = images
        self._turn: Message | None = None
        """The assistant's message that is still being made."""
        self._thoughts: list[str | Reference] = []
        self._texts: list[str | Reference] = []
        """Its reasoning and its text: joined at once, as those of many items would take time as their square."""
        self._made_by: str | None = None
        """The turn that its last item says it is of."""

    def read(self, item: Any, *, at: str) -> None:
        if type(item) is not dict:
            raise InvalidParameter(at, "An item is an object.")
        kind = _kind_of(item)
        fields = _FIELDS.get(kind) if type(kind) is str else None
        if fields is None:
            raise UnsupportedParameter(f"{at}.type", f"it is one of {', '.join(ITEMS)}.")
        for field in item.keys() - fields:
            check_depth(item[field], at=f"{at}.{field}")
            if item[field] is not None:
                self._ignored.append(f"{at}.{field}")
        if kind == "message":
            self._message(item, at=at)
        elif kind == "reasoning":
            self._reasoning(item, at=at)
        elif kind.endswith("_output"):
            self._output(item, at=at)
        elif kind == "item_reference":
            self._reference(item, at=at)
        else:
            self._call(item, at=at)

    def _message(self, item: Item, *, at: str) -> None:
        role = item.get("role")
        if role is None:
            raise MissingParameter(f"{at}.role")
        if role not in ROLES:
            raise InvalidParameter(f"{at}.role", f"A role is one of {', '.join(ROLES)}.")
        content = self._text(item.get("content"), at=f"{at}.content")
        if role != "assistant":
            self._end({"role": role, "content": content})
            return
        self._says(item, content)

    def _reasoning(self, item: Item, *, at: str) -> None:
        if item.get("encrypted_content") is not None:
            self._ignored.append(f"{at}.encrypted_content")
        text = self._text(item.get("content") or [], at=f"{at}.content", kind="reasoning_text")
        if not text:
            if item.get("summary"):
                self._ignored.append(f"{at}.summary")
            return
        self._thinks(item, text)

    def _call(self, item: Item, *, at: str) -> None:
        custom = item["type"] == "custom_tool_call"
        namespace = item.get("namespace")
        if not isinstance(namespace, str | None):
            raise InvalidParameter(f"{at}.namespace", "A namespace's name is a string.")
        call_id, name = text_of(item, "call_id", at=at), text_of(item, "name", at=at)
        field = "input" if custom else "arguments"
        has_none = not custom and lacks_arguments(item.get(field))
        arguments = "{}" if has_none else text_of(item, field, at=at, empty=True)
        if custom and not call_id.endswith(RAW):
            arguments = arguments_of(arguments)
        else:
            check_json(arguments, at=f"{at}.{field}")
        function = {"name": known_as(name, namespace), "arguments": arguments}
        self._calls(item, {"id": call_id.removesuffix(RAW), "type": "function", "function": function})

    def _output(self, item: Item, *, at: str) -> None:
        call_id = text_of(item, "call_id", at=at).removesuffix(RAW)
        text = self._text(item.get("output"), at=f"{at}.output")
        self._end({"role": "tool", "tool_call_id": call_id, "content": text})

    def _reference(self, item: Item, *, at: str) -> None:
        reference = read_reference(item, at)
        before = self.references.setdefault(reference.id, reference)
        if before is not reference:
            raise InvalidParameter(f"{at}.id", f"{before.at} is the same item: leave one of them out.")
        if reference.kind == REASONING:
            self._thinks(item, reference)
        elif reference.kind == MESSAGE:
            self._says(item, reference)
        else:
            self._calls(item, reference)

    def _thinks(self, item: Item, text: str | Reference) -> None:
        self._said_first(item).setdefault("reasoning_content", "")
        self._thoughts.append(text)

    def _says(self, item: Item, text: str | Reference) -> None:
        self._said_first(item)
        self._texts.append(text)

    def _calls(self, item: Item, call: Message | Reference) -> None:
        self._made_by = made_by(item.get("id"))
        self._said().setdefault("tool_calls", []).append(call)

    def _said_first(self, item: Item) -> Message:
        """The message of an item that comes before text and calls of its turn, unless that turn made them too."""
        before, self._made_by = self._made_by, made_by(item.get("id"))
        turn = self._said()
        same = self._made_by is not None and self._made_by == before
        return self._begin() if (self._texts or "tool_calls" in turn) and not same else turn

    def _said(self) -> Message:
        return self._begin() if self._turn is None else self._turn

    def _begin(self) -> Message:
        self.finish()
        self._turn = {"role": "assistant", "content": None}
        self.messages.append(self._turn)
        return self._turn

    def _end(self, message: Message) -> None:
        self.finish()
        self.messages.append(message)

    def finish(self) -> None:
        """No item of the assistant's message comes any more."""
        if self._turn is not None:
            if self._thoughts:
                self._turn["reasoning_content"] = joined(self._thoughts)
            if self._texts:
                self._turn["content"] = joined(self._texts)
        self._turn, self._thoughts, self._texts = None, [], []

    def _text(self, content: Any, *, at: str, kind: str | None = None) -> str:
        """The text of content: a string, or a list of parts, whose texts are joined with nothing between them. `kind`
        is the only one that there may be, where the item has one of its own."""
        if type(content) is str:
            return content
        if content is None:
            raise MissingParameter(at)
        if type(content) is not list:
            raise InvalidParameter(at, "It is a string or a list of parts.")
        return "".join(self._part(part, at=f"{at}[{index}]", kind=kind) for index, part in enumerate(content))

    def _part(self, part: Any, *, at: str, kind: str | None) -> str:
        given = kind_of(part, what="A part", at=at)
        if given == _IMAGE and kind is None:
            self._others(part, _IMAGE_FIELDS, at=at)
            return self._images.text(part, "image_url" if part.get("file_id") is None else "file_id", str, at=at)
        field = _TEXTS.get(given) if kind is None else "text" if given == kind else None
        if field is None:
            raise UnsupportedParameter(f"{at}.type", f"only text can be rendered, not {given[:40]!r}.")
        text = part.get(field)
        if type(text) is not str:
            raise InvalidParameter(f"{at}.{field}", "It is a string.")
        self._others(part, _PART_FIELDS, at=at)
        return text

    def _others(self, part: Item, known: frozenset[str], *, at: str) -> None:
        for other in part.keys() - known:
            check_depth(part[other], at=f"{at}.{other}")
            if part[other]:
                self._ignored.append(f"{at}.{other}")

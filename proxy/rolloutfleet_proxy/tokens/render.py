"""One model's chat format: messages -> prompt ids, output ids -> a message.

Rendering is `renderers`' work, and for models that it lacks the model's own chat template's. What is decided here is
which earlier turn a prompt continues: never by messages alone, always by comparing tokens (promise 3).

`ChatFormat.prompt` belongs to one thread (it encodes); everything else may be called in any.
"""

from __future__ import annotations

import json
import logging
from array import array
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from operator import is_
from threading import Lock
from typing import Any, Literal, Protocol

import numpy as np
from pydantic import TypeAdapter, ValidationError
from renderers import RendererConfig
from renderers.base import merge_chat_template_kwargs

from rolloutfleet.explain import what_is_wrong
from rolloutfleet_proxy.caches import ByteCache
from rolloutfleet_proxy.domain.messages import NO_ARGS, Message, Rules, TemplateArgs
from rolloutfleet_proxy.tokens import deepseek
from rolloutfleet_proxy.tokens.call_grammar import Wanted
from rolloutfleet_proxy.tokens.clock import dated
from rolloutfleet_proxy.tokens.control_tokens import Marked, unmarked
from rolloutfleet_proxy.tokens.faults import place_of_fault, what_to_write
from rolloutfleet_proxy.tokens.history import Ids, with_calls_told
from rolloutfleet_proxy.tokens.open_thoughts import ended
from rolloutfleet_proxy.tokens.quirks import (
    ENCODES_TEXT_AS_TEXT,
    NAMES_CALLS_BY_ID,
    Unrenderable,
    create_renderer,
    refusal,
    renderable,
    strict_json,
    system_roles,
    written_fields,
)
from rolloutfleet_proxy.tokens.reading import Reader, ReplyFormat
from rolloutfleet_proxy.tokens.reply_grammar import ReplyGrammar
from rolloutfleet_proxy.tokens.system_messages import adapted, speaks_later, support_of, unheard
from rolloutfleet_proxy.tokens.text_with_calls import TextWithCalls, has_text_with_calls, text_apart, text_with_calls
from rolloutfleet_proxy.tokens.tool_schemas import writable
from rolloutfleet_proxy.tokens.tool_support import dropped, drops_some, writes_ids
from rolloutfleet_proxy.tokens.trimmed_whitespace import trimmed_whitespace
from rolloutfleet_proxy.tokens.vocabulary import Packing, Vocabulary, unpacked

log = logging.getLogger(__name__)

TOKENS_DIFFER = "tokens_differ"
"""Why a turn starts a branch though its messages continue an earlier turn: its rendered tokens don't."""

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""What the APIs of OpenAI and Anthropic call degrees of reasoning."""
_KEPT_RENDERERS = 16
_LONGEST_KEPT = 4096
"""Characters of template arguments for which a renderer is kept: their number alone would not bound what they take."""
_KWARGS = "chat_template_kwargs"
_LONGEST_NAME = 100
_OWN_WORDS = ("value_error", "assertion_error")
"""Kinds of errors that `renderers` words itself."""
_config_of = TypeAdapter(RendererConfig).validate_python

strict_json()


@dataclass(frozen=True, slots=True)
class Candidate:
    """An earlier turn whose messages the request continues."""

    length: int
    """How many of the request's messages it covers, its answer included."""
    load: Callable[[], tuple[Sequence[int], Sequence[int]]]
    """Its prompt ids and its output ids. An output without an end token was cut short, and is closed in the prompt."""


@dataclass(frozen=True, slots=True)
class Prompt:
    ids: array[int]
    """int32."""
    parent: int | None
    """Index of the candidate whose prompt and output the ids begin with."""
    branch_reason: str | None
    """Why the deepest candidate isn't the parent; None where it is, or where there was none."""
    checked: int
    """Comparisons made with a candidate's tokens."""
    passed: int
    bridged: bool
    """Whether the parent's tokens were extended, not rendered again."""
    special_tokens_in_text: int = 0
    """Spellings of control tokens that are text in it (`control_tokens`), in what the request adds to its parent."""


class Renders(Protocol):
    """The two operations that cost a lot: where a long one should run elsewhere, this is the seam."""

    def extension(
        self, tail: list[int], output: list[int], messages: list[Message], args: TemplateArgs
    ) -> array[int] | None:
        """What the new messages add after `tail + output`; None where the format can't say."""
        ...

    def full(self, messages: list[Message], args: TemplateArgs) -> array[int]:
        """The whole conversation, ready for the next answer."""
        ...


class ChatFormat:
    """A model's chat format. `load` makes one."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        renderer: str,
        context_length: int | None = None,
        vocabulary_size: int | None = None,
        options: Mapping[str, Any] | None = None,
        special_tokens_in_text: Literal["text", "token"] = "text",
    ) -> None:
        """`options` are the renderer's own settings. Control tokens that texts spell are encoded as text or as tokens.

        Raises Unrenderable where the options or the tokens don't fit.
        """
        self.name = renderer
        self.vocabulary = vocabulary
        self._marks = special_tokens_in_text == "text"
        self._said_unmarked = False
        self.context_length = context_length
        self.vocabulary_size = max(vocabulary_size or 0, vocabulary.size)
        try:
            self._config = _config_of({"name": renderer, **(options or {})})
            self._renderer = create_renderer(Packing(vocabulary, marks=self._marks), self._config)
        except Exception as error:  # of any kind: gpt-oss, for one, fetches its vocabulary here
            raise Unrenderable(f"the chat format {renderer} doesn't fit {vocabulary.name_or_path}: {error}") from error
        self.stop_token_ids: list[int] = list(self._renderer.get_stop_token_ids())
        self._stops = frozenset(self.stop_token_ids)
        self._others: ByteCache[str, Any] = ByteCache(_KEPT_RENDERERS)
        """Renderers by their template arguments, each counted as one."""
        self._lock = Lock()
        self._replies = ReplyFormat(
            renderer, vocabulary, ends=self.stop_token_ids, tool_parser=(options or {}).get("tool_parser")
        )
        self._grammar = ReplyGrammar(self._replies.syntax, vocabulary, self.stop_token_ids)
        self._system_messages = support_of(self._written, kinds=system_roles(renderer))
        self._text_with_calls = text_with_calls(self._written)
        self._breaks = deepseek.Breaks(vocabulary) if renderer in deepseek.FORMATS else None
        """Of a format whose tools are written here."""
        self._ids = Ids.FUNCTIONS if renderer in NAMES_CALLS_BY_ID else Ids.WRITTEN
        if self._ids is Ids.WRITTEN and not writes_ids(self._tried):
            self._ids = Ids.UNWRITTEN
        self._drops = drops_some(self._tried)
        """Whether tools, or their calls or results, may be missing in what is written."""
        self.rules = Rules(
            written_fields(renderer),
            plain=trimmed_whitespace(self._written, reasoned=False),
            reasoned=trimmed_whitespace(self._written, reasoned=True),
        )
        """By which messages are compared before tokens are."""

    # Messages to tokens

    def prompt(
        self,
        messages: Sequence[Message],
        args: TemplateArgs,
        candidates: Sequence[Candidate],
        *,
        renders: Renders | None = None,
    ) -> Prompt:
        """The prompt of a request, and which candidate it continues; candidates come deepest first.

        Raises Unrenderable.
        """
        renders = renders or self
        for index, candidate in enumerate(candidates):
            if candidate.length != candidates[0].length:
                break
            extended = self._extended(messages, args, candidate, renders)
            if extended is not None:
                ids, in_text = extended
                reason = None if index == 0 else TOKENS_DIFFER
                return Prompt(ids, index, reason, 1, 1, bridged=True, special_tokens_in_text=in_text)

        whole, marked = self._whole(messages, args, renders)
        written = {0: whole}
        lengths = [] if self.name in ENCODES_TEXT_AS_TEXT else [candidate.length for candidate in candidates]
        starts = marked.starts(lengths)
        for index, candidate in enumerate(candidates):
            prompt_ids, output_ids = candidate.load()
            prior = _joined(prompt_ids, output_ids)
            # A turn of an earlier version, or of another setting, has as tokens what its texts spell of them.
            for start in (0, *(each for each in starts if each <= candidate.length)):
                if start not in written:
                    written[start], _ = self._whole(messages, args, renders, start=start)
                if _begins_with(written[start], prior):
                    return Prompt(
                        written[start],
                        index,
                        None if index == 0 else TOKENS_DIFFER,
                        index + 1,
                        1,
                        bridged=False,
                        special_tokens_in_text=marked.count(candidate.length),
                    )
        reason, in_text = TOKENS_DIFFER if candidates else None, marked.count(0)
        return Prompt(whole, None, reason, len(candidates), 0, bridged=False, special_tokens_in_text=in_text)

    def _whole(
        self, messages: Sequence[Message], args: TemplateArgs, renders: Renders, *, start: int = 0
    ) -> tuple[array[int], Marked]:
        try:
            return self._written_whole(messages, args, renders, start=start)
        except Unrenderable as error:
            if error.param is not None:
                raise
            raise self._placed_fault(str(error), messages, args, renders) from error

    def _written_whole(
        self, messages: Sequence[Message], args: TemplateArgs, renders: Renders, *, start: int = 0
    ) -> tuple[array[int], Marked]:
        """Control tokens are text in the messages from `start` on."""
        asked = self._asked(messages)
        self._check_said(asked)
        marked = self._marked(asked, args, start=start)
        ids = renders.full(self._formed(marked.messages), replace(args, tools=marked.tools))
        if self.name == "default" and marked.count(0) and not self._template_keeps(marked, asked, args):
            marked = self._marked(asked, args, start=len(asked) + 1)
            ids = renders.full(self._formed(marked.messages), replace(args, tools=marked.tools))
        self._check_heard(asked, ids, start=0)
        if self._drops and (place := dropped(self._tried, messages, args)):
            raise Unrenderable(f"the chat format {self.name} drops {place}: leave it out", param=place)
        return ids, marked

    def _formed(self, messages: list[Message]) -> list[Message]:
        """A whole conversation as the format can hold it."""
        return self._said(adapted(messages, self._system_messages, start=0))

    def _marked(self, asked: list[Message], args: TemplateArgs, *, start: int = 0) -> Marked:
        if not self._marks:
            return Marked(asked, args.tools)
        marked = self.vocabulary.control_tokens.marked(asked, args.tools, start=start)
        return replace(marked, messages=asked, tools=args.tools) if self.name in ENCODES_TEXT_AS_TEXT else marked

    def _template_keeps(self, marked: Marked, asked: list[Message], args: TemplateArgs) -> bool:
        """Whether the model's own template writes what is marked as it writes what isn't."""
        try:
            text = self._own_text(marked.messages, marked.tools, args)
            kept = unmarked(text) == self._own_text(asked, args.tools, args)
        except Unrenderable:
            kept = False
        if not kept and not self._said_unmarked:
            self._said_unmarked = True
            log.warning(
                "%s: its chat template changes texts that spell control tokens when these are marked: they stay tokens",
                self.vocabulary.name_or_path,
            )
        return kept

    def _asked(self, messages: Sequence[Message], start: int = 0) -> list[Message]:
        """The messages from `start` on, in the form that the format expects."""
        return renderable(self.name, with_calls_told(messages, self._ids, start=start), start)

    def _tried(self, messages: Sequence[Message], args: TemplateArgs) -> array[int] | None:
        """What the format writes, whatever is missing; None where it refuses."""
        try:
            return self.full(self._formed(self._asked(messages)), args)
        except Unrenderable:
            return None

    def _placed_fault(
        self, said: str, messages: Sequence[Message], args: TemplateArgs, renders: Renders
    ) -> Unrenderable:
        def writes(messages: Sequence[Message], args: TemplateArgs) -> bool:
            try:
                self._written_whole(messages, args, renders)
            except Unrenderable:
                return False
            return True

        place = place_of_fault(writes, messages, args)
        return Unrenderable(f"the chat format {self.name} can't write it: {said or what_to_write(place)}", param=place)

    def _said(self, messages: list[Message]) -> list[Message]:
        """The messages, as the format can hold what is said beside tool calls."""
        return messages if self._text_with_calls is TextWithCalls.TOGETHER else text_apart(messages)

    def _check_said(self, messages: Sequence[Message]) -> None:
        """Raises Unrenderable where what is said beside tool calls is lost."""
        lost = (index for index, message in enumerate(messages) if has_text_with_calls(message))
        index = next(lost, None) if self._text_with_calls is TextWithCalls.NOWHERE else None
        if index is not None:
            raise Unrenderable(
                f"the chat format {self.name} drops the content of a message with tool_calls: use two messages",
                param=f"messages[{index}].content",
            )

    def _check_heard(self, messages: Sequence[Message], ids: array[int], *, start: int) -> None:
        """Raises Unrenderable where a later system message is not in what was written; `start` messages came before."""
        # The first message of a conversation is what every format has a place for, or refuses.
        behind_first = [{"role": "user"}, *messages] if start else messages
        if speaks_later(behind_first):
            index = unheard(behind_first, self.vocabulary.decode(ids))
            if index is not None:
                place = start + index - (len(behind_first) - len(messages))
                raise Unrenderable(
                    f"the chat format {self.name} drops what messages[{place}] says: say it in the first message, or "
                    f"as a user",
                    param=f"messages[{place}].content",
                )

    def _written(self, messages: list[Message]) -> str | None:
        try:
            return self.vocabulary.decode(self.full(messages, NO_ARGS))
        except Unrenderable:
            return None

    def _extended(
        self, messages: Sequence[Message], args: TemplateArgs, candidate: Candidate, renders: Renders
    ) -> tuple[array[int], int] | None:
        """The candidate's tokens and the new messages' behind them, and how many control tokens are text in these; None
        where the format can't say."""
        new = self._asked(messages, candidate.length)
        if not new or any(message["role"] == "assistant" for message in new):
            return None
        prompt_ids, output_ids = candidate.load()
        tail, output = self._open_end(prompt_ids, output_ids)
        marked = self._marked(new, NO_ARGS)
        written = adapted(marked.messages, self._system_messages, start=candidate.length)
        extension = renders.extension(tail, output, written, args)
        if extension is None:
            return None
        self._check_heard(new, extension, start=candidate.length)
        return _joined(prompt_ids, output_ids) + extension, marked.count(0)

    def extension(
        self, tail: list[int], output: list[int], messages: list[Message], args: TemplateArgs
    ) -> array[int] | None:
        renderer = self._renderer_for(args.kwargs)
        packed = self.vocabulary.packed(output)
        try:
            tools = self._tools(args)
            added = _bridged(renderer, tail, packed, messages, tools)
            stopped = added is None and bool(self._stops.intersection(packed[-1:]))
            if stopped and self.reader(tail, args, seed=b"").ends_in_thought(output):
                added = _bridged(renderer, tail, ended(self._replies.syntax, packed, self.vocabulary), messages, tools)
        except (ValueError, TypeError, KeyError, AttributeError, AssertionError):
            return None  # A full render says what is wrong.
        return None if added is None else self._broken(unpacked(added), args)

    def full(self, messages: list[Message], args: TemplateArgs) -> array[int]:
        renderer = dated(self._renderer_for(args.kwargs), args.clock)
        try:
            if args.tools and self._breaks:
                messages = deepseek.with_tools_told(messages, args.tools)
            ids = renderer.render_ids(messages, tools=self._tools(args), add_generation_prompt=True)
        except (ValueError, TypeError, KeyError, AttributeError, AssertionError) as error:
            raise refusal(self.name, error) from error
        return self._broken(unpacked(ids), args)

    def _tools(self, args: TemplateArgs) -> list[Any] | None:
        return writable(self.name, args.tools) if args.tools else None

    def _broken(self, ids: array[int], args: TemplateArgs) -> array[int]:
        return self._breaks.added(ids) if args.tools and self._breaks else ids

    def _own_text(self, messages: list[Message], tools: list[Any] | None, args: TemplateArgs) -> str:
        """What the model's own template writes. Raises Unrenderable."""
        renderer = copy(dated(self._renderer_for(args.kwargs), args.clock))
        renderer._tokenizer = _AsText(renderer._tokenizer)
        try:
            [text] = renderer.render_ids(self._formed(messages), tools=tools or None, add_generation_prompt=True)
        except (ValueError, TypeError, KeyError, AttributeError, AssertionError) as error:
            raise refusal(self.name, error) from error
        assert isinstance(text, str)
        return text

    # Tokens to messages

    def reader(self, prompt_ids: Sequence[int], args: TemplateArgs, *, seed: bytes) -> Reader:
        """What reads the reply to one prompt, whole or as it grows."""
        thinks = getattr(self._renderer_for(args.kwargs).config, "enable_thinking", True) is not False
        return self._replies.reader(prompt_ids, args.tools, thinks=thinks, seed=seed)

    @property
    def holds_calls(self) -> bool:
        """Whether there is a grammar of the format's tool calls."""
        return self._grammar.holds_calls

    def call_grammar(self, prompt_ids: Sequence[int], wanted: Wanted) -> str:
        """What holds the reply to a prompt to the calls that are wanted, as a `structural_tag`."""
        return self._grammar.of_calls(wanted, self._replies.thinking(prompt_ids))

    def thinking_first(self, prompt_ids: Sequence[int], sampling: Mapping[str, Any]) -> str | None:
        """A `structural_tag` by which the reply to a prompt may think before what the grammar of its sampling
        parameters holds it to; None where that grammar is to hold from the start, or there is none."""
        return self._grammar.thinking_first(sampling, self._replies.thinking(prompt_ids))

    def takes(self, argument: str) -> bool:
        """Whether the format has a template argument of that name."""
        if self._config._allow_opaque_template_kwargs:
            return argument in str(self.vocabulary.chat_template or "")
        return argument in type(self._config).template_field_names()

    @property
    def efforts(self) -> frozenset[str]:
        """The values that `reasoning_effort` may have, of `EFFORTS`; all of them where a template alone could say."""
        if not self.takes("reasoning_effort"):
            return frozenset()
        return frozenset(effort for effort in EFFORTS if self._takes_effort(effort))

    def _takes_effort(self, effort: str) -> bool:
        try:
            merge_chat_template_kwargs(self._config, {"reasoning_effort": effort})
        except (ValueError, TypeError):
            return False
        return True

    def check_arguments(self, template_kwargs: Mapping[str, Any]) -> None:
        """Raises Unrenderable, which names the one that the format doesn't take, as far as that is known before there
        are messages."""
        self._renderer_for(template_kwargs)

    def _renderer_for(self, template_kwargs: Mapping[str, Any] | None) -> Any:
        if not template_kwargs:
            return self._renderer
        key = json.dumps(template_kwargs, sort_keys=True)
        with self._lock:
            renderer = self._others.get(key)
            if renderer is None:
                try:
                    config = merge_chat_template_kwargs(self._config, template_kwargs)
                    renderer = create_renderer(Packing(self.vocabulary, marks=self._marks), config)
                except ValidationError as error:
                    raise self._wrong_argument(error, template_kwargs) from None
                except (ValueError, TypeError) as error:
                    raise self._unknown_argument(template_kwargs) from error
                if len(key) <= _LONGEST_KEPT:
                    self._others.put(key, renderer, 1)
        return renderer

    def _wrong_argument(self, error: ValidationError, kwargs: Mapping[str, Any]) -> Unrenderable:
        first = error.errors()[0]
        theirs = str(first["ctx"]["error"]) if first["type"] in _OWN_WORDS else ""
        named = first["loc"] or [name for name in kwargs if name in theirs]
        if not named:
            return Unrenderable(f"the chat format {self.name} does not take these together", param=_KWARGS)
        wrong = what_is_wrong(first)
        if theirs:
            contradicts = "thinking_retention" in theirs
            wrong = f"{'contradicts thinking_retention' if contradicts else 'has no such value'}: leave it out"
        return Unrenderable(f"for the chat format {self.name}, {named[0]} {wrong}", param=_argument(str(named[0])))

    def _unknown_argument(self, kwargs: Mapping[str, Any]) -> Unrenderable:
        known = type(self._config).template_field_names()
        unknown = next((name[:_LONGEST_NAME] for name in kwargs if name not in known), None)
        if unknown is None or self._config._allow_opaque_template_kwargs:
            return Unrenderable(f"the chat format {self.name} does not take these: leave them out", param=_KWARGS)
        takes = f"it takes {', '.join(sorted(known))}" if known else "it takes none"
        return Unrenderable(f"the chat format {self.name} has no argument {unknown}: {takes}", param=_argument(unknown))

    def _open_end(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> tuple[list[int], list[int]]:
        """The last, still open stretch of a turn, as (prompt, output): all that a bridge looks at.

        A stop token inside the output (a caller may have them ignored) closes nothing; what follows it is open.
        """
        cut = _last(output_ids[:-1], self._stops)
        if cut is not None:
            return list(output_ids[cut : cut + 1]), list(output_ids[cut + 1 :])
        return list(prompt_ids[_last(prompt_ids, self._stops) or 0 :]), list(output_ids)


def _bridged(
    renderer: Any, tail: list[int], output: list[int], messages: list[Message], tools: list[Any] | None
) -> list[int] | None:
    """What the renderer adds to a turn; None where it would write the turn anew."""
    rendered = renderer.bridge_to_next_turn(tail, output, messages, tools=tools)
    if rendered is None:
        return None
    prior = tail + output
    # The very same objects: a packed run is equal to any other.
    if len(rendered.token_ids) < len(prior) or not all(map(is_, rendered.token_ids, prior)):
        return None
    added: list[int] = rendered.token_ids[len(prior) :]
    return added


class _AsText:
    """A tokenizer of whose template the text is wanted, in the place of ids."""

    def __init__(self, tokenizer: Packing) -> None:
        self._tokenizer = tokenizer

    def apply_chat_template(self, messages: Sequence[Any], **kwargs: Any) -> list[str]:
        return [self._tokenizer.apply_chat_template(messages, **(kwargs | {"tokenize": False}))]


def _argument(name: str) -> str:
    """The path of a template argument; one of them is a field of its own."""
    return name if name == "reasoning_effort" else f"{_KWARGS}.{name}"


def _joined(prompt_ids: Sequence[int], output_ids: Sequence[int]) -> array[int]:
    """Both as one array; arrays are joined without a Python number for each token."""
    joined = array("i", prompt_ids)
    joined.extend(output_ids)
    return joined


def _begins_with(ids: array[int], prior: array[int]) -> bool:
    return ids[: len(prior)].tobytes() == prior.tobytes()


def _last(ids: Sequence[int], wanted: frozenset[int], *, block: int = 4096) -> int | None:
    """Position of the last of the wanted ids; None where there is none."""
    for end in range(len(ids), 0, -block):
        start = max(0, end - block)
        view = np.asarray(ids[start:end], np.int32)
        found = [start + int(hits[-1]) for token_id in wanted if len(hits := (view == token_id).nonzero()[0])]
        if found:
            return max(found)
    return None

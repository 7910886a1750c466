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
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from operator import is_
from typing import Any, Literal
from unicodedata import normalize

import msgspec
import numpy as np
from pydantic import TypeAdapter, ValidationError
from renderers import RendererConfig
from renderers.base import merge_chat_template_kwargs

from rolloutfleet.explain import what_is_wrong
from rolloutfleet_proxy.domain.messages import EFFORTS, NO_ARGS, Message, Rules, TemplateArgs
from rolloutfleet_proxy.tokens import quirks, support, template_fixes
from rolloutfleet_proxy.tokens.control_tokens import Marked, as_tokens
from rolloutfleet_proxy.tokens.history import adapted, at_risk, with_calls_told
from rolloutfleet_proxy.tokens.quirks import Unrenderable
from rolloutfleet_proxy.tokens.reading import Reader, ReplyFormat
from rolloutfleet_proxy.tokens.reply_grammar import ReplyGrammar
from rolloutfleet_proxy.tokens.tool_schemas import writable
from rolloutfleet_proxy.tokens.vocabulary import Packing, Vocabulary, unpacked

log = logging.getLogger(__name__)

_KEPT_RENDERERS = 16
_LONGEST_KEPT = 4096
"""Characters of template arguments for which a renderer is kept: their number alone would not bound what they take."""
_KWARGS = "chat_template_kwargs"
_REFUSALS = (ValueError, TypeError, KeyError, AttributeError, AssertionError)
"""Errors of a renderer that is given what it has no form for."""
_config_of = TypeAdapter(RendererConfig).validate_python


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
    checked: int
    """Comparisons made with a candidate's tokens."""
    special_tokens_in_text: int
    """Spellings of control tokens that are text in it (`control_tokens`), in what the request adds to its parent."""


class Ask(msgspec.Struct, omit_defaults=True):
    """What is to be rendered: the whole conversation, ready for the next answer, or what new messages add to a turn."""

    messages: list[Message]
    args: TemplateArgs
    turn: tuple[array[int], array[int]] | None = None
    """The open end of that turn: a tail of its prompt, and its output."""


Render = Callable[[Ask], "array[int] | None"]
"""`ChatFormat.rendered`, which costs a lot: where a long one should run elsewhere, this is the seam."""


class ChatFormat:
    """A model's chat format. `loading` makes one."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        renderer: str,
        thinking_retention: Literal["all", "tool_cycle"] | None,
        special_tokens_in_text: Literal["text", "token"],
    ) -> None:
        """`thinking_retention` is the renderer's own setting; None for what its template does. Control tokens that are
        spelled in texts are encoded as text or as tokens.

        Raises Unrenderable where the tokens don't fit.
        """
        self.name = renderer
        self.vocabulary = vocabulary
        self._marks = special_tokens_in_text == "text"
        self._said_unmarked = False
        self.context_length = vocabulary.files.context_length
        self.vocabulary_size = max(vocabulary.files.vocabulary_size or 0, vocabulary.size)
        try:
            self._config = _config_of({"name": renderer, "thinking_retention": thinking_retention})
            self._renderer = quirks.create_renderer(Packing(vocabulary, marks=self._marks), self._config)
        except Exception as error:  # of any kind: gpt-oss, for one, fetches its vocabulary here
            raise Unrenderable(f"the chat format {renderer} doesn't fit {vocabulary.name_or_path}: {error}") from error
        self.stop_token_ids: list[int] = list(self._renderer.get_stop_token_ids())
        self._kept = lru_cache(_KEPT_RENDERERS)(self._renderer_of)
        self._replies = ReplyFormat(renderer, vocabulary, self.stop_token_ids)
        self.grammar = ReplyGrammar(self._replies, vocabulary, self.stop_token_ids)
        self._breaks = template_fixes.Breaks(self._replies.syntax.around, vocabulary)
        self._support = support.support_of(self._written)
        self._ids = "functions" if renderer in quirks.NAMES_CALLS_BY_ID else support.ids_of(self._written)
        self._drops = support.drops_some(partial(self._tried, self.rendered))
        """Whether tools, or their calls or results, may be missing in what is written."""
        self.rules = Rules(frozenset(quirks.WRITTEN_FIELDS.get(renderer, ())))
        """By which messages are compared before tokens are."""

    # Messages to tokens

    def prompt(
        self,
        messages: Sequence[Message],
        args: TemplateArgs,
        candidates: Sequence[Candidate],
        *,
        render: Render | None = None,
    ) -> Prompt:
        """The prompt of a request, and which candidate it continues; candidates come deepest first.

        Raises Unrenderable.
        """
        render = render or self.rendered
        for index, candidate in enumerate(candidates):
            if candidate.length != candidates[0].length:
                break
            if extended := self._extended(messages, args, candidate, render):
                ids, in_text = extended
                return Prompt(ids, index, checked=1, special_tokens_in_text=in_text)

        whole, marked = self._whole(messages, args, render)
        priors = (_joined(*candidate.load()) for candidate in candidates)
        parent = next((index for index, ids in enumerate(priors) if whole[: len(ids)] == ids), None)
        checked = len(candidates) if parent is None else parent + 1
        in_text = marked.count(0 if parent is None else candidates[parent].length)
        return Prompt(whole, parent, checked=checked, special_tokens_in_text=in_text)

    def _whole(self, messages: Sequence[Message], args: TemplateArgs, render: Render) -> tuple[array[int], Marked]:
        """The whole conversation as it is written. Raises Unrenderable, which names what can't be, or is dropped."""
        asked = self._asked(messages)
        tried = partial(self._tried, render)
        try:
            ids, marked = self._marked_whole(asked, args, render)
        except Unrenderable as error:
            if error.param is not None:
                raise
            place = support.place_of_fault(lambda *part: tried(*part) is not None, messages, args)
            said = str(error) or support.WHAT_TO_WRITE.get(place.rpartition(".")[2], "change it or leave it out")
            raise Unrenderable(f"the chat format {self.name} can't write it: {said}", param=place) from error
        self._check_written(asked, ids, start=0)
        if self._drops and (lost := support.dropped(tried, messages, args)):
            raise Unrenderable(f"the chat format {self.name} drops {lost}: leave it out", param=lost)
        return ids, marked

    def _marked_whole(self, asked: list[Message], args: TemplateArgs, render: Render) -> tuple[array[int], Marked]:
        def written(marked: Marked) -> array[int]:
            ids = render(Ask(adapted(marked.messages, self._support), replace(args, tools=marked.tools)))
            assert ids is not None, "a whole conversation is written or refused"
            return ids

        marked = self._marked(asked, args.tools)
        if self.name != "default" or not marked.count(0):
            return written(marked), marked
        # The model's own template may do anything with a text.
        unmarked = as_tokens(asked, args.tools)
        with_tokens = written(unmarked)
        with suppress(Unrenderable):
            ids = written(marked)
            if self.vocabulary.decode(ids) == self.vocabulary.decode(with_tokens):
                return ids, marked
        if not self._said_unmarked:
            self._said_unmarked = True
            log.warning(
                "%s: its chat template changes texts that spell control tokens when these are marked: they stay tokens",
                self.vocabulary.name_or_path,
            )
        return with_tokens, unmarked

    def _marked(self, asked: list[Message], tools: list[Any] | None) -> Marked:
        if not self._marks:
            return Marked(asked, tools)
        marked = self.vocabulary.control_tokens.marked(asked, tools)
        return replace(marked, messages=asked, tools=tools) if self.name == quirks.GPT_OSS else marked

    def _asked(self, messages: Sequence[Message], start: int = 0) -> list[Message]:
        """The messages from `start` on, in the form that the format expects."""
        return quirks.renderable(self.name, with_calls_told(messages, self._ids, start=start), start)

    def _tried(self, render: Render, messages: Sequence[Message], args: TemplateArgs) -> array[int] | None:
        """What the format writes, whatever is missing; None where it refuses."""
        try:
            return render(Ask(adapted(self._asked(messages), self._support), args))
        except Unrenderable:
            return None

    def _check_written(self, messages: Sequence[Message], ids: array[int], *, start: int) -> None:
        """Raises Unrenderable where what a message says is not in what was written; `start` messages came before."""
        found = list(at_risk(messages, self._support, start=start))
        text = normalize("NFC", self.vocabulary.decode(ids)) if found else ""  # as many tokenizers do
        for index, message in found:
            if normalize("NFC", message["content"]).strip() not in text:
                said = f"drops what messages[{index}] says: say it in the first message, or as a user"
                raise Unrenderable(f"the chat format {self.name} {said}", param=f"messages[{index}].content")

    def _written(self, messages: Sequence[Message], args: TemplateArgs = NO_ARGS) -> str | None:
        try:
            return self.vocabulary.decode(self.full(list(messages), args))
        except Unrenderable:
            return None

    def _extended(
        self, messages: Sequence[Message], args: TemplateArgs, candidate: Candidate, render: Render
    ) -> tuple[array[int], int] | None:
        """The candidate's tokens and the new messages' behind them, and how many control tokens are text in these; None
        where the format can't say."""
        new = self._asked(messages, candidate.length)
        if not new or any(message["role"] == "assistant" for message in new):
            return None
        prompt_ids, output_ids = candidate.load()
        tail, output = self._open_end(prompt_ids, output_ids)
        marked = self._marked(new, None)
        extension = render(Ask(adapted(marked.messages, self._support, start=candidate.length), args, (tail, output)))
        if extension is None:
            return None
        self._check_written(new, extension, start=candidate.length)
        return _joined(prompt_ids, output_ids) + extension, marked.count(0)

    def rendered(self, ask: Ask) -> array[int] | None:
        """Raises Unrenderable for a conversation; None where the format can't say what a turn is extended by."""
        messages, args = ask.messages, ask.args
        if ask.turn is None:
            return self.full(messages, args)
        tail, output = ask.turn[0].tolist(), ask.turn[1]
        renderer = self._renderer_for(args.kwargs)
        packed = self.vocabulary.packed(output) if self.vocabulary.decodes_by_bytes else output.tolist()
        try:
            bridge = partial(renderer.bridge_to_next_turn, new_messages=messages, tools=self._tools(args))
            added = _bridged(bridge, tail, packed)
            ended = bool(packed) and packed[-1] in self.stop_token_ids
            if added is None and ended:
                added = _bridged(bridge, tail, self._replies.with_thought_ended(packed))
            if added is not None and ended:
                added = [*self._replies.behind_end, *added]
        except _REFUSALS:
            return None  # A full render says what is wrong.
        return None if added is None else self._broken(unpacked(added), args)

    def full(self, messages: list[Message], args: TemplateArgs) -> array[int]:
        renderer = quirks.dated(self._renderer_for(args.kwargs), args.clock)
        try:
            if args.tools and self.name in template_fixes.LACK_TOOLS:
                messages = template_fixes.with_tools_told(messages, args.tools)
            ids = renderer.render_ids(messages, tools=self._tools(args), add_generation_prompt=True)
        except _REFUSALS as error:
            raise quirks.refusal(error) from error
        return self._broken(unpacked(ids), args)

    def _tools(self, args: TemplateArgs) -> list[Any] | None:
        return writable(self.name, args.tools) if args.tools else None

    def _broken(self, ids: array[int], args: TemplateArgs) -> array[int]:
        lacking = template_fixes.LACK_BREAKS - (frozenset() if args.tools else template_fixes.LACK_TOOLS)
        return self._breaks.added(ids) if self.name in lacking else ids

    # Tokens to messages

    def reader(self, prompt_ids: Sequence[int], args: TemplateArgs, *, seed: bytes) -> Reader:
        """What reads the reply to one prompt, whole or as it grows."""
        thinks = getattr(self._renderer_for(args.kwargs).config, "enable_thinking", True) is not False
        return self._replies.reader(prompt_ids, args.tools, thinks=thinks, seed=seed)

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
        taken = set()
        for effort in EFFORTS:
            with suppress(Unrenderable):
                self.check_arguments({"reasoning_effort": effort})
                taken.add(effort)
        return frozenset(taken)

    def check_arguments(self, template_kwargs: Mapping[str, Any]) -> None:
        """Raises Unrenderable, which names the one that the format doesn't take, as far as that is known before there
        are messages."""
        self._renderer_for(template_kwargs)

    def _renderer_for(self, template_kwargs: Mapping[str, Any] | None) -> Any:
        if not template_kwargs:
            return self._renderer
        said = json.dumps(template_kwargs, sort_keys=True)
        return self._kept(said) if len(said) <= _LONGEST_KEPT else self._renderer_of(said)

    def _renderer_of(self, said: str) -> Any:
        """The renderer for template arguments, given as JSON: `_kept` keeps some of these."""
        kwargs = json.loads(said)
        try:
            config = merge_chat_template_kwargs(self._config, kwargs)
            return quirks.create_renderer(Packing(self.vocabulary, marks=self._marks), config)
        except ValidationError as error:
            raise self._wrong_argument(error, kwargs) from None
        except (ValueError, TypeError) as error:
            raise self._unknown_argument(kwargs) from error

    def _wrong_argument(self, error: ValidationError, kwargs: Mapping[str, Any]) -> Unrenderable:
        first = error.errors()[0]
        is_theirs = first["type"] in ("value_error", "assertion_error")  # which `renderers` words itself
        theirs = str(first["ctx"]["error"]) if is_theirs else ""
        named = first["loc"] or [name for name in kwargs if name in theirs] or list(kwargs)
        wrong = what_is_wrong(first)
        if theirs:
            contradicts = "thinking_retention" in theirs
            wrong = f"{'contradicts thinking_retention' if contradicts else 'has no such value'}: leave it out"
        return Unrenderable(f"for the chat format {self.name}, {named[0]} {wrong}", param=_argument(str(named[0])))

    def _unknown_argument(self, kwargs: Mapping[str, Any]) -> Unrenderable:
        known = type(self._config).template_field_names()
        unknown = next((name[:100] for name in kwargs if name not in known), None)
        if unknown is None or self._config._allow_opaque_template_kwargs:
            return Unrenderable(f"the chat format {self.name} does not take these: leave them out", param=_KWARGS)
        takes = f"it takes {', '.join(sorted(known))}" if known else "it takes none"
        return Unrenderable(f"the chat format {self.name} has no argument {unknown}: {takes}", param=_argument(unknown))

    def _open_end(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> tuple[array[int], array[int]]:
        """The last, still open stretch of a turn, as (prompt, output): all that a bridge looks at.

        A stop token inside the output (a caller may have them ignored) closes nothing; what follows it is open.
        """
        if (cut := self._last_stop(output_ids[:-1])) is not None:
            return array("i", output_ids[cut : cut + 1]), array("i", output_ids[cut + 1 :])
        return array("i", prompt_ids[self._last_stop(prompt_ids) or 0 :]), array("i", output_ids)

    def _last_stop(self, ids: Sequence[int]) -> int | None:
        """Position of the last of the stop tokens; None where there is none."""
        written = np.asarray(ids, np.int32)
        found = [places[-1] for each in self.stop_token_ids if len(places := (written == each).nonzero()[0])]
        return int(max(found)) if found else None


def _bridged(bridge: Callable[..., Any], tail: list[int], output: list[int]) -> list[int] | None:
    """What a renderer's bridge adds to a turn; None where it would write the turn anew."""
    rendered = bridge(tail, output)
    ids: list[int] = [] if rendered is None else rendered.token_ids
    prior = tail + output
    # The very same objects: a packed run is equal to any other.
    extends = len(ids) >= len(prior) and all(map(is_, ids, prior))
    return ids[len(prior) :] if extends else None


def _argument(name: str) -> str:
    """The path of a template argument; one of them is a field of its own."""
    return name if name == "reasoning_effort" else f"{_KWARGS}.{name}"


def _joined(prompt_ids: Sequence[int], output_ids: Sequence[int]) -> array[int]:
    """Both as one array."""
    return array("i", prompt_ids) + array("i", output_ids)

"""One model's chat format: messages -> prompt ids, output ids -> a message.

Rendering is `renderers`' work, and for models that it lacks the model's own chat template's. What is decided here is
which earlier turn a prompt continues: never by messages alone, always by comparing tokens (promise 3).

`ChatFormat.prompt` belongs to one thread (it encodes); everything else may be called in any.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from threading import Lock
from typing import Any, Protocol

import numpy as np
from pydantic import TypeAdapter, ValidationError
from renderers import RendererConfig
from renderers.base import merge_chat_template_kwargs

from rolloutfleet_proxy.tokens.quirks import (
    Unrenderable,
    assistant_mark,
    create_renderer,
    generation_tail,
    renderable,
    strict_json,
)
from rolloutfleet_proxy.tokens.reading import Parsed, Reader, cut_at
from rolloutfleet_proxy.tokens.vocabulary import Packing, Vocabulary, unpacked
from rolloutfleet_proxy.turns.messages import Message, TemplateArgs

TOKENS_DIFFER = "tokens_differ"
"""Why a turn starts a branch though its messages continue an earlier turn: its rendered tokens don't."""

_KEPT_RENDERERS = 16
_LONGEST_KEPT = 4096
"""Characters of template arguments for which a renderer is kept: their number alone would not bound what they take."""
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
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """`options` are the renderer's own settings. Raises Unrenderable where these or the tokens don't fit."""
        self.name = renderer
        self.vocabulary = vocabulary
        self.context_length = context_length
        self.vocabulary_size = max(vocabulary_size or 0, vocabulary.size)
        try:
            config = _config_of({"name": renderer, **(options or {})})
            self._config = merge_chat_template_kwargs(config, template_kwargs)
            self._renderer = create_renderer(Packing(vocabulary), self._config)
        except Exception as error:  # of any kind: gpt-oss, for one, fetches its vocabulary here
            raise Unrenderable(f"the chat format {renderer} doesn't fit {vocabulary.name_or_path}: {error}") from error
        self.stop_token_ids: list[int] = list(self._renderer.get_stop_token_ids())
        self._stops = frozenset(self.stop_token_ids)
        marks = vocabulary.convert_tokens_to_ids(assistant_mark(renderer))
        self._assistant_mark: list[int] = [mark for mark in marks if mark is not None]
        self._others: dict[str, Any] = {}
        self._lock = Lock()

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
        checked = 0
        for index, candidate in enumerate(candidates):
            if candidate.length != candidates[0].length:
                break
            ids = self._extended(messages, args, candidate, renders)
            if ids is not None:
                checked += 1
                return Prompt(ids, index, None if index == 0 else TOKENS_DIFFER, checked, 1, bridged=True)

        ids = renders.full(renderable(self.name, messages), args)
        for index, candidate in enumerate(candidates):
            prompt_ids, output_ids = candidate.load()
            checked += 1
            if _begins_with(ids, _joined(prompt_ids, output_ids)):
                return Prompt(ids, index, None if index == 0 else TOKENS_DIFFER, checked, 1, bridged=False)
        return Prompt(ids, None, TOKENS_DIFFER if candidates else None, checked, 0, bridged=False)

    def prompt_at_once(
        self, messages: Sequence[Message], args: TemplateArgs, deepest: Candidate | None, *, renders: Renders
    ) -> Prompt | None:
        """What `prompt` returns, where that is the deepest candidate's tokens extended, or nothing is continued.

        Else None. Raises Unrenderable.
        """
        if deepest is None:
            return Prompt(renders.full(renderable(self.name, messages), args), None, None, 0, 0, bridged=False)
        ids = self._extended(messages, args, deepest, renders)
        return None if ids is None else Prompt(ids, 0, None, 1, 1, bridged=True)

    def _extended(
        self, messages: Sequence[Message], args: TemplateArgs, candidate: Candidate, renders: Renders
    ) -> array[int] | None:
        """The candidate's tokens and the new messages' behind them; None where the format can't say."""
        new = renderable(self.name, messages, candidate.length)
        if not new or any(message["role"] == "assistant" for message in new):
            return None
        prompt_ids, output_ids = candidate.load()
        tail, output = self._open_end(prompt_ids, output_ids)
        extension = renders.extension(tail, output, new, args)
        return None if extension is None else _joined(prompt_ids, output_ids) + extension

    def extension(
        self, tail: list[int], output: list[int], messages: list[Message], args: TemplateArgs
    ) -> array[int] | None:
        renderer = self._renderer_for(args.kwargs)
        packed = self.vocabulary.packed(output)
        try:
            rendered = renderer.bridge_to_next_turn(tail, packed, messages, tools=args.tools or None)
        except (ValueError, TypeError, KeyError, AttributeError, AssertionError) as error:
            raise Unrenderable(f"the chat format {self.name} refuses the messages: {error}") from error
        if rendered is None:
            return None
        prior = tail + packed
        # The very same objects: a packed run is equal to any other.
        if len(rendered.token_ids) < len(prior) or not all(map(is_, rendered.token_ids, prior)):
            return None
        return unpacked(rendered.token_ids[len(prior) :])

    def full(self, messages: list[Message], args: TemplateArgs) -> array[int]:
        renderer = self._renderer_for(args.kwargs)
        try:
            ids = renderer.render_ids(messages, tools=args.tools or None, add_generation_prompt=True)
        except (ValueError, TypeError, KeyError, AttributeError, AssertionError) as error:
            raise Unrenderable(f"the chat format {self.name} refuses the messages: {error}") from error
        return unpacked(ids)

    # Tokens to messages

    def parse(
        self,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
        args: TemplateArgs,
        *,
        seed: bytes,
        stop: str | None = None,
    ) -> Parsed:
        """The answer that the output ids are. The same turn (`seed`) gets the same tool call ids.

        `stop` is the stop string that ended the generation: it and what follows it isn't part of the answer.
        """
        packed = self.vocabulary.packed(output_ids)
        if stop:
            packed = cut_at(packed, stop)
        return self.reader(prompt_ids, args, seed=seed).read(packed)

    def reader(self, prompt_ids: Sequence[int], args: TemplateArgs, *, seed: bytes) -> Reader:
        """What reads the reply to one prompt, whole or as it grows."""
        tail = generation_tail(prompt_ids, stops=self._stops, mark=self._assistant_mark)
        renderer = self._renderer_for(args.kwargs)
        return Reader(self.name, renderer, self.vocabulary, tail, args.tools or None, seed)

    def decode(self, ids: Sequence[int]) -> str:
        return self.vocabulary.decode(ids)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token; OpenAI's `token` is these as UTF-8 (`errors="replace"`), `bytes` these as a list."""
        return self.vocabulary.token_bytes(token_id)

    @property
    def cache_nbytes(self) -> int:
        return self.vocabulary.cache_nbytes

    @property
    def encodes_quickly(self) -> bool:
        return self.vocabulary.encodes_quickly

    def _renderer_for(self, template_kwargs: Mapping[str, Any] | None) -> Any:
        if not template_kwargs:
            return self._renderer
        key = json.dumps(template_kwargs, sort_keys=True)
        with self._lock:
            renderer = self._others.get(key)
            if renderer is None:
                try:
                    config = merge_chat_template_kwargs(self._config, template_kwargs)
                    renderer = create_renderer(Packing(self.vocabulary), config)
                except (ValidationError, ValueError, TypeError) as error:
                    raise Unrenderable(
                        f"chat_template_kwargs don't fit the chat format {self.name}: {error}"
                    ) from error
                if len(key) > _LONGEST_KEPT:
                    return renderer
                while len(self._others) >= _KEPT_RENDERERS:
                    del self._others[next(iter(self._others))]
                self._others[key] = renderer
        return renderer

    def _open_end(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> tuple[list[int], list[int]]:
        """The last, still open stretch of a turn, as (prompt, output): all that a bridge looks at.

        A stop token inside the output (a caller may have them ignored) closes nothing; what follows it is open.
        """
        cut = _last(output_ids[:-1], self._stops)
        if cut is not None:
            return list(output_ids[cut : cut + 1]), list(output_ids[cut + 1 :])
        return list(prompt_ids[_last(prompt_ids, self._stops) or 0 :]), list(output_ids)


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

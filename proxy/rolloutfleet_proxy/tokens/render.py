"""One model's chat format: messages -> prompt ids, output ids -> a message.

Rendering is `renderers`' work, and for models that it lacks the model's own chat template's. What is decided here is
which earlier turn a prompt continues: never by messages alone, always by comparing tokens (promise 3).

`ChatFormat.prompt` belongs to one thread (it encodes); everything else may be called in any.
"""

from __future__ import annotations

import json
import logging
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from operator import is_
from pathlib import Path
from threading import Lock
from typing import Any, Literal, Protocol

import numpy as np
from pydantic import TypeAdapter, ValidationError
from renderers import RendererConfig, create_renderer
from renderers.base import MODEL_RENDERER_MAP, ParsedToolCall, ToolCallParseStatus, merge_chat_template_kwargs

from rolloutfleet_proxy.tokens.model_files import ModelFiles, ModelUnreadable, read_model
from rolloutfleet_proxy.tokens.quirks import (
    Unrenderable,
    assistant_mark,
    generation_tail,
    readable,
    renderable,
    strict_json,
    stripped,
)
from rolloutfleet_proxy.tokens.vocabulary import Packing, Run, Vocabulary, unpacked
from rolloutfleet_proxy.turns.messages import Message

log = logging.getLogger(__name__)

TOKENS_DIFFER = "tokens_differ"
"""Why a turn starts a branch though its messages continue an earlier turn: its rendered tokens don't."""

_KEPT_RENDERERS = 16
_LONGEST_KEPT = 4096
"""Characters of template arguments for which a renderer is kept: their number alone would not bound what they take."""
_FUNCTION_NAME = re.compile(r"[^\s<>{}\"]{1,256}")
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


@dataclass(frozen=True, slots=True)
class Parsed:
    message: Message
    """The answer in OpenAI's form."""
    malformed_tool_calls: int = 0
    """Tool calls that stay in the content as text."""


@dataclass(frozen=True, slots=True)
class Scan:
    """What a reply says so far; `malformed` are tool calls, as text, that are no calls."""

    reasoning: str
    content: str
    tool_calls: list[dict[str, Any]]
    malformed: list[str]


class Renders(Protocol):
    """The two operations that cost a lot: where a long one should run elsewhere, this is the seam."""

    def extension(
        self,
        tail: list[int],
        output: list[int],
        messages: list[Message],
        tools: list[Any] | None,
        template_kwargs: Mapping[str, Any] | None,
    ) -> array[int] | None:
        """What the new messages add after `tail + output`; None where the format can't say."""
        ...

    def full(
        self, messages: list[Message], tools: list[Any] | None, template_kwargs: Mapping[str, Any] | None
    ) -> array[int]:
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
        tools: Sequence[Any] | None,
        template_kwargs: Mapping[str, Any] | None,
        candidates: Sequence[Candidate],
        *,
        renders: Renders | None = None,
    ) -> Prompt:
        """The prompt of a request, and which candidate it continues; candidates come deepest first.

        Raises Unrenderable.
        """
        renders = renders or self
        tools = list(tools) if tools else None
        checked = 0
        for index, candidate in enumerate(candidates):
            if candidate.length != candidates[0].length:
                break
            ids = self._extended(messages, tools, template_kwargs, candidate, renders)
            if ids is not None:
                checked += 1
                return Prompt(ids, index, None if index == 0 else TOKENS_DIFFER, checked, 1, bridged=True)

        ids = renders.full(renderable(self.name, messages), tools, template_kwargs)
        for index, candidate in enumerate(candidates):
            prompt_ids, output_ids = candidate.load()
            checked += 1
            if _begins_with(ids, _joined(prompt_ids, output_ids)):
                return Prompt(ids, index, None if index == 0 else TOKENS_DIFFER, checked, 1, bridged=False)
        return Prompt(ids, None, TOKENS_DIFFER if candidates else None, checked, 0, bridged=False)

    def prompt_at_once(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any] | None,
        template_kwargs: Mapping[str, Any] | None,
        deepest: Candidate | None,
        *,
        renders: Renders,
    ) -> Prompt | None:
        """What `prompt` returns, where that is the deepest candidate's tokens extended, or nothing is continued.

        Else None. Raises Unrenderable.
        """
        tools = list(tools) if tools else None
        if deepest is None:
            return Prompt(
                renders.full(renderable(self.name, messages), tools, template_kwargs), None, None, 0, 0, bridged=False
            )
        ids = self._extended(messages, tools, template_kwargs, deepest, renders)
        return None if ids is None else Prompt(ids, 0, None, 1, 1, bridged=True)

    def _extended(
        self,
        messages: Sequence[Message],
        tools: list[Any] | None,
        template_kwargs: Mapping[str, Any] | None,
        candidate: Candidate,
        renders: Renders,
    ) -> array[int] | None:
        """The candidate's tokens and the new messages' behind them; None where the format can't say."""
        new = renderable(self.name, messages, candidate.length)
        if not new or any(message["role"] == "assistant" for message in new):
            return None
        prompt_ids, output_ids = candidate.load()
        tail, output = self._open_end(prompt_ids, output_ids)
        extension = renders.extension(tail, output, new, tools, template_kwargs)
        return None if extension is None else _joined(prompt_ids, output_ids) + extension

    def extension(
        self,
        tail: list[int],
        output: list[int],
        messages: list[Message],
        tools: list[Any] | None,
        template_kwargs: Mapping[str, Any] | None,
    ) -> array[int] | None:
        renderer = self._renderer_for(template_kwargs)
        packed = self.vocabulary.packed(output)
        try:
            rendered = renderer.bridge_to_next_turn(tail, packed, messages, tools=tools)
        except (ValueError, TypeError, KeyError, AttributeError, AssertionError) as error:
            raise Unrenderable(f"the chat format {self.name} refuses the messages: {error}") from error
        if rendered is None:
            return None
        prior = tail + packed
        # The very same objects: a packed run is equal to any other.
        if len(rendered.token_ids) < len(prior) or not all(map(is_, rendered.token_ids, prior)):
            return None
        return unpacked(rendered.token_ids[len(prior) :])

    def full(
        self, messages: list[Message], tools: list[Any] | None, template_kwargs: Mapping[str, Any] | None
    ) -> array[int]:
        renderer = self._renderer_for(template_kwargs)
        try:
            ids = renderer.render_ids(messages, tools=tools, add_generation_prompt=True)
        except (ValueError, TypeError, KeyError, AttributeError, AssertionError) as error:
            raise Unrenderable(f"the chat format {self.name} refuses the messages: {error}") from error
        return unpacked(ids)

    # Tokens to messages

    def parse(
        self,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
        tools: Sequence[Any] | None,
        template_kwargs: Mapping[str, Any] | None,
        *,
        seed: bytes,
        stop: str | None = None,
    ) -> Parsed:
        """The answer that the output ids are. The same turn (`seed`) gets the same tool call ids.

        `stop` is the stop string that ended the generation: it and what follows it isn't part of the answer.
        """
        packed = self.vocabulary.packed(output_ids)
        if stop:
            packed = _cut_at(packed, stop)
        return self.reader(prompt_ids, tools, template_kwargs, seed=seed).read(packed)

    def reader(
        self,
        prompt_ids: Sequence[int],
        tools: Sequence[Any] | None,
        template_kwargs: Mapping[str, Any] | None,
        *,
        seed: bytes,
    ) -> Reader:
        """What reads the reply to one prompt, whole or as it grows."""
        tail = generation_tail(prompt_ids, stops=self._stops, mark=self._assistant_mark)
        renderer = self._renderer_for(template_kwargs)
        return Reader(self.name, renderer, self.vocabulary, tail, list(tools) if tools else None, seed)

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


class Reader:
    """Reads one reply. Reads of a growing reply agree with each other but for what its last tokens leave open."""

    def __init__(
        self,
        name: str,
        renderer: Any,
        vocabulary: Vocabulary,
        tail: list[int],
        tools: list[Any] | None,
        seed: bytes,
    ) -> None:
        self.name = name
        self.vocabulary = vocabulary
        self._renderer = renderer
        self._tail = tail
        self._tools = tools
        self._seed = seed

    def scan(self, packed: list[int]) -> Scan:
        """What packed ids (`Vocabulary.packed`) say, if they were the whole reply."""
        packed = readable(self.name, packed, self.vocabulary)
        parsed = self._renderer.parse_response(packed, tools=self._tools, prompt_ids=self._tail or None)
        reasoning, content = stripped(
            self.name,
            reasoning=parsed.reasoning_content or "",
            content=parsed.content or "",
            closed=parsed.reasoning_complete is not False,
        )
        calls: list[dict[str, Any]] = []
        malformed: list[ParsedToolCall] = []
        for attempt in parsed.tool_calls:
            call = self._tool_call(attempt, calls)
            if call is None:
                malformed.append(attempt)
            else:
                calls.append(call)
        return Scan(reasoning, content, calls, self._texts_of(malformed, packed))

    def read(self, packed: list[int]) -> Parsed:
        """The message that packed ids make. What a parser fails on is text: tokens that were made are never lost."""
        try:
            scan = self.scan(packed)
        except Exception:
            log.warning("a reply that the chat format %s can't read stays as text", self.name, exc_info=True)
            scan = Scan("", self.vocabulary.decode(packed), [], [])
        content = "\n".join([scan.content, *scan.malformed] if scan.content else scan.malformed)
        message: Message = {"role": "assistant", "content": content or (None if scan.tool_calls else "")}
        if scan.reasoning:
            message["reasoning_content"] = scan.reasoning
        if scan.tool_calls:
            message["tool_calls"] = scan.tool_calls
        return Parsed(message, len(scan.malformed))

    def _texts_of(self, attempts: list[ParsedToolCall], packed: list[int]) -> list[str]:
        """What the model wrote for each; several calls of one block share its text."""
        texts: dict[object, str] = {}
        for attempt in attempts:
            span = attempt.token_span
            text = attempt.raw if span is None else self.vocabulary.decode(packed[slice(*span)])
            texts.setdefault(span or text, text)
        return list(texts.values())

    def _tool_call(self, attempt: ParsedToolCall, before: list[dict[str, Any]]) -> dict[str, Any] | None:
        """OpenAI's form of a call; None where it isn't one.

        An undeclared tool's name or an argument that isn't of its declared type doesn't make a call malformed: the
        agent answers that. A call without its end, name or arguments is.
        """
        if attempt.status in _BROKEN or not isinstance(attempt.name, str):
            return None
        arguments = _arguments_text(attempt.arguments)
        if arguments is None or not _FUNCTION_NAME.fullmatch(attempt.name) or not _is_unicode(attempt.name):
            return None
        call_id = attempt.id
        if not call_id or not _is_unicode(call_id) or any(call["id"] == call_id for call in before):
            number = len(before).to_bytes(4, "big")
            call_id = "call_" + blake2b(self._seed + number, digest_size=12).hexdigest()
        return {"id": call_id, "type": "function", "function": {"name": attempt.name, "arguments": arguments}}


_BROKEN = frozenset(
    {
        ToolCallParseStatus.UNCLOSED_BLOCK,
        ToolCallParseStatus.MISSING_NAME,
        ToolCallParseStatus.MALFORMED_STRUCTURE,
    }
)


def _arguments_text(arguments: Any) -> str | None:
    if arguments is None:
        return "{}"
    if isinstance(arguments, str):
        text = arguments
        try:
            if not isinstance(json.loads(text), dict):
                return None
        except (ValueError, RecursionError):
            return None
    elif isinstance(arguments, dict):
        try:
            text = json.dumps(arguments, ensure_ascii=False)
        except RecursionError:
            return None
    else:
        return None
    return text if _is_unicode(text) else json.dumps(arguments)


def _is_unicode(text: str) -> bool:
    """JSON escapes can name half a character, which no UTF-8 answer can carry."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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


def _cut_at(packed: list[int], stop: str) -> list[int]:
    """The packed ids up to where the stop string begins, if it is in the text that they end with."""
    for position in range(len(packed) - 1, -1, -1):
        run = packed[position]
        if isinstance(run, Run):
            found = run.data.rfind(stop.encode())
            return packed if found < 0 else [*packed[:position], Run(run.data[:found])]
    return packed


# Model types whose chat template is the same for all their models, as far as the template of each agrees (`load`).
_RENDERER_OF_MODEL_TYPE = {
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3",
    "qwen3_5": "qwen3.5",
    "qwen3_5_moe": "qwen3.5",
    "glm4_moe": "glm-4.5",
    "glm4_moe_lite": "glm-5",
    "glm_moe_dsa": "glm-5",
    "minimax_m2": "minimax-m2",
    "deepseek_v3": "deepseek-v3",
    "deepseek_v4": "deepseek-v4",
    "kimi_k2": "kimi-k2",
    "gpt_oss": "gpt-oss",
    "llama": "llama-3",
    "nemotron_h": "nemotron-3",
}


def load(
    source: str | Path,
    *,
    model: str | None = None,
    renderer: str | None = None,
    thinking_retention: Literal["all", "tool_cycle", "template"] = "all",
    template_kwargs: Mapping[str, Any] | None = None,
    token: str | None = None,
    download_to: Path | None = None,
    cache_bytes: int = 16 << 20,
) -> ChatFormat:
    """The chat format of a model directory, or of a model on the Hugging Face hub.

    The renderer is the one named; else the one that `renderers` has for the source's name, or that in its config; else
    the one for the name of the `model` that is served, or for its model type, if that writes what the model's own chat
    template writes; else that template itself, with its turns rendered anew each time and found again by comparing
    tokens. `thinking_retention` says across what a turn's tokens, reasoning included, are extended: later user messages
    too ("all"), the calls and results of one ("tool_cycle"), or nothing that the model's template wouldn't keep
    ("template").

    Raises ModelUnreadable.
    """
    files = read_model(source, token=token, download_to=download_to)
    vocabulary = Vocabulary(
        files.tokenizer,
        name=files.name,
        eos_token=files.tokens.get("eos_token"),
        unk_token=files.tokens.get("unk_token"),
        template=files.template,
        cache_bytes=cache_bytes,
    )
    retention = {} if thinking_retention == "template" else {"thinking_retention": thinking_retention}

    def chat_format(name: str) -> ChatFormat:
        return ChatFormat(
            vocabulary,
            renderer=name,
            context_length=files.context_length,
            vocabulary_size=files.vocabulary_size,
            options=_template_options(files, vocabulary) if name == "default" else retention,
            template_kwargs=template_kwargs,
        )

    known = renderer or next((MODEL_RENDERER_MAP[name] for name in files.names if name in MODEL_RENDERER_MAP), None)
    guesses = (MODEL_RENDERER_MAP.get(model or ""), _RENDERER_OF_MODEL_TYPE.get(files.model_type or ""))
    try:
        if known is not None:
            return chat_format(known)
        for guessed in filter(None, guesses):
            if found := _if_it_agrees(chat_format, guessed, vocabulary):
                return found
        if files.template is None:
            raise ModelUnreadable(
                f"{files.name}: no chat format is known for model type {files.model_type!r}, and the model has no "
                f"chat template; name a renderer"
            )
        log.warning("%s: no renderer fits; its own chat template is used, rendered whole for every turn", files.name)
        return chat_format("default")
    except Unrenderable as error:
        raise ModelUnreadable(str(error)) from error


def _if_it_agrees(chat_format: Callable[[str], ChatFormat], renderer: str, vocabulary: Vocabulary) -> ChatFormat | None:
    """The format, unless it can't be made or differs from the model's own template on a plain conversation."""
    tool = {"name": "find", "description": "Finds.", "parameters": {"type": "object", "properties": {}}}
    tools = [{"type": "function", "function": tool}]
    messages: list[Message] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello?"},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "Go on."},
    ]
    try:
        found = chat_format(renderer)
        if vocabulary.template is None:
            return found
        ids = found.full(messages, tools, None)
        text = vocabulary.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False)
    except (Unrenderable, ValueError) as error:
        log.warning("%s: the renderer %s doesn't fit: %s", vocabulary.name_or_path, renderer, error)
        return None
    if vocabulary.decode(ids) != text:
        log.warning("%s: the renderer %s differs from its chat template", vocabulary.name_or_path, renderer)
        return None
    return found


def _template_options(files: ModelFiles, vocabulary: Vocabulary) -> dict[str, Any]:
    """How to read the replies of a model whose chat template is all that is known of it."""
    source = files.template.source if files.template else ""
    parser = None
    if "<\uff5ctool\u2581calls\u2581begin\uff5c>" in source:
        parser = "deepseek-v3"
    elif "<tool_call>" in source and vocabulary.convert_tokens_to_ids("<tool_call>") is not None:
        parser = "glm" if "<arg_key>" in source else "qwen3.5" if "<function=" in source else "qwen3"
    return {"tool_parser": parser, "reasoning_parser": "think" if "<think>" in source else None}

"""Requests of SGLang's native API, parsed and checked as SGLang 0.5.23 does it (`srt/managers/io_struct.py`)."""

import math
import re
from typing import Any, Literal

import msgspec

from rolloutfleet_engine.model import Model

DEFAULT_MAX_NEW_TOKENS = 128
MAX_PATTERNS = 32
MAX_PATTERN_BYTES = 256


class RequestRefused(Exception):
    """A 400 in the form that SGLang gives it: `error` as an object with a message, or as the bare text."""

    def __init__(self, message: str, *, bare: bool = False) -> None:
        super().__init__(message)
        self.bare = bare


class GrammarRefused(RequestRefused):
    """A grammar that can't be compiled. SGLang finds it when the request is queued: a stream gets a token, aborted."""


class SamplingParams(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """All that SGLang takes; what the simulated engine has no use for is checked and left."""

    max_new_tokens: int | msgspec.UnsetType | None = msgspec.UNSET
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    stop_regex: str | list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    min_new_tokens: int | None = None
    n: int | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    stream_interval: int | None = None
    logit_bias: dict[str, float] | None = None
    sampling_seed: int | None = None
    custom_params: Any = None
    beam_width: int | None = None
    watermark: Any = None
    choice: list[str] | None = None

    @property
    def asked_tokens(self) -> int | None:
        """The budget that the request names; SGLang checks no other against the context."""
        return None if self.max_new_tokens is msgspec.UNSET else self.max_new_tokens

    def limit(self, room: int) -> int:
        """The tokens that may be made where `room` are left."""
        if self.max_new_tokens is None:
            return room
        return min(room, DEFAULT_MAX_NEW_TOKENS if self.max_new_tokens is msgspec.UNSET else self.max_new_tokens)

    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else [text for text in self.stop or () if text]

    def stop_patterns(self) -> list[str]:
        return [self.stop_regex] if isinstance(self.stop_regex, str) else self.stop_regex or []

    @property
    def constrained(self) -> bool:
        """Whether a grammar says which tokens may come: a bias can't let others in."""
        return any(each is not None for each in (self.json_schema, self.regex, self.ebnf, self.structural_tag))

    def given(self) -> dict[str, Any]:
        """What the request said, nulls left out."""
        named = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in named.items() if value is not None and value is not msgspec.UNSET}


class GenerateRequest(msgspec.Struct, kw_only=True):
    rid: str | None = None
    text: str | None = None
    input_ids: list[int] | None = None
    sampling_params: dict[str, Any] | None = None
    stream: bool | None = False
    return_logprob: bool | None = False
    logprob_start_len: int | None = -1
    top_logprobs_num: int | None = 0
    return_text_in_logprobs: bool | None = False
    return_prompt_token_ids: bool | None = False
    extra_key: str | None = None


class Plan(msgspec.Struct, kw_only=True, frozen=True):
    """A checked request: what is to be made."""

    request: GenerateRequest
    prompt: list[int]
    sampling: SamplingParams
    limit: int

    @property
    def stream(self) -> bool:
        return bool(self.request.stream)


class AbortRequest(msgspec.Struct, kw_only=True):
    rid: str | None = None
    abort_all: bool = False


class PauseRequest(msgspec.Struct, kw_only=True):
    mode: Literal["abort", "retract", "in_place"] = "abort"


class UpdateVersion(msgspec.Struct, kw_only=True):
    new_version: str
    abort_all_requests: bool = True


class UpdateWeights(msgspec.Struct, kw_only=True):
    model_path: str
    weight_version: str | None = None
    abort_all_requests: bool = False
    flush_cache: bool = True


def read_sampling(given: dict[str, Any] | None) -> SamplingParams:
    """Raises `RequestRefused` with the text of SGLang's schema check."""
    try:
        return msgspec.convert(given or {}, SamplingParams)
    except msgspec.ValidationError as error:
        message = str(error).replace("Object contains unknown field", "unknown field")
        if message.startswith("unknown field"):
            known = ", ".join(f"`{name}`" for name in SamplingParams.__struct_fields__)
            message = f"{message.partition(' - ')[0]}, expected one of {known}"
        raise RequestRefused(message, bare=True) from error


def check_sampling(sampling: SamplingParams) -> None:
    temperature, top_p, top_k = sampling.temperature, sampling.top_p, sampling.top_k
    if temperature is not None and (not math.isfinite(temperature) or temperature < 0):
        raise RequestRefused(f"temperature must be a non-negative finite number, got {temperature}.")
    if top_p is not None and not 0 < top_p <= 1:
        raise RequestRefused(f"top_p must be in (0, 1], got {top_p}.")
    if top_k is not None and top_k != -1 and top_k < 1:
        raise RequestRefused(f"top_k must be -1 (disable) or at least 1, got {top_k}.")
    if sampling.min_p is not None and not 0 <= sampling.min_p <= 1:
        raise RequestRefused(f"min_p must be in [0, 1], got {sampling.min_p}.")
    for name in ("frequency_penalty", "presence_penalty"):
        value = getattr(sampling, name)
        if value is not None and not -2 <= value <= 2:
            raise RequestRefused(f"{name} must be in [-2, 2], got {value}.")
    if sampling.asked_tokens is not None and sampling.asked_tokens < 0:
        raise RequestRefused(f"max_new_tokens must be at least 0, got {sampling.asked_tokens}.")
    if sampling.n not in (None, 1):
        raise RequestRefused("the simulated engine makes one answer a request: n must be 1")


def check_patterns(patterns: list[str]) -> None:
    if len(patterns) > MAX_PATTERNS:
        raise RequestRefused(f"at most {MAX_PATTERNS} stop_regex patterns are allowed, got {len(patterns)}")
    for pattern in patterns:
        if (size := len(pattern.encode())) > MAX_PATTERN_BYTES:
            raise RequestRefused(f"stop_regex is {size} bytes, over the {MAX_PATTERN_BYTES}-byte limit")
        try:
            re.compile(pattern)
        except re.error as error:
            raise RequestRefused(str(error)) from error


def check_bias(bias: dict[str, float], vocabulary_size: int) -> None:
    for token_id in bias:
        if not token_id.isdecimal() or int(token_id) >= vocabulary_size:
            raise RequestRefused(f"logit_bias must has keys in [0, {vocabulary_size - 1}], got {token_id}.")


def check_length(prompt: int, max_new_tokens: int | None, *, context: int) -> None:
    if prompt >= context:
        raise RequestRefused(
            f"The input ({prompt} tokens) is longer than the model's context length ({context} tokens)."
        )
    if max_new_tokens is not None and prompt + max_new_tokens > context:
        raise RequestRefused(
            f"Requested token count exceeds the model's maximum context length of {context} tokens. You requested a "
            f"total of {prompt + max_new_tokens} tokens: {prompt} tokens from the input messages and {max_new_tokens} "
            "tokens for the completion. Please reduce the number of tokens in the input messages or the completion to "
            "fit within the limit."
        )


def check_ids(ids: list[int], vocabulary_size: int) -> None:
    """A real engine's scheduler dies of an id beyond the vocabulary; here the request is refused."""
    if min(ids) < 0 or max(ids) >= vocabulary_size:
        raise RequestRefused(f"input_ids must be in [0, {vocabulary_size - 1}]")


def plan_request(request: GenerateRequest, sampling: SamplingParams, *, model: Model, context: int) -> Plan:
    """Raises `RequestRefused` for what SGLang refuses, and for batches, which are not simulated."""
    if request.text is None and request.input_ids is None:
        raise RequestRefused("Either text, input_ids or input_embeds should be provided.")
    prompt = request.input_ids if request.input_ids is not None else model.encode(request.text or "")
    if not prompt:
        raise RequestRefused("input_ids cannot be empty.")
    check_length(len(prompt), sampling.asked_tokens, context=context)
    check_ids(prompt, model.vocabulary_size)
    check_sampling(sampling)
    check_patterns(sampling.stop_patterns())
    check_bias(sampling.logit_bias or {}, model.vocabulary_size)
    return Plan(
        request=request,
        prompt=prompt,
        sampling=sampling,
        # SGLang keeps two places of the context to itself (`init_req_max_new_tokens` in `srt/managers/scheduler.py`).
        limit=sampling.limit(max(0, context - 2 - len(prompt))),
    )

"""What a dialect is: everything in which one API for agents differs from another. Pure.

A dialect is one module or package with a class derived from `Dialect`, and one line in `registry`. It says which
paths are its own and where a call carries its key, reads a request into a `TurnRequest`, writes answers and streams
with an `Encoder`, and gives every error the form that its clients know.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, Generic, TypeVar, final

from msgspec import Struct

from rolloutfleet_proxy.domain.errors import KEY_FORMS, DomainError, InvalidParameter, UnknownParameter
from rolloutfleet_proxy.domain.events import Committed, Delta, Event, Failed, Started
from rolloutfleet_proxy.domain.messages import Message, TemplateArgs
from rolloutfleet_proxy.domain.turn import Answer
from rolloutfleet_proxy.http import errors
from rolloutfleet_proxy.http.headers import Headers, presented_key
from rolloutfleet_proxy.tokens.reply_grammar import Wanted

RETRY_COUNT: Final = "x-stainless-retry-count"
"""Header of the SDKs of OpenAI and Anthropic: how often they have asked before."""
MAX_INT32: Final = 2**31 - 1
"""The most tokens that an engine can be asked for."""
_LONGEST_PATH = 200
_RETRIED = re.compile(r"0*[1-9][0-9]*")

TokenBytes = Callable[[int], bytes]
"""The bytes that a token stands for."""
HeaderMap = Mapping[str, str]
"""A request's headers, by their names in lower case."""


class Reading(Struct, frozen=True, kw_only=True):
    """How requests are read."""

    strict: bool = False
    """Refuse what would otherwise be ignored."""
    replaces_images: bool = False
    """A text stands for each image; else they are refused."""
    efforts: frozenset[str] = frozenset()
    """The values of `EFFORTS` that the chat format takes; none where it has no argument `reasoning_effort`."""
    vocabulary_size: int | None = None
    """The tokens that the model has; None where that is not to be checked."""
    holds_calls: bool = False
    """Whether there is a grammar of the chat format's tool calls."""

    def check_ignored(self, ignored: Sequence[str]) -> None:
        """Raises UnknownParameter where requests are read strictly, and this would be ignored of one."""
        if self.strict and ignored:
            raise UnknownParameter(ignored[0][:_LONGEST_PATH])


class HeldCalls(Struct, frozen=True, kw_only=True):
    """A choice of tools that a grammar holds the reply to."""

    wanted: Wanted
    wishes: tuple[str, ...] = ()
    """The fields that are without effect where the engines take no such grammar."""


class TurnRequest(Struct, frozen=True, kw_only=True):
    """What a call asks for, in terms of no API; a dialect derives its own with what its encoder needs.

    `messages` are in the canonical form (`domain.messages`), `template.tools` as the chat formats take them: None for
    an empty list, and where the model is to be told of no tools.
    `calls` is what the reply is held to by a grammar; None where it is free.
    `sampling` has SGLang's names and lacks `max_new_tokens`, which depends on the prompt and the round.
    `stops` are the stop strings, which the answer's text ends before; they are in `sampling` too.
    `ignored` are the paths of what has no effect (`verbosity`, `messages[0].content[1].annotations`).
    `token_ids` says that the answer tells the ids of prompt and output (`Committed`).
    `placeholders` is how many images of its messages a text stands for, `images` their digest (`images`).
    `stripped` are the names of what the dialect took out of the prompt, since it differs from request to request and
    would make each of them a branch (`cache_control`); the turn keeps them.

    To make one is to have it checked, by what `__post_init__` says, as far as that is the same for all APIs. Types,
    the form of a message, and the values in `sampling` are not checked: they are what its maker says they are.
    """

    names: ClassVar[Mapping[str, str]] = {}
    """What the API calls `messages`, `model`, `tools`, `chat_template_kwargs`, `max_tokens`, `stops`, `top_logprobs`,
    `follows`, and parameters of `sampling`, where it calls them otherwise: errors that are the same for all APIs name
    them so."""
    max_tokens_is_upper_bound: ClassVar[bool] = False
    """Whether the API's clients mean `max_tokens` as an upper bound, which is cut to what the context leaves. Elsewhere
    a limit beyond that is refused."""

    messages: list[dict[str, Any]]
    model: str | None
    template: TemplateArgs
    calls: HeldCalls | None
    max_tokens: int | None
    sampling: dict[str, Any]
    stops: tuple[str, ...]
    stream: bool
    logprobs: bool
    top_logprobs: int
    token_ids: bool = False
    ignored: tuple[str, ...] = ()
    stripped: tuple[str, ...] = ()
    placeholders: int = 0
    images: bytes = b""
    follows: str | None = None
    """The name of the turn that the messages go on from; None where they are the whole conversation."""
    refers: tuple[str, ...] = ()
    """The names of the turns whose answers `filled` takes parts of the messages from."""
    max_tokens_is_trainers: bool = False
    """`max_tokens` is what the session's trainer says: an upper bound, whatever the API's clients mean."""
    own_messages: int = 0
    """How many of the first messages are this call's alone: what follows its turn does not go on from them."""

    def __post_init__(self) -> None:
        """Raises InvalidParameter, with the API's own name of the field, for what no turn can be made of."""
        if not self.messages:
            raise InvalidParameter(self.called("messages"), "There must be a message at least.")
        if self.max_tokens is not None and not 1 <= self.max_tokens <= MAX_INT32:
            raise InvalidParameter(self.called("max_tokens"), f"A number of tokens is from 1 to {MAX_INT32}.")
        if "" in self.stops:
            raise InvalidParameter(self.called("stops"), "A stop string has a character at least.")
        if self.top_logprobs < 0:
            raise InvalidParameter(self.called("top_logprobs"), "A number of log-probabilities is 0 at least.")

    @property
    def is_whole(self) -> bool:
        """True where the messages are the conversation, and nothing of it is in earlier turns alone."""
        return self.follows is None and not self.refers

    def filled(self, answers: Mapping[str, Answer]) -> list[Message]:
        """The messages with all that they only name, out of the answers of turns by their names; only where `refers`
        names some. Raises InvalidParameter for what is in none of them."""
        raise NotImplementedError

    def kept(self, output: Message) -> dict[str, Any] | None:
        """What the dialect needs beside the turn that it became, to show it again; JSON that is small."""
        return None

    @classmethod
    def called(cls, path: str) -> str:
        """What the API calls a field. Of a path within one that it calls otherwise (`messages[2].content`) the field is
        all that is named: what is within may be elsewhere there."""
        return cls.names.get(re.split(r"[.\[]", path, maxsplit=1)[0], path)


class Encoder(ABC):
    """Writes one caller's answer. Only `committed` and `whole` say that it ended well, or hold what clients act on.

    The answer names the model as the request did, or else `model`.
    """

    def __init__(self, request: TurnRequest, *, model: str) -> None:
        self._model = model if request.model is None else request.model
        self._opening = b""
        """What a stream begins with, where that waits until something follows that it is sent with."""

    def _opened(self) -> bytes:
        """What waited, to be sent now."""
        opening, self._opening = self._opening, b""
        return opening

    @final
    def encode(self, event: Event) -> bytes:
        """What a stream sends at an event."""
        if isinstance(event, Committed):
            return self.committed(event)
        if isinstance(event, Failed):
            return self.failed(event.error)
        return self.started(event) if isinstance(event, Started) else self.delta(event)

    @abstractmethod
    def started(self, event: Started) -> bytes:
        """What a stream begins with, or nothing. Where that is something, the status 200 leaves as soon as anybody is
        woken (see `Started`), also a caller that joins a call which then fails: that is an error event."""

    @abstractmethod
    def delta(self, event: Delta) -> bytes:
        """Some of the answer, as it comes."""

    @abstractmethod
    def committed(self, event: Committed) -> bytes:
        """The end of a stream that went well, and what else waited for the commit."""

    @abstractmethod
    def failed(self, error: DomainError) -> bytes:
        """The end of a stream that has begun."""

    @abstractmethod
    def silence(self) -> bytes:
        """What keeps a stream's connection alive while the engine is silent."""

    @abstractmethod
    def whole(self, event: Committed) -> bytes:
        """The body of an answer that is not streamed."""


RequestT = TypeVar("RequestT", bound=TurnRequest)


class Dialect(ABC, Generic[RequestT]):
    """One API that agents speak."""

    name: ClassVar[str]
    tells_bodies: ClassVar[bytes] = b""
    """Bytes that tell a body of this API from the same one sent to another."""
    api: ClassVar[str]
    """What it is called within a sentence."""
    paths: ClassVar[tuple[str, ...]]
    """The whole paths of calls for a turn, with `{session_id}` for the session; where a path has none, its key names
    it."""
    count_paths: ClassVar[tuple[str, ...]] = ()
    """The whole paths of calls that only ask how long a prompt would be, likewise. Where there are any, `read_to_count`
    and `counted` are theirs."""
    greeting_paths: ClassVar[tuple[str, ...]] = ()
    """The whole paths that its clients look at (HEAD, GET) before their first call: 200 for everybody, with a key or
    without."""
    silence_after: ClassVar[float | None] = None
    """Seconds of a stream's silence; None for what the settings say."""

    key_forms: ClassVar[str] = KEY_FORMS
    """How `key` takes the key, as it is said to a call that carries none."""

    def key(self, headers: HeaderMap) -> str | None:
        """The session key that a call carries."""
        return presented_key(headers)

    def is_retry(self, headers: HeaderMap) -> bool:
        """Whether the caller's SDK says that it asks again."""
        return _RETRIED.fullmatch(headers.get(RETRY_COUNT, "")) is not None

    @abstractmethod
    def read(self, body: bytes, reading: Reading) -> RequestT:
        """Read a body once: what it asks for is all that `TurnRequest` says, whatever bytes a client has sent.

        Raises DomainError that names the field at fault, mostly InvalidParameter, and UnreadableJson: any other error
        counts as a mistake of ours (500, `internal`). Large bodies are read on another thread.
        """

    def read_to_count(self, body: bytes, reading: Reading) -> RequestT:
        """`read`, of a body whose prompt is to be counted."""
        return self.read(body, reading)

    def counted(self, tokens: int) -> bytes:
        """The body of the answer to that."""
        raise NotImplementedError

    @abstractmethod
    def encoder(self, request: RequestT, *, model: str, token_bytes: TokenBytes) -> Encoder:
        """What writes the answer to one caller; `model` is what the fleet calls its model."""

    def answer_to(self, error: DomainError) -> tuple[int, Headers, bytes]:
        """Status, headers in ASGI's form, and body of an answer that is an error, also to requests at and below the
        calls' paths that are no calls."""
        return errors.answer_to(error)

    @abstractmethod
    def error_event(self, error: DomainError) -> bytes:
        """The last event of a stream that another proxy began, and broke off."""

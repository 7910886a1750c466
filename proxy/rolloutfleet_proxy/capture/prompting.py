"""The prompt of a turn: which earlier turns its messages continue, and the ids that the engine is to go on from."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from msgspec import Struct

from rolloutfleet_proxy.capture.bodies import LARGE_REQUEST
from rolloutfleet_proxy.dialects.base import TurnRequest
from rolloutfleet_proxy.domain.branching import TOKENS, Asked, BranchReason, follows_another
from rolloutfleet_proxy.domain.errors import ContextExceeded, InvalidParameter, TemporaryFailure
from rolloutfleet_proxy.domain.lineage import Lineage
from rolloutfleet_proxy.domain.messages import Conversation, Message, conversation, reasoning_of, renamed
from rolloutfleet_proxy.domain.tree import Node
from rolloutfleet_proxy.engine.request import extended_json, ids_json
from rolloutfleet_proxy.refusals import why_gone
from rolloutfleet_proxy.sessions.paths import Path, Paths
from rolloutfleet_proxy.sessions.registry import Session
from rolloutfleet_proxy.store.store import Reader
from rolloutfleet_proxy.store.turns import load_branch_reason, load_ids
from rolloutfleet_proxy.tokens.quirks import Unrenderable
from rolloutfleet_proxy.tokens.render import Candidate, Prompt
from rolloutfleet_proxy.tokens.render_process import RenderProcessFailed
from rolloutfleet_proxy.tokens.tokenizing import Tokenizing

MOST_CANDIDATES = 8
"""Earlier turns whose tokens a prompt is compared with at the most, deepest first."""


@dataclass(frozen=True, slots=True)
class Continued:
    """The request as it continues a turn, or none. Made once: to know a turn's calls is to look at all before it."""

    node: Node | None
    call_ids: list[str | None]
    """Of the tool calls up to the turn's end."""
    messages: list[Message]
    """The request's, with these ids: some formats write them."""

    @property
    def length(self) -> int:
        """Messages that the turn covers."""
        return 0 if self.node is None else self.node.length


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptJob:
    """A prompt to be made for a session."""

    session: Session
    request: TurnRequest
    lineage: Lineage
    nbytes: int
    """Bytes that the request holds."""
    conversation: Conversation | None = None
    """The digests of its messages, where they have been made."""
    begun: Callable[[], None] = lambda: None
    """Called when the wait for the tokenizer is over."""


@dataclass(frozen=True, slots=True)
class Prompted:
    """A request's prompt, and what it goes on from."""

    asked: Conversation
    prompt: Prompt
    continued: Continued
    reason: BranchReason | None
    prompt_json: bytes
    """The prompt's ids as a JSON array."""


class Prompting(Struct, frozen=True, kw_only=True):
    """Makes prompts, by a session's tree, the store and the tokenizer."""

    tokenizing: Tokenizing
    paths: Paths
    reader: Reader
    large_bodies: Executor

    async def prompt(self, job: PromptJob) -> Prompted:
        """Raises ContextExceeded, InvalidParameter for what the chat format can't write, TemporaryFailure, and what
        `why_gone` says where the session's turns go away meanwhile."""
        session, request = job.session, job.request
        asked, nodes, path, deepest = await self._matched(job)
        prompt = await self._rendered(job, deepest.messages, nodes, path)
        reason = await self._branch_reason(job, deepest, prompt)
        parent = None if prompt.parent is None else nodes[prompt.parent]
        continued = deepest if parent is deepest.node else _continued(session, request, asked, parent)
        return Prompted(asked, prompt, continued, reason, _prompt_json(prompt, path))

    async def length(self, job: PromptJob) -> int:
        """The tokens of that prompt, which is dropped. Raises as `prompt`."""
        _, nodes, path, deepest = await self._matched(job)
        return len((await self._rendered(job, deepest.messages, nodes, path)).ids)

    def digest(self, request: TurnRequest) -> Conversation:
        """What tells the request's messages from others."""
        return conversation(request.messages, request.template, self.tokenizing.chat_format.rules)

    async def _matched(self, job: PromptJob) -> tuple[Conversation, list[Node], Path | None, Continued]:
        """The request's conversation, and the turns that it may continue, deepest first; of the deepest its ids, and
        the request as it continues it."""
        session, request = job.session, job.request
        asked = await self._digested(job)
        nodes = _named_first(session, request, session.tree.matches(asked, job.lineage))[:MOST_CANDIDATES]
        path = await self._path(session, nodes[0]) if nodes else None
        return asked, nodes, path, _continued(session, request, asked, nodes[0] if nodes else None)

    async def _digested(self, job: PromptJob) -> Conversation:
        if job.nbytes < LARGE_REQUEST:
            return self._conversation(job)
        return await asyncio.get_running_loop().run_in_executor(self.large_bodies, self._checked_conversation, job)

    def _conversation(self, job: PromptJob) -> Conversation:
        return self.digest(job.request) if job.conversation is None else job.conversation

    def _checked_conversation(self, job: PromptJob) -> Conversation:
        """Raises ContextExceeded for what no tokenizer could fit into the context: to encode 60 MB takes gigabytes."""
        chat_format = self.tokenizing.chat_format
        letters = sum(map(_letters, _written(job.request)))
        least = letters // chat_format.vocabulary.longest_token
        if chat_format.context_length is not None and least > chat_format.context_length:
            raise ContextExceeded(
                f"This model's maximum context length is {chat_format.context_length} tokens: messages and tools "
                f"have {letters} characters, which are {least} tokens at the least.",
                prompt_tokens=least,
                context_length=chat_format.context_length,
            )
        return self._conversation(job)

    async def _path(self, session: Session, node: Node) -> Path:
        try:
            return await self.paths.get(session.id, node.turn)
        except LookupError:
            raise await why_gone(session, self.reader) from None

    async def _rendered(
        self, job: PromptJob, messages: list[Message], nodes: Sequence[Node], path: Path | None
    ) -> Prompt:
        """`path` is the deepest turn's, most likely the parent's; those of others are read if it comes to that."""
        candidates = [Candidate(node.length, partial(self._load, job.session.id, node.turn)) for node in nodes]
        if path is not None:
            candidates[0] = Candidate(nodes[0].length, lambda: path[:2])
        try:
            args = replace(job.request.template, clock=job.session.created_at)
            return await self.tokenizing.prompt(messages, args, candidates, begun=job.begun)
        except Unrenderable as error:
            param = None if error.param is None else job.request.called(error.param)
            raise InvalidParameter(param, f"{error}.") from None
        except RenderProcessFailed as error:
            raise TemporaryFailure(f"{error}.") from None
        except LookupError:
            raise await why_gone(job.session, self.reader) from None

    def _load(self, session: int, number: int) -> tuple[array[int], array[int]]:
        """Called on the tokenizer's thread, which may wait for a read."""
        return self.reader.run_blocking(lambda connection: load_ids(connection, session, number))

    async def _branch_reason(self, job: PromptJob, deepest: Continued, prompt: Prompt) -> BranchReason | None:
        """Which difference keeps the request from extending a turn of its lineage by messages; else, whether tokens
        do. None where it follows no other answer: a conversation begins."""
        session, request, start = job.session, job.request, deepest.length
        siblings = session.tree.children(None if deepest.node is None else deepest.node.turn)
        others = [node for node in siblings if node.lineage == job.lineage]
        found = None
        if others and follows_another(request.messages, start):
            rules = self.tokenizing.chat_format.rules
            following = Asked(deepest.messages, request.template, rules, start, deepest.call_ids)
            found = await self.reader.run(
                partial(load_branch_reason, session=session.id, others=others, asked=following)
            )
        if found is None and prompt.checked and prompt.parent != 0:
            return BranchReason(start - 1, TOKENS)
        return found


def _named_first(session: Session, request: TurnRequest, nodes: list[Node]) -> list[Node]:
    """Of several turns that a request continues, the one that it follows comes before all others; of equal ones, those
    whose items it refers to come before others."""
    if request.is_whole:
        return nodes
    referred = frozenset(request.refers)

    def rank(node: Node) -> tuple[bool, int, bool]:
        name = session.briefs[node.turn].name
        return name != request.follows, -node.length, name not in referred

    return sorted(nodes, key=rank)


def _written(request: TurnRequest) -> Iterator[Any]:
    """Texts of a request that may be long, and are in its prompt."""
    yield request.template.tools
    for message in request.messages:
        content = message.get("content")
        yield [part["text"] for part in content] if isinstance(content, list) else content
        yield reasoning_of(message)
        yield [call["function"].get("arguments") for call in message.get("tool_calls") or ()]


def _letters(value: Any) -> int:
    """The characters of all strings in a value, without its keys."""
    if isinstance(value, str):
        return len(value)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sum(map(_letters, inner))


def _continued(session: Session, request: TurnRequest, asked: Conversation, node: Node | None) -> Continued:
    known = [] if node is None or not asked.call_ids else session.tree.call_ids(node)
    same = known == asked.call_ids[: len(known)]
    return Continued(node, known, request.messages if same else renamed(request.messages, known))


def _prompt_json(prompt: Prompt, path: Path | None) -> bytes:
    """The prompt for the engine. Where the deepest turn is the parent only what is new must be written."""
    if path is None or prompt.parent != 0:
        return ids_json(prompt.ids)
    return extended_json(path.prompt_json, prompt.ids[len(path.prompt_ids) :])

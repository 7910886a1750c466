"""The gateway's client: `/generate` through it, and what it doesn't pass on straight to the engines.

The gateway, smg, is asked for `/generate` alone. Aborts, pauses and continues go to each engine (`POST /abort_request`,
`/pause_generation`, `/continue_generation`, SGLang 0.5.23); docs/gateway.md says why not through the gateway. A
generation is sent once: whether it is sent again where that fails is for `generation` to say.

SGLang ends with a request id all those that begin with it, so no rid may be the beginning of another one.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal

import aiohttp
import msgspec
from msgspec import Struct
from yarl import URL

from rolloutfleet.http_failures import failure_in_words
from rolloutfleet_proxy.domain.errors import DomainError, EngineTimeout, EngineUnreachable
from rolloutfleet_proxy.engine import big_reply
from rolloutfleet_proxy.engine.connections import BrokenOff, Connections, Response, Unreachable
from rolloutfleet_proxy.engine.cutting import CutText
from rolloutfleet_proxy.engine.errors import LOST, NO_ENGINE, UNREACHED, ConnectionLost, engine_failure, error_said
from rolloutfleet_proxy.engine.evidence import AbortedWithError, Evidence, Expected, Reason, Refused, check, decode
from rolloutfleet_proxy.engine.reply_stream import BigEvent, Chunk, EventSplitter, StreamedReply
from rolloutfleet_proxy.engine.request import ROUTING_KEY_HEADER, GenerateRequest
from rolloutfleet_proxy.engine.token_watch import TokenWatch

PauseMode = Literal["abort", "retract", "in_place"]
OnChunk = Callable[[Chunk], None]

BIG_REPLY = 4 << 20
"""Bytes from which on a reply is read in another process: 40 MB of JSON stall a loop for a second."""
READERS = 2
"""Processes that read such replies at once; each takes several times a reply's bytes."""
MAX_REPLY = 1 << 30
CONTROL_TIMEOUT = 10.0
ABORT_TIMEOUT = 3.0
WORKERS_FRESH = 5.0
"""Seconds that the gateway's list of engines is taken for true."""
STREAM_READS = 600.0
"""A second, of all streams together, as long as none of them rests for longer than `LONGEST_REST`. Chunks that wait for
each other are read, parsed and sent on together, which is most of what a chunk costs."""
LONGEST_REST = 0.05
"""Seconds."""
_END_OF_STREAM = 0.25
"""Seconds that a complete stream has to end in; then its connection is closed rather than kept."""
_SHOWN_AT_ONCE = 1000
_MAX_ERROR_BODY = 1 << 16
_MOST_SAID = 500
"""Characters of what an engine says of a command."""
_KEYS_REMEMBERED = 16

_UNCONFIRMED = "it answered with status {}"

_encode = msgspec.json.Encoder().encode


class _Worker(Struct):
    url: str


class _Workers(Struct):
    workers: list[_Worker]


class _Success(Struct):
    success: bool = True


_decode_workers = msgspec.json.Decoder(_Workers).decode
_decode_success = msgspec.json.Decoder(_Success).decode


class GatewayKey:
    """The key that gateway and engines ask for. Nothing that comes from them says it to a caller."""

    def __init__(self, key: str | None) -> None:
        self.headers: dict[str, str] = {}
        self._sent: deque[str] = deque(maxlen=_KEYS_REMEMBERED)
        self.replace(key)

    def replace(self, key: str | None) -> None:
        self.headers = {} if key is None else _bearer(key)
        if key is not None:
            # As it stands in a JSON text, too.
            self._sent += [key, _encode(key).decode()[1:-1]]

    def left_out_of(self, text: str) -> str:
        """The text without this key and those before it: whatever listens there may say what it was sent."""
        for key in self._sent:
            text = text.replace(key, "[key]")
        return text


class Engine:
    """Client of one gateway and the engines behind it; closed by `aclose`."""

    def __init__(
        self,
        gateway_url: str,
        *,
        engine_urls: Iterable[str] = (),
        api_key: str | None = None,
        control_key: Callable[[], str | None] = lambda: None,
        silence: float = 600.0,
        big_reply: int = BIG_REPLY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`silence`: seconds without a byte, of a stream without a new token, after which a generation is given up.
        `engine_urls`: the engines, where the gateway's own list is not to be asked for. `control_key` gives the key to
        ask for it, where that is another one: it is another after the gateway was replaced."""
        self._gateway = gateway_url.rstrip("/")
        self.generate_url = f"{self._gateway}/generate"
        self._fixed_engines = tuple(url.rstrip("/") for url in engine_urls)
        self._key = GatewayKey(api_key)
        self._control_key = control_key
        self._connections = Connections(self._gateway, silence=silence)
        self._silence = silence
        self._big_reply = big_reply
        self._clock = clock
        self._known: tuple[float, tuple[str, ...]] | None = None
        self._readers = asyncio.Semaphore(READERS)
        self._streams = 0
        self._aborts: set[asyncio.Task[None]] = set()

    def use_key(self, api_key: str | None) -> None:
        """Send this key with requests from now on."""
        self._key.replace(api_key)

    async def aclose(self) -> None:
        """Let aborts under way end, then close all connections."""
        if self._aborts:
            await asyncio.wait(self._aborts, timeout=ABORT_TIMEOUT)
        await self._connections.aclose()

    # Generation

    async def generate(
        self,
        request: GenerateRequest,
        on_chunk: OnChunk | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> Evidence:
        """One round: send, read, check. With `on_chunk` the reply is streamed, and new tokens are handed over as
        they come; without a new token for `silence` seconds of `clock`, which may stand still, it is given up.

        Raises DomainError (an engine's error, no engine, silence; ConnectionLost with what had come of a stream) and
        Refused (the reply is not evidence). Cancelled, it closes the connection, which ends the engine's work; `abort`
        makes sure of that.
        """
        try:
            if on_chunk is None:
                async with self._answered(request, stream=False) as response:
                    return await self._read_whole(response, request.expected())
            async with TokenWatch(self._silence, clock) as watch, self._answered(request, stream=True) as response:
                self._streams += 1
                try:
                    return await self._read_stream(response, request, on_chunk, watch)
                finally:
                    self._streams -= 1
        except AbortedWithError as error:
            raise engine_failure(error.status, self._key.left_out_of(error.message)) from None
        except Refused as refused:
            raise Refused(refused.reason, self._key.left_out_of(refused.message)) from None
        except TimeoutError:
            what = "nothing" if on_chunk is None else "no new token"
            raise EngineTimeout(
                f"The engine sent {what} for {self._silence:g} s; the generation was given up."
            ) from None
        except BrokenOff as error:
            raise _broken_off(error) from None

    @asynccontextmanager
    async def _answered(self, request: GenerateRequest, *, stream: bool) -> AsyncIterator[Response]:
        """The response to a request, once its status is 200. Raises DomainError; TimeoutError where nothing comes."""
        response = await self._send(request, stream=stream)
        try:
            if response.status != 200:
                raise await self._failure(response)
            yield response
        finally:
            response.close()

    async def _send(self, request: GenerateRequest, *, stream: bool) -> Response:
        body = request.body(stream=stream)
        headers = {
            "Content-Type": "application/json",
            ROUTING_KEY_HEADER: request.routing_key,
            **request.headers,
            **self._key.headers,
        }
        try:
            return await self._connections.post("/generate", body, headers, timed=not stream)
        except Unreachable as error:
            raise EngineUnreachable(f"The gateway can't be reached: {error}.") from None
        except BrokenOff as error:
            raise ConnectionLost(f"The gateway broke off: {error}.") from None

    async def _read_whole(self, response: Response, expected: Expected) -> Evidence:
        if response.length is not None and response.length <= self._big_reply:
            return check(decode(await response.read()), expected)
        reply = CutText(what="The reply", big=self._big_reply, max_bytes=MAX_REPLY)
        pieces = response.pieces()
        async for data in pieces:
            reply.add(data)
            if reply.is_big:
                return await self._read_apart(_with_rest(reply, pieces), expected)
        return check(decode(b"".join(reply.pieces)), expected)

    async def _read_apart(self, reply: AsyncIterator[bytes], expected: Expected) -> Evidence:
        """In a process of its own. Whoever waits for one leaves the rest of his reply where it is, at the gateway."""
        async with self._readers:
            return await big_reply.read(reply, expected)

    async def _read_stream(
        self, response: Response, request: GenerateRequest, on_chunk: OnChunk, watch: TokenWatch
    ) -> Evidence:
        streamed = StreamedReply(with_logprobs=request.with_logprobs)
        try:
            evidence = await self._read_events(response, streamed, request, on_chunk, watch)
        except BrokenOff as error:
            raise _broken_off(error, _part(streamed, request)) from None
        if evidence is None:
            why = streamed.broken or "it ended before its last event"
            raise ConnectionLost(f"The engine's stream broke off: {why}.", _part(streamed, request))
        return evidence

    async def _read_events(
        self,
        response: Response,
        streamed: StreamedReply,
        request: GenerateRequest,
        on_chunk: OnChunk,
        watch: TokenWatch,
    ) -> Evidence | None:
        """None where the stream broke off before its last event."""
        splitter = EventSplitter(big=self._big_reply, max_bytes=MAX_REPLY)
        biggest = 0
        async for data in response.pieces(rest=self._rest):
            events = splitter.feed(data)
            big = [event for event in events if isinstance(event, BigEvent)]
            last = next((event for event in big if not event.unfinished), None)
            # A big event that is unfinished is left out: what it has comes again with the next one.
            chunk = streamed.add([event for event in events if not isinstance(event, BigEvent)])
            if streamed.count > request.max_new_tokens:
                message = f"{streamed.count} tokens came where {request.max_new_tokens} were asked for."
                raise Refused(Reason.TOO_MANY_TOKENS, message)
            # One that is larger than those before it has more tokens than they.
            grown = max((event.nbytes for event in big), default=0)
            if chunk is not None or grown > biggest:
                watch.came()
            biggest = max(biggest, grown)
            if last is not None or streamed.reply is not None:
                watch.end()
            if last is not None:
                evidence = await self._read_apart(_each(last.pieces), request.expected())
                streamed.check_sent(evidence.output_ids)
                await _show_rest(evidence, streamed.count, request, on_chunk)
                return evidence
            if streamed.reply is not None:
                # Checked before its last tokens are shown: what is refused is not handed over.
                evidence = check(streamed.reply, request.expected())
                if chunk is not None:
                    on_chunk(chunk)
                await _drained(response)
                return evidence
            if chunk is not None:
                on_chunk(chunk)
            if streamed.broken:
                break
        return None

    def _rest(self) -> float:
        """Seconds between two readings of a stream that comes quickly."""
        return min(self._streams / STREAM_READS, LONGEST_REST)

    async def _failure(self, response: Response) -> DomainError:
        body = b""
        async for data in response.pieces():
            body += data
            if len(body) > _MAX_ERROR_BODY:
                break
        code, said = error_said(self._key.left_out_of(body.decode("utf-8", "replace")).encode())
        if response.status == 404 and code == NO_ENGINE:
            return engine_failure(503, "the gateway knows of none")
        if response.status == 500 and code == UNREACHED:
            return engine_failure(503, "one can't be reached")
        if response.status in (500, 504) and code in LOST:
            return ConnectionLost(f"The engine's reply broke off: {said}")
        retry_after = _seconds(response.headers.get("retry-after"))
        return engine_failure(response.status, said or "it gave no reason", retry_after=retry_after)

    # Engines

    async def engines(self) -> tuple[str, ...]:
        """The engines' addresses. Raises EngineUnreachable where the gateway can't be asked."""
        if self._fixed_engines:
            return self._fixed_engines
        if self._known is not None and self._clock() - self._known[0] < WORKERS_FRESH:
            return self._known[1]
        try:
            status, body = await self._ask("GET", f"{self._gateway}/workers", key=self._control_key())
            listed = _decode_workers(body) if _confirms(status) else None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _no_engines(failure_in_words(error)) from None
        except (ValueError, RecursionError):
            raise _no_engines("its answer is not such a list") from None
        if listed is None:
            raise _no_engines(_UNCONFIRMED.format(status))
        urls = tuple(worker.url.rstrip("/") for worker in listed.workers)
        self._known = (self._clock(), urls)
        return urls

    async def abort(self, rid: str) -> dict[str, str]:
        """Tell every engine to end a request; those that didn't confirm, with the error."""
        return await self._tell_all("/abort_request", {"rid": rid}, timeout=ABORT_TIMEOUT)

    def abort_soon(self, rid: str) -> None:
        """The same from where nothing can be awaited, such as a cancelled task."""
        task = asyncio.get_running_loop().create_task(self._abort_quietly(rid), name=f"abort {rid}")
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def pause(self, mode: PauseMode, *, timeout: float = 60.0) -> dict[str, str]:
        """Pause every engine, each until it has confirmed; those that didn't, with the error."""
        return await self._tell_all("/pause_generation", {"mode": mode}, timeout=timeout)

    async def resume(self, *, timeout: float = 60.0) -> dict[str, str]:
        """Let every engine go on; those that didn't confirm, with the error."""
        return await self._tell_all("/continue_generation", {}, timeout=timeout)

    async def load(self, path: str, version: int, *, flush_cache: bool, timeout: float) -> dict[str, str]:
        """Let every engine load a checkpoint under this version; those that didn't, with what they said."""
        content = {"model_path": path, "weight_version": str(version), "flush_cache": flush_cache}
        return await self._tell_all("/update_weights_from_disk", content, timeout=timeout)

    async def any_paused(self) -> bool:
        """Whether an engine says that it is not ready for requests; one that doesn't say counts as ready.

        SGLang 0.5.23 answers `GET /ready` with 503 while it is paused.
        """
        try:
            answers = await asyncio.gather(*(self._answer("GET", f"{url}/ready") for url in await self.engines()))
        except DomainError:
            return False
        return any(status == 503 for status, _ in answers)

    async def refuses(self, body: Mapping[str, Any], *, naming: str, at: str | None = None) -> bool | None:
        """Whether a generation is refused with a word named, by the gateway or what is behind it, or by the engine `at`
        an address; False where it is answered, None where neither came."""
        status, answer = await self._answer("POST", f"{at or self._gateway}/generate", dict(body))
        if status == 200:
            return False
        return True if status in (400, 422) and naming.encode() in answer else None

    async def _answer(self, method: str, url: str, content: dict[str, Any] | None = None) -> tuple[int, bytes]:
        """Status and beginning of whatever is answered; status 0 where nothing is."""
        try:
            return await self._ask(method, url, content, most=_MAX_ERROR_BODY)
        except (aiohttp.ClientError, OSError, TimeoutError):
            return 0, b""

    async def _abort_quietly(self, rid: str) -> None:
        with suppress(DomainError):
            await self.abort(rid)

    async def _tell_all(self, path: str, content: dict[str, Any], *, timeout: float) -> dict[str, str]:
        urls = await self.engines()
        answers = await asyncio.gather(*(self._tell(url + path, content, timeout=timeout) for url in urls))
        return {shown(url): error for url, error in zip(urls, answers, strict=True) if error is not None}

    async def _tell(self, url: str, content: dict[str, Any], *, timeout: float) -> str | None:
        try:
            status, body = await self._ask("POST", url, content, timeout=timeout)
        except TimeoutError:
            return f"no answer within {timeout:g} s"
        except (aiohttp.ClientError, OSError) as error:
            return failure_in_words(error)
        if _confirms(status) and not _says_failure(body):
            return None
        _, said = error_said(self._key.left_out_of(body.decode("utf-8", "replace")).encode())
        return _UNCONFIRMED.format(status) + (f": {said[:_MOST_SAID]}" if said else "")

    async def _ask(
        self,
        method: str,
        url: str,
        content: dict[str, Any] | None = None,
        *,
        timeout: float = CONTROL_TIMEOUT,
        key: str | None = None,
        most: int = -1,
    ) -> tuple[int, bytes]:
        """Status and body of an answer, of this `most` bytes at once. Raises aiohttp.ClientError, OSError and
        TimeoutError."""
        async with self._connections.session.request(
            method,
            url,
            json=content,
            headers=self._key.headers if key is None else _bearer(key),
            timeout=aiohttp.ClientTimeout(total=timeout),
            allow_redirects=False,
        ) as response:
            return response.status, await response.content.read(most)


def _broken_off(error: BrokenOff, part: Evidence | None = None) -> ConnectionLost:
    return ConnectionLost(f"The engine's reply broke off: {error}.", part)


def _part(streamed: StreamedReply, request: GenerateRequest) -> Evidence | None:
    """Evidence of the tokens that a stream has handed over, as if aborted then; None where there are none."""
    part = streamed.part()
    return None if part is None else check(part, request.expected())


def shown(url: str) -> str:
    """An address as it may be named: without the user and password that there may be in it."""
    return str(URL(url).with_user(None))


def _confirms(status: int) -> bool:
    return 200 <= status < 300


def _says_failure(body: bytes) -> bool:
    """Whether SGLang's answer to a command has `success: false`."""
    try:
        return _decode_success(body).success is False
    except (ValueError, RecursionError):
        return False


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def _no_engines(why: str) -> DomainError:
    return EngineUnreachable(f"The gateway's list of engines can't be fetched: {why}.")


def _seconds(value: str | None) -> float | None:
    return float(value) if value is not None and value.isascii() and value.isdigit() else None


async def _show_rest(evidence: Evidence, start: int, request: GenerateRequest, on_chunk: OnChunk) -> None:
    """Hand over the tokens of a big reply from `start` on, a few at a time."""
    rows = evidence.top_logprobs
    for first in range(start, len(evidence.output_ids), _SHOWN_AT_ONCE):
        some = slice(first, first + _SHOWN_AT_ONCE)
        ids = evidence.output_ids[some].tolist()
        if request.with_logprobs:
            on_chunk(Chunk(ids, evidence.logprobs[some].tolist(), None if rows is None else rows[some]))
        else:
            on_chunk(Chunk(ids))
        await asyncio.sleep(0)


async def _drained(response: Response) -> None:
    """Read what follows the last event, so that the connection can be used again."""
    try:
        async with asyncio.timeout(_END_OF_STREAM):
            async for _ in response.pieces():
                pass
    except (BrokenOff, TimeoutError):
        pass


async def _with_rest(begun: CutText, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """What has come of a reply, and what still comes."""
    for piece in begun.taken():
        yield piece
    async for data in rest:
        begun.add(data)
        for piece in begun.taken():
            yield piece


async def _each(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece

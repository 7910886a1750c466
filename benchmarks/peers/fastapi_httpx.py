"""A session server on FastAPI and httpx, in the shape of the one that R1 is about: no store, all in memory.

    python -m benchmarks.peers.fastapi_httpx --port 9000 --upstream http://127.0.0.1:30000 --tokenizer tokenizer.json

What that shape does for a turn, this does: the body is parsed by the standard library; under the session's lock the
messages are held against those known and only the new ones rendered and encoded, in a thread; the whole prompt goes to
the gateway's `/generate` with the session as routing key, the lock let go meanwhile; the reply is parsed, its
log-probabilities counted and checked, and request and reply are kept as a record. One process, uvicorn with uvloop and
httptools. It is no product: what can go wrong beyond that is not looked after.
"""

import argparse
import asyncio
import json
import math
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from tokenizers import Tokenizer

MAX_CONNECTIONS: Final = 1024
TIMEOUT: Final = 600.0

Json = Any


@dataclass(slots=True)
class Session:
    """One conversation. `ids` are those of the last prompt and its output."""

    messages: list[Json] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    records: list[Json] = field(default_factory=list)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class SessionServer:
    """The sessions, and the way to the gateway."""

    def __init__(self, *, url: str, upstream: str, tokenizer: Tokenizer) -> None:
        self._url = url
        self._tokenizer = tokenizer
        self._sessions: dict[str, Session] = {}
        limits = httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS)
        self._client = httpx.AsyncClient(base_url=upstream, limits=limits, timeout=TIMEOUT, trust_env=False)

    def create(self) -> Json:
        """`api_key` and `base_url` are there for the load generator; nobody asks for the key."""
        name = uuid.uuid4().hex
        self._sessions[name] = Session()
        return {"session_id": name, "api_key": name, "base_url": f"{self._url}/sessions/{name}/v1"}

    def delete(self, name: str) -> None:
        if self._sessions.pop(name, None) is None:
            raise HTTPException(404, "no such session")

    async def chat(self, name: str, body: Json) -> Json:
        session = self._sessions.get(name)
        if session is None:
            raise HTTPException(404, "no such session")
        async with session.lock:
            ids = await asyncio.to_thread(self._prompt, session, body["messages"])
        answer = await self._client.post("/generate", json=_generation(body, ids), headers={"X-SMG-Routing-Key": name})
        if answer.status_code != 200:
            raise HTTPException(502, answer.text[:500])
        reply = answer.json()
        async with session.lock:
            message = self._commit(session, body, ids, reply)
        return _completion(body, reply, message)

    def _prompt(self, session: Session, messages: list[Json]) -> list[int]:
        known = len(session.messages)
        if messages[:known] != session.messages:
            raise HTTPException(400, "the messages do not begin with those of the last turn")
        # What the model said ends with its end mark, and the newline after it was never sampled.
        text = "\n" if known else ""
        for message in messages[known:]:
            text += f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n"
        text += "<|im_start|>assistant\n"
        return [*session.ids, *self._tokenizer.encode(text, add_special_tokens=False).ids]

    def _commit(self, session: Session, body: Json, ids: list[int], reply: Json) -> Json:
        meta = reply["meta_info"]
        pairs = meta["output_token_logprobs"]
        if len(pairs) != meta["completion_tokens"] or not all(math.isfinite(pair[0]) for pair in pairs):
            raise HTTPException(502, "the log-probabilities do not fit the tokens")
        message = {"role": "assistant", "content": reply["text"]}
        session.messages = [*body["messages"], message]
        session.ids = [*ids, *(pair[1] for pair in pairs)]
        session.records.append({"timestamp": time.time(), "request": body, "response": reply, "status_code": 200})
        return message


def _generation(body: Json, ids: list[int]) -> Json:
    sampling = {"max_new_tokens": body.get("max_tokens", 512), "temperature": body.get("temperature", 1.0)}
    return {"input_ids": ids, "sampling_params": sampling, "return_logprob": True, "stream": False}


def _completion(body: Json, reply: Json, message: Json) -> Json:
    meta = reply["meta_info"]
    prompt, completion = meta["prompt_tokens"], meta["completion_tokens"]
    return {
        "id": meta["id"],
        "object": "chat.completion",
        "created": int(time.time()),
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": meta["finish_reason"]["type"]}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion},
    }


def app_of(server: SessionServer) -> FastAPI:
    """The routes."""
    app = FastAPI()

    @app.get("/health")
    async def health() -> Json:
        return {"status": "ok"}

    @app.post("/sessions", status_code=201)
    async def create() -> Json:
        return server.create()

    @app.delete("/sessions/{name}", status_code=204)
    async def delete(name: str) -> Response:
        server.delete(name)
        return Response(status_code=204)

    @app.post("/sessions/{name}/v1/chat/completions")
    async def chat(name: str, request: Request) -> JSONResponse:
        return JSONResponse(await server.chat(name, json.loads(await request.body())))

    return app


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.fastapi_httpx", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upstream", required=True, help="the gateway")
    parser.add_argument("--tokenizer", type=Path, required=True, help="a tokenizer.json with Qwen's marks")
    options = parser.parse_args()
    url = f"http://127.0.0.1:{options.port}"
    tokenizer = Tokenizer.from_file(str(options.tokenizer))
    app = app_of(SessionServer(url=url, upstream=options.upstream, tokenizer=tokenizer))
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=options.port,
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
    )


if __name__ == "__main__":
    main()

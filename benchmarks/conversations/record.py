"""Records what Claude Code and Codex send in a task of twenty turns: `python -m benchmarks.conversations.record`.

The programs themselves, as tests/agents pins and fetches them, run on a fleet whose engine says what is laid down here;
between them stands a server that keeps what passes. What is written holds the form of each request, and no text that is
not ours: see `recorded`.
"""

import http.client
import shutil
import tempfile
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any, Final

import msgspec
from tests.agents.fleet import call, fleet_on_cue
from tests.agents.programs import ClaudeCode, Codex, Ended

from benchmarks.conversations.recorded import FOLDER, Conversation, Later, without_texts, without_uuids
from benchmarks.rigs.texts import prose

TURNS: Final = 20
CONTEXT: Final = 400_000
CUE: Final = "Tidy the notes up"
NOT_KEPT: Final = (
    *("authorization", "x-api-key", "host", "content-length", "connection", "accept-encoding", "transfer-encoding"),
)
"""Headers that say nothing of a conversation."""

Json = Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    path: str
    """Behind the session's own."""
    headers: dict[str, str]
    body: dict[str, Json]


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """How one of them is started, and what its calls look like."""

    name: str
    dialect: str
    run: Callable[[Path, str, str], Ended]
    """Folder, base URL, key."""
    conversation: str
    """The field that holds it."""
    shell: Callable[[str], dict[str, Json]]
    """A call that runs a command."""


PROGRAMS: Final = (
    Program(
        name="claude_code",
        dialect="anthropic_messages",
        run=lambda folder, url, key: ClaudeCode(folder=folder, base_url=url, api_key=key).run(CUE),
        conversation="messages",
        shell=lambda command: call("Bash", command=command, description="Look at some of it"),
    ),
    Program(
        name="codex",
        dialect="openai_responses",
        run=lambda folder, url, key: Codex(folder=folder, base_url=url, api_key=key).run(CUE),
        conversation="input",
        shell=lambda command: call("exec_command", cmd=command),
    ),
)


def main() -> None:
    for program in PROGRAMS:
        with tempfile.TemporaryDirectory(prefix="rolloutfleet-record-") as folder:
            conversation = recorded(program, Path(folder))
        file = FOLDER / f"{program.name}.json"
        file.write_bytes(msgspec.json.format(msgspec.json.encode(conversation), indent=0) + b"\n")
        print(f"{file.name}: {len(conversation.later) + 1} turns, {file.stat().st_size} bytes")


def recorded(program: Program, folder: Path) -> Conversation:
    """One task by one program."""
    with fleet_on_cue(folder, {CUE: replies(program)}, context=CONTEXT) as fleet:
        session = fleet.proxy.start_session(task_id=program.name)
        with keeping(session.base_url) as (url, calls):
            home = folder / program.name
            _lay_notes_down(home / "work")
            ended = program.run(home, url, session.api_key)
        assert ended.status == 0, ended.shown
        parents = [turn["parent_id"] for turn in session.turns()]
        assert len(parents) == TURNS and all(parents[1:]), parents
    assert len(calls) == TURNS, [each.path for each in calls]
    bodies = [{name: without_texts(value) for name, value in each.body.items()} for each in calls]
    return Conversation(
        dialect=program.dialect,
        path=calls[0].path,
        conversation=program.conversation,
        headers={name: without_uuids(value) for name, value in calls[0].headers.items()},
        first=bodies[0],
        later=[_later(before, body, program.conversation) for before, body in pairwise(bodies)],
    )


def _later(before: dict[str, Json], body: dict[str, Json], name: str) -> Later:
    """What a request has otherwise than the one before it."""
    assert {**body, name: None} == {**before, name: None}, "other fields differ"
    old, new = before[name], body[name]
    same = next((n for n, (one, other) in enumerate(zip(old, new, strict=False)) if one != other), len(old))
    return Later(same=same, more=new[same:])


def replies(program: Program) -> list[dict[str, Json]]:
    """Nineteen answers with calls, every fifth with two at once, and a last one in words."""
    said: list[dict[str, Json]] = []
    for number in range(1, TURNS):
        begin = 40 * number
        # What the commands print has from one line to some hundred.
        calls = [program.shell(f"sed -n {begin},{begin + number * 29 % 101}p notes.txt")]
        if number % 5 == 0:
            calls.append(program.shell(f"grep -n -m 12 class notes.txt; wc -c part{number}.txt"))
        if number % 7 == 0:
            calls = [program.shell(f"sed -n {begin},{begin + 8}p notes.txt > part{number}.txt; echo written")]
        said.append(
            {"reasoning": "I go on with the next part of the notes, and see what it holds. " * (number % 4 + 1)}
        )
        said[-1]["calls"] = calls
        if number % 3 == 0:
            said[-1]["text"] = "Now the part that begins further down, which should be about classes."
    return [*said, {"reasoning": "All of it was read.", "text": "The notes are in order now."}]


def _lay_notes_down(work: Path) -> None:
    work.mkdir(parents=True)
    (work / "notes.txt").write_text(prose()[:120_000])


@contextmanager
def keeping(base_url: str) -> Iterator[tuple[str, list[Recorded]]]:
    """A server that hands on what it is sent to `base_url`: its own address, and what has passed."""
    upstream = urllib.parse.urlsplit(base_url)
    session = upstream.path.removesuffix("/v1")
    kept: list[Recorded] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            said = {name: value for name, value in headers.items() if name not in NOT_KEPT}
            path = self.path.removeprefix(session)
            kept.append(Recorded(path=path, headers=said, body=msgspec.json.decode(body)))
            server = http.client.HTTPConnection(upstream.netloc, timeout=60)
            server.request("POST", self.path, body, {**headers, "host": upstream.netloc, "accept-encoding": "identity"})
            answer = server.getresponse()
            self.send_response(answer.status)
            for name in ("content-type", "x-should-retry", "retry-after"):
                if value := answer.headers.get(name):
                    self.send_header(name, value)
            self.end_headers()
            shutil.copyfileobj(answer, self.wfile)
            server.close()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{upstream.path}", kept
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


if __name__ == "__main__":
    main()

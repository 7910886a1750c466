"""`rolloutfleet inspect` against a running fleet: its documents are the API's, it follows turns, and keeps the key."""

import asyncio
import contextlib
import json
import signal
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.commands import CLI, invoke
from tests.fleets import Fleet, running_fleet
from tests.integration.client.fleet.agents import say, talk, talked
from tests.integration.client.fleet.conftest import key_file
from tests.integration.client.fleet.test_events import restart
from tests.integration.proxy.test_turns import TOOLS
from tests.waiting import PATIENCE, until

from rolloutfleet.fleet import AsyncFleet, Session
from rolloutfleet.fleet import Fleet as Trainer
from rolloutfleet.inspect.fleet import FleetSource
from rolloutfleet.inspect.tabs import Tabs
from rolloutfleet.viewing import merged
from rolloutfleet.viewing.figures import Sample, take_sample
from rolloutfleet.wire import ShownTurn

LISTS = ("input_ids", "texts", "logprobs", "versions", "loss_mask")
Json = Any


@dataclass
class Inspecting:
    """The command in a process of its own, and a browser."""

    process: "subprocess.Popen[str]"
    answers: list[httpx.Response] = field(default_factory=list)
    """All of them."""

    def next_url(self) -> str:
        """The one that is printed next."""
        for line in self.process.stdout or ():
            if "?token=" in line:
                return f"http{line.strip().partition('http')[2]}"
        raise AssertionError(f"it ended: {self.process.stderr and self.process.stderr.read()}")

    @contextlib.contextmanager
    def browser(self) -> Iterator[httpx.Client]:
        """One that was let in."""

        def note(answer: httpx.Response) -> None:
            if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                answer.read()
                self.answers.append(answer)

        url = httpx.URL(self.next_url())
        base = url.copy_with(query=None)
        with httpx.Client(base_url=base, timeout=PATIENCE, event_hooks={"response": [note]}) as browser:
            assert browser.get("/", params=url.params).status_code == 303
            yield browser

    def end(self) -> str:
        """By Ctrl-C; what it wrote to the error output."""
        self.process.send_signal(signal.SIGINT)
        _, complaints = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, complaints
        return complaints


def inspecting(*words: str) -> Iterator[Inspecting]:
    command = (*CLI, "inspect", "--port", "0", *words)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            page = Inspecting(process)
            yield page
            assert process.poll() is not None or page.end() == ""
        finally:
            process.kill()


@pytest.fixture(scope="module")
def page(pair: Fleet) -> Iterator[Inspecting]:
    yield from inspecting("--url", pair.proxy.url, "--admin-key-file", str(key_file(pair)))


@pytest.fixture(scope="module")
def browser(page: Inspecting) -> Iterator[httpx.Client]:
    with page.browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def told(pair: Fleet) -> tuple[str, list[str]]:
    """A session whose first turn is long, with a branch; its turns."""
    with Trainer.from_url(pair.proxy.url, admin_key=pair.proxy.key) as fleet:
        session = fleet.start_session("<b>task</b>", metadata={"seed": 1})
        said, one = say(session, [{"role": "user", "content": "🙂 wörd " * 3000}], tools=TOOLS)
        _, two = say(session, [*said, {"role": "user", "content": "<script>alert(1)</script>"}], tools=TOOLS)
        _, other = say(session, [{"role": "user", "content": "Another"}])
        fleet.reward(session, 0.5, close=False)
        return session.session_id, [one, two, other]


def got(browser: httpx.Client, path: str) -> Json:
    answer = browser.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


def joined(browser: httpx.Client, path: str, chunks: int) -> Json:
    """The chunks of a turn in one."""
    found = defaultdict[str, list[Json]](list)
    for number in reversed(range(chunks)):
        chunk = got(browser, f"{path}/tokens/{number}.json")
        assert chunk["start"] == 512 * number and len(chunk["input_ids"]) <= 512
        for name in LISTS:
            found[name][:0] = chunk[name]
    return found


def test_the_documents_of_a_session_are_what_the_fleet_says(
    browser: httpx.Client, fleet: Trainer, told: tuple[str, list[str]]
) -> None:
    name, (one, two, other) = told
    tree = got(browser, f"/data/sessions/{name}/tree.json")
    assert tree["branches"] == [two, other] and tree["session"]["metadata"] == {"seed": 1}
    assert [(turn["turn_id"], turn["depth"]) for turn in tree["turns"]] == [(one, 0), (two, 0), (other, 0)]
    assert tree["session"]["task_id"] == "<b>task</b>"
    expected = {
        turn.turn_id: turn for turn in merged([*fleet.conversation(name, branch=two), *fleet.conversation(name)])
    }
    for turn in tree["turns"]:
        same_turn(browser, f"/data/sessions/{name}/turns/{turn['name']}", expected[turn["turn_id"]])


def same_turn(browser: httpx.Client, path: str, expected: ShownTurn) -> None:
    made = got(browser, f"{path}.json")
    own = {name: made.pop(name) for name in ("tokens", "chunks", "strip", "name")}
    assert made == json.loads(expected.model_dump_json(exclude={"tokens"}))
    assert joined(browser, path, own["chunks"]) == {name: getattr(expected.tokens, name) for name in LISTS}
    assert own["tokens"] == len(expected.tokens.input_ids)
    assert (own["strip"] is None) == (own["tokens"] > 4096)
    strip = own["strip"] or got(browser, f"{path}/strip.json")["strip"]
    assert len(strip) == min(512, expected.completion_tokens) and all(0 < each <= 1 for each in strip)
    for number in (own["chunks"], 10**7 - 1, 10**10):
        assert browser.get(f"{path}/tokens/{number}.json").status_code == 404


def test_pages_show_hostile_text_as_text(browser: httpx.Client, told: tuple[str, list[str]]) -> None:
    name, _ = told
    for path in ("index.html", "sessions.html", f"sessions/{name}.html"):
        answer = browser.get(f"/{path}")
        assert answer.status_code == 200 and "<b>task" not in answer.text and "<script>alert" not in answer.text
    assert "$ROLLOUTFLEET_ADMIN_KEY" in answer.text and f"/sessions/{name}/conversation" in answer.text


def test_the_list_and_the_figures_have_all_proxies(
    browser: httpx.Client, fleet: Trainer, told: tuple[str, list[str]]
) -> None:
    group = fleet.start_group(4, "listed")
    talked(group)
    names = {session.session_id for session in group}

    def listed() -> Json:
        lines = got(browser, "/data/sessions.json")["sessions"]
        found = {line["key"]: line for line in lines if line["session_id"] in names and line["turns"] == 1}
        return found if len(found) == 4 else None

    found = until(listed)
    assert {line["group_id"] for line in found.values()} == {group.group_id}
    shown = got(browser, "/data/fleet.json")
    assert [row["proxy"] for row in shown["proxies"]] == [0, 1] and shown["trouble"] is None
    siblings = browser.get(f"/groups/{found[group.sessions[0].session_id]['group']}.html")
    assert all(name in siblings.text for name in names)
    fleet.delete(group.sessions[0])


@pytest.mark.parametrize(
    "path",
    [
        "/data/sessions/s0-0123456789ab-0123456789abcdef/tree.json",
        "/data/sessions/..%2fproxies/tree.json",
        "/data/sessions/s0-0123456789ab-0123456789abcdef%2fturns/tree.json",
        "/sessions/s9-0123456789ab-0123456789abcdef.html",
        "/sessions",
        "/proxies",
        "/events/x",
        "/metrics",
    ],
)
def test_what_is_not_there_is_404_and_nothing_is_passed_through(browser: httpx.Client, path: str) -> None:
    assert browser.get(path).status_code == 404


def test_turns_of_other_sessions_and_none_are_404(browser: httpx.Client, told: tuple[str, list[str]]) -> None:
    name, (one, *_) = told
    for turn in ("turn-0", f"{one}:0", f"{one}%3A0%3A4096", "..%2f..", f"{one}%0a"):
        assert browser.get(f"/data/sessions/{name}/turns/{turn}.json").status_code == 404
        assert browser.get(f"/data/sessions/{name}/turns/{turn}/tokens/0.json").status_code == 404


def test_every_tab_hears_of_turns_when_they_are_committed_also_across_a_restart(
    browser: httpx.Client, fleet: Trainer, pair: Fleet
) -> None:
    session = fleet.start_session()
    owner = next(proxy for proxy in pair.proxies if proxy.url in session.base_url)
    with browser.stream("GET", "/events") as one, browser.stream("GET", "/events") as other:
        heard = [each.iter_lines() for each in (one, other)]
        assert [next(lines) for lines in heard] == [": following"] * 2
        before: set[str] = set()
        for _ in range(2):
            with talking(session):
                for lines in heard:
                    theirs = (event for event in events_of(lines) if event.get("key") == session.session_id)
                    commit = next(event for event in theirs if event["turn_id"] not in before)
                    assert commit["ordinal"] == owner.ordinal
            tree = got(browser, f"/data/sessions/{session.session_id}/tree.json")
            before = {turn["turn_id"] for turn in tree["turns"]}
            assert before
            restart(owner)


def events_of(lines: Iterator[str]) -> Iterator[Json]:
    return (json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: "))


@contextlib.contextmanager
def talking(session: Session) -> Iterator[None]:
    """A turn after the other meanwhile: one that came before anybody followed the proxy is told to nobody."""
    enough = threading.Event()

    def talk_on() -> None:
        while not enough.wait(0.1):
            asyncio.run(talk(session))

    thread = threading.Thread(target=talk_on)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def test_another_browser_opens_the_url_that_is_printed_next(page: Inspecting, browser: httpx.Client) -> None:
    with page.browser() as second:
        assert got(second, "/data/fleet.json")["source"] == "fleet"
        assert got(browser, "/data/fleet.json")["source"] == "fleet"


def test_a_bundle_has_what_the_live_page_has(
    pair: Fleet, browser: httpx.Client, told: tuple[str, list[str]], tmp_path: Path
) -> None:
    name, (one, *_) = told
    words = ("--url", pair.proxy.url, "--admin-key-file", str(key_file(pair)), "--session", name)
    done = invoke("inspect", *words, "--bundle", str(tmp_path / "bundle"))
    assert done.returncode == 0 and "1 session," in done.stdout, done.stderr
    made = [file for file in (tmp_path / "bundle").rglob("*") if file.is_file()]
    documents = [file for file in made if file.is_relative_to(tmp_path / "bundle" / "data" / "sessions")]
    assert len(documents) > 20
    for file in documents:
        mine, live = json.loads(file.read_bytes()), got(browser, f"/{file.relative_to(tmp_path / 'bundle')}")
        if file.name == "tree.json":
            assert mine["turns"] == live["turns"] and mine["branches"] == live["branches"]
        else:
            assert mine == live
    assert (tmp_path / "bundle" / f"data/sessions/{name}/turns/{one}/strip.json").is_file()
    assert not any(pair.proxy.key.encode() in file.read_bytes() for file in made)


def test_no_answer_has_the_admin_key(page: Inspecting, browser: httpx.Client, pair: Fleet) -> None:
    """None of all that came so far, errors among them."""
    for path in ("/index.html", "/sessions.html", "/none", "/data/fleet.json"):
        browser.get(path)
    assert len(page.answers) > 20
    key = pair.proxy.key
    for answer in page.answers:
        assert not any(key in each for each in (answer.text, *answer.headers.values())), answer.url


def test_a_proxy_that_is_gone_is_shown_what_it_had_stays_listed_and_ctrl_c_ends_all_tabs(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with running_fleet(tmp_path_factory.mktemp("gone"), proxies=2) as running:
        names = {proxy.start_session(here=True).session_id for proxy in running.proxies for _ in range(3)}
        (there,) = list(inspecting_until_listed(running, names))
        assert {line["ordinal"] for line in there["before"]} == {0, 1}
        assert {line["key"] for line in there["after"]} == names
        assert there["figures"]["failed"] and there["tree"] == 503


def inspecting_until_listed(running: Fleet, names: set[str]) -> Iterator[Json]:
    """What is shown before and after a proxy is killed."""
    words = ("--url", running.proxy.url, "--admin-key-file", str(key_file(running)))
    for page in inspecting(*words):
        with page.browser() as browser:
            before = until(lambda: _listed(browser, names))
            running.proxies[1].kill()
            figures = until(lambda: _failed(browser))
            (theirs, *_) = [name for name in names if name.startswith("s1-")]
            tree = browser.get(f"/data/sessions/{theirs}/tree.json")
            assert browser.get(f"/sessions/{theirs}.html").status_code == tree.status_code
            assert running.proxy.key not in tree.text and "Traceback" not in tree.text
            after = got(browser, "/data/sessions.json")["sessions"]
            with browser.stream("GET", "/events") as following:
                assert next(following.iter_lines()) == ": following"
                assert page.end() == ""
            yield {"before": before, "after": after, "figures": figures, "tree": tree.status_code}


def _listed(browser: httpx.Client, names: set[str]) -> Json:
    """Lines of the list, once it has exactly these."""
    lines = got(browser, "/data/sessions.json")["sessions"]
    return lines if {line["key"] for line in lines} == names else None


def _failed(browser: httpx.Client) -> Json:
    """Figures of the fleet, once a proxy is missing."""
    figures = got(browser, "/data/fleet.json")
    return figures if figures["failed"] else None


def test_a_key_that_the_fleet_does_not_take_is_said_in_a_line(pair: Fleet, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("another")
    done = invoke("inspect", "--port", "0", "--url", pair.proxy.url, "--admin-key-file", str(tmp_path / "key"))
    assert done.returncode != 0 and "Traceback" not in done.stderr and done.stderr.count("\n") == 1
    assert "another" not in done.stderr


async def test_proxies_are_asked_for_figures_where_an_overview_is_shown_alone(
    pair: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Sample] = []

    async def counted(fleet: AsyncFleet) -> Sample:
        taken.append(await take_sample(fleet))
        return taken[-1]

    monkeypatch.setattr("rolloutfleet.inspect.sampling.take_sample", counted)
    async with AsyncFleet.from_url(pair.proxy.url, admin_key=pair.proxy.key) as fleet:
        source = FleetSource(fleet, Tabs(), time.monotonic)
        async with source.running():
            await source.sessions()
            assert not taken
            assert len((await source.overview())["proxies"]) == 2
    assert taken

"""`rolloutfleet inspect` of a running fleet, looked at with a real Chromium."""

import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from tests.browser.browser import ELSEWHERE, Inspect, Looked, chromium, inspecting, looking
from tests.browser.scenes import HOSTILE, HUGE, Scenes, play, say
from tests.commands import CLI, ran
from tests.local_fleets import Up, running
from tests.processes import free_port, serving
from tests.waiting import PATIENCE

from rolloutfleet.fleet import Fleet
from rolloutfleet.viewing import merged, safe
from rolloutfleet.wire import ShownTurn

FLEET: Final = """\
apiVersion: rolloutfleet.dev/v1alpha1
kind: RolloutFleet
metadata: {name: math}
spec: {model: simulated, engine: {replicas: 1, simulated: {latency: 0s, tokenLatency: 0s}}, proxies: {replicas: 2}}
"""
expect.set_options(timeout=1000 * PATIENCE)


@dataclass
class Stage:
    """The fleet, what is in it, and its page."""

    up: Up
    fleet: Fleet
    scenes: Scenes
    inspect: Inspect
    browser: Browser

    def address(self) -> str:
        return self.inspect.address(self.up.until)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with running(tmp_path_factory.mktemp("fleet"), FLEET) as up:
        up.book()
        command = ("rolloutfleet", "inspect", "--port", "0", "--state-dir", str(up.state))
        with (
            Fleet.from_file(up.state) as fleet,
            inspecting(tmp_path_factory.mktemp("inspect"), *command) as inspect,
            chromium() as browser,
        ):
            yield Stage(up, fleet, play(fleet), inspect, browser)


@pytest.fixture(scope="module")
def window(stage: Stage) -> Iterator[Looked]:
    """One that was let in."""
    with looking(stage.browser, permissions=["clipboard-read", "clipboard-write"]) as looked:
        looked.go(stage.address())
        yield looked


@pytest.fixture
def looked(window: Looked) -> Iterator[Looked]:
    """Nothing may be complained of while a test looks on."""
    window.complaints.clear()
    yield window
    assert window.complaints == []
    assert window.page.evaluate("window.violations") == []


@pytest.fixture
def page(looked: Looked) -> Page:
    return looked.page


def open_session(stage: Stage, page: Page, session: str, words: str = "") -> None:
    """Afresh, whatever was open before."""
    page.goto("about:blank")
    page.goto(f"{stage.inspect.root}sessions/{session}.html{words}")


def of_api(stage: Stage, turn: str) -> ShownTurn:
    return merged(stage.fleet.conversation(stage.scenes.branched, branch=turn))[-1]


def line(page: Page, turn: str) -> Locator:
    return page.locator(f"#tree [data-turn='{turn}']")


def test_the_overview_shows_every_proxy_and_the_newest_sessions(stage: Stage, page: Page) -> None:
    page.goto(f"{stage.inspect.root}index.html")
    rows = page.locator("table.facts tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("ready")
    expect(page.locator("#newest li")).to_have_count(6)
    expect(page.locator("#total")).to_have_text("6 sessions")


def test_sessions_are_found_by_what_is_typed_and_the_address_says_so(stage: Stage, page: Page) -> None:
    page.goto(f"{stage.inspect.root}sessions.html")
    rows = page.locator("#sessions .row")
    expect(rows).to_have_count(6)
    page.keyboard.press("/")
    page.keyboard.type("siblings")
    expect(rows).to_have_count(3)
    expect(page.locator("#count")).to_have_text("3 of 6 sessions")
    page.locator("[name=reward]").fill(">=0.5")
    expect(page.locator("#count")).to_have_text("2 of 6 sessions")
    assert page.url.endswith("?q=siblings&reward=%3E%3D0.5")
    page.reload()
    expect(rows).to_have_count(2)
    expect(page.locator("[name=reward]")).to_have_value(">=0.5")
    page.locator("[name=version]").fill("1..")
    expect(page.locator("#none")).to_be_visible()
    page.locator("#clear").click()
    expect(rows).to_have_count(6)
    page.locator("[name=branches]").fill("2..")
    expect(rows).to_have_count(1)
    expect(rows.first).to_have_attribute("data-key", stage.scenes.branched)


def test_a_range_that_is_none_is_marked_and_hides_nothing(stage: Stage, page: Page) -> None:
    page.goto(f"{stage.inspect.root}sessions.html")
    field = page.locator("[name=length]")
    field.fill("many")
    expect(page.locator("#sessions .row")).to_have_count(6)
    assert field.evaluate("(field) => field.validationMessage") == "a number or a range: 3, 0.5..1, ..2, >=4"


def test_a_head_sorts_by_its_column_and_turns_it_round(stage: Stage, page: Page) -> None:
    page.goto(f"{stage.inspect.root}sessions.html?task=siblings")
    rewards = page.locator("#sessions .row .reward")
    expect(rewards).to_have_count(3)
    head = page.locator("[data-sort=reward]")
    head.click()
    expect(rewards).to_have_text(["1", "0.5", "0"])
    head.click()
    expect(rewards).to_have_text(["0", "0.5", "1"])
    assert page.url.endswith("sort=reward")


def test_siblings_stand_side_by_side_with_their_rewards_and_how_they_end(stage: Stage, page: Page) -> None:
    page.goto(f"{stage.inspect.root}groups/{stage.scenes.group}.html")
    cards = page.locator(".sibling")
    expect(cards).to_have_count(3)
    names, scores = (cards.locator(kind).all_text_contents() for kind in ("h3", ".score"))
    assert dict(zip(names, scores, strict=True)) == dict(zip(stage.scenes.siblings, ["0", "0.5", "1"], strict=True))
    tops = {card.bounding_box()["y"] for card in cards.all()}  # type: ignore[index]
    assert len(tops) == 1
    answer = merged(stage.fleet.conversation(names[0]))[-1].messages[-1].message["content"]
    tail = cards.first.locator(".tail")
    assert answer[-40:].strip() in (tail.text_content() or "")


def test_a_branch_is_found_with_its_reason_and_leads_to_its_conversation(stage: Stage, page: Page) -> None:
    _, two, three = stage.scenes.turns
    open_session(stage, page, stage.scenes.branched)
    expect(page.locator("#tree [data-turn]")).to_have_count(3)
    expect(line(page, three)).to_contain_text("fork: content of message 0")
    expect(page.locator("#conversation")).to_contain_text("7 degrees")
    expect(page.locator("#conversation")).not_to_contain_text("42 degrees")
    line(page, two).click()
    expect(page.locator("#conversation")).to_contain_text("42 degrees")
    expect(page.locator("#conversation")).not_to_contain_text("7 degrees")
    assert f"turn={two}" in page.url
    page.locator("#find").fill("fork: content")
    expect(page.locator("#tree [data-turn]:visible")).to_have_count(1)


def test_calls_results_reasoning_tools_and_notes_are_read(stage: Stage, page: Page) -> None:
    made = of_api(stage, stage.scenes.turns[0]).messages[-1].message
    call = made["tool_calls"][0]
    open_session(stage, page, stage.scenes.branched, f"#branch={stage.scenes.turns[1]}")
    expect(page.locator(".call .name").first).to_have_text("look_up")
    given = page.locator(".call .text").first.text_content() or ""
    assert json.loads(given) == json.loads(call["function"]["arguments"]) and "\n  " in given
    expect(page.locator(".role-tool").first).to_contain_text(call["id"])
    expect(page.locator(".note")).to_contain_text("so-so")
    folded = page.locator("details.reasoning").first
    expect(folded.locator(".text")).to_have_count(0)
    folded.locator("summary").click()
    expect(folded.locator(".text")).to_have_text(made["reasoning_content"])
    page.locator("details.tools summary").first.click()
    expect(page.locator("details.tools").first).to_contain_text('"required"')


def tokens_of(page: Page, turn: str) -> Locator:
    return page.locator(f"#tokens section[data-turn='{turn}'] .t[data-at]")


def test_every_token_of_the_api_is_there_with_the_class_of_its_probability(stage: Stage, page: Page) -> None:
    turn = of_api(stage, stage.scenes.turns[1])
    open_session(stage, page, stage.scenes.branched, f"#view=tokens&turn={turn.turn_id}")
    expect(tokens_of(page, turn.turn_id).first).to_be_visible()
    seen = tokens_of(page, turn.turn_id).evaluate_all(
        "(all) => all.map((each) => ({...each.dataset, text: each.textContent}))"
    )
    groups = [at for at, text in enumerate(turn.tokens.texts) if text is not None]
    assert [int(each["at"]) for each in seen] == groups
    assert [each["text"] for each in seen] == [safe(turn.tokens.texts[at]).replace("\n", "↵\n") for at in groups]
    for each in seen:
        at = int(each["at"])
        if at < turn.new_prompt_tokens:
            assert "p" not in each and "v" not in each
            continue
        logprob = turn.tokens.logprobs[at]
        bounds = (-0.05, -0.3, -1.0, -2.5)
        assert int(each["p"]) == next((place for place, least in enumerate(bounds) if logprob >= least), 4)
        assert int(each["m"]) == turn.tokens.loss_mask[at]
        assert int(each["v"]) == turn.tokens.versions[at] % 6
    assert {each["p"] for each in seen if "p" in each} > {"0"}


def test_a_tooltip_says_what_the_api_says(stage: Stage, page: Page) -> None:
    turn = of_api(stage, stage.scenes.turns[1])
    open_session(stage, page, stage.scenes.branched, f"#view=tokens&turn={turn.turn_id}")
    at = turn.new_prompt_tokens + 3
    page.locator(f"#tokens section[data-turn='{turn.turn_id}'] .t[data-at='{at}']").hover()
    tip = page.locator("#tip")
    expect(tip).to_be_visible()
    names, values = (tip.locator(kind).all_text_contents() for kind in ("dt", "dd"))
    said = dict(zip(names, values, strict=True))
    tokens = turn.tokens
    assert said["id"] == str(tokens.input_ids[at])
    assert said["log-probability"] == f"{tokens.logprobs[at]:.4f}"
    assert said["probability"] == f"{math.exp(tokens.logprobs[at]) * 100:.2f}%"
    assert (said["version"], said["loss mask"]) == (str(tokens.versions[at]), str(tokens.loss_mask[at]))
    assert float(said["trainer: advantages"]) == pytest.approx(tokens.annotations["advantages"][at], abs=1e-3)
    assert float(said["mismatch"]) == pytest.approx(-0.2, abs=1e-3)
    assert tip.locator("code").text_content() == json.dumps(tokens.texts[at], ensure_ascii=False)
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()


def test_a_character_that_is_split_over_tokens_is_one_with_all_of_their_ids(stage: Stage, page: Page) -> None:
    turn = of_api(stage, stage.scenes.turns[0])
    at = next(place for place, text in enumerate(turn.tokens.texts) if text is not None and "🙂" in text)
    many = next(
        place
        for place in range(1, 9)
        if at + place == len(turn.tokens.texts) or turn.tokens.texts[at + place] is not None
    )
    assert many > 1
    open_session(stage, page, stage.scenes.branched, f"#view=tokens&turn={turn.turn_id}")
    token = tokens_of(page, turn.turn_id).filter(has_text="🙂")
    token.hover()
    expect(page.locator("#tip dd").first).to_have_text(", ".join(map(str, turn.tokens.input_ids[at : at + many])))


def test_each_meaning_has_its_own_colours(stage: Stage, page: Page) -> None:
    turn = stage.scenes.turns[1]
    open_session(stage, page, stage.scenes.branched, f"#view=tokens&turn={turn}")
    expect(tokens_of(page, turn).first).to_be_visible()
    colours = {}
    for mode in ("logprob", "version", "mask", "advantage", "mismatch"):
        page.locator("#by").select_option(mode)
        expect(page.locator("#tokens")).to_have_class(f"by-{mode}")
        colours[mode] = tokens_of(page, turn).evaluate_all(
            "(all) => [...new Set(all.map((each) => getComputedStyle(each).backgroundColor))].length"
        )
        assert f"by={mode}" in page.url
    assert colours["logprob"] > 3 and colours["advantage"] > 5, colours
    assert colours["version"] == colours["mask"] == 2 and colours["mismatch"] == 2, colours


def test_the_strip_and_the_waterfall_are_drawn(stage: Stage, page: Page) -> None:
    open_session(stage, page, stage.scenes.branched, "#view=tokens")
    painted = """() => {
      const canvas = document.querySelector("#strip");
      const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
      copy.drawImage(canvas, 0, 0);
      const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
      return new Set(new Uint32Array(data.buffer)).size > 3;
    }"""
    page.wait_for_function(painted)
    page.keyboard.press("3")
    rows = page.locator("#waterfall .row")
    expect(rows).to_have_count(3)
    expect(rows.first.locator(".phase")).to_have_count(5)
    (two,) = [turn for turn in stage.fleet.turns(stage.scenes.branched) if turn.turn_id == stage.scenes.turns[1]]
    timing = of_api(stage, two.turn_id).timing
    assert timing is not None
    title = rows.nth(1).locator(".bar").get_attribute("title") or ""
    assert re.fullmatch(r"queue .*, tokenise_in .*, pause .*, engine .*, tokenise_out .*", title)
    page.locator("#by-clock").check()
    starts = [float(bar.evaluate("(bar) => parseFloat(bar.style.paddingLeft)")) for bar in rows.locator(".bar").all()]
    assert min(starts) == 0 and 0 < max(starts) <= 100


def test_a_live_session_is_followed_until_that_is_paused(stage: Stage, page: Page) -> None:
    live = stage.scenes.live
    open_session(stage, page, live.session_id)
    state = page.locator("#live")
    expect(state).to_have_text("live")
    lines = page.locator("#tree [data-turn]")
    before = lines.count()
    _, turn = say(live, [{"role": "user", "content": "What did I miss?"}])
    expect(line(page, turn)).to_be_visible()
    expect(page.locator("#conversation")).to_contain_text("What did I miss?")
    page.keyboard.press("p")
    expect(state).to_have_text("paused")
    _, later = say(live, [{"role": "user", "content": "And now?"}])
    with page.expect_request("**/tree.json"):
        page.keyboard.press("p")
    expect(line(page, later)).to_be_visible()
    expect(lines).to_have_count(before + 2)


def test_a_session_that_is_deleted_while_it_is_read_stays_and_says_so(stage: Stage) -> None:
    session = stage.fleet.start_session("short-lived")
    say(session, [{"role": "user", "content": "Hello"}])
    with looking(stage.browser) as looked:
        page = looked.page
        looked.go(stage.address())
        open_session(stage, page, session.session_id)
        expect(page.locator("#live")).to_have_text("live")
        expect(page.locator("#conversation")).to_contain_text("Hello")
        stage.fleet.delete(session.session_id)
        page.keyboard.press("p")
        page.keyboard.press("p")
        expect(page.locator("#trouble")).to_contain_text("What is here is as it was")
        expect(page.locator("#conversation")).to_contain_text("Hello")


def test_turns_show_up_in_the_overview_as_they_are_committed(stage: Stage, page: Page) -> None:
    page.goto(f"{stage.inspect.root}index.html")
    expect(page.locator("#live")).to_have_text("live")
    _, turn = say(stage.scenes.live, [{"role": "user", "content": "Once more"}])
    expect(page.locator("#turns a").first).to_have_text(turn)
    page.locator("#turns a").first.click()
    expect(line(page, turn)).to_have_class(re.compile("selected"))


def test_the_keyboard_is_enough(stage: Stage, page: Page) -> None:
    page.goto(f"{stage.inspect.root}sessions.html?task=branching")
    expect(page.locator("#sessions .row")).to_have_count(1)
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    expect(page.locator("#keys")).to_contain_text("next session")
    page.keyboard.press("Escape")
    expect(page.locator("#help")).to_be_hidden()
    page.keyboard.press("j")
    expect(page.locator("#sessions .row.selected")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(line(page, stage.scenes.turns[2])).to_have_class(re.compile("on-branch"))
    one, two, _ = stage.scenes.turns
    page.keyboard.press("[")
    expect(line(page, two)).to_have_class(re.compile("selected"))
    page.keyboard.press("k")
    expect(line(page, one)).to_have_class(re.compile("selected"))
    page.keyboard.press("j")
    expect(line(page, two)).to_have_class(re.compile("selected"))
    page.keyboard.press("c")
    expect(page.locator("#tokens")).to_have_class("by-version")
    page.keyboard.press("/")
    expect(page.locator("#find")).to_be_focused()
    page.keyboard.type("c")
    page.keyboard.press("Escape")
    page.keyboard.press("s")
    expect(page.locator("#filters")).to_be_visible()


def test_a_link_leads_to_a_turn_its_branch_and_its_colours(stage: Stage, page: Page) -> None:
    one, two, _ = stage.scenes.turns
    open_session(stage, page, stage.scenes.branched, f"#turn={one}&branch={two}&view=tokens&by=mask")
    expect(page.locator("#tokens")).to_have_class("by-mask")
    expect(line(page, two)).to_have_class(re.compile("on-branch"))
    expect(line(page, one)).to_have_class(re.compile("selected"))
    expect(page.locator("#tab-tokens")).to_have_attribute("aria-selected", "true")


def test_what_is_copied_as_a_command_gives_the_conversation(stage: Stage, page: Page) -> None:
    _, two, _ = stage.scenes.turns
    open_session(stage, page, stage.scenes.branched, f"#branch={two}")
    section = page.locator(f"#conversation section[data-turn='{two}']")
    section.locator("[data-copy=curl]").click()
    expect(page.locator("#notice")).to_contain_text("Copied as curl")
    command = str(page.evaluate("navigator.clipboard.readText()"))
    key = stage.fleet.whereabouts.admin_key
    assert "$ROLLOUTFLEET_ADMIN_KEY" in command and str(key) not in command
    environment = {"PATH": "/usr/bin:/bin:/usr/local/bin", "ROLLOUTFLEET_ADMIN_KEY": str(key)}
    done = subprocess.run(["sh", "-c", command], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["branch"] == two
    section.locator("[data-copy=ids]").click()
    expect(page.locator("#notice")).to_contain_text("Copied the ids")
    assert json.loads(str(page.evaluate("navigator.clipboard.readText()"))) == of_api(stage, two).tokens.input_ids


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_are_the_systems_choice_unless_one_is_chosen(stage: Stage, scheme: Any, tmp_path: Path) -> None:
    dark = "(body) => getComputedStyle(body).backgroundColor.match(/\\d+/g).slice(0, 3).every((part) => part < 60)"
    with looking(stage.browser, color_scheme=scheme) as looked:
        page = looked.page
        looked.go(stage.address())
        for name in ("index", "sessions", f"sessions/{stage.scenes.branched}", f"groups/{stage.scenes.group}"):
            page.goto(f"{stage.inspect.root}{name}.html")
            assert page.locator("body").evaluate(dark) == (scheme == "dark")
            picture = page.screenshot(path=tmp_path / f"{scheme}-{name.replace('/', '-')}.png")
            assert picture.startswith(b"\x89PNG") and len(picture) > 5_000
        other = "light" if scheme == "dark" else "dark"
        while page.locator("#theme").text_content() != other:
            page.keyboard.press("t")
        assert page.locator("body").evaluate(dark) == (other == "dark")
        page.reload()
        assert page.locator("body").evaluate(dark) == (other == "dark")
        assert looked.complaints == []


@pytest.mark.parametrize("view", ["conversation", "tokens"])
def test_hostile_content_is_text(stage: Stage, page: Page, view: str) -> None:
    page.evaluate("sessionStorage.clear()")
    open_session(stage, page, stage.scenes.hostile, f"#view={view}")
    place = page.locator(f"#{view}")
    expect(place).to_contain_text("owned")
    written = place.evaluate("(place) => place.textContent")
    for letter in "\x1b\x07\u202e\u202c":
        assert letter not in written
    if view == "conversation":
        assert safe(HOSTILE) in written
        place.locator(".more").last.click()
        expect(place).to_contain_text(HUGE[:5_000])
    else:
        assert "\\x1b" in written and "\\u202e" in written
    check_unharmed(page)
    assert page.evaluate(
        "document.querySelector('#scroller').scrollWidth <= document.querySelector('#scroller').clientWidth"
    )


@pytest.mark.parametrize("name", ["index.html", "sessions.html", "a group"])
def test_hostile_names_and_answers_are_text_in_lists(stage: Stage, page: Page, name: str) -> None:
    (status,) = [each for each in stage.fleet.sessions() if each.session_id == stage.scenes.hostile]
    page.goto(f"{stage.inspect.root}{name if name.endswith('html') else f'groups/{status.group_id}.html'}")
    expect(page.get_by_text("<script>owned()").first).to_be_visible()
    check_unharmed(page)


def check_unharmed(page: Page) -> None:
    """No element came of a text, and no text reaches beyond the page."""
    assert (
        page.locator("main img, main svg, main b:text-is('bold'), main script, main i:has-text('owned')").count() == 0
    )
    assert page.evaluate("typeof window.owned") == "undefined" and page.title() != "owned"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_admin_key_never_reaches_the_browser(stage: Stage) -> None:
    key = str(stage.fleet.whereabouts.admin_key)
    with looking(stage.browser) as looked:
        bodies: list[str] = []
        # A stream of events doesn't end, so it has no body that could be waited for.
        looked.page.context.on(
            "requestfinished",
            lambda request: None if "/events" in request.url else bodies.append(body_of(request.response)),
        )
        looked.go(stage.address())
        for name, filled in (
            ("index", "#newest li"),
            ("sessions", "#sessions .row"),
            (f"groups/{stage.scenes.group}", ".sibling .tail"),
            (f"sessions/{stage.scenes.branched}", "#conversation .message"),
        ):
            looked.page.goto(f"{stage.inspect.root}{name}.html", wait_until="load")
            expect(looked.page.locator(filled).first).not_to_be_empty()
            stored = "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])"
            held = looked.page.content() + str(looked.page.evaluate(stored))
            assert key not in held
        cookies = looked.page.context.cookies()
    assert len(bodies) > 20 and any("sessions" in each for each in bodies)
    for text in [*bodies, *looked.traffic, json.dumps(cookies, default=str)]:
        assert key not in text
    (cookie,) = cookies
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")


def body_of(response: Callable[[], Any]) -> str:
    answer = response()
    try:
        return "" if answer is None else str(answer.text())
    except Exception:  # of a redirect, or of a page that was left meanwhile
        return ""


def test_a_bundle_is_read_behind_any_web_server_in_any_folder(stage: Stage, tmp_path: Path) -> None:
    folder = tmp_path / "shared" / "by me"
    folder.parent.mkdir()
    done = ran(*CLI, "inspect", "--bundle", str(folder), "--state-dir", str(stage.up.state))
    assert done.returncode == 0, done.stderr
    port = free_port()
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(tmp_path)]
    with (
        serving(command, port=port, log=tmp_path / "log", ready_path="/", deadline=PATIENCE),
        looking(stage.browser) as looked,
    ):
        page, root = looked.page, f"http://127.0.0.1:{port}/shared/by%20me/"
        looked.go(f"{root}index.html")
        expect(page.locator("#newest li")).to_have_count(6)
        expect(page.locator("#live")).to_be_hidden()
        page.locator("#total").click()
        page.locator(f"[data-key='{stage.scenes.branched}'] a.id").click()
        line(page, stage.scenes.turns[1]).click()
        expect(page.locator("#conversation")).to_contain_text("42 degrees")
        page.keyboard.press("2")
        expect(tokens_of(page, stage.scenes.turns[1]).first).to_be_visible()
        page.locator("#about a").click()
        expect(page.locator(".sibling")).to_have_count(1)
        assert looked.complaints == []


def test_an_address_opens_one_browser(stage: Stage) -> None:
    address = stage.address()
    with looking(stage.browser) as first, looking(stage.browser) as second:
        first.go(address)
        expect(first.page.locator("#newest")).to_be_attached()
        second.go(address)
        expect(second.page.locator("body")).to_contain_text("was used before")
        answer = second.page.goto(f"{stage.inspect.root}data/sessions.json")
        assert answer is not None and answer.status == 401


def test_pages_of_other_origins_and_other_names_get_nothing(stage: Stage, tmp_path: Path) -> None:
    with looking(stage.browser) as looked:
        page = looked.page
        looked.go(stage.address())
        expect(page.locator("#newest")).to_be_attached()
        # The same machine under another name, which a page elsewhere can have its own resolve to.
        renamed = stage.inspect.root.replace("127.0.0.1", ELSEWHERE)
        answer = page.goto(f"{renamed}data/sessions.json")
        assert answer is not None and answer.status == 421
        ask = """async (address) => {
          try { return await (await fetch(address, { credentials: "include" })).text(); } catch { return "refused"; }
        }"""
        # A page that is open in the same browser, of another origin.
        page.route("http://other.example/", lambda route: route.fulfill(body="<p>other</p>", content_type="text/html"))
        page.goto("http://other.example/")
        assert page.evaluate(ask, f"{stage.inspect.root}data/sessions.json") == "refused"
        page.evaluate(
            """(address) => new Promise((done) => {
              const frame = document.createElement("iframe");
              frame.src = address;
              frame.onload = frame.onerror = () => done();
              document.body.append(frame);
            })""",
            f"{stage.inspect.root}index.html",
        )
        assert not any("newest" in frame.content() for frame in page.frames[1:])

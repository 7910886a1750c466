"""Who gets in: the one who opens the URL that was printed, once. All others are told what to do, and nothing else."""

from pathlib import Path

import httpx
import pytest
from tests.unit.client.inspect.sites import BASE, Site, site, whole

from rolloutfleet.inspect.access import HEADERS, MOST_COOKIES

EVERY_PATH = ("/", "/index.html", "/sessions.html", "/data/fleet.json", "/events", "/static/none.js", "/none")


async def test_nothing_is_served_without_the_cookie(tmp_path: Path) -> None:
    async with site(whole(tmp_path)) as page, page.browser() as browser:
        for path in EVERY_PATH:
            answer = await browser.get(path)
            assert answer.status_code == 401, path
            assert "rolloutfleet inspect" in answer.text and page.tokens[-1] not in answer.text
        assert (await browser.get("/data/fleet.json")).json()["error"]["message"]


async def test_a_token_is_exchanged_for_a_cookie_once_and_a_new_one_is_printed(tmp_path: Path) -> None:
    async with site(whole(tmp_path)) as page, page.browser() as first, page.browser() as second:
        answer = await first.get("/", params={"token": page.tokens[0]})
        assert (answer.status_code, answer.headers["location"]) == (303, "index.html")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Domain" not in cookie
        assert (await first.get("/index.html")).status_code == 200
        assert (await second.get("/", params={"token": page.tokens[0]})).status_code == 401
        assert (await second.get("/index.html")).status_code == 401
        assert len(page.tokens) == 2
        assert (await second.get("/", params={"token": page.tokens[1]})).status_code == 303
        assert (await second.get("/index.html")).status_code == 200
        assert (await first.get("/index.html")).status_code == 200
        assert (await first.get("/", params={"token": page.tokens[0]})).headers["location"] == "index.html"


@pytest.mark.parametrize("token", ["", "x", "x" * 32, "é", "\0"])
async def test_a_guessed_token_lets_nobody_in(tmp_path: Path, token: str) -> None:
    async with site(whole(tmp_path)) as page, page.browser() as browser:
        answer = await browser.get("/", params={"token": token})
        assert answer.status_code == 401 and "set-cookie" not in answer.headers and len(page.tokens) == 1


async def test_a_look_at_the_url_alone_does_not_use_the_token_up(tmp_path: Path) -> None:
    async with site(whole(tmp_path)) as page, page.browser() as browser:
        assert (await browser.head("/", params={"token": page.tokens[0]})).status_code == 401
        assert (await browser.get("/", params={"token": page.tokens[0]})).status_code == 303


async def test_cookies_of_others_and_of_other_runs_let_nobody_in(tmp_path: Path) -> None:
    async with site(whole(tmp_path)) as page, site(tmp_path) as other:
        async with page.let_in() as mine, other.browser(cookies=mine.cookies) as theirs:
            assert (await theirs.get("/index.html")).status_code == 401
        for cookie in ("", "a=b", "=;;", "rolloutfleet-inspect=x", '"\\', "é"):
            async with page.browser(headers={"cookie": cookie.encode()}) as browser:
                assert (await browser.get("/index.html")).status_code == 401, cookie


@pytest.mark.parametrize("other", ['theme={"a": 1}', "a=b c", "a b=1", "[x]=1", 'a="b', "é=1", "a", ";"])
async def test_whatever_other_programs_of_this_machine_leave_in_a_browser_it_is_let_in(
    tmp_path: Path, other: str
) -> None:
    async with site(whole(tmp_path)) as page, page.browser() as browser:
        given = (await browser.get("/", params={"token": page.tokens[0]})).headers["set-cookie"].split(";")[0]
        browser.cookies.clear()
        for header in (f"{other}; {given}", f"{given}; {other}"):
            answer = await browser.get("/index.html", headers={b"cookie": header.encode()})
            assert answer.status_code == 200, header


async def test_so_many_browsers_are_let_in_and_the_oldest_is_forgotten(tmp_path: Path) -> None:
    async with site(whole(tmp_path)) as page, page.let_in() as first:
        for _ in range(MOST_COOKIES):
            async with page.let_in() as last:
                assert (await last.get("/index.html")).status_code == 200
        assert (await first.get("/index.html")).status_code == 401


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:1", 200),
        ("LOCALHOST:65535", 200),
        ("127.0.0.1:7433", 200),
        ("[::1]:7433", 200),
        ("rebinding.example", 421),
        ("rebinding.example:7433", 421),
        ("127.0.0.1.rebinding.example", 421),
        ("localhost.rebinding.example", 421),
        ("127.0.0.1:7433@rebinding.example", 421),
        ("127.0.0.2", 421),
        ("0.0.0.0:7433", 421),
        ("localhost:", 421),
        ("localhost:7433\n", 421),
        ("", 421),
    ],
)
async def test_names_other_than_the_loopbacks_are_refused(tmp_path: Path, host: str, status: int) -> None:
    async with site(whole(tmp_path)) as page, page.let_in() as browser:
        answer = await browser.get("/index.html", headers={"host": host})
        assert answer.status_code == status
        token = await browser.get("/", params={"token": page.tokens[-1]}, headers={"host": host})
        assert token.status_code == (303 if status == 200 else status)


async def test_a_request_names_one_host(tmp_path: Path) -> None:
    async with site(whole(tmp_path)) as page, page.let_in() as browser:
        for hosts in ([], [("host", "localhost"), ("host", "rebinding.example")]):
            request = browser.build_request("GET", "/index.html")
            others = [(name, value) for name, value in request.headers.multi_items() if name != "host"]
            request.headers = httpx.Headers([*others, *hosts])
            assert (await browser.send(request)).status_code == 421


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:7433", 200),
        ("http://127.0.0.1:9", 200),
        ("https://[::1]", 200),
        ("null", 403),
        ("https://elsewhere.example", 403),
        ("http://localhost.elsewhere.example", 403),
        ("http://localhost:7433/path", 403),
        ("file://", 403),
    ],
)
async def test_pages_of_other_origins_are_refused(tmp_path: Path, origin: str, status: int) -> None:
    async with site(whole(tmp_path)) as page, page.let_in() as browser:
        assert (await browser.get("/data/fleet.json", headers={"origin": origin})).status_code == status


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"])
async def test_all_but_reading_is_refused(tmp_path: Path, method: str) -> None:
    async with site(whole(tmp_path)) as page, page.let_in() as browser:
        for path in EVERY_PATH:
            answer = await browser.request(method, path)
            assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


async def every_answer(page: Site) -> list[httpx.Response]:
    async with page.browser() as stranger, page.let_in() as browser:
        answers = [await each.get(path) for each in (stranger, browser) for path in EVERY_PATH]
        answers += [await browser.get("/index.html", headers={"host": "elsewhere.example"})]
        answers += [await browser.get("/", headers={"origin": "null"}), await browser.post("/")]
        return [*answers, await stranger.get("/", params={"token": page.tokens[-1]})]


async def test_every_answer_says_what_browsers_may_do_with_it(tmp_path: Path) -> None:
    async with site(whole(tmp_path)) as page:
        answers = await every_answer(page)
        assert {answer.status_code for answer in answers} == {200, 204, 303, 401, 403, 404, 405, 421}
        for answer in answers:
            assert {name: answer.headers[name] for name in HEADERS} == HEADERS
        assert "unsafe" not in HEADERS["content-security-policy"]


async def test_what_a_link_elsewhere_leads_to_is_asked_for_once_more_by_the_page_itself(tmp_path: Path) -> None:
    """A browser sends no strict cookie with it."""
    led = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    async with site(whole(tmp_path)) as page, page.browser() as browser:
        answer = await browser.get('/sessions.html?q=1&x="><b>', headers=led)
        assert answer.status_code == 401 and 'content="0;url=?q=1&amp;x=' in answer.text
        assert "<b>" not in answer.text and "data" not in answer.text
        again = await browser.get("/sessions.html?q=1&again", headers=led)
        assert again.status_code == 401 and "refresh" not in again.text


def test_the_policy_names_no_other_place() -> None:
    assert BASE not in HEADERS["content-security-policy"] and "http" not in HEADERS["content-security-policy"]

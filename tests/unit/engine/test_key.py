"""An engine with a key asks for it as SGLang does: on every route but those that probes ask."""

from collections.abc import Callable
from typing import Any

import pytest

KEY = "the engines'"


@pytest.mark.parametrize("given", [None, "Bearer another", f"Basic {KEY}", KEY, "Bearer"])
async def test_without_the_key_nothing_is_answered_but_health(engine: Callable[..., Any], given: str | None) -> None:
    http = engine(api_key=KEY).http
    headers = {} if given is None else {"authorization": given}
    for method, path in (("POST", "/generate"), ("POST", "/abort_request"), ("GET", "/counters"), ("GET", "/nothing")):
        refused = await http.request(method, path, headers=headers)
        assert (refused.status_code, refused.json()) == (401, {"error": "Unauthorized"})
    for path in ("/health", "/ready", "/health_generate"):
        assert (await http.get(path, headers=headers)).status_code == 200


async def test_with_the_key_it_answers(engine: Callable[..., Any], prompt: list[int]) -> None:
    keyed = engine(api_key=KEY)
    keyed.http.headers["authorization"] = f"bearer {KEY}"
    assert (await keyed.generate(prompt))["output_ids"]
    assert (await keyed.counters())["running"] == 0

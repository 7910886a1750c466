"""The operator's log, line by line."""

import json
import logging
from collections.abc import Iterator

import pytest

from rolloutfleet_operator.cluster.logs import DefinitionGone, logger, set_up


@pytest.fixture
def root() -> Iterator[None]:
    """The handlers and levels of before."""
    before = logging.getLogger()
    handlers, level = before.handlers[:], before.level
    yield
    before.handlers[:], before.level = handlers, level


def test_lines_are_json_objects_that_name_the_fleet(root: None, capsys: pytest.CaptureFixture[str]) -> None:
    set_up("json", "info")
    logger.info("applied %s", "a", extra={"fleet": "rl/math", "generation": 3})
    logging.getLogger("kopf").info("hidden")
    logging.getLogger("kopf").error("shown")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert first.pop("time").endswith("Z")
    assert first == {"level": "info", "message": "applied a", "fleet": "rl/math", "generation": 3}
    assert (second["level"], second["logger"]) == ("error", "kopf")


@pytest.mark.parametrize("form", ["json", "plain"])
def test_an_exception_is_shown_unless_one_sentence_says_it(
    root: None, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    set_up(form, "info")
    for error in (ValueError("odd"), DefinitionGone(None, status=404, headers={})):
        try:
            raise error
        except Exception:
            logger.exception("a pass failed", extra={"fleet": "rl/math"})
    said = capsys.readouterr().err
    assert said.count("a pass failed") == 1 and "ValueError: odd" in said and "rl/math" in said

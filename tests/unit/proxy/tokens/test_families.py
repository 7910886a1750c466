"""What docs/models.md says that each chat format holds is what is measured of it, for every format of `renderers`."""

from pathlib import Path

import pytest
from renderers.configs import _CONFIG_BY_NAME
from tests.unit.proxy.tokens.models.families import chat_format
from tests.unit.proxy.tokens.models.measuring import ASKED, RESULTS, SYSTEM, USER, measured, replies
from tests.unit.proxy.tokens.models.page import NAMES, PAGE, row, rows, with_rows
from tests.unit.proxy.tokens.test_reading import flat, joined

from rolloutfleet_proxy.tokens.reading import GrowingReply

NO_FORMATS = {"auto", "default"}


@pytest.mark.parametrize("name", NAMES)
def test_a_format_holds_what_the_table_says(models: Path, name: str) -> None:
    found = measured(name, chat_format(name, models))
    said = rows(PAGE.read_text())
    assert said.get(name) == row(name, found), "python -m tests.unit.proxy.tokens.models writes the table"


@pytest.mark.parametrize("name", NAMES)
def test_append_only_turns_extend_in_every_format(models: Path, name: str) -> None:
    assert measured(name, chat_format(name, models)).across == (RESULTS, USER, SYSTEM)


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_joins_to_the_message_in_every_format(models: Path, name: str) -> None:
    model = chat_format(name, models)
    made = replies(name, model)
    prompt = model.prompt(ASKED, made.args, []).ids
    for output in (made.working, made.final):
        parser = GrowingReply(model.reader(prompt, made.args, seed=b"a"))
        reply = model.reader(prompt, made.args, seed=b"a").read(output)
        deltas = [delta for token in output for delta in parser.feed([token])]
        assert joined([*deltas, *parser.finish(reply)]) == flat(reply.message)


def test_the_table_has_every_format_and_no_other() -> None:
    page = PAGE.read_text()
    assert sorted(rows(page)) == NAMES == sorted(_CONFIG_BY_NAME.keys() - NO_FORMATS)
    assert with_rows(page, rows(page)) == page

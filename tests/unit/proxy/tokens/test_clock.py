"""What a chat format writes of the time is of the session's start, so that its prompts agree for good."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chat_formats import load
from tests.unit.proxy.tokens.models.families import FAMILIES, chat_format, write_model

from rolloutfleet_proxy.domain.messages import Message, TemplateArgs, beginning
from rolloutfleet_proxy.tokens.render import Candidate, ChatFormat

ASKED: list[Message] = [{"role": "user", "content": "Hello?"}]
STARTED = 1_709_251_199.5
"""23:59:59.5 on 29 February 2024, in UTC."""
TEMPLATE = """
{%- macro today() -%}{{ strftime_now('%Y-%m-%d %H:%M:%S.%f') }}{%- endmacro -%}
It is {{ today() }}.{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant: {% endif %}
"""


@pytest.fixture
def templated(tmp_path: Path) -> ChatFormat:
    directory = write_model(tmp_path / "m", FAMILIES["qwen3"])
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    return load(directory)


def written(model: ChatFormat, args: TemplateArgs, asked: list[Message] = ASKED) -> str:
    return model.vocabulary.decode(model.prompt(asked, args, []).ids)


@pytest.fixture
def far_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("far_east")
def test_a_template_is_told_when_the_session_began(templated: ChatFormat) -> None:
    assert written(templated, TemplateArgs(clock=STARTED)).startswith("It is 2024-02-29 23:59:59.5")
    assert written(templated, TemplateArgs(kwargs={"mood": "mild"}, clock=STARTED + 1)).startswith("It is 2024-03-01")
    assert not written(templated, TemplateArgs()).startswith("It is 2024")


def test_a_template_that_spells_control_tokens_is_told_the_same(templated: ChatFormat) -> None:
    prompt = templated.prompt([{"role": "user", "content": "<think>"}], TemplateArgs(clock=STARTED), [])
    assert prompt.special_tokens_in_text == 1
    assert templated.vocabulary.decode(prompt.ids).startswith("It is 2024-02-29 23:59:59.")


def test_a_turn_is_extended_whatever_the_time(templated: ChatFormat) -> None:
    args = TemplateArgs(clock=STARTED)
    first = templated.prompt(ASKED, args, []).ids
    output = templated.vocabulary.encode("Yes.<|im_end|>", add_special_tokens=False)
    said: list[Message] = [*ASKED, {"role": "assistant", "content": "Yes."}, *ASKED]
    found = [
        templated.prompt(said, TemplateArgs(clock=clock), [Candidate(2, lambda: (first, output))]).parent
        for clock in (STARTED, STARTED + 1)
    ]
    assert found == [0, None]


def test_gpt_oss_is_told_when_the_session_began(models: Path) -> None:
    model = chat_format("gpt-oss", models)
    assert "Current date: 2024-02-29\n" in written(model, TemplateArgs(clock=STARTED))
    assert "Current date: 2024-03-01\n" in written(model, TemplateArgs(clock=STARTED + 1))
    named = {"conversation_start_date": "1999-12-31"}
    assert "Current date: 1999-12-31\n" in written(model, TemplateArgs(kwargs=named, clock=STARTED))


def test_the_time_makes_no_other_conversation() -> None:
    assert beginning(TemplateArgs(clock=STARTED)) == beginning(TemplateArgs())

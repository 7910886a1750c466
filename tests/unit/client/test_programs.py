"""What `session new --for` prints: the settings of docs/agents, and nothing that a shell would carry out."""

import shlex
import tomllib

from tests.agents.programs import documented_block, documented_variables

from rolloutfleet.programs import settings_of

URL, KEY = "http://10.0.0.5:8080/sessions/s0-1/v1", "s0.key"
HOSTILE = 'it\'s $(touch x) "`id`"\nend \x7f'


def assigned(lines: str) -> dict[str, str]:
    done = [line.removeprefix("export ").partition("=") for line in lines.splitlines() if line.startswith("export ")]
    return {name: value for name, _, value in done}


def test_claude_code_gets_the_variables_of_its_page_and_no_key_from_elsewhere() -> None:
    lines = settings_of("claude-code", base_url=URL, key=KEY, model="policy")
    assert assigned(lines) == documented_variables("claude-code.md", url=URL.removesuffix("/v1"), key=KEY)
    assert lines.splitlines()[0] == "unset ANTHROPIC_API_KEY"


def test_codex_gets_the_lines_of_its_page_and_the_key_in_a_comment() -> None:
    lines = settings_of("codex", base_url=URL, key=KEY, model="policy")
    documented = documented_block("codex.md", "toml").replace("SESSION_URL/v1", URL)
    assert tomllib.loads(lines) == tomllib.loads(documented)
    assert f"# export SESSION_KEY={KEY}" in lines.splitlines()
    assert tomllib.loads(settings_of("codex", base_url=URL, key=KEY, model=HOSTILE))["model"] == HOSTILE


def test_an_openai_sdk_gets_address_and_key() -> None:
    lines = settings_of("openai", base_url=URL, key=KEY, model="policy")
    assert assigned(lines) == {"OPENAI_BASE_URL": URL, "OPENAI_API_KEY": KEY}


def test_a_shell_reads_hostile_values_as_they_are() -> None:
    words = shlex.split(settings_of("claude-code", base_url=URL, key=HOSTILE, model=HOSTILE))
    assert f"ANTHROPIC_AUTH_TOKEN={HOSTILE}" in words and f"ANTHROPIC_MODEL={HOSTILE}" in words
    assert len(words) == len([word for word in words if word == "export"]) * 2 + 2

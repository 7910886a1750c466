"""The settings by which an agent's program uses a session: those of docs/agents."""

import json
import shlex
import tempfile
from pathlib import Path
from typing import Final, Literal

Program = Literal["openai", "claude-code", "codex"]

_CODEX: Final = """\
# The lines of config.toml in $CODEX_HOME. Codex reads the key from the environment:
# export SESSION_KEY={key}
model = {model}
model_provider = "rolloutfleet"
web_search = "disabled"

[model_providers.rolloutfleet]
name = "RolloutFleet"
base_url = {url}
env_key = "SESSION_KEY"
wire_api = "responses"
"""


def settings_of(program: Program, *, base_url: str, key: str, model: str) -> str:
    """Lines for a shell, or of Codex' `config.toml`."""
    if program == "codex":
        return _codex(base_url, key, model)
    variables = _variables(program, base_url, key, model).items()
    return "".join(f"export {name}={shlex.quote(value)}\n" if value else f"unset {name}\n" for name, value in variables)


def environ_of(program: Program, *, base_url: str, key: str, model: str, home: Path | None) -> dict[str, str]:
    """Environment variables. Those of Codex name a folder with its `config.toml`, which is written into `home`, else
    into a new temporary folder."""
    if program != "codex":
        return _variables(program, base_url, key, model)
    home = Path(tempfile.mkdtemp(prefix="rolloutfleet-codex-")) if home is None else home
    lines = [line for line in _codex(base_url, key, model).splitlines() if not line.startswith("#")]
    (home / "config.toml").write_text("\n".join(lines), encoding="utf-8")
    return {"CODEX_HOME": str(home), "SESSION_KEY": key}


def _codex(base_url: str, key: str, model: str) -> str:
    return _CODEX.format(key=shlex.quote(key), model=_toml(model), url=_toml(base_url))


def _variables(program: Program, base_url: str, key: str, model: str) -> dict[str, str]:
    """One that has to be unset is empty."""
    if program == "openai":
        return {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": key}
    models = ("ANTHROPIC_DEFAULT_HAIKU_MODEL", "ANTHROPIC_DEFAULT_SONNET_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL")
    return {
        "ANTHROPIC_API_KEY": "",  # a key from elsewhere would be sent as well
        "ANTHROPIC_BASE_URL": base_url.removesuffix("/v1"),
        "ANTHROPIC_AUTH_TOKEN": key,
        **dict.fromkeys(("ANTHROPIC_MODEL", *models, "CLAUDE_CODE_SUBAGENT_MODEL"), model),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "DISABLE_AUTOUPDATER": "1",
    }


def _toml(text: str) -> str:
    """A basic string."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")

"""Claude Code and Codex themselves, run against a session as their users run them, with a home of their own.

They come from the package index, as the lock of their environment says, and need no network but the way to their
session. Their settings are those that docs/agents tells users to make: they are read from there.
"""

import json
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.agents.install import python_of
from tests.paths import ROOT
from tests.processes import ends_with_this_process
from tests.waiting import START

DOCS: Final = ROOT / "docs" / "agents"
TIMEOUT: Final = START
"""Seconds for one run. Most take two to four; those that wait out a restart of the proxy take longest."""

UNASKED: Final = "--permission-mode=bypassPermissions"
"""Claude Code asks nobody."""
FREE: Final = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
"""Codex may do everything."""

Json = Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How a program ended, and what it printed."""

    status: int
    events: list[Json]
    """Of its standard output, a JSON object a line."""
    errors: str

    @property
    def shown(self) -> str:
        """For the message of a failed assertion."""
        return f"status {self.status}\n{self.errors[-3000:]}\n" + "\n".join(
            str(each)[:600] for each in self.events[-8:]
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Running:
    process: "subprocess.Popen[str]"

    def wait(self, timeout: float = TIMEOUT) -> Ended:
        """Raises AssertionError where it does not end in time; it is killed then."""
        try:
            said, errors = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            said, errors = self.process.communicate()
            raise AssertionError(f"no end within {timeout:g} s: {errors[-2000:]}\n{said[-4000:]}") from None
        lines = (line for line in said.splitlines() if line.startswith("{"))
        return Ended(status=self.process.returncode, events=[json.loads(line) for line in lines], errors=errors)

    def kill(self) -> None:
        """SIGKILL, to it and the commands that it runs."""
        os.killpg(self.process.pid, signal.SIGKILL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """One of them in a folder of its own: its home, its settings, and the files it works on."""

    folder: Path
    base_url: str
    """The session's, as `POST /sessions` gives it: it ends in `/v1`."""
    api_key: str
    settings: Mapping[str, str] = field(default_factory=dict)
    """Environment variables over those that are documented."""

    @property
    def work(self) -> Path:
        return self.folder / "work"

    def start(self, prompt: str, *options: str) -> Running:
        """Begin a task."""
        raise NotImplementedError

    def run(self, prompt: str, *options: str) -> Ended:
        return self.start(prompt, *options).wait()

    def _start(self, command: Sequence[str | Path], environment: Mapping[str, str]) -> Running:
        self.work.mkdir(parents=True, exist_ok=True)
        process = subprocess.Popen(
            [*ends_with_this_process(), *map(str, command)],
            cwd=self.work,
            env={**environment, **self.settings},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return Running(process=process)


def bare_environment(home: Path) -> dict[str, str]:
    """What any program gets, and nothing of this machine's user."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", "TMPDIR": str(home)}


class ClaudeCode(Program):
    """`claude --print`, with a stream of JSON as its output."""

    @property
    def environment(self) -> dict[str, str]:
        own = {"CLAUDE_CONFIG_DIR": str(self.folder / "config"), "IS_SANDBOX": "1"}
        documented = documented_variables("claude-code.md", url=self.base_url.removesuffix("/v1"), key=self.api_key)
        return {**bare_environment(self.folder), **documented, **own}

    def start(self, prompt: str, *options: str) -> Running:
        output = ("--output-format=stream-json", "--verbose", UNASKED)
        return self._start([claude_code(), "--print", prompt, *output, *options], self.environment)


class Codex(Program):
    """`codex exec --json`."""

    def start(self, prompt: str, *options: str) -> Running:
        home = self.folder / "codex"
        home.mkdir(parents=True, exist_ok=True)
        config = documented_block("codex.md", "toml").replace("SESSION_URL/v1", self.base_url)
        (home / "config.toml").write_text(config)
        # By default it gives up sooner than a busy machine may have started a proxy again.
        patient = ("-c", "model_providers.rolloutfleet.stream_max_retries=30")
        own = {"CODEX_HOME": str(home), "SESSION_KEY": self.api_key}
        return self._start(
            [codex(), "exec", "--json", *FREE, *patient, *options, prompt], {**bare_environment(self.folder), **own}
        )


def claude_code() -> Path:
    """The program, which ships with the Claude Agent SDK. Raises NotInstalled."""
    environment = python_of("claude-agent-sdk").parents[1]
    return next(environment.glob("lib/python*/site-packages/claude_agent_sdk/_bundled/claude"))


def codex() -> Path:
    """Raises NotInstalled."""
    environment = python_of("codex").parents[1]
    return next(environment.glob("lib/python*/site-packages/codex_cli_bin/bin/codex"))


def documented_variables(page: str, *, url: str, key: str) -> dict[str, str]:
    """The environment variables that a page of docs/agents exports, in a session of this address and key."""
    exported = re.findall(r"^export (\w+)=(\S+)$", documented_block(page, "sh"), re.MULTILINE)
    return {name: value.replace("$SESSION_URL", url).replace("$SESSION_KEY", key) for name, value in exported}


def documented_block(page: str, language: str) -> str:
    """The first block in that language."""
    found = re.search(rf"^```{language}\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None, f"docs/agents/{page} has no block of {language}"
    return found[1]

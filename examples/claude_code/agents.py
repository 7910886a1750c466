"""Claude Code as an agent: one run in a folder and a home of its own, in a session of a fleet. It knows of no fleet."""

import asyncio
import os
import subprocess
from pathlib import Path
from typing import Any, Final

from examples.claude_code.tasks import TASKS, Task

from rolloutfleet import AsyncFleet

GROUP: Final = 2
"""Sessions a task."""
AT_ONCE: Final = 4
"""Runs at the same time."""
SECONDS: Final = 300.0
MODEL: Final = "policy"
"""Any name will do."""
SETTINGS: Final = {
    "ANTHROPIC_MODEL": MODEL,
    "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL,
    "ANTHROPIC_DEFAULT_SONNET_MODEL": MODEL,
    "ANTHROPIC_DEFAULT_OPUS_MODEL": MODEL,
    "CLAUDE_CODE_SUBAGENT_MODEL": MODEL,
    # Each of these would put something into the prompt that changes from call to call, or make calls of its own.
    "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
    "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    # It may run commands without asking; it does so in a folder that goes away.
    "IS_SANDBOX": "1",
}
"""Those of docs/agents/claude-code.md."""


class RunFailed(Exception):
    """Claude Code did not come to its end; the message has the last that it said."""


async def roll_out(fleet: AsyncFleet, *, program: Path, folder: Path) -> list[float]:
    """A group of sessions for each task, rewarded and closed; the rewards. Raises RunFailed."""
    room = asyncio.Semaphore(AT_ONCE)
    rewards: list[float] = []

    async def one(session: Any, task: Task, own: Path) -> None:
        async with room:
            work = _laid_out(task, own)
            await _run(program, task.prompt, environment=environment_of(session, own), work=work)
            rewards.append(task.worth(work))
            await session.reward(rewards[-1])

    async def group(task: Task) -> None:
        async with await fleet.start_group(GROUP, task.name) as sessions:
            own = (folder / f"{task.name}-{number}" for number in range(GROUP))
            await asyncio.gather(*(one(session, task, place) for session, place in zip(sessions, own, strict=True)))

    await asyncio.gather(*map(group, TASKS))
    return rewards


def environment_of(session: Any, own: Path) -> dict[str, str]:
    """All that Claude Code is told."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(own),
        "CLAUDE_CONFIG_DIR": str(own / "config"),
        "ANTHROPIC_BASE_URL": session.base_url.removesuffix("/v1"),
        "ANTHROPIC_AUTH_TOKEN": session.api_key,
        **SETTINGS,
    }


def _laid_out(task: Task, own: Path) -> Path:
    work = own / "work"
    work.mkdir(parents=True)
    for name, text in task.files.items():
        (work / name).write_text(text)
    return work


async def _run(program: Path, prompt: str, *, environment: dict[str, str], work: Path) -> None:
    line = (str(program), "--print", prompt, "--permission-mode=bypassPermissions")
    process = await asyncio.create_subprocess_exec(
        *line,
        cwd=work,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        said, _ = await asyncio.wait_for(process.communicate(), SECONDS)
    except TimeoutError:
        raise RunFailed(f"Claude Code did not end within {SECONDS:g} s: {prompt}") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise RunFailed(f"Claude Code ended with {process.returncode}: {said.decode(errors='replace')[-2000:]}")

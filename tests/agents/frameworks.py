"""The agent frameworks that are tried, and what a fleet must have captured of each one's loop."""

from dataclasses import dataclass
from typing import Final

ROUNDS: Final = 3
"""Tool rounds that the simulated engine is told to make before its last answer."""
SHELL_END: Final = '{"name": "bash", "arguments": {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}}'
"""How mini-swe-agent is told that all is done."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Framework:
    """One loop in `loops/`, and its outcome."""

    name: str
    """Its own, and that of the environment that holds it."""
    package: str | None = None
    """The package that has its version; of the same name unless given."""
    loop: str
    rows: int
    """Rows of an export in `concat`: a loop that only appends gives one, each conversation apart one more."""
    turns: int
    structured: bool = True
    """Whether it asks for a form, which has to validate."""
    last_call: str | None = None
    core: bool = False
    """Whether CI runs it."""
    why: str = ""
    """Where there is more than one row: what the framework does."""


FORM_APART: Final = "asks for the structured output without tools: another prompt"

FRAMEWORKS: Final = (
    Framework(name="openai", loop="openai_sdk", rows=2, turns=5, why=FORM_APART),
    Framework(name="openai-agents", loop="openai_agents", rows=2, turns=5, why=FORM_APART, core=True),
    Framework(name="langgraph", loop="langgraph_react", rows=2, turns=5, why=FORM_APART, core=True),
    Framework(name="litellm", loop="litellm_loop", rows=2, turns=5, why=FORM_APART, core=True),
    Framework(name="pydantic-ai", package="pydantic-ai-slim", loop="pydantic_ai_agent", rows=1, turns=4, core=True),
    Framework(
        name="smolagents",
        loop="smolagents_loop",
        rows=4,
        turns=4,
        structured=False,
        core=True,
        why="rewrites its own calls as text, so no turn continues another",
    ),
    Framework(name="instructor", loop="instructor_loop", rows=1, turns=3),
    Framework(name="inspect-ai", loop="inspect_ai_react", rows=1, turns=4, structured=False),
    Framework(
        name="llama-index", package="llama-index-core", loop="llama_index_agent", rows=2, turns=5, why=FORM_APART
    ),
    Framework(name="mini-swe-agent", loop="mini_swe_agent", rows=1, turns=4, structured=False, last_call=SHELL_END),
)

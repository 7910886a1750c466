"""docs/frameworks.md, from the result of a whole run."""

from pathlib import Path
from typing import Any, Final

from tests.agents.frameworks import ROUNDS
from tests.paths import ROOT

RESULT: Final = Path(__file__).parent / "results" / "latest.json"
PAGE: Final = ROOT / "docs" / "frameworks.md"

HEAD: Final = f"""# Agent frameworks

An agent needs two settings to be captured: the session's `base_url` and its key. Frameworks built on the OpenAI SDK
read them from `OPENAI_BASE_URL` and `OPENAI_API_KEY`, which `rolloutfleet session new` prints; any model name will do.

The frameworks below ran their own tool loops, unmodified from the package index, against a local fleet whose simulated
engine was set to call a tool in {ROUNDS} rounds: `make agents`. Their scripts are in `tests/agents/loops`, the versions
in `tests/agents/environments`. *Rows* is the number of rows in an export with `concat`: a loop that only appends gives
one.

Structured output validates on a chat format whose prompt opens a thought, too: `NativeOutput` of pydantic-ai
and `parse()` of `openai`, over `qwen3.5` (`tests/agents/test_thinking_format.py`).

"""
COLUMNS: Final = ("framework", "version", "tool calls", "structured output", "turns", "rows", "")


def text(result: dict[str, Any]) -> str:
    """The page, in Markdown, of `result`: `{frameworks: [{name, version, why, outcome or failed}]}`."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    lines += [f"| {' | '.join(_cells(each))} |" for each in result["frameworks"]]
    return HEAD + "\n".join(lines) + "\n"


def _cells(each: dict[str, Any]) -> list[str]:
    outcome = each["outcome"]
    if outcome is None:
        return [each["name"], each["version"], "", "", "", "", f"fails: {each['failed']}"]
    structured = "validates" if outcome["structured"] else "not asked for"
    figures = [str(outcome[name]) for name in ("turns", "rows")]
    return [each["name"], each["version"], str(outcome["calls"]), structured, *figures, each["why"]]

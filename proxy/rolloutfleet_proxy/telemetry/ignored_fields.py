"""Names of request fields without effect: for the caller who sent them, and for a metric that everybody may read."""

import re
from collections.abc import Sequence
from typing import Final

OTHER: Final = "other"
"""For a name that is not plain; in a request, for those beyond `MOST_NAMES`; in the metric, for what is not listed."""
MOST_NAMES: Final = 64
LABELS: Final = frozenset(
    (
        # Of the three APIs.
        *("container", "context_management", "mcp_servers", "moderation", "parallel_tool_calls", "prediction"),
        *("reasoning.effort", "reasoning_effort", "output_config.effort", "seed", "text.verbosity", "thinking"),
        *("tool_choice", "truncation", "verbosity", "web_search_options"),
        *("messages.content.annotations", "messages.content.cache_control", "messages.content.citations"),
        # Text with half a character.
        *("input", "input.content.text", "input.output", "messages.content", "messages.content.content"),
        *("messages.content.content.text", "messages.content.text", "messages.reasoning_content", "system"),
        *("messages.content.redacted_thinking", "messages.content.signature", "messages.content.thinking"),
        *("input.content.annotations", "input.encrypted_content", "input.summary"),
        *("tools", "tools.description", "tools.format.type", "tools.mcp", "tools.web_search"),
        # Of servers and libraries that speak them too.
        *("best_of", "custom_logit_processor", "documents", "extra_body", "guided_choice", "guided_grammar"),
        *("guided_json", "guided_regex", "include_reasoning", "include_stop_str_in_output", "models", "plugins"),
        *("prompt_logprobs", "provider", "return_hidden_states", "rid", "route", "separate_reasoning"),
        *("skip_special_tokens", "spaces_between_special_tokens", "stream_reasoning", "transforms"),
        *("truncate_prompt_tokens", "usage"),
    )
)
"""Names in the metric: its readers see none that a caller made up, which could be a secret."""

_PLAIN = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_INDEX = re.compile(r"\[\d+\]")


def names(paths: Sequence[str]) -> list[str]:
    """Names of a request's fields, each once: `messages[3].content[0].x` is `messages.content.x`."""
    found = list(dict.fromkeys(map(_plain, paths)))
    return found if len(found) <= MOST_NAMES else list(dict.fromkeys([*found[:MOST_NAMES], OTHER]))


def labels(paths: Sequence[str]) -> set[str]:
    """Labels of the metric that such a request counts for."""
    return {name if name in LABELS else OTHER for name in map(_plain, paths)}


def one_of_each(paths: Sequence[str]) -> tuple[str, ...]:
    """The first path of each name, as far as it has one: of a request of many parts it may have a million."""
    firsts: dict[str, str] = {}
    for path in paths:
        firsts.setdefault(_plain(path), path)
    return tuple(firsts.values())


def _plain(path: str) -> str:
    name = _INDEX.sub("", path)
    return name if _PLAIN.fullmatch(name) else OTHER

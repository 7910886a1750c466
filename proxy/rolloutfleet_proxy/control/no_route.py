"""What a call hears whose route is not there: which ones are. Frameworks try other parts of the OpenAI API, and a base
address that lacks `/v1`, or has it twice, shows in nothing but a 404."""

from collections.abc import Iterable, Sequence
from typing import Final

from rolloutfleet_proxy.dialects.registry import call_paths, count_paths

_MODELS: Final = ("GET /v1/models", "GET /v1/models/{model}")
_OF_SESSION: Final = "/sessions/{session_id}"
"""Where agents call what they call with their session's key as well."""

_OF_AGENTS = frozenset(
    (
        *("v1", "chat", "completions", "responses", "messages", "models", "embeddings", "engines", "files", "audio"),
        *("images", "moderations", "batches", "assistants", "threads", "rerank", "generate", "api", "openai"),
    )
)


def which_are_there(path: str, templates: Iterable[str]) -> str:
    """A sentence for a path that leads nowhere. `templates` are the paths of the native API's routes."""
    parts = [part for part in path.split("/") if part]
    calls = [call for _, call in (*call_paths(), *count_paths())]
    if not _OF_AGENTS.isdisjoint(parts) or not _words(calls).isdisjoint(parts):
        return _agents_call(calls)
    roots = sorted({f"/{template.split('/')[1]}" for template in templates})
    near = sorted({template for template in templates if parts and template.split("/")[1] == parts[0]})
    if near:
        return f"Below /{parts[0]} there are {', '.join(near)}."
    return f"Routes begin with {', '.join(roots)}."


def _agents_call(calls: Sequence[str]) -> str:
    both = [call for call in calls if _OF_SESSION + call in calls]
    alone = [call for call in calls if call not in both and call.removeprefix(_OF_SESSION) not in both]
    either_way = ", ".join([*(f"POST {call}" for call in both), *_MODELS])
    only_so = "".join(f"; POST {call}" for call in alone)
    return f"Agents call {either_way}, each also below {_OF_SESSION}{only_so}."


def _words(calls: Iterable[str]) -> set[str]:
    parts = {part for call in calls for part in call.removeprefix(_OF_SESSION).split("/")}
    return {part for part in parts if part and not part.startswith("{")}

"""What a call hears whose route is not there: which ones are. Frameworks try other parts of the OpenAI API, and a base
address that lacks `/v1`, or has it twice, shows in nothing but a 404."""

from collections.abc import Iterable

AGENT_ROUTES = ("POST /v1/chat/completions", "GET /v1/models", "GET /v1/models/{model}")
"""What an agent calls: as here with the session's key, or below /sessions/{session_id}."""

_OF_AGENTS = frozenset(
    (
        *("v1", "chat", "completions", "responses", "messages", "models", "embeddings", "engines", "files", "audio"),
        *("images", "moderations", "batches", "assistants", "threads", "rerank", "generate", "api", "openai"),
    )
)


def which_are_there(path: str, templates: Iterable[str]) -> str:
    """A sentence for a path that leads nowhere. `templates` are the paths of the native API's routes."""
    parts = [part for part in path.split("/") if part]
    if not _OF_AGENTS.isdisjoint(parts):
        return f"Agents call {', '.join(AGENT_ROUTES)}, each also below /sessions/{{session_id}}."
    roots = sorted({f"/{template.split('/')[1]}" for template in templates})
    near = sorted({template for template in templates if parts and template.split("/")[1] == parts[0]})
    if near:
        return f"Below /{parts[0]} there are {', '.join(near)}."
    return f"Routes begin with {', '.join(roots)}."

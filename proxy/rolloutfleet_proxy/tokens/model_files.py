"""The files of a model that say how it reads and writes: a directory, or a name on the Hugging Face hub.

Weights are never read, and no code that comes with a model is run. The chat template, jinja source that comes with the
tokenizer, is rendered in a sandbox; the names and filters that it may use are those of Hugging Face's
`apply_chat_template`.
"""

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from rolloutfleet.http_failures import failure_in_words
from rolloutfleet_proxy.tokens.tool_schemas import given

_NEEDED = ("tokenizer.json", "config.json")
_FILES = [*_NEEDED, "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "chat_template.json"]
# Some tokenizers give this or more for "no limit".
_NO_LIMIT = 10**9


class ModelUnreadable(Exception):
    """A model's files are missing, unreadable, or of no known chat format."""


class TemplateRefusal(ValueError):
    """A template calls `raise_exception`; the message says so in the template's words."""


class ChatTemplate:
    """`source` is the jinja text, `tokens` the special tokens it may name (`bos_token`, `eos_token`...)."""

    def __init__(self, source: str, *, tokens: Mapping[str, str] | None = None) -> None:
        self.source = source
        self._tokens = dict(tokens or {})
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
        environment.globals["raise_exception"] = _refuse
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ValueError(f"the chat template can't be read: {error}") from error

    def render(self, messages: Sequence[Any], **variables: Any) -> str:
        """`variables` are what else the template is given: `tools`, `add_generation_prompt`, `strftime_now` where it is
        not told the time it is, and arguments of its own.

        Raises ValueError where the template can't be applied to the messages, TemplateRefusal where it says why.
        """
        given = {"tools": None, "documents": None, "add_generation_prompt": False, **self._tokens, **variables}
        given.setdefault("strftime_now", datetime.now().astimezone().strftime)
        try:
            return self._template.render(given, messages=list(messages))
        except TemplateRefusal:
            raise
        except (TemplateError, TypeError, KeyError, ValueError) as error:
            raise ValueError("the model's chat template fails") from error


class _Generation(Extension):
    """`{% generation %}` marks what the model said; here it only has to be let through."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: str) -> NoReturn:
    said = str(message).strip()[:200].rstrip(".")
    raise TemplateRefusal(f"the model's chat template refuses it with the words {said!r}")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    name: str
    """As it was asked for."""
    tokenizer: Tokenizer
    names: tuple[str, ...] = ()
    """That and the name that its config gives."""
    tokens: Mapping[str, str] = field(default_factory=dict)
    """Special tokens by use: `eos_token`, `bos_token`..."""
    template: ChatTemplate | None = None
    model_type: str | None = None
    context_length: int | None = None
    vocabulary_size: int | None = None


def read_model(name: str, *, token: str | None = None, download_to: str | None = None) -> ModelFiles:
    """Read a model directory, or a hub's model, downloaded once to `download_to`. Raises ModelUnreadable."""
    directory = Path(name)
    if not directory.is_dir():
        directory = _downloaded(name, token=token, download_to=download_to)
    config = _json(directory / "config.json")
    tokenizer_config = _json(directory / "special_tokens_map.json") | _json(directory / "tokenizer_config.json")
    tokens = _special_tokens(tokenizer_config)
    sizes = config | given(config, "text_config", dict)
    return ModelFiles(
        name=name,
        names=(name, str(config.get("_name_or_path", ""))),
        tokenizer=_tokenizer(directory),
        tokens=tokens,
        template=_template(directory, tokenizer_config, tokens),
        model_type=config.get("model_type"),
        context_length=_limit(sizes.get("max_position_embeddings")) or _limit(tokenizer_config.get("model_max_length")),
        vocabulary_size=_limit(sizes.get("vocab_size")),
    )


def _downloaded(name: str, *, token: str | None, download_to: str | None) -> Path:
    # Takes a while to import, and most fleets name a directory.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    snapshot = partial(snapshot_download, name, allow_patterns=_FILES, token=token, cache_dir=download_to)
    try:
        with contextlib.suppress(LocalEntryNotFoundError):
            found = Path(snapshot(local_files_only=True))
            if all((found / file).is_file() for file in _NEEDED):
                return found
        return Path(snapshot())
    except HFValidationError as error:
        raise ModelUnreadable(f"{name} is not a directory, and can't be a model's name: {error}") from error
    except (HfHubHTTPError, OSError) as error:
        raise ModelUnreadable(f"{name} is not a directory, and can't be fetched: {_why_not_fetched(error)}") from error


def _why_not_fetched(error: Exception) -> str:
    """What the library says names the request."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is None:
        return f"the hub was not reached ({type(error).__name__}: {failure_in_words(error)})"
    return f"the hub answered with status {status} ({type(error).__name__})"


def _tokenizer(directory: Path) -> Tokenizer:
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise ModelUnreadable(
            f"{directory} has no tokenizer.json; a tokenizer of another kind has to be converted first, for instance "
            f"with transformers' AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # `tokenizers` raises bare Exception
        raise ModelUnreadable(f"{path} can't be read: {error}") from error


def _template(directory: Path, tokenizer_config: Mapping[str, Any], tokens: Mapping[str, str]) -> ChatTemplate | None:
    file = directory / "chat_template.jinja"
    source = file.read_text() if file.is_file() else _json(directory / "chat_template.json").get("chat_template")
    source = source or tokenizer_config.get("chat_template")
    if isinstance(source, list):
        named = {entry["name"]: entry["template"] for entry in source}
        source = named.get("default") or next(iter(named.values()), None)
    if not source:
        return None
    try:
        return ChatTemplate(source, tokens=tokens)
    except ValueError as error:
        raise ModelUnreadable(f"{directory}: {error}") from error


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    named = {use: token for use, token in config.items() if use.endswith("_token")}
    texts = {use: token.get("content") if isinstance(token, dict) else token for use, token in named.items()}
    return {use: text for use, text in texts.items() if isinstance(text, str)}


def _limit(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and 0 < value < _NO_LIMIT else None


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text()) if path.is_file() else {}
    except ValueError as error:
        raise ModelUnreadable(f"{path} can't be read: {error}") from error
    if not isinstance(value, dict):
        raise ModelUnreadable(f"{path} holds no object")
    return value

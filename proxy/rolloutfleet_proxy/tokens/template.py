"""A model's own chat template: the jinja source that comes with its tokenizer, rendered in a sandbox.

The names and filters that templates may use are those of Hugging Face's `apply_chat_template`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_LONGEST_SAID = 200


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

    def render(
        self,
        messages: Sequence[Any],
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = False,
        now: datetime | None = None,
        **kwargs: Any,
    ) -> str:
        """`now` is the time that the template is told; None: the time it is.

        Raises ValueError where the template can't be applied to the messages, TemplateRefusal where it says why.
        """
        try:
            return self._template.render(
                messages=list(messages),
                tools=tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                strftime_now=(now or datetime.now().astimezone()).strftime,
                **(self._tokens | kwargs),
            )
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
    said = str(message).strip()[:_LONGEST_SAID].rstrip(".")
    raise TemplateRefusal(f"the model's chat template refuses it with the words {said!r}")

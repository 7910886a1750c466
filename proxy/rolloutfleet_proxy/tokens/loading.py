"""Which chat format a model has: one that is named, is known for it, or writes what its own template writes."""

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Literal

from msgspec import Struct
from renderers.base import MODEL_RENDERER_MAP

from rolloutfleet_proxy.domain.messages import NO_ARGS, Message, TemplateArgs
from rolloutfleet_proxy.tokens.model_files import ModelUnreadable, read_model
from rolloutfleet_proxy.tokens.quirks import Unrenderable
from rolloutfleet_proxy.tokens.render import ChatFormat
from rolloutfleet_proxy.tokens.support import TOLD
from rolloutfleet_proxy.tokens.template_fixes import LACK_TOOLS
from rolloutfleet_proxy.tokens.vocabulary import Vocabulary

log = logging.getLogger(__name__)

# Model types whose chat template is the same for all their models, as far as the template of each agrees.
_RENDERER_OF_MODEL_TYPE = {
    **dict.fromkeys(("qwen3", "qwen3_moe"), "qwen3"),
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe"), "qwen3.5"),
    "glm4_moe": "glm-4.5",
    **dict.fromkeys(("glm4_moe_lite", "glm_moe_dsa"), "glm-5"),
    "minimax_m2": "minimax-m2",
    "deepseek_v3": "deepseek-v3",
    "deepseek_v4": "deepseek-v4",
    "kimi_k2": "kimi-k2",
    "gpt_oss": "gpt-oss",
    "llama": "llama-3",
    "nemotron_h": "nemotron-3",
}

_TURNS: Final = (("system", "Be brief."), ("user", "Hello?"), ("assistant", "Yes."), ("user", "Go on."))
_SAID: Final[list[Message]] = [{"role": role, "content": content} for role, content in _TURNS]


class ModelSource(Struct, frozen=True):
    """A model directory, or a model on the Hugging Face hub, and what its chat format is made of."""

    source: str
    model: str | None = None
    """The name that engines call it by."""
    renderer: str | None = None
    thinking_retention: Literal["all", "tool_cycle", "template"] = "all"
    """Across what a turn's tokens, reasoning included, are extended: later user messages too ("all"), the calls and
    results of one ("tool_cycle"), or nothing that the model's template wouldn't keep ("template")."""
    download_to: str | None = None
    cache_bytes: int = 16 << 20
    special_tokens_in_text: Literal["text", "token"] = "text"
    """What is made of control tokens that other people's texts spell."""

    def load(self, *, token: str | None = None) -> ChatFormat:
        """The chat format. `token` is the hub's; a model that was fetched before needs none.

        The renderer is the one named; else the one that `renderers` has for the source's name, or that in its config,
        unless it leaves out a thought that the model's own chat template has replies begin in; else the one for the
        name of the `model` that is served, or for its model type, if that writes what that template writes; else the
        template itself, with its turns rendered anew each time and found again by comparing tokens.

        Raises ModelUnreadable.
        """
        files = read_model(self.source, token=token, download_to=self.download_to)
        vocabulary = Vocabulary(files, cache_bytes=self.cache_bytes)

        def chat_format(name: str) -> ChatFormat:
            retention, in_text = self.thinking_retention, self.special_tokens_in_text
            kept = None if name == "default" or retention == "template" else retention
            return ChatFormat(vocabulary, renderer=name, thinking_retention=kept, special_tokens_in_text=in_text)

        named = (MODEL_RENDERER_MAP[name] for name in files.names if name in MODEL_RENDERER_MAP)
        guesses = (MODEL_RENDERER_MAP.get(self.model or ""), _RENDERER_OF_MODEL_TYPE.get(files.model_type or ""))
        try:
            if self.renderer:
                return chat_format(self.renderer)
            for known in map(chat_format, named):
                if not _lacks_thought(known):
                    return known
            for guessed in filter(None, guesses):
                if found := _if_it_agrees(chat_format, guessed, vocabulary):
                    return found
            if files.template is None:
                raise ModelUnreadable(
                    f"{files.name}: no chat format is known for model type {files.model_type!r}, and the model has no "
                    f"chat template; name a renderer"
                )
            log.warning("%s: no renderer fits; its own chat template is used, rendered whole each turn", files.name)
            return chat_format("default")
        except Unrenderable as error:
            raise ModelUnreadable(str(error)) from error


def _lacks_thought(found: ChatFormat) -> bool:
    """True where the model's own template has a reply begin in a thought, and the format doesn't."""
    with suppress(ValueError):
        own = _own(found.vocabulary, _SAID[1:2]) or ""
        written = found.vocabulary.decode(found.full(_SAID[1:2], NO_ARGS))
        return own.rstrip().endswith("<think>") and not written.rstrip().endswith("<think>")
    return False


def _if_it_agrees(chat_format: Callable[[str], ChatFormat], renderer: str, vocabulary: Vocabulary) -> ChatFormat | None:
    """The format, unless it can't be made or differs from the model's own template on a plain conversation."""
    try:
        found = chat_format(renderer)
        is_told = renderer not in LACK_TOOLS or _own(vocabulary, _SAID, TOLD) != _own(vocabulary, _SAID)
        args = TOLD if is_told else NO_ARGS
        own = _own(vocabulary, _SAID, args)
        if own is not None and own != vocabulary.decode(found.full(_SAID, args)):
            raise Unrenderable("it differs from the model's own chat template")
        return found
    except ValueError as error:
        log.warning("%s: the renderer %s doesn't fit: %s", vocabulary.name_or_path, renderer, error.__cause__ or error)
        return None


def _own(vocabulary: Vocabulary, messages: list[Message], args: TemplateArgs = NO_ARGS) -> str | None:
    """The prompt by the model's own template; None where it has none. Raises ValueError."""
    template = vocabulary.files.template
    return template.render(messages, tools=args.tools, add_generation_prompt=True) if template else None

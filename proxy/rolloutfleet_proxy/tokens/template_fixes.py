"""What prompts lack that `renderers` writes: tools of DeepSeek V3 and R1, and line breaks of these and of GLM-4.5.

DeepSeek's own templates have no place for tools and drop them without a word. The form is that of SGLang's
`examples/chat_template/tool_chat_template_deepseekv3.jinja` and `...deepseekr1.jinja`, which are alike here: the tools
stand behind the system prompt, each as JSON, words stand before results, and a line break between calls and between
results. Only requests with tools are written so. GLM-4.5 lacks the line break between calls, which its template writes
in every prompt.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from rolloutfleet_proxy.domain.messages import Message
from rolloutfleet_proxy.tokens.call_syntax import Around
from rolloutfleet_proxy.tokens.vocabulary import Vocabulary

LACK_TOOLS: Final = frozenset({"deepseek-v3", "deepseek-r1"})
LACK_BREAKS: Final = LACK_TOOLS | {"glm-4.5"}


def _mark(name: str) -> str:
    return "<\uff5c{}\uff5c>".format(name.replace(" ", "\u2581"))


_EXAMPLE = (
    f"{_mark('tool calls begin')}{_mark('tool call begin')}function{_mark('tool sep')}FUNCTION_NAME\n"
    f'```json\n{{"param1": "value1", "param2": "value2"}}\n```{_mark("tool call end")}{_mark("tool calls end")}'
)
_HEAD = (
    "You are a helpful assistant with tool calling capabilities. When a tool call is needed, you MUST use the "
    f"following format to issue the call:\n{_EXAMPLE}\n\nMake sure the JSON is valid."
    "## Tools\n\n### Function\n\nYou have the following functions available:\n\n"
)
_BEFORE_RESULTS = (
    "Use the results below to formulate an answer to the user question unless additional information is needed."
)
_RESULT = (_mark("tool output end"), _mark("tool output begin"))


def with_tools_told(messages: Sequence[Message], tools: Sequence[Any]) -> list[Message]:
    """The messages, with the tools in a system message behind those that lead; these are joined by empty lines."""
    lead = next((index for index, each in enumerate(messages) if each["role"] != "system"), len(messages))
    text = _HEAD + "".join(f"\n```json\n{json.dumps(tool, ensure_ascii=False)}\n```\n" for tool in tools)
    told: Message = {"role": "system", "content": text if lead else f"\n\n{text}"}
    return [*messages[:lead], told, *messages[lead:]]


class Breaks:
    """What stands between the calls and the results of a prompt, in a vocabulary's tokens."""

    def __init__(self, around: Around, vocabulary: Vocabulary) -> None:
        mark, calls = vocabulary.convert_tokens_to_ids, (around.closing, around.opening)
        texts = {("", _mark("tool outputs begin")): _BEFORE_RESULTS, _RESULT: "\n", calls: around.between}
        known = ((mark(last), mark(first), vocabulary.encode(text)) for (last, first), text in texts.items())
        self._texts = [each for each in known if each[1] is not None]

    def added(self, ids: array[int]) -> array[int]:
        """The ids with them."""
        written = np.asarray(ids, np.int32)
        for last, first, text in self._texts:
            places = np.flatnonzero(written == first)
            if last is not None:
                places = places[written[places - 1] == last]
            written = np.insert(written, np.repeat(places, len(text)), text * len(places)) if len(places) else written
        return array("i", written.tobytes())

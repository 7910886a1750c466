"""Reads replies with the function-call parsers of the real SGLang. Run by its Python, not the project's.

Each line that it reads is `{parser, tools, pieces: [text]}`, and the line that it writes for it holds what is read of
the reply as a whole, and what as it streams: `{calls: [[name, arguments]], text}`.
"""

import json
import logging
import sys
from typing import Any

from sglang.srt.entrypoints.openai.protocol import Tool
from sglang.srt.function_call.function_call_parser import FunctionCallParser


def whole(parser: FunctionCallParser, pieces: list[str]) -> dict[str, Any]:
    text, calls = "".join(pieces), []
    if parser.has_tool_call(text):
        text, calls = parser.parse_non_stream(text)
    return {"calls": [[call.name, call.parameters] for call in calls], "text": text}


def streamed(parser: FunctionCallParser, pieces: list[str]) -> dict[str, Any]:
    text, calls = "", dict[int, list[str]]()
    for said, made in (*map(parser.parse_stream_chunk, pieces), parser.parse_stream_end()):
        text += said
        for call in made:
            joined = calls.setdefault(call.tool_index, ["", ""])
            joined[0] += call.name or ""
            joined[1] += call.parameters
    # As `_check_for_unstreamed_tool_args` of SGLang's server does at a stream's end.
    known, sent = parser.detector.prev_tool_call_arr, parser.detector.streamed_args_for_tool
    if known and len(known) <= len(sent):
        arguments = known[-1].get("arguments", {})
        expected = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        if expected.startswith(sent[len(known) - 1]):
            calls[len(known) - 1][1] += expected[len(sent[len(known) - 1]) :]
    return {"calls": list(calls.values()), "text": text}


logging.disable()
for line in sys.stdin:
    case = json.loads(line)
    tools = [Tool(**tool) for tool in case["tools"]]
    read = [how(FunctionCallParser(tools, case["parser"]), case["pieces"]) for how in (whole, streamed)]
    print(json.dumps(read))

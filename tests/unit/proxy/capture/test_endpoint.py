"""Requests as the chat routes read them."""

import json

from rolloutfleet_proxy.capture.endpoint import read_large
from rolloutfleet_proxy.dialects.anthropic_messages import AnthropicMessages
from rolloutfleet_proxy.dialects.base import Reading


def test_large_request_names_each_ignored_field_once() -> None:
    part = {"type": "text", "text": "", "x": 1}
    body = json.dumps({"max_tokens": 1, "messages": [{"role": "user", "content": [part] * 70_000}], "y": 1}).encode()
    request = read_large(AnthropicMessages().read, body, Reading())
    assert {*request.ignored} == {"y", "messages[0].content[0].x"}

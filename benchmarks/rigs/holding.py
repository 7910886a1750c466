"""A proxy that keeps every request it has parsed: what bodies held in memory would cost, for the churn rig.

python -m benchmarks.rigs.holding --settings FILE
"""

from typing import Any

from rolloutfleet_proxy.capture import chat_route
from rolloutfleet_proxy.chat.request import ChatRequest, parse_chat
from rolloutfleet_proxy.cli import main

held: list[ChatRequest] = []


def _parse_and_hold(*given: Any) -> ChatRequest:
    request = parse_chat(*given)
    held.append(request)
    return request


if __name__ == "__main__":
    vars(chat_route)["parse_chat"] = _parse_and_hold
    main()

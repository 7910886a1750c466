"""A proxy that keeps every request it has parsed: what bodies held in memory would cost, for the churn rig.

python -m benchmarks.rigs.holding --settings FILE

Its parent process is the usual one; the worker that this starts is this module again, with a channel's number first.
"""

import sys
from typing import Any

from rolloutfleet_proxy import cli
from rolloutfleet_proxy.process import supervisor


def _serve_and_hold() -> None:
    from rolloutfleet_proxy import worker
    from rolloutfleet_proxy.dialects import openai_chat
    from rolloutfleet_proxy.dialects.openai_chat.request import ChatRequest, parse_chat

    held: list[ChatRequest] = []

    def parse_and_hold(*given: Any) -> ChatRequest:
        request = parse_chat(*given)
        held.append(request)
        return request

    vars(openai_chat)["parse_chat"] = parse_and_hold
    worker.main()


if __name__ == "__main__":
    if sys.argv[1].isdigit():
        _serve_and_hold()
    else:
        vars(supervisor)["WORKER"] = "benchmarks.rigs.holding"
        cli.main()

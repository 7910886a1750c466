"""Messages to token ids and back, for one model.

`renderers` brings a client of its own for inference servers, and with it the `openai` package: 20 MB of memory and a
quarter of the time that a proxy takes to start. Nothing here asks a server through it, so that module is left out.
"""

import sys
from types import ModuleType

_CLIENT = "renderers.client"
_NAMES = ("MalformedGenerateResponseError", "OverlongPromptError")
"""What `renderers` itself takes from there."""


def _leave_out_client() -> None:
    if _CLIENT in sys.modules or "renderers" in sys.modules:
        return
    left_out = ModuleType(_CLIENT, "Left out: see rolloutfleet_proxy.tokens.")
    for name in _NAMES:
        setattr(left_out, name, type(name, (Exception,), {}))
    sys.modules[_CLIENT] = left_out


_leave_out_client()

"""Messages to token ids and back, for one model.

`renderers` brings a client of its own for inference servers, and with it the `openai` package: 20 MB of memory and a
quarter of the time that a proxy takes to start. Nothing here asks a server through it, so that module is left out.
"""

import sys
from types import ModuleType


def _leave_out_client() -> None:
    left_out = ModuleType("renderers.client", "Left out: see rolloutfleet_proxy.tokens.")
    for name in ("MalformedGenerateResponseError", "OverlongPromptError"):  # what `renderers` itself takes from there
        setattr(left_out, name, type(name, (Exception,), {}))
    sys.modules[left_out.__name__] = left_out


if "renderers" not in sys.modules:
    _leave_out_client()

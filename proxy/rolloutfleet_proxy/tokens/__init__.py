"""Messages to token ids and back, for one model.

`renderers` brings a client of its own for inference servers, and with it the `openai` package: 20 MB of memory and a
quarter of the time that a proxy takes to start. Nothing here asks a server through it, so that module is left out.
"""

import sys
from types import ModuleType

if "renderers" not in sys.modules:
    _left_out = ModuleType("renderers.client", "Left out: see rolloutfleet_proxy.tokens.")
    for _name in ("MalformedGenerateResponseError", "OverlongPromptError"):  # what `renderers` itself takes from there
        setattr(_left_out, _name, type(_name, (Exception,), {}))
    sys.modules[_left_out.__name__] = _left_out

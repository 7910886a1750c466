"""Commands as a user runs them."""

import subprocess
import sys
from typing import Any

CLI = (sys.executable, "-m", "rolloutfleet")
Done = subprocess.CompletedProcess[str]


def ran(*command: str, timeout: float = 120, **options: Any) -> Done:
    """A process, to its end, and what it wrote."""
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, **options)

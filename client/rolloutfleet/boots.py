"""The words in which a proxy's log of boots says why the life before one ended (`wire.Boot.reason`).

A proxy writes them, an operator reads them.
"""

from typing import Final

CRASH: Final = "crash"
"""The begin of the reason of a boot after a crash."""
KILLED_FOR_MEMORY: Final = "was killed by the kernel for want of memory"
"""The words behind it where the cgroup has counted an OOM kill."""

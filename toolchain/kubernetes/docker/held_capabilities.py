"""An OCI runtime that asks for no capability the machine does not hold, and is runc in everything else.

Docker gives a privileged container, and each `docker exec` into one, all capabilities there are. Where root itself
lacks one (a container, some virtual machines), runc then fails with "unable to apply caps: operation not permitted".
This program stands before runc, takes the lacking names out of what Docker wrote, and becomes runc. Where nothing is
lacking it changes nothing.

It runs once for each start and exec, alone and without the project's packages: the standard library only, and little
of it.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

# In the order of their bits: include/uapi/linux/capability.h
CAPABILITIES = """
    CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE
    NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN
    SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE
    MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE
""".split()  # noqa: SIM905 (as a list it would be 41 lines)
RUNC = [Path(folder) / "runc" for folder in ("/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin")]


def held() -> set[str]:
    """What this machine's root may hold at most: its bounding set."""
    lines = Path("/proc/self/status").read_text().splitlines()
    mask = next(int(line.split()[1], 16) for line in lines if line.startswith("CapBnd:"))
    return {f"CAP_{name}" for bit, name in enumerate(CAPABILITIES) if mask >> bit & 1}


def lacks_any() -> bool:
    """Whether there is a capability that the kernel knows and root lacks."""
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    return not held().issuperset(f"CAP_{name}" for name in CAPABILITIES[: last + 1])


def description(words: list[str]) -> tuple[Path, list[str]] | None:
    """The file that says how a process is started, and the keys that lead to its process; None for other commands."""
    if "exec" in words:
        path = _option(words, "--process", "-p")
        return (Path(path), []) if path else None
    if "create" in words or "run" in words:
        return Path(_option(words, "--bundle", "-b") or ".") / "config.json", ["process"]
    return None


def without_lacking(process: dict[str, Any], held_ones: set[str]) -> None:
    capabilities = process.get("capabilities") or {}
    for kind, names in capabilities.items():
        capabilities[kind] = [name for name in names or [] if name in held_ones]


def _option(words: list[str], *names: str) -> str | None:
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else words[place + 1]
    return None


def main() -> None:
    words = sys.argv[1:]
    if found := description(words):
        path, keys = found
        whole = process = json.loads(path.read_text())
        for key in keys:
            process = process.get(key, {})
        without_lacking(process, held())
        path.write_text(json.dumps(whole))
    runc = next(path for path in RUNC if path.exists())
    os.execv(runc, ["runc", *words])


if __name__ == "__main__":
    main()

"""Where a proxy's settings come from: a file, over it the environment, over it flags.

    rolloutfleet-proxy --settings proxy.yaml --port 8081
    ROLLOUTFLEET_SESSIONS__STALE_AFTER=90s rolloutfleet-proxy --settings proxy.yaml

Names, defaults and rules are those of `rolloutfleet.settings.ProxySettings`; none is written again here.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from rolloutfleet.explain import Place, what_is_wrong, without_unknown
from rolloutfleet.settings import ProxySettings

ENVIRONMENT = "ROLLOUTFLEET_"


class BadSettings(Exception):
    """The settings can't be used; the message names the field and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a source says."""

    settings: ProxySettings
    unknown: tuple[str, ...] = ()
    """Fields of another release, by their dotted names. With any, no generation of the resource is whole: it is 0."""
    generation: int = 0
    """Of the resource, also where not all of it is known."""


@dataclass(slots=True)
class SettingsInForce:
    """The settings as they are now: some change while the proxy runs."""

    current: ProxySettings
    error: str | None = None
    """What is wrong with settings that were read since the start, if something is."""
    waiting: tuple[str, ...] = ()
    """Settings that a restart would change, or another release has."""
    live_generation: int = 0
    """Of the settings that were read last; all of them but `waiting` are in force."""

    @property
    def public_address(self) -> str:
        """The address of this proxy for trainers: the public one where there is one, else its own."""
        return self.current.public_url or self.current.address_of(self.current.ordinal)

    @property
    def session_address(self) -> str:
        """The address of its sessions for agents. Alone, a proxy that restarts has nothing to hold their calls but its
        own backlog, which a Service would not lead to."""
        shared = self.current.service_url if self.current.replicas > 1 else None
        return self.current.public_url or shared or self.public_address


class SettingsSource:
    """The command line and environment of this process, which may name a file."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._flags = vars(_parser().parse_args(arguments))
        self.file: Path | None = self._flags.pop("settings", None)

    def read(self) -> Told:
        """The settings as they are now; the file is read anew. Raises BadSettings."""
        given = {} if self.file is None else _read_file(self.file)
        for name, value in _from_environment(os.environ).items():
            _put(given, name, value)
        given |= self._flags
        unknown: list[Place] = []
        if given.get("checked") is True:
            given, unknown = without_unknown(given, ProxySettings)
        try:
            settings = ProxySettings.model_validate(given)
        except ValidationError as error:
            raise BadSettings(_in_words(error)) from None
        names = tuple(".".join(map(str, where)) for where in unknown)
        whole = settings.model_copy(update={"generation": 0}) if unknown else settings
        return Told(whole, names, settings.generation)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rolloutfleet-proxy",
        argument_default=argparse.SUPPRESS,
        description="Run one capture proxy: an OpenAI-style API in front of an SGLang gateway, which keeps each "
        "session's exact tokens.",
        epilog="Every field can also be set in the environment: ROLLOUTFLEET_PORT=8081, and with two underscores "
        "for a nested field: ROLLOUTFLEET_SESSIONS__STALE_AFTER=90s. Flags override the environment, and the "
        "environment overrides the file.",
    )
    parser.add_argument("--settings", type=Path, metavar="FILE", help="YAML or JSON file with the settings")
    for name in _FLAGS:
        described = ProxySettings.model_fields[name].description
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="VALUE", help=described)
    return parser


_FLAGS = (
    *("fleet", "model", "host", "port", "ordinal", "replicas", "state_dir", "gateway_url", "admin_key_file"),
    "public_url",
)
"""What has a flag of its own."""


def _read_file(path: Path) -> dict[str, Any]:
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadSettings(f"the settings file {path} can't be read: {error}") from None
    if not isinstance(loaded, dict):
        raise BadSettings(f"the settings file {path} must hold a mapping of names to values")
    return loaded


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """`ROLLOUTFLEET_SESSIONS__STALE_AFTER` as `sessions.stale_after`; values read as YAML, so numbers are numbers."""
    found = {}
    for variable, text in environment.items():
        name = variable.removeprefix(ENVIRONMENT).lower().replace("__", ".")
        if variable.startswith(ENVIRONMENT) and name.split(".")[0] in ProxySettings.model_fields:
            try:
                found[name] = yaml.safe_load(text)
            except yaml.YAMLError:
                found[name] = text
    return found


def _put(target: dict[str, Any], name: str, value: Any) -> None:
    *path, last = name.split(".")
    for part in path:
        target = target.setdefault(part, {})
        if not isinstance(target, dict):
            raise BadSettings(f"{name} can't be set: {part} is no group of settings")
    target[last] = value


def _in_words(error: ValidationError) -> str:
    lines = [
        f"{'.'.join(str(part) for part in problem['loc']) or 'settings'}: {what_is_wrong(problem)}"
        for problem in error.errors()
    ]
    return "\n".join(lines)

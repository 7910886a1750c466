"""Which model names agents may use.

A fleet serves one model, and a name chooses nothing: frameworks send the names that they were written with, for a judge
or a sub-agent too, and expect the same in the answer.
"""

from rolloutfleet.settings import ProxySettings
from rolloutfleet_proxy.domain.errors import ModelNotFound


def names_listed(settings: ProxySettings) -> list[str]:
    """The fleet's own name, and those that its resource lists."""
    return [settings.model, *(name for name in settings.models.names or () if name != settings.model)]


def check_served(name: str, settings: ProxySettings) -> None:
    """Raises ModelNotFound where the resource lists names, and not this one."""
    if settings.models.names is not None and name != settings.model and name not in settings.models.names:
        raise ModelNotFound(
            f"This fleet serves {settings.model}, and takes the names that its resource lists under models.names."
        )

"""The model that the fleet serves, under the names that it takes.

A fleet serves one model, and a name chooses nothing: frameworks send the names that they were written with, for a judge
or a sub-agent too, and expect the same in the answer.
"""

from dataclasses import dataclass
from typing import Any

from rolloutfleet.settings import ProxySettings
from rolloutfleet_proxy.domain.errors import ModelNotFound
from rolloutfleet_proxy.settings import SettingsInForce


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """As the OpenAI API lists them."""

    settings: SettingsInForce
    context_length: int | None
    """Tokens; None where the model does not say."""
    created: int
    """Seconds since the epoch."""

    def listed(self) -> dict[str, Any]:
        """All names."""
        return {"object": "list", "data": [self._model(name) for name in names_listed(self.settings.current)]}

    def named(self, name: str) -> dict[str, Any]:
        """One of them, or any other name that chat takes. Raises ModelNotFound."""
        check_served(name, self.settings.current)
        return self._model(name)

    def _model(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self.created,
            "owned_by": "rolloutfleet",
            "max_model_len": self.context_length,
        }


def names_listed(settings: ProxySettings) -> list[str]:
    """The fleet's own name, and those that its resource lists."""
    return [settings.model, *(name for name in settings.models.names or () if name != settings.model)]


def check_served(name: str, settings: ProxySettings, *, param: str | None = None) -> None:
    """Raises ModelNotFound where the resource lists names, and not this one. `param` is the field that has it."""
    if settings.models.names is not None and name != settings.model and name not in settings.models.names:
        raise ModelNotFound(
            f"This fleet serves {settings.model}, and takes the names that its resource lists under models.names.",
            param=param,
        )

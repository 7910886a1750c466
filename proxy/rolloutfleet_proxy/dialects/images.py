"""Images in a request: refused by name, or a text stands in the place of each. Pure.

The text is the same for all, so that a conversation whose client sends its images again with every request extends.
Nothing of an image is kept.
"""

from __future__ import annotations

from typing import Any, Final

from rolloutfleet_proxy.domain.errors import InvalidParameter, MissingParameter, UnsupportedParameter

PLACEHOLDER: Final = "[image omitted]"


class Images:
    """Those of one request, counted as they are read."""

    def __init__(self, *, replaced: bool) -> None:
        self._replaced = replaced
        self.count = 0
        """How many a text stands for."""

    def text(self, holder: dict[str, Any], field: str, *kinds: type, at: str) -> str:
        """What is rendered for an image that `holder`, the part or block at `at`, has as its `field`, one of `kinds`.

        Raises UnsupportedParameter where images are refused; MissingParameter and InvalidParameter.
        """
        if not self._replaced:
            raise UnsupportedParameter(
                f"{at}.type",
                "images can't be rendered here. Where the fleet has `compatibility: {images: placeholder}`, a text "
                "stands for each.",
            )
        image = holder.get(field)
        if image is None:
            raise MissingParameter(f"{at}.{field}")
        if not isinstance(image, kinds):
            raise InvalidParameter(f"{at}.{field}", "It says where an image is.")
        self.count += 1
        return PLACEHOLDER

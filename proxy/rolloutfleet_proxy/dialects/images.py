"""Images in a request: refused by name, or a text stands in the place of each. Pure.

The text is the same for all, so that a conversation whose client sends its images again with every request extends.
Nothing of an image is kept but, in what tells retries apart, a digest of all of a request's: with another image it is
another request.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from rolloutfleet_proxy.dialects.depth import check_depth
from rolloutfleet_proxy.digests import digest16
from rolloutfleet_proxy.domain.errors import InvalidParameter, MissingParameter, UnsupportedParameter

PLACEHOLDER: Final = "[image omitted]"

_encode: Final = msgspec.json.Encoder(order="deterministic").encode


class Images:
    """Those of one request, counted as they are read."""

    def __init__(self, *, replaced: bool) -> None:
        self._replaced = replaced
        self.count = 0
        """How many a text stands for."""
        self.digest = b""
        """Over those, in their order; empty where there are none."""

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
        check_depth(image, at=f"{at}.{field}")
        self.count += 1
        self.digest = digest16(self.digest, _encode((field, image)))
        return PLACEHOLDER

"""Which media type an Accept header asks for (RFC 9110, section 12.5.1). Pure."""

from collections.abc import Sequence


def preferred(accept: str | None, offered: Sequence[str]) -> str | None:
    """The offered type that the header likes best, None where it likes none; the first without a header.

    Between types that it likes alike, the one that it names more exactly goes first, then the one offered first.
    """
    if accept is None or not accept.strip():
        return offered[0]
    ranges = [parsed for part in accept.split(",") if (parsed := _range(part)) is not None]
    best, chosen = (0.0, 0), None
    for media in offered:
        exactness, quality = max(((_exactness(kind, media), quality) for kind, quality in ranges), default=(0, 0.0))
        if exactness and quality > 0 and (quality, exactness) > best:
            best, chosen = (quality, exactness), media
    return chosen


def _range(part: str) -> tuple[str, float] | None:
    """(type, quality) of one media range; None where it is malformed."""
    kind, *parameters = (piece.strip().lower() for piece in part.split(";"))
    quality = 1.0
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                quality = float(value)
            except ValueError:
                return None
    return (kind, quality) if kind and 0 <= quality <= 1 else None


def _exactness(kind: str, media: str) -> int:
    """How exactly a media range names a type; 0 where it does not."""
    return {media: 3, media.partition("/")[0] + "/*": 2, "*/*": 1}.get(kind, 0)

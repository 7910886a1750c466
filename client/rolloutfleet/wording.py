"""Numbers as messages write them."""


def counted(number: int, one: str, several: str | None = None) -> str:
    """`1 session`, `2 sessions`; `several` where that is not made by an s."""
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"

"""Whose words an error's message is in: its readers know nothing of the libraries that found the mistake."""

import re

LIBRARIES = re.compile(
    r"Input should|Field required|Extra inputs|Value error|should (have|match|be)|unable to parse"  # pydantic
    r"|Expected `|got `|at `\$|Object (missing|contains)|Invalid enum|out of range|malformed"  # msgspec
    r"|jinja|[Uu]ndefined|dict object|sandbox|is unsafe|Unsupported chat_template_kwargs|typed config"
    r"|object (has no attribute|is not)|is not (iterable|subscriptable|callable)|Error\b|Traceback"  # Python
    r"|'(NoneType|dict|list|str|int|float|bool|tuple)'|\b(NoneType|dict|str|int|float|bool)\b|line \d+ column"
)
"""What no message of ours says."""

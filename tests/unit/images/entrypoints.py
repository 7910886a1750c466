"""What containers of the images begin with."""

import json
import re
from typing import Final

from images.recipes import DOCKERFILE

_STAGE: Final = re.compile(r"^FROM \S+ AS (\w+)$(.*?)(?=^FROM |\Z)", re.MULTILINE | re.DOTALL)
ENTRYPOINTS: Final = {
    target: json.loads(words)
    for target, stage in _STAGE.findall(DOCKERFILE.read_text())
    for words in re.findall(r"^ENTRYPOINT (.*)$", stage, re.MULTILINE)
}
"""By image."""

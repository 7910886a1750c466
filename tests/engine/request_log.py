"""The real engine's own record of what it was asked and what it answered: SGLang's request log, as JSON."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

JSON = Any
ROUTING_KEY = "x-smg-routing-key"


@dataclass(frozen=True, slots=True)
class Answered:
    """One generation: what came and what was sent back, as the engine notes it."""

    request: JSON
    reply: JSON

    @property
    def prompt(self) -> list[int]:
        ids: list[int] = self.request["input_ids"]
        return ids

    @property
    def output(self) -> list[int]:
        ids: list[int] = self.reply["output_ids"]
        return ids

    @property
    def logprobs(self) -> list[float]:
        return [entry[0] for entry in self.reply["meta_info"]["output_token_logprobs"]]

    @property
    def versions(self) -> list[int]:
        """One entry a token."""
        spans = self.reply["meta_info"]["weight_versions"]
        return [int(span["version"]) for span in spans for _ in range(span["start"], span["end"])]

    @property
    def finish_type(self) -> str:
        kind: str = self.reply["meta_info"]["finish_reason"]["type"]
        return kind


@dataclass(frozen=True, slots=True)
class RequestLog:
    folder: Path

    def answered(self, routing_key: str) -> list[Answered]:
        """The generations that ended, of one session, in the order of their ends."""
        return [
            Answered(entry["obj"], entry["out"])
            for entry in self._entries()
            if entry["event"] == "request.finished" and entry.get("headers", {}).get(ROUTING_KEY) == routing_key
        ]

    def text(self) -> str:
        return "\n".join(file.read_text() for file in sorted(self.folder.iterdir()))

    def _entries(self) -> Iterator[JSON]:
        for line in self.text().splitlines():
            start = line.find('{"timestamp"')
            if start >= 0:
                yield json.loads(line[start:])

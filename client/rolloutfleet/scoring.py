"""The log-probabilities that an SGLang gives the tokens of rows: a teacher's, a reference model's, or the fleet's own.

SGLang 0.5.23 scores a text without sampling: `POST /generate` with `max_new_tokens: 0` and `logprob_start_len` answers
`input_token_logprobs`, [log-probability, token id, text] for each token from there on, null for the first. These are
log softmax(logits), before any temperature, where those of sampled tokens are of logits / temperature: the two can be
compared at temperature 1 alone.
"""

import asyncio
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, Final

import httpx
import numpy as np
from numpy.typing import NDArray

from rolloutfleet.backoff import Backoff
from rolloutfleet.fleet.blocking import in_loop_thread
from rolloutfleet.fleet.exceptions import BadArgument, FleetError, Refused, Unreachable
from rolloutfleet.fleet.retries import ALSO_SERVER_ERRORS
from rolloutfleet.fleet.trajectories import Row
from rolloutfleet.fleet.transport import checked, client_options, raising_unreachable
from rolloutfleet.tasks import end_tasks
from rolloutfleet.tensors import RemoteTensor
from rolloutfleet.wire import ExportedTurn

Scores = NDArray[np.float32]

CONCURRENCY: Final = 16
RETRIES: Final = 5
RETRY: Final = Backoff(first=0.5, longest=10.0)


async def scored(
    rows: Iterable[Row],
    url: str,
    *,
    api_key: str | None = None,
    concurrency: int = CONCURRENCY,
    timeout: float = 600.0,
    retries: int = RETRIES,
) -> list[Scores]:
    """For each row, in order, the log-probabilities of its trained tokens by the SGLang at an address: float32
    [tokens], 0 where `loss_mask` is 0, as the row's own `logprobs` are.

    So many rows are scored at once. `timeout` is in seconds, for a row; one that gets no answer, or an engine's error
    (429, 5xx), is sent again up to `retries` times. The weights must not change meanwhile.

    Raises BadArgument where a trained turn, which it names, was sampled at another temperature than 1, or under a
    grammar or a bias, or where tensors are references; Refused, Unreachable, and FleetError for an answer without the
    log-probabilities.
    """
    asked = [_Asked(index, row) for index, row in enumerate(rows)]
    cache = f"score-{uuid.uuid4().hex}"
    at_once = asyncio.Semaphore(concurrency)
    options = client_options(api_key, [url], timeout=timeout)
    async with httpx.AsyncClient(**options, limits=httpx.Limits(max_connections=concurrency)) as client:

        async def one(part: _Asked) -> Scores:
            if not part.end:
                return part.scores([])
            async with at_once:
                body = {
                    "input_ids": part.ids.tolist(),
                    "sampling_params": {"max_new_tokens": 0},
                    "return_logprob": True,
                    "logprob_start_len": part.start,
                    # Nothing that older weights left in the engine's prefix cache is met.
                    "extra_key": cache,
                }
                return part.scores(await _answered(client, f"{url.rstrip('/')}/generate", body, retries))

        tasks = [asyncio.create_task(one(part)) for part in asked]
        try:
            return await asyncio.gather(*tasks)
        finally:
            await end_tasks(tasks)


score = in_loop_thread(scored)
"""The same for code that blocks."""


class _Asked:
    """The question about a row: its tokens from the one before the first trained one, which an answer begins with, to
    the last trained one."""

    def __init__(self, index: int, row: Row) -> None:
        """Raises BadArgument."""
        self.name = f"rows[{index}]"
        if any(isinstance(tensor, RemoteTensor) for tensor in row.tensors.values()):
            raise BadArgument(self.name, "its tensors are references: fetch them first, with RemoteTensors.localize")
        ids, mask, turn_ids = (np.asarray(row.tensors[name]) for name in ("input_ids", "loss_mask", "turn_ids"))
        self._untrained = mask != 1
        trained = np.flatnonzero(mask == 1)
        self.start, self.end = (max(0, int(trained[0]) - 1), int(trained[-1]) + 1) if len(trained) else (0, 0)
        self.ids = ids[: self.end]
        for place in np.unique(turn_ids[trained]).tolist():
            _check_sampled(self.name, row.turns[place] if place < len(row.turns) else None)

    def scores(self, entries: Sequence[Any]) -> Scores:
        """Raises FleetError where they are of other tokens, or a trained one has no finite number."""
        ids = self.ids[self.start :].tolist()
        # SGLang says 0 for the last id of a vocabulary.
        if len(entries) != len(ids) or any(
            entry[1] not in (0, token) for entry, token in zip(entries, ids, strict=True)
        ):
            raise FleetError(f"the engine's answer is not about the tokens of {self.name}")
        found = np.zeros(len(self._untrained), np.float32)
        found[self.start : self.end] = [np.nan if entry[0] is None else entry[0] for entry in entries]
        found[self._untrained] = 0
        if not np.isfinite(found).all():
            raise FleetError(f"the engine gave no log-probability of a trained token of {self.name}")
        return found


def _check_sampled(name: str, turn: ExportedTurn | None) -> None:
    """Raises BadArgument where it was not sampled at temperature 1, or under a grammar or a bias. Where a request named
    no temperature, `/generate` samples at 1."""
    sampled = None if turn is None else turn.sampling
    held = turn is not None and bool(turn.constrained or turn.biased_by)
    if held or sampled is None or sampled.temperature not in (None, 1.0):
        which = "a turn" if turn is None else f"turn {turn.turn_id}"
        temperature = "unknown" if sampled is None else sampled.temperature
        how = "under a grammar or a bias" if held else f"at temperature {temperature}"
        raise BadArgument(name, f"{which} was sampled {how}: scores are of temperature 1, and of nothing else")


async def _answered(client: httpx.AsyncClient, url: str, body: dict[str, Any], retries: int) -> list[Any]:
    """The entries of a good answer. Raises Refused, Unreachable, FleetError."""
    for attempt in range(retries + 1):
        await asyncio.sleep(RETRY.after(attempt))
        last = attempt == retries
        try:
            with raising_unreachable("POST", url):
                meta = checked(await client.post(url, json=body)).json()["meta_info"]
            # A pause cuts what is in flight.
            if last or (meta.get("finish_reason") or {}).get("type") != "abort":
                return [*meta["input_token_logprobs"]]
        except (Unreachable, Refused) as error:
            if last or (isinstance(error, Refused) and error.status not in ALSO_SERVER_ERRORS):
                raise
        except (ValueError, LookupError, TypeError, AttributeError):
            raise FleetError(f"{url} does not answer as SGLang does") from None
    raise AssertionError("unreachable")

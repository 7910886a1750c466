"""Remote tensors: tensors that a fleet's proxies keep, fetched by id on every rank and given back everywhere.

`RemoteTensors` puts, fetches and clears; `clear_fetch_buffer`, `flush_fetch_buffer` and `fetch_buffer_stats` act on the
calling process, for any transport between controller and ranks. docs/remote-tensors.md explains them.
"""

from rolloutfleet.fleet.exceptions import Refused
from rolloutfleet.remote_tensors.buffer import (
    FetchBuffer,
    clear_fetch_buffer,
    fetch_buffer_stats,
    flush_fetch_buffer,
    limit_fetch_buffer,
)
from rolloutfleet.remote_tensors.clearing import Cleared, DeleteReport, Role
from rolloutfleet.remote_tensors.client import RemoteTensors, references_in
from rolloutfleet.remote_tensors.failures import (
    OwnerUnavailable,
    RemoteTensorError,
    ShardMismatch,
    ShardsMissing,
    UnknownOwner,
)
from rolloutfleet.remote_tensors.nested import RemoteTensorDict
from rolloutfleet.tensors import RemoteTensor

__all__ = [
    "Cleared",
    "DeleteReport",
    "FetchBuffer",
    "OwnerUnavailable",
    "Refused",
    "RemoteTensor",
    "RemoteTensorDict",
    "RemoteTensorError",
    "RemoteTensors",
    "Role",
    "ShardMismatch",
    "ShardsMissing",
    "UnknownOwner",
    "clear_fetch_buffer",
    "fetch_buffer_stats",
    "flush_fetch_buffer",
    "limit_fetch_buffer",
    "references_in",
]

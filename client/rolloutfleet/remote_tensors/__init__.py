"""Remote tensors: tensors that a fleet's proxies keep, fetched by id on every rank and given back everywhere.

`RemoteTensors` puts, fetches and clears; `clear_fetch_buffer`, `flush_fetch_buffer` and `fetch_buffer_stats` act on the
calling process, for any transport between controller and ranks. docs/remote-tensors.md explains them.
"""

from rolloutfleet.fleet.exceptions import FleetError
from rolloutfleet.fleet.exceptions import OwnerUnavailable as OwnerUnavailable
from rolloutfleet.fleet.exceptions import Refused as Refused
from rolloutfleet.fleet.exceptions import ShardMismatch as ShardMismatch
from rolloutfleet.fleet.exceptions import ShardsMissing as ShardsMissing
from rolloutfleet.fleet.exceptions import UnknownOwner as UnknownOwner
from rolloutfleet.remote_tensors.buffer import FetchBuffer as FetchBuffer
from rolloutfleet.remote_tensors.buffer import clear_fetch_buffer as clear_fetch_buffer
from rolloutfleet.remote_tensors.buffer import fetch_buffer_stats as fetch_buffer_stats
from rolloutfleet.remote_tensors.buffer import flush_fetch_buffer as flush_fetch_buffer
from rolloutfleet.remote_tensors.buffer import limit_fetch_buffer as limit_fetch_buffer
from rolloutfleet.remote_tensors.clearing import Cleared as Cleared
from rolloutfleet.remote_tensors.clearing import DeleteReport as DeleteReport
from rolloutfleet.remote_tensors.clearing import Role as Role
from rolloutfleet.remote_tensors.client import RemoteTensors as RemoteTensors
from rolloutfleet.remote_tensors.client import references_in as references_in
from rolloutfleet.remote_tensors.nested import RemoteTensorDict as RemoteTensorDict
from rolloutfleet.tensors import RemoteTensor as RemoteTensor

RemoteTensorError = FleetError
"""The base of all that goes wrong with them."""

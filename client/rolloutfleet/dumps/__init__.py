"""The dump format: what a fleet writes of sessions that went stale, and how to read, check and name it.

`encode` makes a file piece by piece and `read` takes it apart so; `verify` says all that is wrong with one.
docs/dumps.md describes the format itself.
"""

from rolloutfleet.dumps.checks import Inspected, inspect, verify
from rolloutfleet.dumps.files import Glance, glance, open_dump
from rolloutfleet.dumps.form import (
    FORMAT,
    FORMAT_VERSION,
    Damaged,
    Dump,
    DumpedSession,
    DumpedShard,
    DumpedTrajectory,
    DumpedTurn,
    DumpEnd,
    DumpHead,
    IncomingShard,
    Matching,
    Part,
    encode,
)
from rolloutfleet.dumps.names import (
    ACTIVE,
    CLAIM_MARK,
    IMPORTED_MARK,
    DumpName,
    active_name,
    dump_names,
    parse_dump_name,
    trajectory_dump_name,
)
from rolloutfleet.dumps.reading import decode, digest_of, load, read, read_head, read_shards, read_streamed
from rolloutfleet.dumps.streamed import StreamedShard, StreamedTensor, StreamedTurn
from rolloutfleet.dumps.tensors import DTYPES, Tensor

__all__ = [
    "ACTIVE",
    "CLAIM_MARK",
    "DTYPES",
    "FORMAT",
    "FORMAT_VERSION",
    "IMPORTED_MARK",
    "Damaged",
    "Dump",
    "DumpEnd",
    "DumpHead",
    "DumpName",
    "DumpedSession",
    "DumpedShard",
    "DumpedTrajectory",
    "DumpedTurn",
    "Glance",
    "IncomingShard",
    "Inspected",
    "Matching",
    "Part",
    "StreamedShard",
    "StreamedTensor",
    "StreamedTurn",
    "Tensor",
    "active_name",
    "decode",
    "digest_of",
    "dump_names",
    "encode",
    "glance",
    "inspect",
    "load",
    "open_dump",
    "parse_dump_name",
    "read",
    "read_head",
    "read_shards",
    "read_streamed",
    "trajectory_dump_name",
    "verify",
]

"""The dump format: what a fleet writes of sessions that went stale, and how to read, check and name it.

`encode` makes a file piece by piece and `read` takes it apart so; `verify` says all that is wrong with one.
docs/dumps.md describes the format itself.
"""

from rolloutfleet.dumps.checks import Inspected as Inspected
from rolloutfleet.dumps.checks import inspect as inspect
from rolloutfleet.dumps.checks import verify as verify
from rolloutfleet.dumps.files import CLAIM_MARK as CLAIM_MARK
from rolloutfleet.dumps.files import IMPORTED_MARK as IMPORTED_MARK
from rolloutfleet.dumps.files import DumpName as DumpName
from rolloutfleet.dumps.files import dump_names as dump_names
from rolloutfleet.dumps.files import glance as glance
from rolloutfleet.dumps.files import kept_name as kept_name
from rolloutfleet.dumps.files import open_dump as open_dump
from rolloutfleet.dumps.files import parse_dump_name as parse_dump_name
from rolloutfleet.dumps.form import KEPT as KEPT
from rolloutfleet.dumps.form import Damaged as Damaged
from rolloutfleet.dumps.form import Dump as Dump
from rolloutfleet.dumps.form import DumpedLineage as DumpedLineage
from rolloutfleet.dumps.form import DumpedSession as DumpedSession
from rolloutfleet.dumps.form import DumpedShard as DumpedShard
from rolloutfleet.dumps.form import DumpedTrajectory as DumpedTrajectory
from rolloutfleet.dumps.form import DumpedTurn as DumpedTurn
from rolloutfleet.dumps.form import DumpEnd as DumpEnd
from rolloutfleet.dumps.form import DumpHead as DumpHead
from rolloutfleet.dumps.form import IncomingShard as IncomingShard
from rolloutfleet.dumps.form import Matching as Matching
from rolloutfleet.dumps.form import StreamedShard as StreamedShard
from rolloutfleet.dumps.form import StreamedTensor as StreamedTensor
from rolloutfleet.dumps.form import StreamedTensors as StreamedTensors
from rolloutfleet.dumps.form import StreamedTurn as StreamedTurn
from rolloutfleet.dumps.form import encode as encode
from rolloutfleet.dumps.reading import decode as decode
from rolloutfleet.dumps.reading import digest_of as digest_of
from rolloutfleet.dumps.reading import load as load
from rolloutfleet.dumps.reading import read as read
from rolloutfleet.dumps.reading import read_head as read_head
from rolloutfleet.dumps.reading import read_shards as read_shards
from rolloutfleet.dumps.reading import read_streamed as read_streamed
from rolloutfleet.dumps.tensors import Tensor as Tensor
from rolloutfleet.wire import Glance as Glance

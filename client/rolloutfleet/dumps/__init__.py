"""The dump format: what a fleet writes of sessions that went stale, and how to read, check and name it.

`form.encode` makes a file piece by piece and `reading.read` takes it apart so; `verify` says all that is wrong with
one. docs/dumps.md describes the format itself.
"""

from rolloutfleet.dumps.checks import verify as verify
from rolloutfleet.dumps.reading import decode as decode
from rolloutfleet.dumps.tensors import Tensor as Tensor

"""Requests and replies of a proxy's native API.

Requests are read strictly: unknown fields, text or booleans for numbers, and numbers that are not
finite are refused. Replies let unknown fields pass, so that an older client reads a newer proxy.
Times are seconds. Error codes are in `rolloutfleet.errors`, and under the same names here.
"""

from rolloutfleet.errors import *  # noqa: F403
from rolloutfleet.wire.annotations import *  # noqa: F403
from rolloutfleet.wire.base import *  # noqa: F403
from rolloutfleet.wire.exports import *  # noqa: F403
from rolloutfleet.wire.fleet import *  # noqa: F403
from rolloutfleet.wire.sessions import *  # noqa: F403
from rolloutfleet.wire.viewing import *  # noqa: F403

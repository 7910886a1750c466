"""The proxy's log: one line an event, to standard error, by a thread of its own.

What happens to calls is an event with named fields (`events`). Words for people, and what libraries say, come through
`logging`. Both become lines of the same form (`lines`) on the same way out (`output`).
"""

import logging

logger = logging.getLogger("rolloutfleet.proxy")

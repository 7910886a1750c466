"""What a proxy says of itself: its log, and its metrics.

The log is one line an event, to standard error, by a thread of its own. What happens to calls is an event with named
fields (`events`). Words for people, and what libraries say, come through `logging`. Both become lines of the same form
(`log_lines`) on the same way out (`log_output`). Metrics are declared in `metrics`, and counted where things happen.
"""

import logging

logger = logging.getLogger("rolloutfleet.proxy")

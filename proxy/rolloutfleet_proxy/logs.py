"""The proxy's log."""

import logging

logger = logging.getLogger("rolloutfleet.proxy")

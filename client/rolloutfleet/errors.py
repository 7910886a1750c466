"""Error codes of the native API: what `error.code` holds in an OpenAI-style error body.

A code is part of the contract: a client may act on it, so it never changes its meaning.
"""

from typing import Final

# A request that is wrong in itself (400, 404, 413, 415, 431).
INVALID_REQUEST: Final = "invalid_request"
INVALID_JSON: Final = "invalid_json"
BODY_TOO_LARGE: Final = "body_too_large"
UNSUPPORTED_ENCODING: Final = "unsupported_encoding"
HEAD_TOO_LARGE: Final = "head_too_large"
UNSUPPORTED_PARAMETER: Final = "unsupported_parameter"
CONTEXT_LENGTH_EXCEEDED: Final = "context_length_exceeded"
TURN_LIMIT: Final = "turn_limit"
TOKEN_LIMIT: Final = "token_limit"
MODEL_NOT_FOUND: Final = "model_not_found"
NOT_FOUND: Final = "not_found"
METHOD_NOT_ALLOWED: Final = "method_not_allowed"
NO_TURN: Final = "no_turn"
TURN_UNKNOWN: Final = "turn_unknown"
PREVIOUS_RESPONSE_NOT_FOUND: Final = "previous_response_not_found"
RESPONSE_UNKNOWN: Final = "response_unknown"

# A request that did not come to its end (408).
REQUEST_TIMEOUT: Final = "request_timeout"

# Who asks (401, 403).
INVALID_KEY: Final = "invalid_key"
FORBIDDEN_SCOPE: Final = "forbidden_scope"

# Where a session is, or is no longer (404, 410, 503).
SESSION_UNKNOWN: Final = "session_unknown"
SESSION_CLOSED: Final = "session_closed"
GROUP_CLOSED: Final = "group_closed"
SESSION_DELETED: Final = "session_deleted"
SESSION_RECLAIMED: Final = "session_reclaimed"
STORE_LOST: Final = "store_lost"
KEPT_ON_VOLUME: Final = "kept_on_volume"
OWNER_UNREACHABLE: Final = "owner_unreachable"
"""Nothing was sent to it."""
OWNER_UNAVAILABLE: Final = "owner_unavailable"
"""It broke off: it may have done what was asked."""
OWNER_GONE: Final = "owner_gone"

# Two that can't both be had (409, 422).
REWARD_FROZEN: Final = "reward_frozen"
OUTCOME_FROZEN: Final = "outcome_frozen"
ALREADY_LEASED: Final = "already_leased"
REPLACE_CONFLICT: Final = "replace_conflict"
EPOCH_STALE: Final = "epoch_stale"
VERSION_BACKWARDS: Final = "version_backwards"
RECOVERY_TOO_FAR: Final = "recovery_too_far"
IDEMPOTENCY_KEY_REUSED: Final = "idempotency_key_reused"
SHARD_CONFLICT: Final = "shard_conflict"
ALREADY_IMPORTED: Final = "already_imported"
DUMP_DAMAGED: Final = "dump_damaged"
DUMP_INCOMPLETE: Final = "dump_incomplete"
DUMP_CONFLICT: Final = "dump_conflict"
DRAIN_CONFLICT: Final = "drain_conflict"
NOT_DRAINING: Final = "not_draining"

# Leases and shards (404, 410).
LEASE_UNKNOWN: Final = "lease_unknown"
LEASE_EXPIRED: Final = "lease_expired"
GROUP_UNKNOWN: Final = "group_unknown"
TRAJECTORY_UNKNOWN: Final = "trajectory_unknown"
SHARD_UNKNOWN: Final = "shard_unknown"
DUMP_UNKNOWN: Final = "dump_unknown"

# Not now (429, 503, 504, 507).
NO_ROOM: Final = "no_room"
TOO_MANY_VIEWERS: Final = "too_many_viewers"
PAUSED: Final = "paused"
PAUSE_TIMEOUT: Final = "pause_timeout"
DRAINING: Final = "draining"
STARTING: Final = "starting"
STORE_BUSY: Final = "store_busy"
STORE_FULL: Final = "store_full"
STORE_FAILED: Final = "store_failed"
STORE_DAMAGED: Final = "store_damaged"

# Engine and gateway (429, 502, 503, 504).
ENGINE_ERROR: Final = "engine_error"
ENGINE_TIMEOUT: Final = "engine_timeout"
ENGINE_OVERLOADED: Final = "engine_overloaded"
ENGINE_UNREACHABLE: Final = "engine_unreachable"
LOAD_FAILED: Final = "load_failed"
EVIDENCE_REFUSED: Final = "evidence_refused"
CANCELLED: Final = "cancelled"
CLIENT_GONE: Final = "client_gone"
"""Only ever counted: there is nobody to be told."""

# An error of the server's own (500).
INTERNAL: Final = "internal"

"""The tables of a proxy's store, and how an older file becomes a newer one."""

import sqlite3

from rolloutfleet_proxy.store.checksums import (
    CHANGING,
    GUARDED,
    TEXT,
    TOKENS,
    WRONG,
    Guarded,
    call,
    install,
)

LATEST = 13
"""The schema version that this program writes. A file with a higher one is refused."""

_V1 = """
-- Single values: store_id, served (seconds), run, version, epoch, pause ...
CREATE TABLE facts (name TEXT PRIMARY KEY, value ANY) STRICT, WITHOUT ROWID;

-- Promise 5: counts of turns and sessions by what became of them. Live and leased are recounted by /audit.
CREATE TABLE ledger (
    kind TEXT NOT NULL,             -- 'turns' or 'sessions'
    term TEXT NOT NULL,             -- created, imported, live, leased, acknowledged, dumped, discarded
    reason TEXT NOT NULL,           -- of what was discarded; '' for the other terms
    n INTEGER NOT NULL,
    PRIMARY KEY (kind, term, reason)
) STRICT, WITHOUT ROWID;

CREATE TABLE sessions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,   -- never given twice: a lease may outlive the session
    name TEXT NOT NULL UNIQUE,      -- the session_id that users see
    key_hash BLOB NOT NULL UNIQUE,
    group_name TEXT NOT NULL,
    task_id TEXT,
    metadata TEXT,                  -- JSON object
    limits TEXT,                    -- JSON object: turns, tokens
    agent_may TEXT NOT NULL,        -- JSON list
    stale_after REAL,               -- seconds; null: the fleet's
    state TEXT NOT NULL,            -- open, closed, deleted
    fate TEXT NOT NULL,             -- its term in the ledger: live, leased, acknowledged, discarded; or importing
    reason TEXT,                    -- why it was discarded
    turns INTEGER NOT NULL DEFAULT 0,         -- committed so far: the number of the newest turn
    tokens INTEGER NOT NULL DEFAULT 0,        -- new prompt tokens and output tokens of all turns
    trajectories INTEGER NOT NULL DEFAULT 0,  -- closed so far: the number of the newest trajectory
    created_at REAL NOT NULL,       -- seconds since the epoch, for people
    touched REAL NOT NULL,          -- served seconds when it was last used: started, imported, touched or rewarded,
                                    -- or a call made a turn, failed to, or got one again
    ended REAL,                     -- served seconds when it was closed or deleted, last given back by a lease, or
                                    -- left by its group's last open member: from then on it waits to be claimed
    imported_at REAL                -- seconds since the epoch; of one that came back from its dumps
) STRICT;
CREATE INDEX sessions_by_group ON sessions (group_name);

CREATE TABLE turns (
    id INTEGER PRIMARY KEY,
    session INTEGER NOT NULL REFERENCES sessions (id),
    number INTEGER NOT NULL,        -- 1, 2, ... in order of commit
    name TEXT NOT NULL,             -- the turn_id that users see
    parent INTEGER,                 -- number of the turn whose ids this one's prompt begins with
    trajectory INTEGER,             -- number; null while it is open
    state TEXT NOT NULL,            -- live; discarded: alone, whatever becomes of the others. What else becomes of
                                    -- a live one is its trajectory's state: a lease must not rewrite these long rows
    delivered INTEGER NOT NULL,     -- `domain.turn.Delivery`
    mixed_cache INTEGER NOT NULL,
    run INTEGER NOT NULL,           -- the training run that was current
    start INTEGER NOT NULL,         -- how many messages the parent covers
    length INTEGER NOT NULL,        -- how many messages it covers itself, its output included
    prompt_tokens INTEGER NOT NULL, -- of the whole prompt
    reward REAL,
    created_at REAL NOT NULL,
    finish_reason TEXT NOT NULL,
    history BLOB NOT NULL,          -- digest chain of request and output messages
    request BLOB NOT NULL,          -- digest chain of the request's messages
    body BLOB NOT NULL,             -- digest that retries are found by: with a key, of the request's body
    idempotency_key TEXT,
    -- From here on long: what is before is read without them.
    reasonings BLOB NOT NULL,       -- JSON: [[message index, reasoning digest in hex], ...]
    versions BLOB NOT NULL,         -- JSON: [[weight version, how many tokens], ...]
    prompt_ids BLOB NOT NULL,       -- int32: what follows the parent's prompt and output
    output_ids BLOB NOT NULL,       -- int32
    logprobs BLOB NOT NULL,         -- float32, one for each output id
    output BLOB NOT NULL,           -- JSON: the assistant message
    messages BLOB NOT NULL,         -- JSON: the request's messages from `start` on
    tools BLOB,                     -- JSON: tools and template arguments, where it has no parent
    extras BLOB,                    -- JSON: what a replay needs beyond that (cached_tokens, top_logprobs ...)
    UNIQUE (session, number)
) STRICT;

CREATE TABLE trajectories (
    session INTEGER NOT NULL REFERENCES sessions (id),
    number INTEGER NOT NULL,        -- 1, 2, ... in order of closing
    closed_by TEXT NOT NULL,        -- reward, close
    reward_turn INTEGER,            -- number of the turn that the closing reward was given to
    turns INTEGER NOT NULL,         -- how many live turns it has
    state TEXT NOT NULL,            -- ready, leased, acknowledged, discarded; importing: not counted yet; elsewhere:
                                    -- not here, and only a few of its turns are, as imported ones extend them
    reason TEXT,                    -- why it was discarded
    frozen INTEGER NOT NULL DEFAULT 0,        -- 1 from its first lease on: rewards no longer change
    lease TEXT,                     -- the lease that holds it now
    marked TEXT,                    -- why a recovery marked it (newer, older_run), if one did
    closed_at REAL NOT NULL,        -- seconds since the epoch
    PRIMARY KEY (session, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX trajectories_by_state ON trajectories (state, closed_at);

CREATE TABLE leases (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,      -- the Lease-Id that users see
    request TEXT NOT NULL,          -- JSON: what was asked (style, discount ...), so that it can be answered again
    statuses TEXT NOT NULL,         -- JSON: [[session name, status], ...] as first answered
    state TEXT NOT NULL,            -- open, released, expired, acknowledged
    expires REAL NOT NULL,          -- served seconds
    changed REAL NOT NULL           -- served seconds when it got its state
) STRICT;
CREATE INDEX leases_by_expiry ON leases (state, expires);

-- What a lease covers, kept after it ended: a late acknowledgement may still count.
CREATE TABLE leased (
    lease TEXT NOT NULL REFERENCES leases (name),
    session INTEGER NOT NULL,
    session_name TEXT NOT NULL,
    number INTEGER NOT NULL,        -- of the trajectory
    acknowledged INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (lease, session, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX leased_by_trajectory ON leased (session, number);

-- Tensors kept for others, each in a file of its own.
CREATE TABLE shards (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,      -- the shard_id that users see
    file TEXT NOT NULL UNIQUE,      -- its file's name, never used again
    dtype TEXT NOT NULL,
    shape TEXT NOT NULL,            -- JSON list
    bytes INTEGER NOT NULL,         -- of the tensor
    digest BLOB NOT NULL,           -- of type, shape and bytes
    session INTEGER REFERENCES sessions (id),   -- freed with it
    lease TEXT,                     -- of the export that it was last part of
    expires REAL,                   -- served seconds; null: with its session alone
    created_at REAL NOT NULL        -- seconds since the epoch, for people
) STRICT;
CREATE INDEX shards_by_session ON shards (session) WHERE session IS NOT NULL;
CREATE INDEX shards_by_lease ON shards (lease) WHERE lease IS NOT NULL;
CREATE INDEX shards_by_expiry ON shards (expires) WHERE expires IS NOT NULL;

-- Files of shards whose rows are gone, until they are removed.
CREATE TABLE freed_files (file TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;

-- Whatever deletes the row of a shard, its file is not forgotten, and the bytes held are known without a count.
INSERT INTO facts VALUES ('shard_bytes', 0);
CREATE TRIGGER shard_kept AFTER INSERT ON shards BEGIN
    UPDATE facts SET value = value + new.bytes WHERE name = 'shard_bytes';
END;
CREATE TRIGGER shard_freed AFTER DELETE ON shards BEGIN
    UPDATE facts SET value = value - old.bytes WHERE name = 'shard_bytes';
    INSERT OR IGNORE INTO freed_files VALUES (old.file);
END;

-- Answers already given to calls that carried an Idempotency-Key.
CREATE TABLE idempotency (
    id INTEGER PRIMARY KEY,
    scope TEXT NOT NULL,            -- which endpoint, and whose key
    key TEXT NOT NULL,
    body BLOB NOT NULL,             -- digest of the request: another body is a 422
    answer TEXT NOT NULL,           -- JSON
    answered REAL NOT NULL,         -- served seconds
    UNIQUE (scope, key)
) STRICT;
CREATE INDEX idempotency_by_age ON idempotency (answered);

-- Dumps that have been imported: a copy of one is not imported again.
CREATE TABLE imports (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,             -- of the dump
    digest TEXT NOT NULL,           -- of its content, as it stands at its end
    imported REAL NOT NULL,         -- served seconds
    UNIQUE (name, digest)
) STRICT;
CREATE INDEX imports_by_age ON imports (imported);

-- When this store was opened, and why the life before ended; the last 20.
CREATE TABLE boots (
    id INTEGER PRIMARY KEY,
    time REAL NOT NULL,             -- seconds since the epoch
    reason TEXT NOT NULL,           -- first; planned, stopped or crash, and how
    drain TEXT,                     -- id of the drain that ended the life before
    rss_before INTEGER,             -- bytes at its end; after a crash the worker's peak
    rss_after INTEGER               -- bytes just after this boot
) STRICT;

-- What became of sessions whose rows are gone.
CREATE TABLE tombstones (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    key_hash BLOB NOT NULL,
    group_name TEXT NOT NULL,
    reason TEXT NOT NULL,
    dumped TEXT NOT NULL,           -- JSON: numbers of the trajectories that were dumped, 0 for what was still open
    trajectory INTEGER,             -- number of the one that closing it made, to answer that again
    buried REAL NOT NULL            -- served seconds
) STRICT;
CREATE INDEX tombstones_by_key ON tombstones (key_hash);
CREATE INDEX tombstones_by_group ON tombstones (group_name);
CREATE INDEX tombstones_by_age ON tombstones (buried);

-- Files in the folder of dumps, by the name they have there.
CREATE TABLE dump_files (
    file TEXT PRIMARY KEY,
    since REAL NOT NULL             -- served seconds at the sweep that wrote it, or that first saw it
) STRICT, WITHOUT ROWID;
"""

_V2 = """
-- JSON: {rules, reasonings: [[message index, reasoning digest in hex], ...], call_ids, branch_reason: {message, field}
-- or null}; of the oldest rules the reasonings alone. In their old column, since what stands behind the long ones is
-- slow to read.
ALTER TABLE turns RENAME COLUMN reasonings TO matching;
"""

_V3 = """
-- Sessions whose rows are gone, but for turns that are still to be deleted. Nobody finds these, and no sum counts them;
-- nor those that are open of a session that was deleted, which are discarded with it.
CREATE TABLE freed_sessions (id INTEGER PRIMARY KEY) STRICT;
"""

_V4 = """
-- JSON object: defaults and overrides of sampling parameters, the fleet's at its start included.
ALTER TABLE sessions ADD COLUMN sampling TEXT;
"""

_V5 = """
-- Seconds since the epoch, for people; null of what an earlier version leased.
ALTER TABLE leased ADD COLUMN leased_at REAL;
ALTER TABLE leased ADD COLUMN acknowledged_at REAL;
"""

_V6 = """
-- What a trainer says of turns afterwards. It goes with the session, and nothing else depends on it.
CREATE TABLE annotations (
    id INTEGER PRIMARY KEY AUTOINCREMENT,   -- a newer one is another row: that tells whether anything was added
    session INTEGER NOT NULL,       -- not REFERENCES sessions: like turns, the rest of one that is gone goes later
    turn INTEGER NOT NULL,          -- its number
    name TEXT NOT NULL,             -- of the series; '' of the turn's note
    content BLOB NOT NULL,          -- float32, one for each output id; of a note its text
    UNIQUE (session, turn, name)
) STRICT;
"""

_V7 = """
-- What lists of sessions show of their turns (`store.summaries`); all null in a row until that has been summed up.
ALTER TABLE sessions ADD COLUMN branches INTEGER;           -- turns that no turn extends
ALTER TABLE sessions ADD COLUMN output_tokens INTEGER;
ALTER TABLE sessions ADD COLUMN version_min INTEGER;        -- weight version of its tokens; null: it has none
ALTER TABLE sessions ADD COLUMN version_max INTEGER;
ALTER TABLE sessions ADD COLUMN rewarded INTEGER;           -- turns with a reward
ALTER TABLE sessions ADD COLUMN reward REAL;                -- of turn number `reward_turn`; null: none is rewarded
ALTER TABLE sessions ADD COLUMN reward_turn INTEGER;
ALTER TABLE sessions ADD COLUMN last_activity_at REAL;      -- seconds since the epoch: `touched`, for people
-- The rows up to this one are still to be summed up.
INSERT INTO facts SELECT 'not_summed_up', max(id) FROM sessions HAVING count(*);
"""

_V8 = """
-- Sessions whose rows are gone, but for turns and annotations that are still to be copied to a file (`inspect.keep`).
CREATE TABLE keeping (
    session INTEGER PRIMARY KEY,
    head TEXT                       -- JSON: what a dump says of the session; null: there was no room to copy it
) STRICT;
"""

_V9 = """
-- JSON: numbers of turns whose reward was given without naming a turn, which is the whole episode's; null: none was.
-- A reward that an earlier version kept counts as such where it closed a trajectory; its leases are answered as before.
ALTER TABLE sessions ADD COLUMN episode_turns TEXT;
UPDATE sessions SET episode_turns = (
    SELECT nullif(json_group_array(reward_turn), '[]') FROM trajectories
    WHERE session = sessions.id AND reward_turn IS NOT NULL
);
UPDATE leases SET request = json_set(request, '$.credit', 'branch') WHERE request ->> '$.credit' IS NULL;
"""

_V10 = """
-- How a session ended (`wire.Outcome`) and why; null while it is open, and of those that ended before this version.
ALTER TABLE sessions ADD COLUMN outcome TEXT;
ALTER TABLE sessions ADD COLUMN outcome_reason TEXT;
-- What ended its newest call: a limit's error code, or `length` of a main turn; null: nothing did.
ALTER TABLE sessions ADD COLUMN met_limit TEXT;
"""


_NEW_12 = {"sessions": ("await_reward", "train", "place", "quorum", "deadline"), "trajectories": ("waits_until",)}


def _before_12(table: str) -> Guarded:
    guarded = GUARDED[table]
    return guarded._replace(columns=tuple(name for name in guarded.columns if name not in _NEW_12.get(table, ())))


def _keeping_checksums(table: str, guarded: Guarded) -> str:
    here = " AND ".join(f"{column} IS new.{column}" for column in guarded.key)
    of_old, of_new = guarded.of("old."), guarded.of("new.")
    return f"""
CREATE TRIGGER {table}_row_added AFTER INSERT ON {table} BEGIN
    UPDATE {table} SET checksum = {of_new} WHERE {here};
END;
CREATE TRIGGER {table}_row_changed AFTER UPDATE OF {", ".join((*guarded.key, *guarded.columns))} ON {table} BEGIN
    UPDATE {table} SET checksum = iif(coalesce(old.checksum = {of_old}, 1), {of_new}, {WRONG}) WHERE {here};
END;
"""


_CHECKSUM = "ADD COLUMN checksum INTEGER;    -- of all others; null where an earlier version wrote the row"

_V11 = f"""
{"".join(f"ALTER TABLE {table} {_CHECKSUM}{_keeping_checksums(table, _before_12(table))}" for table in GUARDED)}
-- Of turns, whose rows are long: a change of a few bytes must not rewrite one. A turn that an earlier version wrote has
-- none here until it was given them (`checksums.fill_some`).
CREATE TABLE turn_checksums (
    turn INTEGER PRIMARY KEY,       -- id of its row
    tokens INTEGER NOT NULL,
    text INTEGER NOT NULL,
    changing INTEGER NOT NULL
) STRICT;
CREATE TRIGGER turn_added AFTER INSERT ON turns BEGIN
    INSERT INTO turn_checksums VALUES (new.id, {call(TOKENS, "new.")}, {call(TEXT, "new.")}, {call(CHANGING, "new.")});
END;
CREATE TRIGGER turn_changed AFTER UPDATE OF trajectory, state, delivered, reward ON turns BEGIN
    UPDATE turn_checksums SET changing = iif(changing = {call(CHANGING, "old.")}, {call(CHANGING, "new.")}, {WRONG})
    WHERE turn = new.id;
END;
CREATE TRIGGER turn_hidden AFTER UPDATE OF extras ON turns BEGIN
    UPDATE turn_checksums SET text = iif(text = {call(TEXT, "old.")}, {call(TEXT, "new.")}, {WRONG})
    WHERE turn = new.id;
END;
CREATE TRIGGER turn_removed AFTER DELETE ON turns BEGIN
    DELETE FROM turn_checksums WHERE turn = old.id;
END;
-- The rows up to this one are still to be given theirs.
INSERT INTO facts (name, value) SELECT 'without_checksums', max(id) FROM turns HAVING count(*);
"""


def _with_new_columns(table: str) -> str:
    before, after = _before_12(table), GUARDED[table]
    return f"""
DROP TRIGGER {table}_row_added; DROP TRIGGER {table}_row_changed;
UPDATE {table} SET checksum = iif(checksum = {before.of()}, {after.of()}, {WRONG}) WHERE checksum IS NOT NULL;
{_keeping_checksums(table, after)}
"""


_V12 = f"""
-- Seconds that its trajectories wait for a reward; null: not at all.
ALTER TABLE sessions ADD COLUMN await_reward REAL;
-- 0: an evaluation, which nobody gets to train on.
ALTER TABLE sessions ADD COLUMN train INTEGER NOT NULL DEFAULT 1;
-- The row id of the first session that had its place in its group; null: its own.
ALTER TABLE sessions ADD COLUMN place INTEGER;
-- It is closed once so many of its group have ended and the deadline (served seconds) is over; null: it has none.
ALTER TABLE sessions ADD COLUMN quorum INTEGER;
ALTER TABLE sessions ADD COLUMN deadline REAL;
CREATE INDEX sessions_by_deadline ON sessions (deadline) WHERE state = 'open' AND deadline IS NOT NULL;
-- Served seconds: until then nobody gets it, as it waits for a reward.
ALTER TABLE trajectories ADD COLUMN waits_until REAL NOT NULL DEFAULT 0;
{"".join(map(_with_new_columns, _NEW_12))}
"""

_V13 = """
-- Dump files that were begun, and whose sessions are not freed yet: the store has what they hold. The transaction that
-- frees a session deletes its rows here.
CREATE TABLE drafts (
    file TEXT NOT NULL,
    dumped_at REAL NOT NULL,        -- as its head says: what else has this name is no draft
    abandoned INTEGER NOT NULL DEFAULT 0,   -- 1: the sweep that began it is over
    PRIMARY KEY (file, dumped_at)
) STRICT, WITHOUT ROWID;
"""

_COUNTED = """
-- How many rows there are, without a count: /metrics needs no key, so it must not take longer the more there is.
CREATE TRIGGER key_kept AFTER INSERT ON sessions BEGIN
    UPDATE facts SET value = value + 1 WHERE name = 'keys';
END;
CREATE TRIGGER key_freed AFTER DELETE ON sessions BEGIN
    UPDATE facts SET value = value - 1 WHERE name = 'keys';
END;
CREATE TRIGGER shard_counted AFTER INSERT ON shards BEGIN
    UPDATE facts SET value = value + 1 WHERE name = 'shards';
END;
CREATE TRIGGER shard_uncounted AFTER DELETE ON shards BEGIN
    UPDATE facts SET value = value - 1 WHERE name = 'shards';
END;
INSERT OR REPLACE INTO facts (name, value) SELECT 'keys', count(*) FROM sessions;
INSERT OR REPLACE INTO facts (name, value) SELECT 'shards', count(*) FROM shards;
"""
"""Added to a file that lacks it. It needs no version: an older program keeps these counts right without knowing it."""

_MIGRATIONS = dict(enumerate((_V1, _V2, _V3, _V4, _V5, _V6, _V7, _V8, _V9, _V10, _V11, _V12, _V13), 1))
"""What brings a file from version n-1 to n. A step, once released, is never edited."""


def version(connection: sqlite3.Connection) -> int:
    """The schema version of an open file; 0 for an empty one."""
    found: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return found


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the file to `LATEST`, each step in a transaction of its own."""
    install(connection)
    for step in range(version(connection) + 1, LATEST + 1):
        forget = "DELETE FROM facts WHERE name = 'schema';" if step > 1 else ""
        connection.executescript(f"BEGIN IMMEDIATE; {forget} {_MIGRATIONS[step]} PRAGMA user_version = {step}; COMMIT;")
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE type = 'trigger' AND name = 'key_kept'").fetchone():
        _count(connection)
    connection.execute(f"INSERT OR IGNORE INTO facts (name, value) SELECT 'schema', ({_SUM})")


_SUM = """
SELECT row_checksum(group_concat(made))
FROM (SELECT type || name || tbl_name || coalesce(sql, '') AS made FROM sqlite_schema ORDER BY name)
"""
"""SQL of the checksum of what tables, indexes and triggers are. The fact `schema` has it since they were made."""


def is_damaged(connection: sqlite3.Connection) -> bool:
    """Whether tables, indexes or triggers of a migrated file are not what they were made as."""
    made: int = connection.execute(f"SELECT value = ({_SUM}) FROM facts WHERE name = 'schema'").fetchone()[0]
    return not made


def _count(connection: sqlite3.Connection) -> None:
    try:
        connection.executescript(f"BEGIN IMMEDIATE; {_COUNTED} COMMIT;")
    except sqlite3.OperationalError as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        # A proxy serves on a full disk, too. Until there is room at its start, rows are counted where it is asked.
        if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
            raise

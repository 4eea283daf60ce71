-- A conversation: where it is, and where its context starts (a message id; what is before is history).
CREATE TABLE sessions (
    session_id    TEXT PRIMARY KEY,
    channel       TEXT NOT NULL,
    place         TEXT NOT NULL,
    created_at    TEXT NOT NULL,
    last_at       TEXT NOT NULL,
    context_from  INTEGER NOT NULL DEFAULT 0,
    summary       TEXT NOT NULL DEFAULT '',
    summary_turns INTEGER NOT NULL DEFAULT 0
);

-- Everything that was said; origin is 'user' for what a person sent, 'run' for what a run added.
CREATE TABLE messages (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL REFERENCES sessions,
    request_id TEXT,
    origin     TEXT NOT NULL CHECK (origin IN ('user', 'run')),
    message    TEXT NOT NULL,
    created_at TEXT NOT NULL
);
CREATE INDEX messages_by_session ON messages (session_id, id);

-- Requests: what a person asked, and how far the answer is.
CREATE TABLE inbox (
    request_id  TEXT PRIMARY KEY,
    session_id  TEXT NOT NULL REFERENCES sessions,
    message_id  INTEGER NOT NULL REFERENCES messages,
    sender      TEXT NOT NULL,
    message_ref TEXT,
    state       TEXT NOT NULL CHECK (state IN ('queued', 'running', 'done', 'failed')),
    attempts    INTEGER NOT NULL DEFAULT 0,
    effects     INTEGER NOT NULL DEFAULT 0,
    posted      TEXT NOT NULL DEFAULT '[]',
    received_at TEXT NOT NULL
);
CREATE INDEX inbox_unfinished ON inbox (message_id) WHERE state IN ('queued', 'running');

-- Every event that a platform sent and that we took, by each of the names it may come under.
CREATE TABLE events (
    event_key TEXT PRIMARY KEY,
    seen_at   TEXT NOT NULL
) WITHOUT ROWID;

-- Replies that must arrive.
CREATE TABLE outbox (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    request_id TEXT,
    outgoing   TEXT NOT NULL,
    state      TEXT NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'sent', 'given_up')),
    attempts   INTEGER NOT NULL DEFAULT 0,
    not_before TEXT NOT NULL,
    created_at TEXT NOT NULL,
    sent_at    TEXT,
    why        TEXT
);
CREATE INDEX outbox_pending ON outbox (id) WHERE state = 'pending';

-- People who were let in, and the codes of those who asked.
CREATE TABLE allowed (
    channel    TEXT NOT NULL,
    user_id    TEXT NOT NULL,
    allowed_at TEXT NOT NULL,
    PRIMARY KEY (channel, user_id)
) WITHOUT ROWID;
CREATE TABLE pairing (
    channel    TEXT NOT NULL,
    user_id    TEXT NOT NULL,
    code       TEXT NOT NULL,
    created_at TEXT NOT NULL,
    PRIMARY KEY (channel, user_id),
    UNIQUE (channel, code)
);

CREATE TABLE counters (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;

-- What was learned of a model: reported tokens over estimated ones, and its true input limit.
CREATE TABLE model_facts (
    model       TEXT PRIMARY KEY,
    ratio       REAL NOT NULL,
    input_limit INTEGER
) WITHOUT ROWID;

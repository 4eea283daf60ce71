-- Deleting a session looks up its requests, once for our condition and once for the foreign key.
CREATE INDEX inbox_by_session ON inbox (session_id);

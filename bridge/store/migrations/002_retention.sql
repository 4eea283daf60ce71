-- Deleting old messages looks up the request of each.
CREATE INDEX inbox_by_message ON inbox (message_id);

-- name: send
-- Sends notices to every server that listens; equal ones are one. Writes and locks nothing of ours, and
-- nobody depends on its arrival.
select count(pg_notify('kagzi_work', u.payload)) as sent
from unnest(:payloads::text[]) as u(payload);

-- name: ping
-- Whether the connection that listens still has somebody at its other end.
select true as alive;

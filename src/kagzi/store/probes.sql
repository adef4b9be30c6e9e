-- name: commit
-- Writes an empty message to the log and commits it, as durably as any row. Locks nothing, leaves no row.
select pg_logical_emit_message(true, 'kagzi', '')::text as position;

-- name: settings
-- The server's version and whether its commits are durable. Locks nothing.
select current_setting('server_version') as version, current_setting('fsync') as fsync,
       current_setting('synchronous_commit') as synchronous_commit,
       current_setting('full_page_writes') as full_page_writes;

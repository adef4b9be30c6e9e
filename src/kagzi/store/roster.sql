-- name: get
-- One worker with its load, which is counted from leases up to 10,000. Locks nothing.
select w.worker_id, w.instance, w.task_queue, w.hostname, w.pid, w.version, w.types, w.type_versions, w.type_hashes,
       w.concurrency, w.labels, w.status, w.registered_at, w.last_heartbeat_at, w.drain_requested_at,
       w.deregistered_at, held.running
from kagzi.workers w
cross join lateral (
    select count(h.held)::integer as running
    from (select 1 as held from kagzi.workflow_runs r
          where r.namespace = :namespace and r.locked_by = w.worker_id and r.status = 'RUNNING' limit 10000) h
) held
where w.namespace = :namespace and w.worker_id = :worker_id::uuid;

-- name: list
-- Workers with their load, newest first, after the one with the key (:after_at, :after_id). Locks nothing.
select w.worker_id, w.instance, w.task_queue, w.hostname, w.pid, w.version, w.types, w.type_versions, w.type_hashes,
       w.concurrency, w.labels, w.status, w.registered_at, w.last_heartbeat_at, w.drain_requested_at,
       w.deregistered_at, held.running
from kagzi.workers w
cross join lateral (
    select count(h.held)::integer as running
    from (select 1 as held from kagzi.workflow_runs r
          where r.namespace = :namespace and r.locked_by = w.worker_id and r.status = 'RUNNING' limit 10000) h
) held
where w.namespace = :namespace
  and (:after_at::timestamptz is null or (w.registered_at, w.worker_id) < (:after_at, :after_id::uuid))
  and (cardinality(:statuses::text[]) = 0 or w.status = any (:statuses))
  and (:task_queue = '' or w.task_queue = :task_queue)
  and (:workflow_type = '' or :workflow_type = any (w.types))
order by w.registered_at desc, w.worker_id desc
limit :most;

-- name: held
-- The runs a worker holds, by the end of their leases. Locks nothing.
select r.run_id, r.workflow_type, r.available_at as lease_until, r.crashes
from kagzi.workflow_runs r
where r.namespace = :namespace and r.locked_by = :worker_id::uuid and r.status = 'RUNNING'
order by r.available_at, r.run_id
limit :most;

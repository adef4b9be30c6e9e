-- name: get
-- One worker with its load, which is counted from leases up to :look_at; one that holds as many or more has said in its
-- heartbeat how many. Locks nothing.
select w.worker_id, w.instance, w.task_queue, w.hostname, w.pid, w.version, w.types, w.type_versions, w.type_hashes,
       w.concurrency, w.labels, w.status, w.registered_at, w.last_heartbeat_at, w.drain_requested_at,
       w.deregistered_at,
       case when held.running < :look_at::integer then held.running else greatest(held.running, w.reported) end as running
from kagzi.workers w
cross join lateral (
    select count(h.held)::integer as running
    from (select 1 as held from kagzi.workflow_runs r
          where r.namespace = :namespace and r.locked_by = w.worker_id and r.status = 'RUNNING' limit :look_at) h
) held
where w.namespace = :namespace and w.worker_id = :worker_id::uuid;

-- name: list
-- Workers with their load as above, newest first, after the one with the key (:after_at, :after_id). Loads are counted
-- for the page alone. Locks nothing.
with page as materialized (
    select w.worker_id, w.instance, w.task_queue, w.hostname, w.pid, w.version, w.types, w.type_versions, w.type_hashes,
           w.concurrency, w.labels, w.status, w.registered_at, w.last_heartbeat_at, w.drain_requested_at,
           w.deregistered_at, w.reported
    from kagzi.workers w
    where w.namespace = :namespace
      and (:after_at::timestamptz is null or (w.registered_at, w.worker_id) < (:after_at, :after_id::uuid))
      and (cardinality(:statuses::text[]) = 0 or w.status = any (:statuses))
      and (:task_queue = '' or w.task_queue = :task_queue)
      and (:workflow_type = '' or :workflow_type = any (w.types))
    order by w.registered_at desc, w.worker_id desc
    limit :most
)
select p.worker_id, p.instance, p.task_queue, p.hostname, p.pid, p.version, p.types, p.type_versions, p.type_hashes,
       p.concurrency, p.labels, p.status, p.registered_at, p.last_heartbeat_at, p.drain_requested_at, p.deregistered_at,
       case when held.running < :look_at::integer then held.running else greatest(held.running, p.reported) end as running
from page p
cross join lateral (
    select count(h.held)::integer as running
    from (select 1 as held from kagzi.workflow_runs r
          where r.namespace = :namespace and r.locked_by = p.worker_id and r.status = 'RUNNING' limit :look_at) h
) held
order by p.registered_at desc, p.worker_id desc;

-- name: held
-- The runs a worker holds, by the end of their leases; of more than :look_at, some. Locks nothing.
select h.run_id, h.workflow_type, h.available_at as lease_until, h.crashes
from (select r.run_id, r.workflow_type, r.available_at, r.crashes
      from kagzi.workflow_runs r
      where r.namespace = :namespace and r.locked_by = :worker_id::uuid and r.status = 'RUNNING'
      limit :look_at) h
order by h.available_at, h.run_id
limit :most;

-- name: register
-- Makes a worker known; the same instance gets its row, and its id, back. A drain that was asked for stays asked for
-- until the worker has said goodbye, so that a lost connection does not undo it. Locks the worker's row; of two that
-- register one instance at once the second finds the first's row.
insert into kagzi.workers as w
    (namespace, worker_id, instance, task_queue, hostname, pid, version, types, type_versions, type_hashes,
     concurrency, labels, status)
values (:namespace, :worker_id::uuid, :instance, :task_queue, :hostname, :pid, :version, :types::text[],
        :type_versions::text[], :type_hashes::text[], :concurrency, :labels::jsonb, 'ONLINE')
on conflict (namespace, instance) do update
set task_queue = excluded.task_queue, hostname = excluded.hostname, pid = excluded.pid, version = excluded.version,
    types = excluded.types, type_versions = excluded.type_versions, type_hashes = excluded.type_hashes,
    concurrency = excluded.concurrency, labels = excluded.labels,
    status = case when w.drain_requested_at is not null and w.deregistered_at is null then 'DRAINING'
                  else 'ONLINE' end,
    drain_requested_at = case when w.deregistered_at is null then w.drain_requested_at end,
    last_heartbeat_at = kagzi.now(), deregistered_at = null
returning w.worker_id, w.status, kagzi.now() as now;

-- name: release_parked
-- Makes parked runs due that this queue's new code may be able to go on with: those of its types and versions whose
-- history was refused by another definition. Waits for their locks in key order: a run skipped here because somebody
-- signals it would be parked again and found by nobody. At most :most at a time.
with found as materialized (
    select r.run_id
    from kagzi.workflow_runs r
    where r.namespace = :namespace and r.workflow_type = any (:types::text[]) and r.task_queue = :task_queue
      and r.parked_hash is not null
      and exists (select 1
                  from unnest(:types::text[], :type_versions::text[], :type_hashes::text[])
                      as t(name, version, hash)
                  where t.name = r.workflow_type and r.version in ('', t.version)
                    and t.hash <> '' and t.hash <> r.parked_hash)
    limit :most
), locked as materialized (
    select r.run_id
    from kagzi.workflow_runs r
    where r.namespace = :namespace and r.run_id in (select f.run_id from found f)
      and r.parked_hash is not null and r.status = 'SLEEPING'
    order by r.run_id
    for no key update
)
update kagzi.workflow_runs r
set available_at = kagzi.now(), parked_hash = null, waiting = null
from locked l
where r.namespace = :namespace and r.run_id = l.run_id;

-- name: beat
-- Notes that a worker was heard of, and how many runs it said it holds. Answers nothing for one that is unknown or OFFLINE: it has to register again.
-- Locks the worker's row.
update kagzi.workers w
set last_heartbeat_at = kagzi.now(), reported = :held
where w.namespace = :namespace and w.worker_id = :worker_id::uuid and w.status <> 'OFFLINE'
returning w.status, kagzi.now() as now, kagzi.now() + :lease_ms::bigint * interval '1 millisecond' as lease_until;

-- name: renew
-- Sets the leases of the named runs anew where the token of the locked version is the named one, also where the lease
-- had run out and nobody took the run. Locks in key order and skips what somebody else holds: such a run is BUSY, not
-- LOST, and whether it is asked to cancel is told all the same. A run that this very token gave back or ended is ENDED.
-- For the rest another claim has won.
with named as materialized (
    select distinct n.run_id, n.token
    from unnest(:run_ids::uuid[], :tokens::uuid[]) as n(run_id, token)
), locked as materialized (
    select r.run_id
    from kagzi.workflow_runs r
    join named n on n.run_id = r.run_id and n.token = r.claim_token
    where r.namespace = :namespace
    order by r.run_id
    for no key update of r skip locked
), renewed as (
    update kagzi.workflow_runs r
    set available_at = kagzi.now() + :lease_ms::bigint * interval '1 millisecond'
    from locked l
    where r.namespace = :namespace and r.run_id = l.run_id
    returning r.run_id, r.claim_token
)
select n.run_id, n.token,
       case when w.run_id is not null then 'RENEWED'
            when r.claim_token = n.token then 'BUSY'
            when r.last_token = n.token then 'ENDED'
            else 'LOST' end as verdict,
       coalesce(r.claim_token = n.token and r.cancel_requested_at is not null, false) as cancelled
from named n
left join renewed w on w.run_id = n.run_id and w.claim_token = n.token
left join kagzi.workflow_runs r on r.namespace = :namespace and r.run_id = n.run_id
order by n.run_id, n.token;

-- name: put_back
-- Gives back the runs a worker is recorded to hold but did not name, with no crash counted: all of them, or only
-- those whose lease was last set more than :age_ms ago, because a younger one may still be on its way to the worker.
-- Locks in key order and skips what somebody else holds, which is left to the next heartbeat or to its lease.
with locked as materialized (
    select r.run_id
    from kagzi.workflow_runs r
    where r.namespace = :namespace and r.locked_by = :worker_id::uuid and r.status = 'RUNNING'
      and (:everything::boolean
           or r.available_at < kagzi.now() + (:lease_ms::bigint - :age_ms::bigint) * interval '1 millisecond')
      and not exists (select 1
                      from unnest(:run_ids::uuid[], :tokens::uuid[]) as n(run_id, token)
                      where n.run_id = r.run_id and n.token = r.claim_token)
    order by r.run_id
    for no key update skip locked
)
update kagzi.workflow_runs r
set status = 'PENDING', available_at = kagzi.now(), claim_token = null, locked_by = null
from locked l
where r.namespace = :namespace and r.run_id = l.run_id
returning r.task_queue;

-- name: deregister
-- Marks a worker OFFLINE by its own word. Answers nothing for an unknown one. Locks the worker's row.
update kagzi.workers w
set status = 'OFFLINE', deregistered_at = coalesce(w.deregistered_at, kagzi.now())
where w.namespace = :namespace and w.worker_id = :worker_id::uuid
returning w.worker_id;

-- name: drain
-- Asks a worker to take nothing more; the first request's time stays. Answers nothing for a worker that is unknown or
-- OFFLINE. Locks the worker's row.
update kagzi.workers w
set status = 'DRAINING', drain_requested_at = coalesce(w.drain_requested_at, kagzi.now())
where w.namespace = :namespace and w.worker_id = :worker_id::uuid and w.status <> 'OFFLINE'
returning w.worker_id;

-- name: silent
-- Workers that were not heard of for too long and are not OFFLINE yet, wherever they are. Locks nothing.
select w.namespace, w.worker_id
from kagzi.workers w
where w.status <> 'OFFLINE' and w.last_heartbeat_at < kagzi.now() - :threshold::interval
order by w.last_heartbeat_at
limit :batch;

-- name: silence
-- Marks silent workers OFFLINE and touches nothing else of theirs. Locks their rows in key order and skips
-- those that somebody holds: a heartbeat under way wins.
with found as materialized (
    select w.worker_id
    from kagzi.workers w
    where w.namespace = :namespace and w.worker_id = any (:worker_ids::uuid[]) and w.status <> 'OFFLINE'
      and w.last_heartbeat_at < kagzi.now() - :threshold::interval
    order by w.worker_id
    for no key update skip locked
)
update kagzi.workers w
set status = 'OFFLINE'
from found
where w.namespace = :namespace and w.worker_id = found.worker_id
returning w.worker_id;

-- name: late
-- Runs past their deadline for which something is to be done now, wherever they are. Locks nothing.
select r.namespace, r.run_id
from kagzi.workflow_runs r
where r.deadline_at <= kagzi.now() and r.status in ('PENDING', 'RUNNING', 'SLEEPING')
  and (r.cancel_requested_at is null or r.started_at is null
       or (r.deadline_at <= kagzi.now() - :grace::interval
           and r.cancel_requested_at <= kagzi.now() - :grace::interval))
order by r.deadline_at
limit :batch;

-- name: lock_late
-- The same runs of one namespace, locked in key order: those that never started, or were asked to end and
-- had their time of grace, expire; the others are to be asked. Skips what somebody holds; the next pass
-- meets it again.
select r.run_id, r.started_at is null or r.cancel_requested_at is not null as expires
from kagzi.workflow_runs r
where r.namespace = :namespace and r.run_id = any (:run_ids::uuid[])
  and r.deadline_at <= kagzi.now() and r.status in ('PENDING', 'RUNNING', 'SLEEPING')
  and (r.cancel_requested_at is null or r.started_at is null
       or (r.deadline_at <= kagzi.now() - :grace::interval
           and r.cancel_requested_at <= kagzi.now() - :grace::interval))
order by r.run_id
for no key update skip locked;

-- name: next_deadline
-- Seconds until the next deadline of a live run; NULL when there is none. Locks nothing.
select extract(epoch from min(r.deadline_at) - kagzi.now())::float8 as seconds
from kagzi.workflow_runs r
where r.deadline_at > kagzi.now() and r.status in ('PENDING', 'RUNNING', 'SLEEPING');

-- name: outlived
-- Where runs of which status stand that ended longer ago than they are kept: as their namespace says, else
-- :keep_ms; 0 is for ever. Locks nothing.
select n.namespace, kept.status, kept.ms as keep_ms
from kagzi.namespaces n
cross join lateral (values ('COMPLETED', coalesce(n.retention_completed_ms, :keep_ms::bigint)),
                           ('FAILED', coalesce(n.retention_failed_ms, :keep_ms)),
                           ('CANCELLED', coalesce(n.retention_cancelled_ms, :keep_ms))) as kept(status, ms)
where kept.ms > 0
  and exists (select 1 from kagzi.workflow_runs r
              where r.namespace = n.namespace and r.status = kept.status
                and r.finished_at < kagzi.now() - kept.ms * interval '1 millisecond')
order by n.namespace, kept.status;

-- name: remove
-- Deletes runs of one ended status that are older than :keep_ms, with everything of theirs; the oldest first, spared
-- while their parent lives, an automation has yet to go on from them, or nobody knows what became of the mutation they
-- hold: its answer settles them. Locks them in key order, and skips what somebody looks at under a lock.
with old as materialized (
    select r.run_id
    from kagzi.workflow_runs r
    where r.namespace = :namespace and r.run_id in (
        select e.run_id
        from kagzi.workflow_runs e
        where e.namespace = :namespace and e.status = :status
          and e.status in ('COMPLETED', 'FAILED', 'CANCELLED')
          and e.finished_at < kagzi.now() - :keep_ms::bigint * interval '1 millisecond'
          and not exists (select 1 from kagzi.workflow_runs p
                          where p.namespace = :namespace and p.run_id = e.parent_run_id
                            and p.status in ('PENDING', 'RUNNING', 'SLEEPING'))
          and not exists (select 1 from kagzi.automations a
                          where a.namespace = :namespace and a.name = e.automation and a.continues_run_id = e.run_id)
          and not exists (select 1 from kagzi.mutations m
                          where m.namespace = :namespace and m.holder_id = e.run_id and m.finished_at is null)
        order by e.finished_at
        limit :batch)
    order by r.run_id
    for no key update skip locked
), steps as (
    delete from kagzi.step_runs s using old where s.namespace = :namespace and s.run_id = old.run_id
), sent as (
    delete from kagzi.signals s using old where s.namespace = :namespace and s.run_id = old.run_id
), paid as (
    delete from kagzi.workflow_payloads p using old where p.namespace = :namespace and p.run_id = old.run_id
), done as (
    delete from kagzi.mutations m using old where m.namespace = :namespace and m.holder_id = old.run_id
)
delete from kagzi.workflow_runs r
using old
where r.namespace = :namespace and r.run_id = old.run_id
returning r.run_id;

-- name: left_workers
-- Namespaces with workers that left, or fell silent, longer ago than they are kept. Locks nothing.
select distinct w.namespace
from kagzi.workers w
where w.status = 'OFFLINE' and w.last_heartbeat_at < kagzi.now() - :keep::interval;

-- name: forget_workers
-- Deletes workers that are OFFLINE for longer than they are kept. Locks them in key order; who registers
-- again at this moment wins.
with old as materialized (
    select w.worker_id
    from kagzi.workers w
    where w.namespace = :namespace and w.status = 'OFFLINE' and w.last_heartbeat_at < kagzi.now() - :keep::interval
    order by w.worker_id
    limit :batch
    for no key update skip locked
)
delete from kagzi.workers w
using old
where w.namespace = :namespace and w.worker_id = old.worker_id
returning w.worker_id;

-- name: old_stats
-- Namespaces with counts older than they are kept. Locks nothing.
select n.namespace
from kagzi.namespaces n
where exists (select 1 from kagzi.stats s
              where s.namespace = n.namespace and s.minute < kagzi.now() - :keep::interval);

-- name: forget_stats
-- Deletes counts older than they are kept. Locks them in key order; nobody writes to a minute that old.
with old as materialized (
    select s.minute, s.server_id, s.workflow_type
    from kagzi.stats s
    where s.namespace = :namespace and s.minute < kagzi.now() - :keep::interval
    order by s.minute, s.server_id, s.workflow_type
    limit :batch
    for no key update skip locked
)
delete from kagzi.stats s
using old
where s.namespace = :namespace and s.minute = old.minute and s.server_id = old.server_id
  and s.workflow_type = old.workflow_type
returning s.minute;

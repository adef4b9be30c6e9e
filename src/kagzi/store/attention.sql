-- name: failed
-- Runs that failed within the last day and were not repeated, the newest first. Locks nothing.
select count(f.run_id) as count, (array_agg(f.run_id::text order by f.finished_at desc))[1:10] as subjects
from (
    select r.run_id, r.finished_at
    from kagzi.workflow_runs r
    where r.namespace = :namespace and r.status = 'FAILED' and r.finished_at > kagzi.now() - interval '1 day'
      and not exists (select 1 from kagzi.workflow_runs again
                      where again.namespace = :namespace and again.retried_from = r.run_id)
    order by r.finished_at desc
    limit 1000
) f;

-- name: parked
-- Runs whose code no longer matches their history. Locks nothing.
select count(f.run_id) as count, (array_agg(f.run_id::text order by f.run_id))[1:10] as subjects
from (
    select r.run_id
    from kagzi.workflow_runs r
    where r.namespace = :namespace and r.parked_hash is not null and r.status = 'SLEEPING'
    limit 1000
) f;

-- name: unserved
-- Due runs of a type and version that no ONLINE worker of their queue serves, the oldest first. Kinds of runs are found
-- by jumping along the index from one to the next, and each of their lanes is read from its beginning. Locks nothing.
with recursive kinds as (
    (select r.task_queue, r.workflow_type, r.version
     from kagzi.workflow_runs r
     where r.namespace = :namespace and r.status in ('PENDING', 'RUNNING', 'SLEEPING')
     order by r.task_queue, r.workflow_type, r.version
     limit 1)
    union all
    select following.task_queue, following.workflow_type, following.version
    from kinds k
    cross join lateral (
        select r.task_queue, r.workflow_type, r.version
        from kagzi.workflow_runs r
        where r.namespace = :namespace and r.status in ('PENDING', 'RUNNING', 'SLEEPING')
          and (r.task_queue, r.workflow_type, r.version) > (k.task_queue, k.workflow_type, k.version)
        order by r.task_queue, r.workflow_type, r.version
        limit 1
    ) following
), served as materialized (
    select w.task_queue, t.name, t.version
    from kagzi.workers w
    cross join unnest(w.types, w.type_versions) as t(name, version)
    where w.namespace = :namespace and w.status = 'ONLINE'
)
select count(f.run_id) as count, (array_agg(f.run_id::text order by f.available_at))[1:10] as subjects
from (
    select due.run_id, due.available_at
    from kinds k
    cross join generate_series(4, 0, -1) as level(priority)
    cross join unnest(array[false, true]) as suspected(suspect)
    cross join lateral (
        select r.run_id, r.available_at
        from kagzi.workflow_runs r
        where r.namespace = :namespace and r.status in ('PENDING', 'RUNNING', 'SLEEPING')
          and r.task_queue = k.task_queue and r.workflow_type = k.workflow_type and r.version = k.version
          and r.suspect = suspected.suspect and r.priority = level.priority and r.available_at <= kagzi.now()
        order by r.available_at
        limit 1000
    ) due
    where not exists (select 1 from served s
                      where s.task_queue = k.task_queue and s.name = k.workflow_type
                        and k.version in ('', s.version))
    limit 1000
) f;

-- name: broken
-- Schedules that cannot fire. Locks nothing.
select count(f.external_id) as count, (array_agg(f.external_id order by f.external_id))[1:10] as subjects
from (
    select r.external_id
    from kagzi.workflow_runs r
    where r.namespace = :namespace and r.status in ('SCHEDULED', 'PAUSED') and r.external_id is not null
      and r.schedule_error is not null
    limit 1000
) f;

-- name: silent
-- Workers that fell silent within the last day without saying goodbye, of the 1,000 that registered last. Locks nothing.
select count(f.worker_id) as count,
       (array_agg(f.worker_id::text order by f.last_heartbeat_at desc))[1:10] as subjects
from (
    select w.worker_id, w.status, w.deregistered_at, w.last_heartbeat_at
    from kagzi.workers w
    where w.namespace = :namespace
    order by w.registered_at desc, w.worker_id desc
    limit 1000
) f
where f.status = 'OFFLINE' and f.deregistered_at is null
  and f.last_heartbeat_at > kagzi.now() - interval '1 day';

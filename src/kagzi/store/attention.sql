-- name: attention
-- What needs a person, by kind, each counted up to 100 with the first ten of them. Whatever is stored, at most some
-- hundred rows of each kind are read: of failed runs the newest 100, of workers the 100 that registered last, of kinds
-- of runs and of workers 100 each, found by jumping along an index from one to the next. Of queues behind the last kind
-- of worker that was seen nothing is said. Locks nothing.
with recursive kinds as (
    (select 1 as number, r.task_queue, r.workflow_type, r.version
     from kagzi.workflow_runs r
     where r.namespace = :namespace and r.status in ('PENDING', 'RUNNING', 'SLEEPING')
     order by r.task_queue, r.workflow_type, r.version
     limit 1)
    union all
    select k.number + 1, following.task_queue, following.workflow_type, following.version
    from kinds k
    cross join lateral (
        select r.task_queue, r.workflow_type, r.version
        from kagzi.workflow_runs r
        where r.namespace = :namespace and r.status in ('PENDING', 'RUNNING', 'SLEEPING')
          and (r.task_queue, r.workflow_type, r.version) > (k.task_queue, k.workflow_type, k.version)
        order by r.task_queue, r.workflow_type, r.version
        limit 1
    ) following
    where k.number < 100
), fleets as (
    (select 1 as number, w.task_queue, w.types, w.type_versions, w.status
     from kagzi.workers w
     where w.namespace = :namespace and w.status <> 'OFFLINE'
     order by w.task_queue, hash_array_extended(w.types, 0), hash_array_extended(w.type_versions, 0), w.status
     limit 1)
    union all
    select f.number + 1, following.task_queue, following.types, following.type_versions, following.status
    from fleets f
    cross join lateral (
        select w.task_queue, w.types, w.type_versions, w.status
        from kagzi.workers w
        where w.namespace = :namespace and w.status <> 'OFFLINE'
          and (w.task_queue, hash_array_extended(w.types, 0), hash_array_extended(w.type_versions, 0), w.status)
              > (f.task_queue, hash_array_extended(f.types, 0), hash_array_extended(f.type_versions, 0), f.status)
        order by w.task_queue, hash_array_extended(w.types, 0), hash_array_extended(w.type_versions, 0), w.status
        limit 1
    ) following
    where f.number < 100
), served as materialized (
    select f.task_queue, t.name, t.version
    from fleets f
    cross join unnest(f.types, f.type_versions) as t(name, version)
    where f.status = 'ONLINE'
), parked as (
    select r.run_id::text as subject, row_number() over () as number
    from kagzi.workflow_runs r
    where r.namespace = :namespace and r.parked_hash is not null and r.status = 'SLEEPING'
    limit 100
), doubtful as (
    select r.run_id::text as subject, row_number() over () as number
    from kagzi.workflow_runs r
    where r.namespace = :namespace and r.status = 'SLEEPING' and r.waiting @> '[{"doubt": true}]'
    limit 100
), blocked as (
    select a.name as subject, row_number() over (order by a.blocked_at) as number
    from kagzi.automations a
    where a.namespace = :namespace and a.blocked_at is not null
    order by a.blocked_at
    limit 100
), unserved as (
    select due.run_id::text as subject, row_number() over (order by due.available_at) as number
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
            limit 100
        ) due
        where not exists (select 1 from fleets f where f.number = 100 and f.task_queue <= k.task_queue)
          and not exists (select 1 from served s
                            where s.task_queue = k.task_queue and s.name = k.workflow_type
                              and k.version in ('', s.version))
        limit 100
    ) due
), broken as (
    select r.external_id as subject, row_number() over (order by r.external_id) as number
    from kagzi.workflow_runs r
    where r.namespace = :namespace and r.status in ('SCHEDULED', 'PAUSED') and r.external_id is not null
      and r.schedule_error is not null
    order by r.external_id
    limit 100
), failed as (
    select f.run_id::text as subject, row_number() over (order by f.finished_at desc) as number
    from (
        select r.run_id, r.finished_at
        from kagzi.workflow_runs r
        where r.namespace = :namespace and r.status = 'FAILED' and r.finished_at > kagzi.now() - interval '1 day'
        order by r.finished_at desc
        limit 100
    ) f
    where not exists (select 1 from kagzi.workflow_runs again
                      where again.namespace = :namespace and again.retried_from = f.run_id)
    order by f.finished_at desc
    limit 100
), silent as (
    select f.worker_id::text as subject, row_number() over (order by f.last_heartbeat_at desc) as number
    from (
        select w.worker_id, w.status, w.deregistered_at, w.last_heartbeat_at
        from kagzi.workers w
        where w.namespace = :namespace
        order by w.registered_at desc, w.worker_id desc
        limit 100
    ) f
    where f.status = 'OFFLINE' and f.deregistered_at is null
      and f.last_heartbeat_at > kagzi.now() - interval '1 day'
    limit 100
), found as (
    select 'PARKED_RUNS' as kind, p.subject, p.number from parked p
    union all select 'UNKNOWN_STEPS', d.subject, d.number from doubtful d
    union all select 'BLOCKED_AUTOMATIONS', b.subject, b.number from blocked b
    union all select 'UNSERVED_RUNS', u.subject, u.number from unserved u
    union all select 'BROKEN_SCHEDULES', b.subject, b.number from broken b
    union all select 'FAILED_RUNS', f.subject, f.number from failed f
    union all select 'SILENT_WORKERS', s.subject, s.number from silent s
)
select f.kind, count(f.subject) as count, (array_agg(f.subject order by f.number))[1:10] as subjects
from found f
group by f.kind;

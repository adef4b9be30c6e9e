-- name: facts
-- One run as far as it says why it is where it is, its namespace, and the worker that holds it. Locks nothing.
select r.status, r.task_queue, r.workflow_type, r.version, r.priority, r.suspect, r.crashes, r.attempts,
       nullif(r.available_at, 'infinity') as available_at, r.available_at <= kagzi.now() as due, r.locked_by,
       r.cancel_requested_at, r.deadline_at, r.waiting::text as waiting, r.parked_hash is not null as parked,
       r.error::text as error, r.schedule_id, r.continued_as, r.created_at, r.started_at, r.finished_at, n.enabled,
       w.hostname, w.pid, w.status as worker_status, w.last_heartbeat_at, kagzi.now() as now
from kagzi.workflow_runs r
join kagzi.namespaces n on n.namespace = r.namespace
left join kagzi.workers w on w.namespace = r.namespace and w.worker_id = r.locked_by
where r.namespace = :namespace and r.run_id = :run_id::uuid and r.status not in ('SCHEDULED', 'PAUSED');

-- name: waits
-- The steps that a suspended run named, each with the child it waits for, in the order the code asked. Locks nothing.
select s.step_id, s.kind, s.status, nullif(coalesce(s.wake_at, s.retry_at), 'infinity') as until, s.target,
       s.child_run_id, s.attempt_number, s.error::text as error, s.created_at, c.status as child_status,
       c.workflow_type as child_type
from kagzi.step_runs s
left join kagzi.workflow_runs c on c.namespace = :namespace and c.run_id = s.child_run_id
where s.namespace = :namespace and s.run_id = :run_id::uuid and s.step_id = any (:step_ids::text[]) and s.is_latest
order by s.position, s.step_id
limit :most;

-- name: fleet
-- Who serves a queue: how many workers there are, up to :most_seen; whether one knows the type, has the version, and takes
-- runs; and whether one of those has a free slot: of :most of them the :most_counted that said they hold least. Kinds of
-- workers are found by jumping along the index from one to the next; behind the hundredth anything may be. A worker's runs
-- are counted up to :most_held, beyond which it has said how many. Locks nothing.
with recursive kinds as (
    (select 1 as number, w.types, w.type_versions, w.status
     from kagzi.workers w
     where w.namespace = :namespace and w.task_queue = :task_queue and w.status <> 'OFFLINE'
     order by hash_array_extended(w.types, 0), hash_array_extended(w.type_versions, 0), w.status
     limit 1)
    union all
    select k.number + 1, following.types, following.type_versions, following.status
    from kinds k
    cross join lateral (
        select w.types, w.type_versions, w.status
        from kagzi.workers w
        where w.namespace = :namespace and w.task_queue = :task_queue and w.status <> 'OFFLINE'
          and (hash_array_extended(w.types, 0), hash_array_extended(w.type_versions, 0), w.status)
              > (hash_array_extended(k.types, 0), hash_array_extended(k.type_versions, 0), k.status)
        order by hash_array_extended(w.types, 0), hash_array_extended(w.type_versions, 0), w.status
        limit 1
    ) following
    where k.number < 100
), judged as materialized (
    select k.number, k.types, k.type_versions, k.status, :workflow_type = any (k.types) or k.number = 100 as knows,
           k.number = 100 or exists (select 1 from unnest(k.types, k.type_versions) as t(name, version)
                                     where t.name = :workflow_type and (:version = '' or t.version = :version)) as suits
    from kinds k
), taking as (
    select w.worker_id, w.concurrency, w.reported
    from judged j
    cross join lateral (
        select w.worker_id, w.concurrency, w.reported
        from kagzi.workers w
        where w.namespace = :namespace and w.task_queue = :task_queue and w.status = 'ONLINE'
          and hash_array_extended(w.types, 0) = hash_array_extended(j.types, 0)
          and hash_array_extended(w.type_versions, 0) = hash_array_extended(j.type_versions, 0)
        limit :most
    ) w
    where j.suits and j.status = 'ONLINE'
    limit :most
), likely as (
    select t.worker_id, t.concurrency, t.reported
    from taking t
    order by t.concurrency - t.reported desc
    limit :most_counted
)
select (select count(s.seen)
        from (select 1 as seen from kagzi.workers w
              where w.namespace = :namespace and w.task_queue = :task_queue and w.status <> 'OFFLINE'
              limit :most_seen) s)::integer as workers,
       exists (select 1 from judged j where j.knows) as know,
       exists (select 1 from judged j where j.suits) as suit,
       exists (select 1 from judged j where j.suits and j.status = 'ONLINE' or j.number = 100) as take,
       exists (
           select 1
           from likely t
           cross join lateral (
               select count(h.held) as held
               from (select 1 as held from kagzi.workflow_runs r
                     where r.namespace = :namespace and r.locked_by = t.worker_id and r.status = 'RUNNING'
                     limit :most_held) h
           ) holds
           where case when holds.held < :most_held then holds.held else greatest(holds.held, t.reported) end
                 < t.concurrency
       ) as free;

-- name: ahead
-- How many due runs of the same type and version come first, by priority or age, up to :most. Locks nothing.
select count(f.run_id)::integer as ahead
from (
    select due.run_id
    from generate_series(4, :priority::integer, -1) as level(priority)
    cross join lateral (
        select r.run_id
        from kagzi.workflow_runs r
        where r.namespace = :namespace and r.task_queue = :task_queue and r.workflow_type = :workflow_type
          and r.version = :version and r.suspect = :suspect and r.priority = level.priority
          and r.status in ('PENDING', 'RUNNING', 'SLEEPING')
          and r.available_at < case when level.priority = :priority then :available_at::timestamptz
                                    else kagzi.now() end
        order by r.available_at
        limit :most
    ) due
    limit :most
) f;

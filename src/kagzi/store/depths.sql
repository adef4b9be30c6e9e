-- name: depth
-- How much of each workflow type is in each queue, by queue and type after the pair (:after_queue, :after_type). Pairs,
-- and the lanes of a pair, are found by jumping along the index from one to the next; what is due is read from its
-- lane's beginning up to :most_due rows a pair, the rest up to :most_later rows, so that no count costs more than that
-- however much is stored. Locks nothing.
with recursive stored as (
    (select r.task_queue, r.workflow_type
     from kagzi.workflow_runs r
     where r.namespace = :namespace and r.status in ('PENDING', 'RUNNING', 'SLEEPING')
       and (r.task_queue, r.workflow_type) > (:after_queue, :after_type)
     order by r.task_queue, r.workflow_type
     limit 1)
    union all
    select following.task_queue, following.workflow_type
    from stored s
    cross join lateral (
        select r.task_queue, r.workflow_type
        from kagzi.workflow_runs r
        where r.namespace = :namespace and r.status in ('PENDING', 'RUNNING', 'SLEEPING')
          and (r.task_queue, r.workflow_type) > (s.task_queue, s.workflow_type)
        order by r.task_queue, r.workflow_type
        limit 1
    ) following
), fleet as materialized (
    select w.task_queue, w.types,
           greatest(w.concurrency - (select count(r.run_id) from kagzi.workflow_runs r
                                     where r.namespace = :namespace and r.locked_by = w.worker_id
                                       and r.status = 'RUNNING'), 0) as free
    from kagzi.workers w
    where w.namespace = :namespace and w.status = 'ONLINE'
), pairs as materialized (
    select p.task_queue, p.workflow_type
    from (select s.task_queue, s.workflow_type from stored s
          union
          select f.task_queue, t.name from fleet f cross join unnest(f.types) as t(name)) p
    where (p.task_queue, p.workflow_type) > (:after_queue, :after_type)
      and (:task_queue = '' or p.task_queue = :task_queue)
      and (:workflow_type = '' or p.workflow_type = :workflow_type)
    order by p.task_queue, p.workflow_type
    limit :most
)
select p.task_queue, p.workflow_type, counted.pending_due, counted.pending_later, counted.running, counted.sleeping,
       counted.oldest_due_ms, counted.oldest_run_id, served.workers, served.free_slots
from pairs p
cross join lateral (
    with recursive lanes as (
        (select r.version, r.suspect, r.priority
         from kagzi.workflow_runs r
         where r.namespace = :namespace and r.status in ('PENDING', 'RUNNING', 'SLEEPING')
           and r.task_queue = p.task_queue and r.workflow_type = p.workflow_type
         order by r.version, r.suspect, r.priority
         limit 1)
        union all
        select following.version, following.suspect, following.priority
        from lanes l
        cross join lateral (
            select r.version, r.suspect, r.priority
            from kagzi.workflow_runs r
            where r.namespace = :namespace and r.status in ('PENDING', 'RUNNING', 'SLEEPING')
              and r.task_queue = p.task_queue and r.workflow_type = p.workflow_type
              and (r.version, r.suspect, r.priority) > (l.version, l.suspect, l.priority)
            order by r.version, r.suspect, r.priority
            limit 1
        ) following
    ), due as materialized (
        select d.status
        from lanes l
        cross join lateral (
            select r.status
            from kagzi.workflow_runs r
            where r.namespace = :namespace and r.status in ('PENDING', 'RUNNING', 'SLEEPING')
              and r.task_queue = p.task_queue and r.workflow_type = p.workflow_type and r.version = l.version
              and r.suspect = l.suspect and r.priority = l.priority and r.available_at <= kagzi.now()
            order by r.available_at
            limit :most_due
        ) d
        limit :most_due
    ), later as materialized (
        select d.status
        from lanes l
        cross join lateral (
            select r.status
            from kagzi.workflow_runs r
            where r.namespace = :namespace and r.status in ('PENDING', 'RUNNING', 'SLEEPING')
              and r.task_queue = p.task_queue and r.workflow_type = p.workflow_type and r.version = l.version
              and r.suspect = l.suspect and r.priority = l.priority and r.available_at > kagzi.now()
            order by r.available_at
            limit :most_later
        ) d
        limit :most_later
    ), oldest as (
        select d.run_id, d.available_at
        from lanes l
        cross join lateral (
            select r.run_id, r.available_at
            from kagzi.workflow_runs r
            where r.namespace = :namespace and r.status in ('PENDING', 'SLEEPING')
              and r.task_queue = p.task_queue and r.workflow_type = p.workflow_type and r.version = l.version
              and r.suspect = l.suspect and r.priority = l.priority and r.available_at <= kagzi.now()
            order by r.available_at
            limit 1
        ) d
        order by d.available_at
        limit 1
    )
    select (select count(d.status) from due d where d.status <> 'RUNNING') as pending_due,
           (select count(d.status) from later d where d.status = 'PENDING') as pending_later,
           (select count(d.status) from due d where d.status = 'RUNNING')
               + (select count(d.status) from later d where d.status = 'RUNNING') as running,
           (select count(d.status) from later d where d.status = 'SLEEPING') as sleeping,
           (select extract(epoch from kagzi.now() - o.available_at) * 1000 from oldest o)::bigint as oldest_due_ms,
           (select o.run_id from oldest o) as oldest_run_id
) counted
cross join lateral (
    select count(f.free)::integer as workers, coalesce(sum(f.free), 0)::integer as free_slots
    from fleet f
    where f.task_queue = p.task_queue and p.workflow_type = any (f.types)
) served
order by p.task_queue, p.workflow_type;

-- name: total
-- What stands in a namespace, over at most :most_lanes lanes found by jumping along the index: what is due is read from
-- the beginnings of the lanes up to :most_due rows in all, the rest up to :most_later. Locks nothing.
with recursive jumps as (
    (select 1 as number, r.task_queue, r.workflow_type, r.version, r.suspect, r.priority
     from kagzi.workflow_runs r
     where r.namespace = :namespace and r.status in ('PENDING', 'RUNNING', 'SLEEPING')
     order by r.task_queue, r.workflow_type, r.version, r.suspect, r.priority
     limit 1)
    union all
    select j.number + 1, following.task_queue, following.workflow_type, following.version, following.suspect,
           following.priority
    from jumps j
    cross join lateral (
        select r.task_queue, r.workflow_type, r.version, r.suspect, r.priority
        from kagzi.workflow_runs r
        where r.namespace = :namespace and r.status in ('PENDING', 'RUNNING', 'SLEEPING')
          and (r.task_queue, r.workflow_type, r.version, r.suspect, r.priority)
              > (j.task_queue, j.workflow_type, j.version, j.suspect, j.priority)
        order by r.task_queue, r.workflow_type, r.version, r.suspect, r.priority
        limit 1
    ) following
    where j.number < :most_lanes::integer
), lanes as materialized (
    select j.task_queue, j.workflow_type, j.version, j.suspect, j.priority from jumps j
), due as materialized (
    select d.status
    from lanes l
    cross join lateral (
        select r.status
        from kagzi.workflow_runs r
        where r.namespace = :namespace and r.status in ('PENDING', 'RUNNING', 'SLEEPING')
          and r.task_queue = l.task_queue and r.workflow_type = l.workflow_type and r.version = l.version
          and r.suspect = l.suspect and r.priority = l.priority and r.available_at <= kagzi.now()
        order by r.available_at
        limit :most_due
    ) d
    limit :most_due
), later as materialized (
    select d.status
    from lanes l
    cross join lateral (
        select r.status
        from kagzi.workflow_runs r
        where r.namespace = :namespace and r.status in ('PENDING', 'RUNNING', 'SLEEPING')
          and r.task_queue = l.task_queue and r.workflow_type = l.workflow_type and r.version = l.version
          and r.suspect = l.suspect and r.priority = l.priority and r.available_at > kagzi.now()
        order by r.available_at
        limit :most_later
    ) d
    limit :most_later
), oldest as (
    select min(d.available_at) as available_at
    from lanes l
    cross join lateral (
        select r.available_at
        from kagzi.workflow_runs r
        where r.namespace = :namespace and r.status in ('PENDING', 'SLEEPING')
          and r.task_queue = l.task_queue and r.workflow_type = l.workflow_type and r.version = l.version
          and r.suspect = l.suspect and r.priority = l.priority and r.available_at <= kagzi.now()
        order by r.available_at
        limit 1
    ) d
)
select (select count(d.status) from due d where d.status <> 'RUNNING') as pending_due,
       (select count(d.status) from due d where d.status = 'RUNNING')
           + (select count(d.status) from later d where d.status = 'RUNNING') as running,
       (select count(d.status) from later d where d.status = 'SLEEPING') as sleeping,
       (select extract(epoch from kagzi.now() - o.available_at) * 1000 from oldest o)::bigint as oldest_due_ms;

-- name: types
-- The workflow types that workers have registered, by type and queue after the pair (:after_type, :after_queue), each
-- with its forms, the one heard of last first, at most :most_forms. Reads :look_at of the workers that are there, and
-- those that are gone of the :look_at that registered last. Locks nothing.
with here as materialized (
    select w.worker_id, w.task_queue, w.status, w.last_heartbeat_at, w.types, w.type_versions, w.type_hashes
    from kagzi.workers w
    where w.namespace = :namespace and w.status <> 'OFFLINE'
    limit :look_at
), last as materialized (
    select w.worker_id, w.task_queue, w.status, w.last_heartbeat_at, w.types, w.type_versions, w.type_hashes
    from kagzi.workers w
    where w.namespace = :namespace
    order by w.registered_at desc, w.worker_id desc
    limit :look_at
), known as (
    select h.worker_id, h.task_queue, h.status, h.last_heartbeat_at, h.types, h.type_versions, h.type_hashes
    from here h
    union all
    select l.worker_id, l.task_queue, l.status, l.last_heartbeat_at, l.types, l.type_versions, l.type_hashes
    from last l
    where l.status = 'OFFLINE'
), registered as materialized (
    select t.name, k.task_queue, t.version, t.hash, k.worker_id, k.status = 'ONLINE' as online, k.last_heartbeat_at
    from known k
    cross join unnest(k.types, k.type_versions, k.type_hashes) as t(name, version, hash)
    where (:task_queue = '' or k.task_queue = :task_queue)
      and (t.name, k.task_queue) > (:after_type, :after_queue)
), page as materialized (
    select g.name, g.task_queue, count(distinct g.worker_id) filter (where g.online)::integer as workers
    from registered g
    group by g.name, g.task_queue
    order by g.name, g.task_queue
    limit :most
)
select p.name as workflow_type, p.task_queue, p.workers, form.version, form.hash, form.workers as form_workers,
       form.last_seen_at
from page p
cross join lateral (
    select g.version, g.hash, count(distinct g.worker_id) filter (where g.online)::integer as workers,
           max(g.last_heartbeat_at) as last_seen_at
    from registered g
    where g.name = p.name and g.task_queue = p.task_queue
    group by g.version, g.hash
    order by max(g.last_heartbeat_at) desc, g.version, g.hash
    limit :most_forms
) form
order by p.name, p.task_queue, form.last_seen_at desc, form.version, form.hash;

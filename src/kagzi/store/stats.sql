-- name: put
-- Sets what one server has counted in a minute or an hour so far, by workflow type. The rows are the server's own, so
-- nobody loses, and writing the same again changes nothing.
insert into kagzi.stats
    (namespace, span, minute, server_id, workflow_type, started, completed, failed, cancelled, steps_completed,
     steps_failed, leases_lost, pickup, duration)
select :namespace, :span::smallint, date_trunc(case when :span::smallint = 60 then 'hour' else 'minute' end, :minute::timestamptz),
       :server_id::uuid, u.workflow_type, u.started,
       u.completed, u.failed, u.cancelled, u.steps_completed, u.steps_failed, u.leases_lost, u.pickup::bigint[],
       u.duration::bigint[]
from unnest(:workflow_types::text[], :started::bigint[], :completed::bigint[], :failed::bigint[],
            :cancelled::bigint[], :steps_completed::bigint[], :steps_failed::bigint[], :leases_lost::bigint[],
            :pickup::text[], :duration::text[])
    as u(workflow_type, started, completed, failed, cancelled, steps_completed, steps_failed, leases_lost, pickup,
         duration)
on conflict (namespace, span, minute, server_id, workflow_type) do update
set started = excluded.started, completed = excluded.completed, failed = excluded.failed,
    cancelled = excluded.cancelled, steps_completed = excluded.steps_completed,
    steps_failed = excluded.steps_failed, leases_lost = excluded.leases_lost, pickup = excluded.pickup,
    duration = excluded.duration;

-- name: gauge
-- Sets what stands in a namespace now, as one server has counted it; the last count of a minute and of an hour stays.
insert into kagzi.stats
    (namespace, span, minute, server_id, counted_at, pending_due, running, sleeping, oldest_due_ms)
select :namespace, stretch.span, date_trunc(stretch.name, kagzi.now()), :server_id::uuid, kagzi.now(), :pending_due,
       :running, :sleeping, :oldest_due_ms
from (values (1, 'minute'), (60, 'hour')) as stretch(span, name)
on conflict (namespace, span, minute, server_id, workflow_type) do update
set counted_at = excluded.counted_at, pending_due = excluded.pending_due, running = excluded.running,
    sleeping = excluded.sleeping, oldest_due_ms = excluded.oldest_due_ms;

-- name: uncounted
-- Namespaces by name, after :after, that nobody has counted for :since, and whether the last count within the hour found
-- anything: nothing is written where nothing stood and nothing stands. Locks nothing.
select n.namespace, coalesce(last.stood, false) as stood
from kagzi.namespaces n
left join lateral (
    select s.counted_at, s.pending_due + s.running + s.sleeping > 0 as stood
    from kagzi.stats s
    where s.namespace = n.namespace and s.span = 1 and s.minute > kagzi.now() - interval '1 hour' and s.counted_at is not null
    order by s.minute desc, s.counted_at desc
    limit 1
) last on true
where n.namespace > :after and (last.counted_at is null or last.counted_at <= kagzi.now() - :since::interval)
order by n.namespace
limit :most;

-- name: points
-- Sums over stretches of :minutes minutes from :since until :until, of one type or (with '') of all together, from rows
-- of a minute or an hour. Stretches in which nothing was counted are left out. Of more rows than :look_at the oldest are
-- read; the minute or hour that is cut off there, and all behind it, is left out too, and named with every row, of which
-- there is always one. Locks nothing.
with looked as materialized (
    select s.minute, s.started, s.completed, s.failed, s.cancelled, s.steps_completed, s.steps_failed, s.leases_lost,
           s.pickup, s.duration, s.counted_at, s.pending_due, s.running, s.sleeping, s.oldest_due_ms
    from kagzi.stats s
    where s.namespace = :namespace and s.span = :span and s.minute >= :since and s.minute < :until::timestamptz
      and s.workflow_type = :workflow_type
    order by s.minute, s.server_id
    limit :look_at
), cut as materialized (
    select max(l.minute) as minute from looked l having count(l.minute) = :look_at
), counted as materialized (
    select (extract(epoch from s.minute - :since::timestamptz) / 60)::integer / :minutes::integer as number,
           s.started, s.completed, s.failed, s.cancelled, s.steps_completed, s.steps_failed, s.leases_lost, s.pickup,
           s.duration, s.counted_at, s.pending_due, s.running, s.sleeping, s.oldest_due_ms
    from looked s
    where not exists (select 1 from cut where cut.minute = s.minute)
), summed as (
    select c.number, sum(c.started)::bigint as started, sum(c.completed)::bigint as completed,
           sum(c.failed)::bigint as failed, sum(c.cancelled)::bigint as cancelled,
           sum(c.steps_completed)::bigint as steps_completed, sum(c.steps_failed)::bigint as steps_failed,
           sum(c.leases_lost)::bigint as leases_lost
    from counted c
    group by c.number
), bucketed as (
    select b.number, array_agg(b.pickup order by b.place) as pickup, array_agg(b.duration order by b.place) as duration
    from (select c.number, u.place, coalesce(sum(u.pickup), 0)::bigint as pickup,
                 coalesce(sum(u.duration), 0)::bigint as duration
          from counted c
          cross join unnest(c.pickup, c.duration) with ordinality as u(pickup, duration, place)
          group by c.number, u.place) b
    group by b.number
), gauged as (
    select distinct on (c.number) c.number, c.pending_due, c.running, c.sleeping, c.oldest_due_ms
    from counted c
    where c.counted_at is not null
    order by c.number, c.counted_at desc
)
select s.number, s.started, s.completed, s.failed, s.cancelled, s.steps_completed, s.steps_failed, s.leases_lost,
       coalesce(b.pickup, '{}') as pickup, coalesce(b.duration, '{}') as duration, g.pending_due, g.running,
       g.sleeping, g.oldest_due_ms, (select cut.minute from cut) as looked_until
from (values (true)) as always(row)
left join summed s on true
left join bucketed b using (number)
left join gauged g using (number)
order by s.number;

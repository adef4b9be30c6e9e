-- name: scattered
-- Namespaces in which several servers have counted one and the same minute or hour, and which of the two: of the last
-- :stretches of each that are over. A stretch is over when :settled has passed since its end. Locks nothing.
select n.namespace, stretch.span
from kagzi.namespaces n
cross join (values (1::smallint), (60::smallint)) as stretch(span)
where exists (
    select 1
    from kagzi.stats s
    where s.namespace = n.namespace and s.span = stretch.span and s.workflow_type = ''
      and s.minute >= kagzi.now() - :stretches::integer * stretch.span * interval '1 minute'
      and s.minute < kagzi.now() - :settled::interval - stretch.span * interval '1 minute'
    group by s.minute
    having count(s.server_id) > 1
)
limit :most;

-- name: merge
-- Makes one row a type of what several servers have counted in a minute or an hour that is over: theirs go, and what
-- they held is added to the row of nobody in particular. In one statement, so of two who merge at once the second finds
-- nothing to delete and adds nothing. Locks the rows of those servers, who no longer write to them.
with several as materialized (
    select s.minute
    from kagzi.stats s
    where s.namespace = :namespace and s.span = :span::smallint and s.workflow_type = ''
      and s.minute >= kagzi.now() - :stretches::integer * :span::smallint * interval '1 minute'
      and s.minute < kagzi.now() - :settled::interval - :span::smallint * interval '1 minute'
    group by s.minute
    having count(s.server_id) > 1
), gone as (
    delete from kagzi.stats s
    using several
    where s.namespace = :namespace and s.span = :span::smallint and s.minute = several.minute
      and s.server_id <> :together::uuid
    returning s.minute, s.workflow_type, s.started, s.completed, s.failed, s.cancelled, s.steps_completed,
              s.steps_failed, s.leases_lost, s.pickup, s.duration, s.counted_at, s.pending_due, s.running, s.sleeping,
              s.oldest_due_ms
), summed as (
    select g.minute, g.workflow_type, sum(g.started)::bigint as started, sum(g.completed)::bigint as completed,
           sum(g.failed)::bigint as failed, sum(g.cancelled)::bigint as cancelled,
           sum(g.steps_completed)::bigint as steps_completed, sum(g.steps_failed)::bigint as steps_failed,
           sum(g.leases_lost)::bigint as leases_lost
    from gone g
    group by g.minute, g.workflow_type
), bucketed as (
    select b.minute, b.workflow_type, array_agg(b.pickup order by b.place) as pickup,
           array_agg(b.duration order by b.place) as duration
    from (select g.minute, g.workflow_type, u.place, coalesce(sum(u.pickup), 0)::bigint as pickup,
                 coalesce(sum(u.duration), 0)::bigint as duration
          from gone g
          cross join unnest(g.pickup, g.duration) with ordinality as u(pickup, duration, place)
          group by g.minute, g.workflow_type, u.place) b
    group by b.minute, b.workflow_type
), gauged as (
    select distinct on (g.minute, g.workflow_type) g.minute, g.workflow_type, g.counted_at, g.pending_due, g.running,
           g.sleeping, g.oldest_due_ms
    from gone g
    where g.counted_at is not null
    order by g.minute, g.workflow_type, g.counted_at desc
)
insert into kagzi.stats as kept
    (namespace, span, minute, server_id, workflow_type, started, completed, failed, cancelled, steps_completed,
     steps_failed, leases_lost, pickup, duration, counted_at, pending_due, running, sleeping, oldest_due_ms)
select :namespace, :span::smallint, s.minute, :together::uuid, s.workflow_type, s.started, s.completed, s.failed,
       s.cancelled, s.steps_completed, s.steps_failed, s.leases_lost, coalesce(b.pickup, '{}'),
       coalesce(b.duration, '{}'), g.counted_at, g.pending_due, g.running, g.sleeping, g.oldest_due_ms
from summed s
left join bucketed b using (minute, workflow_type)
left join gauged g using (minute, workflow_type)
on conflict (namespace, span, minute, server_id, workflow_type) do update
set started = kept.started + excluded.started, completed = kept.completed + excluded.completed,
    failed = kept.failed + excluded.failed, cancelled = kept.cancelled + excluded.cancelled,
    steps_completed = kept.steps_completed + excluded.steps_completed,
    steps_failed = kept.steps_failed + excluded.steps_failed, leases_lost = kept.leases_lost + excluded.leases_lost,
    pickup = (select coalesce(array_agg(coalesce(u.one, 0) + coalesce(u.other, 0) order by u.place), '{}')
              from unnest(kept.pickup, excluded.pickup) with ordinality as u(one, other, place)),
    duration = (select coalesce(array_agg(coalesce(u.one, 0) + coalesce(u.other, 0) order by u.place), '{}')
                from unnest(kept.duration, excluded.duration) with ordinality as u(one, other, place)),
    -- Of what stood at a moment the later count is kept, whichever comes first.
    counted_at = greatest(excluded.counted_at, kept.counted_at),
    pending_due = case when kept.counted_at > excluded.counted_at then kept.pending_due
                       else coalesce(excluded.pending_due, kept.pending_due) end,
    running = case when kept.counted_at > excluded.counted_at then kept.running
                   else coalesce(excluded.running, kept.running) end,
    sleeping = case when kept.counted_at > excluded.counted_at then kept.sleeping
                    else coalesce(excluded.sleeping, kept.sleeping) end,
    oldest_due_ms = case when kept.counted_at > excluded.counted_at then kept.oldest_due_ms
                         else coalesce(excluded.oldest_due_ms, kept.oldest_due_ms) end;

-- name: keep
-- Sets how much was counted in each queue of each type, and forgets pairs that are no more. Servers that count at the
-- same time write the same; the last one stays.
with gone as (
    delete from kagzi.queue_depths d
    where d.namespace = :namespace
      and not exists (select 1 from unnest(:task_queues::text[], :workflow_types::text[]) as u(task_queue, workflow_type)
                      where u.task_queue = d.task_queue and u.workflow_type = d.workflow_type)
)
insert into kagzi.queue_depths
    (namespace, task_queue, workflow_type, counted_at, pending_due, pending_later, running, sleeping, oldest_due_ms,
     oldest_run_id, workers, free_slots)
select :namespace, u.task_queue, u.workflow_type, kagzi.now(), u.pending_due, u.pending_later, u.running, u.sleeping,
       u.oldest_due_ms, u.oldest_run_id, u.workers, u.free_slots
from unnest(:task_queues::text[], :workflow_types::text[], :pending_due::integer[], :pending_later::integer[],
            :running::integer[], :sleeping::integer[], :oldest_due_ms::bigint[], :oldest_run_ids::uuid[],
            :workers::integer[], :free_slots::integer[])
    as u(task_queue, workflow_type, pending_due, pending_later, running, sleeping, oldest_due_ms, oldest_run_id,
         workers, free_slots)
order by u.task_queue, u.workflow_type
on conflict (namespace, task_queue, workflow_type) do update
set counted_at = excluded.counted_at, pending_due = excluded.pending_due, pending_later = excluded.pending_later,
    running = excluded.running, sleeping = excluded.sleeping, oldest_due_ms = excluded.oldest_due_ms,
    oldest_run_id = excluded.oldest_run_id, workers = excluded.workers, free_slots = excluded.free_slots;

-- name: read
-- What was last counted, by queue and type after the pair (:after_queue, :after_type). Locks nothing.
select d.task_queue, d.workflow_type, d.counted_at, d.pending_due, d.pending_later, d.running, d.sleeping,
       d.oldest_due_ms, d.oldest_run_id, d.workers, d.free_slots
from kagzi.queue_depths d
where d.namespace = :namespace and (d.task_queue, d.workflow_type) > (:after_queue, :after_type)
  and (:task_queue = '' or d.task_queue = :task_queue)
  and (:workflow_type = '' or d.workflow_type = :workflow_type)
order by d.task_queue, d.workflow_type
limit :most;

-- name: backlogs
-- Automations of every namespace, and how many events wait for their consumers, counted up to 10,000 each. A plain read
-- over namespaces, for metrics.
select a.namespace, a.name, a.blocked_at is not null as blocked, waiting.pending
from (select namespace, name, blocked_at from kagzi.automations order by namespace, name limit :most) a
cross join lateral (
    select count(d.pending)::integer as pending
    from (select 1 as pending from kagzi.deliveries p
          where p.namespace = a.namespace and p.automation = a.name and p.status = 'PENDING' limit 10000) d
) waiting;

-- name: depths
-- What was last counted in every namespace within :since, the deepest first. A plain read over namespaces, for metrics.
select d.namespace, d.task_queue, d.workflow_type, d.pending_due, d.pending_later, d.running, d.sleeping,
       d.oldest_due_ms, d.workers, d.free_slots
from kagzi.queue_depths d
where d.counted_at > kagzi.now() - :since::interval
order by d.pending_due desc, d.namespace, d.task_queue, d.workflow_type
limit :most;

-- name: upcoming
-- Whether a schedule of an enabled namespace is due, but for those that are left for later, when the next one will be, and
-- the time. Reads the first rows of one index. Locks nothing.
select kagzi.now() as now, exists (
    select 1
    from kagzi.workflow_runs t
    join kagzi.namespaces n on n.namespace = t.namespace
    where t.status = 'SCHEDULED' and t.available_at <= kagzi.now() and n.enabled
      and t.run_id <> all (:later::uuid[])) as due, (
    select t.available_at
    from kagzi.workflow_runs t
    join kagzi.namespaces n on n.namespace = t.namespace
    where t.status = 'SCHEDULED' and t.available_at > kagzi.now() and t.available_at < 'infinity' and n.enabled
    order by t.available_at
    limit 1) as at;

-- name: due
-- Schedules that are due, wherever they are, the oldest first, but for those that are left for later. Locks nothing.
select t.namespace, t.run_id
from kagzi.workflow_runs t
where t.status = 'SCHEDULED' and t.available_at <= kagzi.now() and t.run_id <> all (:later::uuid[])
  and exists (select 1 from kagzi.namespaces n where n.namespace = t.namespace and n.enabled)
order by t.available_at
limit :batch;

-- name: newest
-- Schedules that became due last, wherever they are, but for those that are left for later. Locks nothing.
select t.namespace, t.run_id
from kagzi.workflow_runs t
where t.status = 'SCHEDULED' and t.available_at <= kagzi.now() and t.run_id <> all (:later::uuid[])
  and exists (select 1 from kagzi.namespaces n where n.namespace = t.namespace and n.enabled)
order by t.available_at desc
limit :batch;

-- name: lock
-- Those of these schedules that are still due, locked in key order. What somebody else fires or changes at this moment
-- is skipped; what was fired since it was found is due no longer. So each slot has one server, whoever comes second.
select t.namespace, t.run_id, t.external_id, t.status, t.task_queue, t.workflow_type, t.version, t.priority,
       t.retry_policy::text as retry_policy, t.labels::text as labels, t.run_timeout, t.cron_expr, t.interval,
       t.anchor_at, t.timezone, t.starts_at, t.ends_at, t.jitter, t.run_limit, t.fired, t.overlap, t.max_catchup,
       t.schedule_text, t.scheduled_for, nullif(t.available_at, 'infinity') as available_at, t.last_slot, t.pause,
       t.paused_reason, t.schedule_error, t.schedule_notice, t.created_at, t.updated_at, kagzi.now() as now
from kagzi.workflow_runs t
where t.namespace = :namespace and t.run_id = any (:run_ids::uuid[]) and t.status = 'SCHEDULED'
  and t.available_at <= kagzi.now()
order by t.run_id
for no key update skip locked;

-- name: move_on
-- Moves templates to their next slots, or pauses those that have none. The caller holds their locks.
update kagzi.workflow_runs t
set status = case when u.pause is null then 'SCHEDULED' else 'PAUSED' end, pause = u.pause,
    scheduled_for = u.slot, available_at = u.available_at, fired = coalesce(t.fired, 0) + u.started,
    last_slot = coalesce(u.last_slot, t.last_slot), schedule_error = null,
    schedule_notice = coalesce(u.notice, t.schedule_notice)
from unnest(:run_ids::uuid[], :slots::timestamptz[], :available_ats::timestamptz[], :pauses::text[],
            :started::integer[], :last_slots::timestamptz[], :notices::text[])
    as u(run_id, slot, available_at, pause, started, last_slot, notice)
where t.namespace = :namespace and t.run_id = u.run_id and t.status = 'SCHEDULED';

-- name: mark
-- Marks templates that cannot fire with the reason, and has them looked at again later: another server, or a newer one,
-- may understand them. What is no longer due is left alone; what somebody else holds is skipped.
with locked as materialized (
    select t.run_id
    from kagzi.workflow_runs t
    where t.namespace = :namespace and t.run_id = any (:run_ids::uuid[]) and t.status = 'SCHEDULED'
      and t.available_at <= kagzi.now()
    order by t.run_id
    for no key update skip locked
)
update kagzi.workflow_runs t
set schedule_error = u.error, available_at = kagzi.now() + :again::interval
from locked
join unnest(:run_ids::uuid[], :errors::text[]) as u(run_id, error) on u.run_id = locked.run_id
where t.namespace = :namespace and t.run_id = locked.run_id
returning t.run_id, t.external_id, t.schedule_error;

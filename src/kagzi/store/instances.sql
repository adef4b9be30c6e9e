-- name: lock
-- Live runs of these templates, and whether each could be locked: what somebody else holds is skipped. The caller holds
-- the templates' locks, so no other run of theirs appears meanwhile.
with live as materialized (
    select r.run_id, r.schedule_id, r.status = 'PENDING' and r.available_at = 'infinity' as waits
    from kagzi.workflow_runs r
    where r.namespace = :namespace and r.schedule_id = any (:template_ids::uuid[])
      and r.status in ('PENDING', 'RUNNING', 'SLEEPING')
), locked as materialized (
    select r.run_id
    from kagzi.workflow_runs r
    where r.namespace = :namespace and r.schedule_id = any (:template_ids::uuid[])
      and r.status in ('PENDING', 'RUNNING', 'SLEEPING')
    order by r.run_id
    for no key update skip locked
)
select live.run_id, live.schedule_id, live.waits,
       exists (select 1 from locked where locked.run_id = live.run_id) as locked
from live
order by live.run_id;

-- name: await_ends
-- The next run of their schedule waits for the end of these. The caller holds their locks.
update kagzi.workflow_runs r
set awaited = true
where r.namespace = :namespace and r.run_id = any (:run_ids::uuid[]) and not r.awaited
  and r.status in ('PENDING', 'RUNNING', 'SLEEPING');

-- name: lock_waiting
-- Runs of these templates that wait for the end of the one before, locked in key order: of two ends at once the second
-- waits here and then sees the first.
select r.run_id
from kagzi.workflow_runs r
where r.namespace = :namespace and r.schedule_id = any (:template_ids::uuid[])
  and r.status = 'PENDING' and r.available_at = 'infinity'
order by r.run_id
for no key update;

-- name: release
-- Of the waiting runs of each schedule, makes the first due when none lives that is awaited; those begun since are not
-- waited for. Its time limit counts from here. The caller holds the locks of all that wait.
update kagzi.workflow_runs r
set available_at = kagzi.now(), deadline_at = kagzi.now() + r.run_timeout
from (select distinct on (w.schedule_id) w.run_id
      from kagzi.workflow_runs w
      where w.namespace = :namespace and w.run_id = any (:run_ids::uuid[])
        and w.status = 'PENDING' and w.available_at = 'infinity'
      order by w.schedule_id, w.scheduled_for nulls last, w.created_at, w.run_id) as first
where r.namespace = :namespace and r.run_id = first.run_id
  and r.status = 'PENDING' and r.available_at = 'infinity'
  and not exists (select 1 from kagzi.workflow_runs o
                  where o.namespace = :namespace and o.schedule_id = r.schedule_id and o.awaited
                    and o.status in ('PENDING', 'RUNNING', 'SLEEPING')
                    and not (o.status = 'PENDING' and o.available_at = 'infinity'))
returning r.run_id, r.task_queue, r.deadline_at is not null as limited;

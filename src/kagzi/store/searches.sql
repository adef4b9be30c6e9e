-- name: newest
-- Runs from behind the given one, newest first, and whether each is wanted. Looks at :most rows. Locks nothing.
select r.run_id, r.created_at,
       (:statuses::text[] is null or r.status = any (:statuses::text[]))
       and (:workflow_type::text is null or r.workflow_type = :workflow_type)
       and (:task_queue::text is null or r.task_queue = :task_queue)
       and (:labels::jsonb is null or coalesce(r.labels @> :labels::jsonb, false)) as wanted
from kagzi.workflow_runs r
where r.namespace = :namespace and r.status not in ('SCHEDULED', 'PAUSED')
  and r.created_at >= :since::timestamptz
  and (r.created_at, r.run_id) < (:before_at::timestamptz, :before_id::uuid)
order by r.created_at desc, r.run_id desc
limit :most;

-- name: children
-- The same among the children of one run.
select r.run_id, r.created_at,
       (:statuses::text[] is null or r.status = any (:statuses::text[]))
       and (:workflow_type::text is null or r.workflow_type = :workflow_type)
       and (:task_queue::text is null or r.task_queue = :task_queue)
       and (:labels::jsonb is null or coalesce(r.labels @> :labels::jsonb, false)) as wanted
from kagzi.workflow_runs r
where r.namespace = :namespace and r.parent_run_id = :parent_run_id::uuid
  and r.created_at >= :since::timestamptz
  and (r.created_at, r.run_id) < (:before_at::timestamptz, :before_id::uuid)
order by r.created_at desc, r.run_id desc
limit :most;

-- name: instances
-- The same among the runs that one schedule started.
select r.run_id, r.created_at,
       (:statuses::text[] is null or r.status = any (:statuses::text[]))
       and (:workflow_type::text is null or r.workflow_type = :workflow_type)
       and (:task_queue::text is null or r.task_queue = :task_queue)
       and (:labels::jsonb is null or coalesce(r.labels @> :labels::jsonb, false)) as wanted
from kagzi.workflow_runs r
where r.namespace = :namespace and r.schedule_id = :schedule_id::uuid
  and r.created_at >= :since::timestamptz
  and (r.created_at, r.run_id) < (:before_at::timestamptz, :before_id::uuid)
order by r.created_at desc, r.run_id desc
limit :most;

-- name: unlucky
-- The same among those that failed, or among those that were cancelled.
select r.run_id, r.created_at,
       (:workflow_type::text is null or r.workflow_type = :workflow_type)
       and (:task_queue::text is null or r.task_queue = :task_queue)
       and (:labels::jsonb is null or coalesce(r.labels @> :labels::jsonb, false)) as wanted
from kagzi.workflow_runs r
where r.namespace = :namespace and r.status in ('FAILED', 'CANCELLED') and r.status = :status
  and r.created_at >= :since::timestamptz
  and (r.created_at, r.run_id) < (:before_at::timestamptz, :before_id::uuid)
order by r.created_at desc, r.run_id desc
limit :most;

-- name: labelled
-- Runs with these labels, in no order: all of them when they are fewer than :most. Locks nothing.
select r.run_id, r.created_at,
       (:statuses::text[] is null or r.status = any (:statuses::text[]))
       and (:workflow_type::text is null or r.workflow_type = :workflow_type)
       and (:task_queue::text is null or r.task_queue = :task_queue) as wanted
from kagzi.workflow_runs r
where r.labels @> :labels::jsonb and r.labels is not null and r.namespace = :namespace
  and r.status not in ('SCHEDULED', 'PAUSED')
limit :most;

-- name: active
-- Runs that have not ended, in the order of their queues: all of them when they are fewer than :most. Locks nothing.
select r.run_id, r.created_at,
       (:statuses::text[] is null or r.status = any (:statuses::text[]))
       and (:workflow_type::text is null or r.workflow_type = :workflow_type)
       and (:task_queue::text is null or r.task_queue = :task_queue) as wanted
from kagzi.workflow_runs r
where r.namespace = :namespace and r.status in ('PENDING', 'RUNNING', 'SLEEPING')
order by r.task_queue, r.workflow_type, r.version, r.suspect, r.priority, r.available_at
limit :most;

-- name: runs
-- Runs by id, without payloads. Locks nothing.
select r.namespace, r.run_id, r.external_id, r.task_queue, r.workflow_type, r.version, r.status, r.priority,
       nullif(r.available_at, 'infinity') as available_at, r.attempts, r.crashes, r.locked_by,
       r.cancel_requested_at, r.deadline_at, r.labels::text as labels, r.state::text as state,
       r.error::text as error, r.parent_run_id, r.root_run_id, r.parent_step_attempt_id, r.continued_as,
       r.retried_from, r.waiting::text as waiting, r.schedule_id, r.scheduled_for,
       r.retry_policy::text as retry_policy, r.created_at, r.started_at, r.finished_at, r.seed,
       (select t.external_id from kagzi.workflow_runs t
        where t.namespace = r.namespace and t.run_id = r.schedule_id) as schedule,
       r.warnings::text as warnings
from kagzi.workflow_runs r
where r.namespace = :namespace and r.run_id = any (:run_ids::uuid[]);

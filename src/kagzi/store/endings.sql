-- name: complete
-- Ends runs well, output and status together. The caller holds the fence; a token that is not the current one changes
-- nothing and is not answered.
with ended as (
    update kagzi.workflow_runs r
    set status = 'COMPLETED', available_at = null, claim_token = null, last_token = r.claim_token,
        last_operation = u.operation_id, last_worker = r.locked_by, locked_by = null, crashes = 0, waiting = null,
        finished_at = kagzi.now()
    from unnest(:run_ids::uuid[], :tokens::uuid[], :operation_ids::uuid[]) as u(run_id, token, operation_id)
    where r.namespace = :namespace and r.run_id = u.run_id and r.run_id = any (:run_ids::uuid[])
      and r.claim_token = u.token
    returning r.run_id, r.parent_run_id, r.workflow_type,
              (extract(epoch from kagzi.now() - r.created_at) * 1000)::float8 as took_ms,
              case when r.awaited then r.schedule_id end as frees
), paid as (
    update kagzi.workflow_payloads p
    set output = u.output, output_encoding = u.output_encoding
    from unnest(:run_ids::uuid[], :outputs::bytea[], :output_encodings::text[]) as u(run_id, output, output_encoding)
    join ended on ended.run_id = u.run_id
    where p.namespace = :namespace and p.run_id = u.run_id and u.output is not null
)
select run_id, parent_run_id, workflow_type, took_ms, frees from ended;

-- name: failing
-- What decides whether a failed run is tried again. The caller holds the fence.
select r.run_id, r.attempts, r.retry_policy::text as retry_policy, r.cancel_requested_at is not null as cancelled,
       coalesce(r.deadline_at <= kagzi.now(), false) as late
from kagzi.workflow_runs r
where r.namespace = :namespace and r.run_id = any (:run_ids::uuid[]);

-- name: fail
-- Ends runs badly, or sets them back for another try of the whole after `retry_ms`. The caller holds the fence; a token
-- that is not the current one changes nothing and is not answered.
update kagzi.workflow_runs r
set status = u.status, claim_token = null, last_token = r.claim_token, last_operation = u.operation_id,
    last_worker = r.locked_by, locked_by = null, crashes = 0, waiting = null, error = u.error::jsonb,
    attempts = r.attempts + 1,
    available_at = case when u.status = 'PENDING' then kagzi.now() + u.retry_ms * interval '1 millisecond' end,
    finished_at = case when u.status <> 'PENDING' then kagzi.now() end
from unnest(:run_ids::uuid[], :tokens::uuid[], :operation_ids::uuid[], :statuses::text[], :errors::text[],
            :retry_ms::bigint[]) as u(run_id, token, operation_id, status, error, retry_ms)
where r.namespace = :namespace and r.run_id = u.run_id and r.run_id = any (:run_ids::uuid[])
  and r.claim_token = u.token
returning r.run_id, r.status, r.parent_run_id, r.task_queue, r.workflow_type,
          (extract(epoch from kagzi.now() - r.created_at) * 1000)::float8 as took_ms, r.automation,
          case when r.awaited then r.schedule_id end as frees, r.available_at;

-- name: cancel
-- Asks runs to end. One that never started ends at once; a suspended one is made due, to hear of it; what has ended is
-- left and not answered. The caller holds the locks.
update kagzi.workflow_runs r
set status = case when r.started_at is null then 'CANCELLED' else r.status end,
    available_at = case when r.started_at is null then null
                        when r.status = 'RUNNING' then r.available_at
                        else least(r.available_at, kagzi.now()) end,
    finished_at = case when r.started_at is null then kagzi.now() end,
    error = case when r.started_at is null then u.error::jsonb else r.error end,
    cancel_requested_at = coalesce(r.cancel_requested_at, kagzi.now()),
    cancel_reason = coalesce(r.cancel_reason, u.reason)
from unnest(:run_ids::uuid[], :reasons::text[], :errors::text[]) as u(run_id, reason, error)
where r.namespace = :namespace and r.run_id = u.run_id and r.run_id = any (:run_ids::uuid[])
  and r.status in ('PENDING', 'RUNNING', 'SLEEPING')
returning r.run_id, r.status, r.parent_run_id, r.task_queue, r.workflow_type,
          (extract(epoch from kagzi.now() - r.created_at) * 1000)::float8 as took_ms, r.automation,
          case when r.awaited then r.schedule_id end as frees;

-- name: terminate
-- Ends runs now, whoever holds them: their tokens are void with this. What has ended is left and not answered.
-- The caller holds the locks.
update kagzi.workflow_runs r
set status = u.status, available_at = null, claim_token = null, last_worker = coalesce(r.locked_by, r.last_worker),
    locked_by = null, waiting = null, parked_hash = null, error = u.error::jsonb, finished_at = kagzi.now()
from unnest(:run_ids::uuid[], :statuses::text[], :errors::text[]) as u(run_id, status, error)
where r.namespace = :namespace and r.run_id = u.run_id and r.run_id = any (:run_ids::uuid[])
  and r.status in ('PENDING', 'RUNNING', 'SLEEPING')
returning r.run_id, r.status, r.parent_run_id, r.task_queue, r.workflow_type,
          (extract(epoch from kagzi.now() - r.created_at) * 1000)::float8 as took_ms, r.automation,
          case when r.awaited then r.schedule_id end as frees;

-- name: wake_parents
-- The end of a child makes a parent due that is suspended over a child. The caller holds the parents' locks; one that is
-- RUNNING is answered too, to be told.
update kagzi.workflow_runs p
set available_at = case when p.status = 'SLEEPING' then least(p.available_at, kagzi.now()) else p.available_at end
where p.namespace = :namespace and p.run_id = any (:run_ids::uuid[])
  and p.status in ('SLEEPING', 'RUNNING') and p.parked_hash is null
  and exists (select 1 from kagzi.step_runs s
              where s.namespace = :namespace and s.run_id = p.run_id and s.kind = 'CHILD_WORKFLOW'
                and s.status = 'RUNNING' and s.is_latest)
returning p.run_id, p.status, p.task_queue;

-- name: children
-- Live children that fall with these parents. Locks them in key order.
select c.run_id
from kagzi.workflow_runs c
where c.namespace = :namespace and c.parent_run_id = any (:run_ids::uuid[]) and not c.detached
  and c.status in ('PENDING', 'RUNNING', 'SLEEPING')
order by c.run_id
for no key update;

-- name: lock
-- Locks runs by key, waiting for whoever holds them.
select r.run_id, r.status, r.detached
from kagzi.workflow_runs r
where r.namespace = :namespace and r.run_id = any (:run_ids::uuid[])
order by r.run_id
for no key update;

-- name: concerned
-- Whom the end of these runs concerns: their parents, and the templates whose next run waits for it. To be locked before.
select unnest(array[r.parent_run_id, case when r.awaited then r.schedule_id end]) as run_id
from kagzi.workflow_runs r
where r.namespace = :namespace and r.run_id = any (:run_ids::uuid[]) and (r.parent_run_id is not null or r.awaited);

-- name: release_external_id
-- A run that is continued passes its external id on, also one it has for ever, and its slot. The caller holds the fence.
update kagzi.workflow_runs r
set dedupe_forever = false, continued_as = :new_run_id::uuid
where r.namespace = :namespace and r.run_id = :run_id::uuid;

-- name: continue_as_new
-- Stores the successor of a run that has just ended: everything but its input and history moves on, the remaining time
-- included. The caller holds the fence of the run.
with stored as (
    insert into kagzi.workflow_runs
        (namespace, run_id, external_id, task_queue, workflow_type, version, status, priority, available_at,
         retry_policy, deadline_at, labels, seed, parent_run_id, root_run_id, parent_step_attempt_id, detached,
         dedupe_forever, cancel_requested_at, cancel_reason, schedule_id, scheduled_for, awaited)
    select :namespace, :new_run_id::uuid, r.external_id, r.task_queue, r.workflow_type, r.version, 'PENDING', r.priority,
           kagzi.now(), r.retry_policy, r.deadline_at, r.labels, :seed::bigint, r.parent_run_id, r.root_run_id,
           r.parent_step_attempt_id, r.detached, :dedupe_forever::boolean, r.cancel_requested_at, r.cancel_reason,
           r.schedule_id, r.scheduled_for, r.awaited
    from kagzi.workflow_runs r
    where r.namespace = :namespace and r.run_id = :run_id::uuid
    returning run_id, task_queue, workflow_type
), paid as (
    insert into kagzi.workflow_payloads (namespace, run_id, input, input_encoding)
    select :namespace, stored.run_id, :input::bytea, :input_encoding::text from stored
), moved as (
    update kagzi.signals s
    set run_id = :new_run_id::uuid
    where s.namespace = :namespace and s.run_id = :run_id::uuid and s.received_by is null
)
select run_id, task_queue, workflow_type from stored;

-- name: dedupe
-- Whether the run has its external id for ever.
select r.dedupe_forever
from kagzi.workflow_runs r
where r.namespace = :namespace and r.run_id = :run_id::uuid;

-- name: status
-- The status of runs and when they are due; for answers to repeated operations.
select r.run_id, r.status, nullif(r.available_at, 'infinity') as available_at
from kagzi.workflow_runs r
where r.namespace = :namespace and r.run_id = any (:run_ids::uuid[]);

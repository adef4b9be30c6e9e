-- name: start
-- Stores runs with their inputs; those with a token are stored as already claimed by the worker beside it. A run whose
-- id or active external id is taken, or whose external id is taken for ever, is left out, waiting for whoever inserts
-- the same at this moment. Nothing is stored in a namespace that is unknown or disabled, nor under a parent that does
-- not exist.
with stored as (
    insert into kagzi.workflow_runs
        (namespace, run_id, external_id, task_queue, workflow_type, version, status, priority, available_at,
         claim_token, locked_by, retry_policy, deadline_at, labels, seed, parent_run_id, root_run_id,
         parent_step_attempt_id, detached, dedupe_forever, started_at)
    select :namespace, u.run_id, u.external_id, u.task_queue, u.workflow_type, u.version,
           case when u.token is null then 'PENDING' else 'RUNNING' end, u.priority,
           case when u.token is not null then kagzi.now() + :lease::interval
                else greatest(u.start_at, kagzi.now() + u.delay_ms * interval '1 millisecond', kagzi.now()) end,
           u.token, u.worker_id, u.retry_policy::jsonb, kagzi.now() + u.timeout_ms * interval '1 millisecond',
           u.labels::jsonb, u.seed, u.parent_run_id,
           case when u.parent_run_id is not null then coalesce(
               (select coalesce(p.root_run_id, p.run_id) from kagzi.workflow_runs p
                where p.namespace = :namespace and p.run_id = u.parent_run_id), u.parent_run_id) end,
           u.parent_step_attempt_id, u.detached, u.dedupe_forever,
           case when u.token is not null then kagzi.now() end
    from unnest(:run_ids::uuid[], :external_ids::text[], :task_queues::text[], :workflow_types::text[],
                :versions::text[], :priorities::smallint[], :delays_ms::bigint[], :start_ats::timestamptz[],
                :timeouts_ms::bigint[], :retry_policies::text[], :labels::text[], :seeds::bigint[],
                :parent_run_ids::uuid[], :parent_step_attempt_ids::uuid[], :detached::boolean[],
                :dedupe_forever::boolean[], :tokens::uuid[], :worker_ids::uuid[])
        as u(run_id, external_id, task_queue, workflow_type, version, priority, delay_ms, start_at, timeout_ms,
             retry_policy, labels, seed, parent_run_id, parent_step_attempt_id, detached, dedupe_forever, token,
             worker_id)
    where exists (select 1 from kagzi.namespaces n where n.namespace = :namespace and n.enabled)
      and (u.parent_run_id is null or exists (
          select 1 from kagzi.workflow_runs p
          where p.namespace = :namespace and p.run_id = u.parent_run_id and p.status not in ('SCHEDULED', 'PAUSED')))
      and (u.external_id is null or not exists (
          select 1 from kagzi.workflow_runs f
          where f.namespace = :namespace and f.external_id = u.external_id and f.dedupe_forever))
    on conflict do nothing
    returning run_id
), paid as (
    insert into kagzi.workflow_payloads (namespace, run_id, input, input_encoding)
    select :namespace, u.run_id, u.input, u.input_encoding
    from unnest(:run_ids::uuid[], :inputs::bytea[], :input_encodings::text[]) as u(run_id, input, input_encoding)
    join stored on stored.run_id = u.run_id
    on conflict do nothing
)
select count(*) as started, kagzi.now() as now from stored;

-- name: known
-- The runs with these ids, to answer a repeated start as the first time. Templates are no runs but take ids.
select r.run_id, r.status, r.claim_token, r.started_at, r.seed
from kagzi.workflow_runs r
where r.namespace = :namespace and r.run_id = any (:run_ids::uuid[]);

-- name: holders
-- Who has these external ids now: the active run, or the one that has the id for ever and cannot be replaced.
select r.run_id, r.status, r.external_id, r.dedupe_forever
from kagzi.workflow_runs r
where r.namespace = :namespace and r.external_id = any (:external_ids::text[])
  and (r.status in ('PENDING', 'RUNNING', 'SLEEPING') or r.dedupe_forever);

-- name: forever_missed
-- External ids among these runs that another run has for ever: it was stored and ended while the start looked. The
-- caller rolls back and starts again.
select mine.run_id
from kagzi.workflow_runs mine
where mine.namespace = :namespace and mine.run_id = any (:run_ids::uuid[]) and mine.external_id is not null
  and exists (select 1 from kagzi.workflow_runs f
              where f.namespace = :namespace and f.external_id = mine.external_id and f.dedupe_forever
                and f.run_id <> mine.run_id);

-- name: get
-- One run with its payloads.
select r.namespace, r.run_id, r.external_id, r.task_queue, r.workflow_type, r.version, r.status, r.priority,
       nullif(r.available_at, 'infinity') as available_at, r.attempts, r.crashes, r.locked_by,
       r.cancel_requested_at, r.deadline_at, r.labels::text as labels, r.state::text as state,
       r.error::text as error, r.parent_run_id, r.root_run_id, r.parent_step_attempt_id, r.continued_as,
       r.retried_from, r.waiting::text as waiting, r.schedule_id, r.scheduled_for,
       r.retry_policy::text as retry_policy, r.created_at, r.started_at, r.finished_at, r.seed,
       (select t.external_id from kagzi.workflow_runs t
        where t.namespace = r.namespace and t.run_id = r.schedule_id) as schedule,
       r.warnings::text as warnings, p.input, p.input_encoding, p.output, p.output_encoding
from kagzi.workflow_runs r
left join kagzi.workflow_payloads p on p.namespace = r.namespace and p.run_id = r.run_id
where r.namespace = :namespace and r.run_id = :run_id::uuid and r.status not in ('SCHEDULED', 'PAUSED');

-- name: find_external
-- The active run with this external id, else the newest that had it.
select r.run_id
from kagzi.workflow_runs r
where r.namespace = :namespace and r.external_id = :external_id and r.status not in ('SCHEDULED', 'PAUSED')
order by r.status in ('PENDING', 'RUNNING', 'SLEEPING') desc, r.created_at desc, r.run_id desc
limit 1;

-- name: list
-- Runs, newest first, from behind the given one. Looks at one page of the index unless a filter is rare.
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
where r.namespace = :namespace and r.status not in ('SCHEDULED', 'PAUSED')
  and (:statuses::text[] is null or r.status = any (:statuses::text[]))
  and (:workflow_type::text is null or r.workflow_type = :workflow_type)
  and (:task_queue::text is null or r.task_queue = :task_queue)
  and (:labels::jsonb is null or r.labels @> :labels::jsonb)
  and (:since::timestamptz is null or r.created_at >= :since)
  and (:until::timestamptz is null or r.created_at < :until)
  and (:parent_run_id::uuid is null or r.parent_run_id = :parent_run_id)
  and (:schedule_id::uuid is null or r.schedule_id = :schedule_id)
  and (:after_created_at::timestamptz is null
       or (r.created_at, r.run_id) < (:after_created_at::timestamptz, :after_run_id::uuid))
order by r.created_at desc, r.run_id desc
limit :count;

-- name: resume
-- Makes a parked run due. Locks it; one that is not parked is left and not answered.
update kagzi.workflow_runs r
set available_at = kagzi.now(), parked_hash = null, resumed_by = :resume_id::uuid
where r.namespace = :namespace and r.run_id = :run_id::uuid and r.status = 'SLEEPING' and r.parked_hash is not null
returning r.status, r.task_queue;

-- name: resumed
-- The run that this very request resumed before.
select r.status, r.task_queue
from kagzi.workflow_runs r
where r.namespace = :namespace and r.run_id = :run_id::uuid and r.resumed_by = :resume_id::uuid;

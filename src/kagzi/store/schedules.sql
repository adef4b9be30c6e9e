-- name: clock
-- The time, for whoever computes slots before there is a row to read it with.
select kagzi.now() as now;

-- name: create
-- Stores a template with the input of its runs. One whose run id or schedule id is taken is left out, waiting for whoever
-- stores the same at this moment; nothing is stored in a namespace that is unknown or disabled.
with stored as (
    insert into kagzi.workflow_runs
        (namespace, run_id, external_id, status, task_queue, workflow_type, version, priority, retry_policy, labels,
         run_timeout, cron_expr, interval, anchor_at, timezone, starts_at, ends_at, jitter, run_limit, fired, overlap,
         max_catchup, schedule_text, scheduled_for, available_at, pause, paused_reason, updated_at)
    select :namespace, :run_id::uuid, :schedule_id, :status, :task_queue, :workflow_type, :version, :priority,
           :retry_policy::jsonb, :labels::jsonb, :timeout::interval, :cron::text, :every::interval,
           :anchor::timestamptz, :timezone, :starts_at::timestamptz, :ends_at::timestamptz, :jitter::interval,
           :run_limit::integer, 0, :overlap, :max_catchup::integer, :words, :slot::timestamptz,
           :available_at::timestamptz, :pause::text, :pause_reason::text, kagzi.now()
    where exists (select 1 from kagzi.namespaces n where n.namespace = :namespace and n.enabled)
    on conflict do nothing
    returning run_id
), paid as (
    insert into kagzi.workflow_payloads (namespace, run_id, input, input_encoding)
    select :namespace, stored.run_id, :input::bytea, :input_encoding::text from stored
)
select run_id from stored;

-- name: known
-- The row with this run id, template or run: to answer a repeated creation as the first time. Locks nothing.
select r.status, r.external_id
from kagzi.workflow_runs r
where r.namespace = :namespace and r.run_id = :run_id::uuid;

-- name: get
-- One schedule with its input. Locks nothing.
select t.namespace, t.run_id, t.external_id, t.status, t.task_queue, t.workflow_type, t.version, t.priority,
       t.retry_policy::text as retry_policy, t.labels::text as labels, t.run_timeout, t.cron_expr, t.interval,
       t.anchor_at, t.timezone, t.starts_at, t.ends_at, t.jitter, t.run_limit, t.fired, t.overlap, t.max_catchup,
       t.schedule_text, t.scheduled_for, nullif(t.available_at, 'infinity') as available_at, t.last_slot, t.pause,
       t.paused_reason, t.schedule_error, t.schedule_notice, t.created_at, t.updated_at, p.input, p.input_encoding,
       kagzi.now() as now
from kagzi.workflow_runs t
left join kagzi.workflow_payloads p on p.namespace = t.namespace and p.run_id = t.run_id
where t.namespace = :namespace and t.external_id = :schedule_id and t.status in ('SCHEDULED', 'PAUSED');

-- name: lock
-- One schedule, locked: whoever fires it skips it meanwhile, whoever changes it waits.
select t.namespace, t.run_id, t.external_id, t.status, t.task_queue, t.workflow_type, t.version, t.priority,
       t.retry_policy::text as retry_policy, t.labels::text as labels, t.run_timeout, t.cron_expr, t.interval,
       t.anchor_at, t.timezone, t.starts_at, t.ends_at, t.jitter, t.run_limit, t.fired, t.overlap, t.max_catchup,
       t.schedule_text, t.scheduled_for, nullif(t.available_at, 'infinity') as available_at, t.last_slot, t.pause,
       t.paused_reason, t.schedule_error, t.schedule_notice, t.created_at, t.updated_at, kagzi.now() as now
from kagzi.workflow_runs t
where t.namespace = :namespace and t.external_id = :schedule_id and t.status in ('SCHEDULED', 'PAUSED')
for no key update;

-- name: taken
-- A run that has what was taken for a schedule's id, as its own id or as the id its caller chose. Locks nothing.
select r.run_id
from kagzi.workflow_runs r
where r.namespace = :namespace and (r.external_id = :schedule_id or r.run_id = :run_id::uuid)
  and r.status not in ('SCHEDULED', 'PAUSED')
limit 1;

-- name: save
-- Writes a schedule that somebody changed. The caller holds its lock. A new input replaces the old one.
with saved as (
    update kagzi.workflow_runs t
    set status = :status, task_queue = :task_queue, workflow_type = :workflow_type, version = :version,
        priority = :priority, retry_policy = :retry_policy::jsonb, labels = :labels::jsonb,
        run_timeout = :timeout::interval, cron_expr = :cron::text, interval = :every::interval,
        anchor_at = :anchor::timestamptz, timezone = :timezone, starts_at = :starts_at::timestamptz,
        ends_at = :ends_at::timestamptz, jitter = :jitter::interval, run_limit = :run_limit::integer,
        overlap = :overlap, max_catchup = :max_catchup::integer, schedule_text = :words,
        scheduled_for = :slot::timestamptz, available_at = :available_at::timestamptz, pause = :pause::text,
        paused_reason = :pause_reason::text, schedule_error = :error::text, schedule_notice = :notice::text,
        updated_at = kagzi.now()
    where t.namespace = :namespace and t.run_id = :run_id::uuid and t.status in ('SCHEDULED', 'PAUSED')
    returning t.run_id, t.updated_at
), paid as (
    update kagzi.workflow_payloads p
    set input = :input::bytea, input_encoding = :input_encoding::text
    from saved
    where p.namespace = :namespace and p.run_id = saved.run_id and :new_input::boolean
)
select updated_at from saved;

-- name: delete
-- Removes a template and its input, and nothing of its runs. The caller holds its lock.
with removed as (
    delete from kagzi.workflow_runs t
    where t.namespace = :namespace and t.run_id = :run_id::uuid and t.status in ('SCHEDULED', 'PAUSED')
    returning t.run_id
), paid as (
    delete from kagzi.workflow_payloads p using removed where p.namespace = :namespace and p.run_id = removed.run_id
)
select run_id from removed;

-- name: list
-- Schedules by id, from behind the given one. Reads one index in its order. Locks nothing.
select t.namespace, t.run_id, t.external_id, t.status, t.task_queue, t.workflow_type, t.version, t.priority,
       t.retry_policy::text as retry_policy, t.labels::text as labels, t.run_timeout, t.cron_expr, t.interval,
       t.anchor_at, t.timezone, t.starts_at, t.ends_at, t.jitter, t.run_limit, t.fired, t.overlap, t.max_catchup,
       t.schedule_text, t.scheduled_for, nullif(t.available_at, 'infinity') as available_at, t.last_slot, t.pause,
       t.paused_reason, t.schedule_error, t.schedule_notice, t.created_at, t.updated_at
from kagzi.workflow_runs t
where t.namespace = :namespace and t.status in ('SCHEDULED', 'PAUSED') and t.external_id is not null
  and (:status::text is null or t.status = :status)
  and (:workflow_type::text is null or t.workflow_type = :workflow_type)
  and (:task_queue::text is null or t.task_queue = :task_queue)
  and (:labels::jsonb is null or t.labels @> :labels::jsonb)
  and (not :broken::boolean or (t.status = 'SCHEDULED' and t.schedule_error is not null))
  and (:after::text is null or t.external_id > :after)
order by t.external_id
limit :count;

-- name: history
-- Runs that a template has started, newest first, from behind the given one. Locks nothing.
select r.namespace, r.run_id, r.external_id, r.task_queue, r.workflow_type, r.version, r.status, r.priority,
       nullif(r.available_at, 'infinity') as available_at, r.attempts, r.crashes, r.locked_by,
       r.cancel_requested_at, r.deadline_at, r.labels::text as labels, r.state::text as state,
       r.error::text as error, r.parent_run_id, r.root_run_id, r.parent_step_attempt_id, r.continued_as,
       r.retried_from, r.waiting::text as waiting, r.schedule_id, r.scheduled_for,
       r.retry_policy::text as retry_policy, r.created_at, r.started_at, r.finished_at, r.seed,
       (select t.external_id from kagzi.workflow_runs t
        where t.namespace = :namespace and t.run_id = :template_id::uuid) as schedule,
       r.warnings::text as warnings
from kagzi.workflow_runs r
where r.namespace = :namespace and r.schedule_id = :template_id::uuid
  and (:statuses::text[] is null or r.status = any (:statuses::text[]))
  and (:after_created_at::timestamptz is null
       or (r.created_at, r.run_id) < (:after_created_at::timestamptz, :after_run_id::uuid))
order by r.created_at desc, r.run_id desc
limit :count;

-- name: source
-- Locks the run whose history is taken, so that it does not change meanwhile.
select r.status, r.automation, r.error ->> 'step' as failed_step
from kagzi.workflow_runs r
where r.namespace = :namespace and r.run_id = :run_id::uuid and r.status not in ('SCHEDULED', 'PAUSED')
for no key update;

-- name: made
-- The run with the new id, if there is one: a repeated request is answered as the first time.
select r.status, r.retried_from, r.external_id
from kagzi.workflow_runs r
where r.namespace = :namespace and r.run_id = :run_id::uuid;

-- name: records
-- What the run has on record, in the order its code asked for it, without results.
select s.step_id, s.attempt_id, s.kind, s.status, s.position, s.completed_seq, s.effect, s.resolution,
       s.resolution_output, s.resolution_encoding, s.resolution_reason
from kagzi.step_runs s
where s.namespace = :namespace and s.run_id = :run_id::uuid and s.is_latest
order by s.position;

-- name: store
-- Stores the new run with the input of the old one, or another. With :take it gets the external id, unless an active run
-- has that, or one has it for ever. A new id that exists, or an external id that is taken at this moment, stores nothing.
with stored as (
    insert into kagzi.workflow_runs
        (namespace, run_id, external_id, task_queue, workflow_type, version, status, priority, available_at,
         retry_policy, deadline_at, labels, state, seed, retried_from, scheduled_for, cancel_requested_at, cancel_reason,
         history_excess)
    select :namespace, :new_run_id::uuid,
           case when :take::boolean and not exists (
               select 1 from kagzi.workflow_runs h
               where h.namespace = :namespace and h.external_id = r.external_id
                 and (h.dedupe_forever or h.status in ('PENDING', 'RUNNING', 'SLEEPING'))) then r.external_id end,
           r.task_queue, r.workflow_type, r.version, 'PENDING', r.priority, kagzi.now(), r.retry_policy,
           kagzi.now() + coalesce(r.run_timeout, r.deadline_at - r.created_at), r.labels, r.state, r.seed, r.run_id,
           r.scheduled_for, case when :cancelled::boolean then r.cancel_requested_at end,
           case when :cancelled then r.cancel_reason end, r.history_excess + :changed_bytes::bigint
    from kagzi.workflow_runs r
    where r.namespace = :namespace and r.run_id = :run_id::uuid
    on conflict do nothing
    returning run_id, task_queue, workflow_type, external_id
), paid as (
    insert into kagzi.workflow_payloads (namespace, run_id, input, input_encoding)
    select :namespace, stored.run_id, case when :changed::boolean then :input::bytea else p.input end,
           case when :changed then :input_encoding::text else p.input_encoding end
    from stored
    left join kagzi.workflow_payloads p on p.namespace = :namespace and p.run_id = :run_id::uuid
)
select task_queue, workflow_type, external_id from stored;

-- name: keep_steps
-- Copies the kept part of a history into the new run. The caller has just stored that run.
insert into kagzi.step_runs
    (namespace, run_id, step_id, attempt_number, attempt_id, position, completed_seq, status, kind, effect, input_hash,
     output, output_encoding, error, wake_at, target, child_run_id, signal_id, created_at, started_at, finished_at)
select :namespace, :new_run_id::uuid, s.step_id, s.attempt_number, s.attempt_id, s.position, k.completed_seq, k.status,
       s.kind, s.effect, s.input_hash, case when k.changed then k.output else s.output end,
       case when k.changed then k.output_encoding else s.output_encoding end,
       case when k.changed then k.error::jsonb else s.error end, s.wake_at, s.target, s.child_run_id,
       coalesce(g.new_id, s.signal_id), s.created_at, s.started_at, s.finished_at
from unnest(:step_ids::text[], :statuses::text[], :completed_seqs::integer[], :changed::boolean[], :outputs::bytea[],
            :output_encodings::text[], :errors::text[])
    as k(step_id, status, completed_seq, changed, output, output_encoding, error)
join kagzi.step_runs s
    on s.namespace = :namespace and s.run_id = :run_id::uuid and s.step_id = k.step_id and s.is_latest
left join unnest(:signal_ids::uuid[], :new_signal_ids::uuid[]) as g(old_id, new_id) on g.old_id = s.signal_id;

-- name: signals
-- The messages of the run, in the order of their arrival.
select g.signal_id, g.received_by
from kagzi.signals g
where g.namespace = :namespace and g.run_id = :run_id::uuid
order by g.arrival;

-- name: keep_signals
-- Copies the messages of the old run to the new one; those that no kept step received can be received again.
insert into kagzi.signals
    (namespace, signal_id, run_id, name, payload, payload_encoding, received_by, received_at, created_at)
select :namespace, u.new_id, :new_run_id::uuid, g.name, g.payload, g.payload_encoding,
       case when u.received then g.received_by end, case when u.received then g.received_at end, g.created_at
from unnest(:signal_ids::uuid[], :new_signal_ids::uuid[], :received::boolean[])
         with ordinality as u(old_id, new_id, received, number)
join kagzi.signals g on g.namespace = :namespace and g.signal_id = u.old_id
order by u.number;

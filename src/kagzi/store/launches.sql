-- name: store
-- Stores runs of templates, whose locks the caller holds, each with what its template says and the template's input or
-- another. One that waits is due when somebody releases it, and its time limit counts from then. A run whose id, slot or
-- external id is taken is left out, waiting for whoever stores the same at this moment.
with stored as (
    insert into kagzi.workflow_runs
        (namespace, run_id, external_id, task_queue, workflow_type, version, status, priority, available_at,
         retry_policy, deadline_at, run_timeout, labels, seed, schedule_id, scheduled_for, awaited)
    select :namespace, u.run_id, u.external_id, t.task_queue, t.workflow_type, t.version, 'PENDING', t.priority,
           case when u.waits then 'infinity' else kagzi.now() end, t.retry_policy,
           case when not u.waits then kagzi.now() + t.run_timeout end, case when u.waits then t.run_timeout end,
           t.labels, u.seed, t.run_id, u.slot, u.awaited
    from unnest(:template_ids::uuid[], :run_ids::uuid[], :external_ids::text[], :slots::timestamptz[],
                :seeds::bigint[], :waits::boolean[], :awaited::boolean[])
        as u(template_id, run_id, external_id, slot, seed, waits, awaited)
    join kagzi.workflow_runs t on t.namespace = :namespace and t.run_id = u.template_id
    where u.external_id is null or not exists (
        select 1 from kagzi.workflow_runs f
        where f.namespace = :namespace and f.external_id = u.external_id and f.dedupe_forever)
    on conflict do nothing
    returning run_id, schedule_id
), paid as (
    insert into kagzi.workflow_payloads (namespace, run_id, input, input_encoding)
    select :namespace, stored.run_id, case when :new_input::boolean then :input::bytea else p.input end,
           case when :new_input then :input_encoding::text else p.input_encoding end
    from stored
    left join kagzi.workflow_payloads p on p.namespace = :namespace and p.run_id = stored.schedule_id
)
select run_id from stored;

-- name: slots
-- Which of these slots have a run, and which: the last of it where it continued as new. Locks nothing.
select r.schedule_id, r.scheduled_for, r.run_id
from unnest(:template_ids::uuid[], :slots::timestamptz[]) as u(template_id, slot)
join kagzi.workflow_runs r
    on r.namespace = :namespace and r.schedule_id = u.template_id and r.scheduled_for = u.slot and r.continued_as is null
   and r.schedule_id is not null;

-- name: triggered
-- The run with this id, if there is one: to answer a repeated request as the first time. Locks nothing.
select r.status, r.schedule_id
from kagzi.workflow_runs r
where r.namespace = :namespace and r.run_id = :run_id::uuid;

-- name: note
-- Leaves a notice on a template. The caller holds its lock.
update kagzi.workflow_runs t
set schedule_notice = :notice
where t.namespace = :namespace and t.run_id = :run_id::uuid and t.status in ('SCHEDULED', 'PAUSED');

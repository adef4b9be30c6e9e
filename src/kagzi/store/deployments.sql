-- name: introduce
-- Makes an automation known, paused for nobody and without handlers; one that exists is left. Nothing is stored in a
-- namespace that is unknown or disabled.
insert into kagzi.automations (namespace, name, definition_hash, task_queue, deployments)
select :namespace, :name, '', :task_queue, array[]::uuid[]
where exists (select 1 from kagzi.namespaces n where n.namespace = :namespace and n.enabled)
on conflict do nothing;

-- name: live
-- The live run of an automation, to be locked before the automation is. Locks nothing.
select r.run_id
from kagzi.workflow_runs r
where r.namespace = :namespace and r.automation = :name and r.status in ('PENDING', 'RUNNING', 'SLEEPING');

-- name: hold
-- Locks a run by key, waiting for whoever holds it.
select r.run_id, r.handler, r.status
from kagzi.workflow_runs r
where r.namespace = :namespace and r.run_id = :run_id::uuid
for no key update;

-- name: current
-- The definition in force. The caller holds the automation.
select a.definition_hash, a.deployments, a.blocked_code, a.blocked_mutation_id, a.continues_run_id, kagzi.now() as now
from kagzi.automations a
where a.namespace = :namespace and a.name = :name;

-- name: remember
-- Remembers a deployment of the definition in force, and forgets the oldest beyond a hundred.
update kagzi.automations a
set deployments = (a.deployments || :deployment_id::uuid)[greatest(1, cardinality(a.deployments) - 98):]
where a.namespace = :namespace and a.name = :name and not (:deployment_id::uuid = any (a.deployments));

-- name: deploy
-- Puts a definition in force. The caller holds the automation.
update kagzi.automations a
set definition_hash = :definition_hash, task_queue = :task_queue, deployed_at = kagzi.now()
where a.namespace = :namespace and a.name = :name;

-- name: remove
-- Handlers that are no longer declared, or have become another kind, are gone: nothing starts them, and their state and
-- times are forgotten. The caller holds the automation.
update kagzi.handlers h
set removed_at = kagzi.now(), next_run_at = null, wake_at = null, queued = false, dirty = false, cause = null,
    state = null, state_encoding = null, failures = 0, not_before = null
where h.namespace = :namespace and h.automation = :name and h.removed_at is null
  and not exists (select 1 from unnest(:handlers::text[], :kinds::text[]) as u(handler, kind)
                  where u.handler = h.name and u.kind = h.kind)
returning h.name;

-- name: declare
-- Handlers as they are declared now. A new or changed schedule begins now, an unchanged one keeps its times; consumers
-- look. A handler that comes back begins anew. The caller holds the automation.
insert into kagzi.handlers as h
    (namespace, automation, name, kind, publishes, subscribes, mutates, schedule_type, schedule_value, timezone,
     anchor_at, next_run_at, dirty, cause)
select :namespace, :name, u.handler, u.kind,
       array(select t.topic from jsonb_array_elements_text(u.publishes::jsonb) as t(topic)),
       array(select t.topic from jsonb_array_elements_text(u.subscribes::jsonb) as t(topic)), u.mutates, u.schedule_type, u.schedule_value, u.timezone,
       case when u.kind = 'PRODUCER' then kagzi.now() end, case when u.kind = 'PRODUCER' then kagzi.now() end,
       u.kind = 'CONSUMER', 'deploy'
from unnest(:handlers::text[], :kinds::text[], :publishes::text[], :subscribes::text[], :mutates::boolean[],
            :schedule_types::text[], :schedule_values::text[], :timezones::text[])
    as u(handler, kind, publishes, subscribes, mutates, schedule_type, schedule_value, timezone)
on conflict (namespace, automation, name) do update
set kind = excluded.kind, publishes = excluded.publishes, subscribes = excluded.subscribes, mutates = excluded.mutates,
    schedule_type = excluded.schedule_type, schedule_value = excluded.schedule_value, timezone = excluded.timezone,
    anchor_at = case when h.removed_at is null and (h.schedule_type, h.schedule_value, h.timezone)
                         is not distinct from (excluded.schedule_type, excluded.schedule_value, excluded.timezone)
                     then h.anchor_at else excluded.anchor_at end,
    next_run_at = case when h.removed_at is null and (h.schedule_type, h.schedule_value, h.timezone)
                           is not distinct from (excluded.schedule_type, excluded.schedule_value, excluded.timezone)
                       then h.next_run_at else excluded.next_run_at end,
    cause = case when h.removed_at is null and h.kind = 'PRODUCER' and (h.schedule_type, h.schedule_value, h.timezone)
                      is not distinct from (excluded.schedule_type, excluded.schedule_value, excluded.timezone)
                 then h.cause
                 when h.removed_at is null and h.dirty then h.cause else 'deploy' end,
    dirty = excluded.dirty, state = case when h.removed_at is null then h.state end,
    last_run_at = case when h.removed_at is null then h.last_run_at end, removed_at = null;

-- name: skip_undelivered
-- What is pending for a consumer that is gone, or no longer subscribes to its topic, is skipped. The caller holds the
-- automation.
update kagzi.deliveries d
set status = 'SKIPPED', updated_at = kagzi.now()
from kagzi.handlers h
where h.namespace = :namespace and h.automation = :name and d.namespace = :namespace and d.automation = :name
  and d.consumer = h.name and d.status = 'PENDING'
  and (h.removed_at is not null or h.kind <> 'CONSUMER' or not d.topic = any (h.subscribes));

-- name: follow
-- A run that waits moves to the queue of the new definition. One of a handler that is gone and that a worker still has
-- gets ten minutes to end. The caller holds the run.
update kagzi.workflow_runs r
set task_queue = case when r.status = 'RUNNING' then r.task_queue else :task_queue end,
    deadline_at = case when :gone::boolean and r.status = 'RUNNING'
                       then least(r.deadline_at, kagzi.now() + interval '10 minutes') else r.deadline_at end
where r.namespace = :namespace and r.run_id = :run_id::uuid and r.status in ('PENDING', 'RUNNING', 'SLEEPING');

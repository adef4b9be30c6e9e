-- name: hold
-- Locks the run that has a mutation, whatever its status, so that a suspension under way is not missed.
select r.run_id, r.status, r.task_queue
from kagzi.workflow_runs r
where r.namespace = :namespace and r.run_id = :run_id::uuid
for no key update;

-- name: resolve
-- Writes down what a person said became of a mutation. The caller holds its run and its automation.
update kagzi.mutations m
set status = :status, result = :result::bytea, result_encoding = :result_encoding::text, resolution = :resolution,
    resolution_reason = :reason::text, checks = 0,
    next_check_at = case when :status = 'IN_FLIGHT' then kagzi.now() end,
    finished_at = case when :status <> 'IN_FLIGHT' then kagzi.now() end
where m.namespace = :namespace and m.mutation_id = :mutation_id::uuid;

-- name: wake
-- Makes a suspended run due, to hear of it. The caller holds its lock.
update kagzi.workflow_runs r
set available_at = least(r.available_at, kagzi.now()), parked_hash = null
where r.namespace = :namespace and r.run_id = :run_id::uuid and r.status = 'SLEEPING'
returning r.task_queue;

-- name: settle
-- The run that had the mutation has ended: what it reserved ends with the answer, or the next run goes on from it. The
-- caller holds the automation.
with released as (
    update kagzi.deliveries d
    set status = :ending::text, run_id = case when :ending::text = 'CONSUMED' then d.run_id end, updated_at = kagzi.now(),
        attempts = d.attempts + (:ending::text = 'PENDING')::integer
    where d.namespace = :namespace and d.run_id = :run_id::uuid and d.status = 'RESERVED' and :releases::boolean
)
update kagzi.automations a
set continues_run_id = case when :continues::boolean then :run_id::uuid else a.continues_run_id end
where a.namespace = :namespace and a.name = :name;

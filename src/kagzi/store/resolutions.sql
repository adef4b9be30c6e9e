-- name: lock
-- Locks the run by key, whatever its status, so that a suspension under way is not missed.
select r.status, r.task_queue
from kagzi.workflow_runs r
where r.namespace = :namespace and r.run_id = :run_id::uuid and r.status not in ('SCHEDULED', 'PAUSED')
for no key update;

-- name: resolve
-- Says what became of a step whose outcome is unknown, once. The caller holds the run's lock.
update kagzi.step_runs s
set resolution = :resolution, resolution_output = :output::bytea, resolution_encoding = :output_encoding::text,
    resolution_reason = :reason::text, resolution_id = :resolution_id::uuid
where s.namespace = :namespace and s.run_id = :run_id::uuid and s.step_id = :step_id and s.is_latest
  and s.status = 'UNKNOWN' and s.resolution is null
  and (:attempt_id::uuid is null or s.attempt_id = :attempt_id)
returning s.step_id;

-- name: repeated
-- The attempt that this very request resolved, latest or not: the step may have come into doubt again since.
select s.status, s.resolution
from kagzi.step_runs s
where s.namespace = :namespace and s.run_id = :run_id::uuid and s.step_id = :step_id
  and s.resolution_id = :resolution_id::uuid;

-- name: recorded
-- How a step stands, to say why there is nothing to resolve.
select s.status, s.resolution, s.resolution_id, s.attempt_id
from kagzi.step_runs s
where s.namespace = :namespace and s.run_id = :run_id::uuid and s.step_id = :step_id and s.is_latest;

-- name: wake
-- Makes a suspended run due, to hear of it. The caller holds its lock.
update kagzi.workflow_runs r
set available_at = least(r.available_at, kagzi.now())
where r.namespace = :namespace and r.run_id = :run_id::uuid and r.status = 'SLEEPING' and r.parked_hash is null
returning r.task_queue;

-- name: waiting
-- Resolutions that these runs have not put into their history yet.
select s.run_id, s.step_id, s.attempt_id, s.attempt_number, s.kind, s.position, s.effect, s.resolution,
       s.resolution_output, s.resolution_encoding, s.resolution_reason
from kagzi.step_runs s
where s.namespace = :namespace and s.run_id = any (:run_ids::uuid[]) and s.resolution is not null
  and s.status = 'UNKNOWN' and s.is_latest
order by s.run_id, s.position;

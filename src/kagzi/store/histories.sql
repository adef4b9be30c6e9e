-- name: measure
-- How many steps these runs have on record, by the last position, and how many bytes of results and errors. Sizes are
-- read without the values. Locks nothing; the caller holds the fence.
select s.run_id, max(s.position) as top,
       sum(coalesce(octet_length(s.output), 0)
           + coalesce(octet_length(s.error ->> 'type'), 0) + coalesce(octet_length(s.error ->> 'message'), 0)
           + coalesce(octet_length(s.error ->> 'traceback'), 0))::bigint as bytes
from kagzi.step_runs s
where s.namespace = :namespace and s.run_id = any (:run_ids::uuid[]) and s.is_latest
group by s.run_id;

-- name: known
-- Attempts among these that have an outcome on record: they were counted before. Locks nothing.
select s.attempt_id
from unnest(:run_ids::uuid[], :step_ids::text[], :attempt_ids::uuid[]) as u(run_id, step_id, attempt_id)
join kagzi.step_runs s
    on s.namespace = :namespace and s.run_id = u.run_id and s.step_id = u.step_id and s.attempt_id = u.attempt_id
where s.status not in ('PENDING', 'RUNNING');

-- name: bound
-- Sets the bound of what the histories of these runs hold beyond an even share for each step. The caller holds the
-- fence.
update kagzi.workflow_runs r
set history_excess = u.bound
from unnest(:run_ids::uuid[], :bounds::bigint[]) as u(run_id, bound)
where r.namespace = :namespace and r.run_id = u.run_id;

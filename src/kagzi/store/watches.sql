-- name: ends
-- How these runs stand, continue-as-new followed to its end: each with the run that is its last, the size of that run's
-- output, and its error. Those that live where they were asked for are left out unless :live. Locks nothing.
with recursive chain as (
    select r.run_id as asked_id, r.run_id, r.status, r.continued_as
    from kagzi.workflow_runs r
    where r.namespace = :namespace and r.run_id = any (:run_ids::uuid[]) and r.status not in ('SCHEDULED', 'PAUSED')
    union all
    select chain.asked_id, r.run_id, r.status, r.continued_as
    from chain
    join kagzi.workflow_runs r on r.namespace = :namespace and r.run_id = chain.continued_as
)
select chain.asked_id, chain.run_id, chain.status, r.error::text as error,
       coalesce(octet_length(p.output), 0) as output_bytes
from chain
join kagzi.workflow_runs r on r.namespace = :namespace and r.run_id = chain.run_id
left join kagzi.workflow_payloads p
    on p.namespace = :namespace and p.run_id = chain.run_id and chain.status = 'COMPLETED'
where chain.continued_as is null
  and (:live::boolean or chain.run_id <> chain.asked_id or chain.status in ('COMPLETED', 'FAILED', 'CANCELLED'));

-- name: outputs
-- The outputs of these runs. Locks nothing.
select p.run_id, p.output, p.output_encoding
from kagzi.workflow_payloads p
where p.namespace = :namespace and p.run_id = any (:run_ids::uuid[]) and p.output is not null;

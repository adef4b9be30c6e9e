-- name: ends
-- How these runs stand, continue-as-new followed to its end: each with the run that is its last, the size of that run's
-- output, and its error. Those that live where they were asked for are left out unless :live. Locks nothing.
with recursive chain as (
    select r.run_id as asked_id, r.run_id, r.status, r.continued_as, r.error
    from kagzi.workflow_runs r
    where r.namespace = :namespace and r.run_id = any (:run_ids::uuid[]) and r.status not in ('SCHEDULED', 'PAUSED')
    union all
    select chain.asked_id, next.run_id, next.status, next.continued_as, next.error
    from chain
    -- A probe for each, whatever the planner believes of their number.
    cross join lateral (
        select r.run_id, r.status, r.continued_as, r.error
        from kagzi.workflow_runs r
        where r.namespace = :namespace and r.run_id = chain.continued_as
        limit 1
    ) as next
)
select chain.asked_id, chain.run_id, chain.status, chain.error::text as error,
       case when chain.status = 'COMPLETED' then coalesce(
           (select octet_length(p.output) from kagzi.workflow_payloads p
            where p.namespace = :namespace and p.run_id = chain.run_id), 0) else 0 end as output_bytes
from chain
where chain.continued_as is null
  and (:live::boolean or chain.run_id <> chain.asked_id or chain.status in ('COMPLETED', 'FAILED', 'CANCELLED'));

-- name: outputs
-- The outputs of these runs. Locks nothing.
select p.run_id, p.output, p.output_encoding
from kagzi.workflow_payloads p
where p.namespace = :namespace and p.run_id = any (:run_ids::uuid[]) and p.output is not null;

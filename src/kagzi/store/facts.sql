-- name: children_ended
-- Children that these runs wait for and that have ended, continue-as-new followed to its end.
with recursive chain as (
    select s.run_id, s.child_run_id, c.run_id as current_id, c.status, c.continued_as
    from kagzi.step_runs s
    join kagzi.workflow_runs c on c.namespace = :namespace and c.run_id = s.child_run_id
    where s.namespace = :namespace and s.run_id = any (:run_ids::uuid[]) and s.kind = 'CHILD_WORKFLOW'
      and s.status = 'RUNNING' and s.is_latest
    union all
    select chain.run_id, chain.child_run_id, c.run_id, c.status, c.continued_as
    from chain
    join kagzi.workflow_runs c on c.namespace = :namespace and c.run_id = chain.continued_as
)
select chain.run_id, chain.child_run_id, chain.status, r.error::text as error, p.output, p.output_encoding
from chain
join kagzi.workflow_runs r on r.namespace = :namespace and r.run_id = chain.current_id
left join kagzi.workflow_payloads p on p.namespace = :namespace and p.run_id = chain.current_id
where chain.continued_as is null and chain.status in ('COMPLETED', 'FAILED', 'CANCELLED')
order by chain.run_id, r.finished_at, chain.child_run_id;

-- name: cancels
-- Cancel requests of these runs that their history does not show yet.
select r.run_id, coalesce(r.cancel_reason, '') as reason, coalesce(r.deadline_at <= r.cancel_requested_at, false) as late
from kagzi.workflow_runs r
where r.namespace = :namespace and r.run_id = any (:run_ids::uuid[]) and r.cancel_requested_at is not null
  and not exists (select 1 from kagzi.step_runs s
                  where s.namespace = :namespace and s.run_id = r.run_id and s.kind = 'CANCEL' and s.is_latest);

-- name: tokens
-- The token each of these runs is held by, and the one it was last given away with.
select r.run_id, r.claim_token, r.last_token
from kagzi.workflow_runs r
where r.namespace = :namespace and r.run_id = any (:run_ids::uuid[]);

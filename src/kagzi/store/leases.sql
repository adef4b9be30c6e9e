-- name: fence
-- Locks the runs of a batch, and of those about to end the parents and the templates whose next run waits for the end,
-- in key order; skips what somebody else holds. Answers for each (run, token) pair whether the token is the current one
-- of the locked version, and whether parent and template are locked too, or were removed since. Whoever is not answered
-- was skipped or does not exist.
with locked as materialized (
    select r.run_id, r.status, r.claim_token, r.last_token, r.last_operation, r.crashes, r.parent_run_id,
           r.continued_as, r.automation, r.history_excess, case when r.awaited then r.schedule_id end as frees
    from kagzi.workflow_runs r
    where r.namespace = :namespace
      and r.run_id = any (:run_ids::uuid[] || array(
          select unnest(array[c.parent_run_id, case when c.awaited then c.schedule_id end])
          from kagzi.workflow_runs c
          where c.namespace = :namespace and c.run_id = any (:ending_ids::uuid[])
            and (c.parent_run_id is not null or c.awaited)))
    order by r.run_id
    for no key update skip locked
)
select pair.number, l.status,
       coalesce(l.claim_token = pair.token, false) as held,
       case when l.last_token = pair.token then l.last_operation end as done,
       l.crashes > 0 as crashed,
       (l.parent_run_id is null or exists (select 1 from locked p where p.run_id = l.parent_run_id)
           or not exists (select 1 from kagzi.workflow_runs p
                          where p.namespace = :namespace and p.run_id = l.parent_run_id))
       and (l.frees is null or exists (select 1 from locked t where t.run_id = l.frees)
           or not exists (select 1 from kagzi.workflow_runs t
                          where t.namespace = :namespace and t.run_id = l.frees)) as complete,
       l.parent_run_id, l.continued_as, l.automation, l.history_excess
from unnest(:run_ids::uuid[], :tokens::uuid[]) with ordinality as pair(run_id, token, number)
join locked l using (run_id)
where l.status not in ('SCHEDULED', 'PAUSED');

-- name: present
-- Which of these runs exist, without locking: what a fence did not answer and is not here does not exist.
select r.run_id
from kagzi.workflow_runs r
where r.namespace = :namespace and r.run_id = any (:run_ids::uuid[]) and r.status not in ('SCHEDULED', 'PAUSED');

-- name: progress
-- A run that got on is no longer suspected of taking its worker down. The caller holds the locks.
update kagzi.workflow_runs r
set crashes = 0
where r.namespace = :namespace and r.run_id = any (:run_ids::uuid[]) and r.status = 'RUNNING';

-- name: put_back
-- Gives claimed runs back with no crash counted, because they never reached their worker. A run that is no longer
-- held by the token stays as it is, and so does one whose lease was renewed beyond `until`: its worker has it after all.
-- One that somebody has locked is left to its lease.
with locked as materialized (
    select r.run_id, r.claim_token, r.available_at
    from kagzi.workflow_runs r
    where r.namespace = :namespace and r.run_id = any (:run_ids::uuid[])
    order by r.run_id
    for no key update skip locked
)
update kagzi.workflow_runs r
set status = 'PENDING', available_at = kagzi.now(), claim_token = null, locked_by = null
from locked l
join unnest(:run_ids::uuid[], :tokens::uuid[], :untils::timestamptz[]) as pair(run_id, token, until)
    on pair.run_id = l.run_id
where r.namespace = :namespace and r.run_id = l.run_id and l.claim_token = pair.token
  and (pair.until is null or l.available_at <= pair.until)
returning r.run_id, r.task_queue;

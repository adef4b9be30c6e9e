-- name: claim
-- Claims what is due for the free slots of workers that serve the same types: by priority, then by time. One bounded
-- probe for each (type, version, priority) reads when its next runs are due; the best of all say how many each lane gives,
-- and these are locked, skipping what somebody else holds. A run that a worker keeps in memory goes to that worker; for
-- `hold` after it became due to no other, while that one is there. A row whose lease ran out counts a crash; at the fifth
-- it is FAILED instead of being handed out again. Nothing is claimed in a namespace that is disabled.
with best as materialized (
    select served.workflow_type, served.version, level.priority, c.available_at
    from unnest(:types::text[], :versions::text[]) as served(workflow_type, version)
    -- Of hundreds of types few have runs: one probe for each of the others.
    cross join lateral (
        select from kagzi.workflow_runs r
        where r.namespace = :namespace and r.task_queue = :task_queue and r.workflow_type = served.workflow_type
          and r.version = served.version and r.suspect = :suspects and r.status in ('PENDING', 'RUNNING', 'SLEEPING')
        order by r.priority, r.available_at
        limit 1) as known
    cross join generate_series(4, 0, -1) as level(priority)
    cross join lateral (
        select r.available_at
        from kagzi.workflow_runs r
        where r.namespace = :namespace and r.task_queue = :task_queue
          and r.workflow_type = served.workflow_type and r.version = served.version
          and r.priority = level.priority and r.suspect = :suspects
          and r.status in ('PENDING', 'RUNNING', 'SLEEPING') and r.available_at <= kagzi.now()
          and (r.status <> 'RUNNING' or :expired_too)
          and (r.kept_by is null or r.kept_by = any (:homes::uuid[]) or r.available_at <= kagzi.now() - :hold::interval
               or not exists (select 1 from kagzi.workers w where w.namespace = :namespace and w.worker_id = r.kept_by
                                                              and w.status = 'ONLINE'))
        order by r.available_at
        limit :count
    ) as c
    where exists (select 1 from kagzi.namespaces n where n.namespace = :namespace and n.enabled)
    order by level.priority desc, c.available_at
    limit :count
), lanes as materialized (
    select b.workflow_type, b.version, b.priority, count(*) as share
    from best b
    group by b.workflow_type, b.version, b.priority
), chosen as materialized (
    select c.run_id, c.expired, c.slept, c.crashes, c.kept_by, c.for_anybody, c.available_at,
           row_number() over (order by c.priority desc, c.available_at, c.run_id) as number
    from lanes
    cross join lateral (
        select r.run_id, r.priority, r.available_at, r.crashes, r.status = 'RUNNING' as expired,
               r.status = 'SLEEPING' as slept, r.kept_by,
               r.kept_by is null or r.kept_by <> all (:homes::uuid[])
                   or r.available_at <= kagzi.now() - :hold::interval as for_anybody
        from kagzi.workflow_runs r
        where r.namespace = :namespace and r.task_queue = :task_queue
          and r.workflow_type = lanes.workflow_type and r.version = lanes.version
          and r.priority = lanes.priority and r.suspect = :suspects
          and r.status in ('PENDING', 'RUNNING', 'SLEEPING') and r.available_at <= kagzi.now()
          and (r.status <> 'RUNNING' or :expired_too)
          and (r.kept_by is null or r.kept_by = any (:homes::uuid[]) or r.available_at <= kagzi.now() - :hold::interval
               or not exists (select 1 from kagzi.workers w where w.namespace = :namespace and w.worker_id = r.kept_by
                                                              and w.status = 'ONLINE'))
        order by r.available_at
        limit lanes.share
        for no key update skip locked
    ) as c
), slots as materialized (
    select token, worker_id, number, row_number() over (partition by worker_id order by number) as nth
    from unnest(:tokens::uuid[], :worker_ids::uuid[]) with ordinality as slot(token, worker_id, number)
), at_home as materialized (
    select kept.run_id, slots.number, slots.token, slots.worker_id
    from (select c.run_id, c.kept_by, row_number() over (partition by c.kept_by order by c.number) as nth
          from chosen c
          where c.kept_by is not null) kept
    join slots on slots.worker_id = kept.kept_by and slots.nth = kept.nth
), given as materialized (
    select h.run_id, h.token, h.worker_id
    from at_home h
    union all
    select run.run_id, slot.token, slot.worker_id
    from (select c.run_id, row_number() over (order by c.number) as nth
          from chosen c
          where c.for_anybody and c.run_id not in (select h.run_id from at_home h)) run
    join (select s.token, s.worker_id, row_number() over (order by s.number) as nth
          from slots s
          where s.number not in (select h.number from at_home h)) slot using (nth)
)
update kagzi.workflow_runs r
set status = case when poisoned.yes then 'FAILED' else 'RUNNING' end,
    available_at = case when not poisoned.yes then kagzi.now() + :lease::interval end,
    claim_token = case when not poisoned.yes then given.token end,
    locked_by = case when not poisoned.yes then given.worker_id end,
    last_worker = coalesce(r.locked_by, r.last_worker),
    crashes = r.crashes + chosen.expired::integer,
    started_at = coalesce(r.started_at, kagzi.now()),
    waiting = null, parked_hash = null, kept_by = null,
    error = case when poisoned.yes then :poison_error::jsonb else r.error end,
    finished_at = case when poisoned.yes then kagzi.now() end
from chosen
join given on given.run_id = chosen.run_id
cross join lateral (select chosen.expired and chosen.crashes + 1 >= :poison_at as yes) as poisoned
-- The array makes it a few probes of the key, whatever the planner believes of the rest.
where r.namespace = :namespace and r.run_id = chosen.run_id and r.run_id = any (array(select g.run_id from given g))
returning r.run_id, r.status, r.claim_token, r.locked_by, r.workflow_type, r.version, r.attempts, r.crashes, r.seed,
          r.labels::text as labels, r.external_id, r.created_at, r.scheduled_for, r.deadline_at, r.parent_run_id,
          r.root_run_id, case when chosen.slept then r.last_token end as last_token, r.state_number, r.available_at,
          kagzi.now() as now, r.priority, r.automation, case when r.awaited then r.schedule_id end as frees,
          extract(epoch from kagzi.now() - chosen.available_at)::float8 * 1000 as waited_ms;

-- name: inputs
-- The inputs of runs that were just claimed.
select p.run_id, p.input, p.input_encoding
from kagzi.workflow_payloads p
where p.namespace = :namespace and p.run_id = any (:run_ids::uuid[]);

-- name: recover
-- Claims of our own whose COMMIT was not answered: what is held with one of these tokens is ours. Whether somebody held
-- a run between its suspension and the claim is not known any more, so no token is said to be the last.
select r.run_id, r.status, r.claim_token, r.locked_by, r.workflow_type, r.version, r.attempts, r.crashes, r.seed,
       r.labels::text as labels, r.external_id, r.created_at, r.scheduled_for, r.deadline_at, r.parent_run_id,
       r.root_run_id, null::uuid as last_token, r.state_number, r.available_at, kagzi.now() as now, r.priority,
       r.automation, null::uuid as frees
from kagzi.workflow_runs r
where r.namespace = :namespace and r.locked_by = any (:worker_ids::uuid[]) and r.status = 'RUNNING'
  and r.claim_token = any (:tokens::uuid[]);

-- name: suspicious
-- Which of these workers hold, under a lease that has not ended, a run that took a worker down twice or more. Locks
-- nothing.
select distinct r.locked_by as worker_id
from kagzi.workflow_runs r
where r.namespace = :namespace and r.locked_by = any (:worker_ids::uuid[]) and r.status = 'RUNNING'
  and r.crashes >= 2 and r.available_at > kagzi.now();

-- name: next_due
-- When the next run of these types becomes due, and whether one is due now. A plain read of one row for each probe.
select coalesce(bool_or(not c.suspect and c.available_at <= kagzi.now()), false) as due,
       coalesce(bool_or(c.suspect and c.available_at <= kagzi.now()), false) as suspects_due,
       min(c.available_at) filter (where c.available_at > kagzi.now()) as at,
       kagzi.now() as now
from unnest(:types::text[], :versions::text[]) as served(workflow_type, version)
cross join unnest(array[false, true]) as suspected(suspect)
cross join lateral (
    select from kagzi.workflow_runs r
    where r.namespace = :namespace and r.task_queue = :task_queue and r.workflow_type = served.workflow_type
      and r.version = served.version and r.suspect = suspected.suspect and r.status in ('PENDING', 'RUNNING', 'SLEEPING')
    order by r.priority, r.available_at
    limit 1) as known
cross join generate_series(4, 0, -1) as level(priority)
cross join lateral (
    select suspected.suspect, r.available_at
    from kagzi.workflow_runs r
    where r.namespace = :namespace and r.task_queue = :task_queue
      and r.workflow_type = served.workflow_type and r.version = served.version
      and r.priority = level.priority and r.suspect = suspected.suspect
      and r.status in ('PENDING', 'RUNNING', 'SLEEPING') and r.available_at < 'infinity'
    order by r.available_at
    limit 1
) as c;

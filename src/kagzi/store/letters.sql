-- name: unheard
-- Messages that were stored by a caller's own transaction and whose runs nobody has woken yet, wherever they are, the
-- oldest first. Locks nothing.
select g.namespace, g.signal_id
from kagzi.signals g
where g.unheard
order by g.namespace, g.arrival
limit :batch;

-- name: addressees
-- The runs these messages are for, continue-as-new followed to its end; NULL where there is none any more.
with recursive chain as (
    select g.signal_id, g.name, r.run_id, r.continued_as
    from kagzi.signals g
    left join kagzi.workflow_runs r on r.namespace = :namespace and r.run_id = g.run_id
    where g.namespace = :namespace and g.signal_id = any (:signal_ids::uuid[]) and g.unheard
    union all
    select chain.signal_id, chain.name, r.run_id, r.continued_as
    from chain
    join kagzi.workflow_runs r on r.namespace = :namespace and r.run_id = chain.continued_as
)
select chain.signal_id, chain.name, chain.run_id from chain where chain.continued_as is null;

-- name: lock
-- Locks runs in key order. Skips what somebody holds: the next look meets their messages again.
select r.run_id
from kagzi.workflow_runs r
where r.namespace = :namespace and r.run_id = any (:run_ids::uuid[])
order by r.run_id
for no key update skip locked;

-- name: hear
-- Notes that the run of each message was looked at, and moves a message that was stored while its run went on as
-- another. The caller holds the runs' locks; of two that hear the same message one finds nothing left.
update kagzi.signals g
set unheard = false, run_id = coalesce(u.run_id, g.run_id)
from unnest(:signal_ids::uuid[], :run_ids::uuid[]) as u(signal_id, run_id)
where g.namespace = :namespace and g.signal_id = u.signal_id and g.unheard
returning g.signal_id;

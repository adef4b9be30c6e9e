-- name: settle
-- The bad end of handler runs, for their automations: what was reserved is given back (to a consumer that is gone: skipped),
-- or kept for the run that goes on from here; the handler is asked for again, after a pause. The caller holds the
-- automations and has decided by the ledger.
with given as materialized (
    select u.run_id, u.automation, u.handler, u.releases, u.continues, u.ending, u.pause, u.error
    from unnest(:run_ids::uuid[], :automations::text[], :handlers::text[], :releases::boolean[], :continues::boolean[],
                :endings::text[], :pauses::interval[], :errors::text[])
        as u(run_id, automation, handler, releases, continues, ending, pause, error)
), released as (
    update kagzi.deliveries d
    set status = g.ending, run_id = case when g.ending = 'CONSUMED' then d.run_id end, updated_at = kagzi.now(),
        attempts = d.attempts + (g.ending = 'PENDING')::integer
    from given g
    where d.namespace = :namespace and d.run_id = g.run_id and d.run_id = any (:run_ids::uuid[])
      and d.status = 'RESERVED' and g.releases
), kept as (
    update kagzi.automations a
    set continues_run_id = g.run_id
    from given g
    where a.namespace = :namespace and a.name = g.automation and a.name = any (:automations::text[]) and g.continues
)
update kagzi.handlers h
set queued = h.kind = 'PRODUCER', dirty = h.kind = 'CONSUMER', cause = 'release', failures = h.failures + 1,
    not_before = case when g.pause is not null then kagzi.now() + g.pause end, last_run_id = g.run_id,
    last_failure = g.error::jsonb, last_run_at = case when h.kind = 'PRODUCER' then kagzi.now() else h.last_run_at end
from given g
where h.namespace = :namespace and h.automation = g.automation and h.name = g.handler
  and h.automation = any (:automations::text[])
returning h.not_before;

-- name: drop
-- Nothing goes on from this run: its handler is gone. What it had reserved ends with it. The caller holds the automation.
with ended as (
    update kagzi.deliveries d
    set status = :ending::text, run_id = case when :ending::text = 'CONSUMED' then d.run_id end, updated_at = kagzi.now()
    where d.namespace = :namespace and d.run_id = :run_id::uuid and d.status = 'RESERVED' and :releases::boolean
)
update kagzi.automations a
set continues_run_id = null
where a.namespace = :namespace and a.name = :name;

-- name: give_up
-- Nobody can say any more what became of these mutations: the handler that could ask is gone. The caller holds the
-- automations.
update kagzi.mutations m
set status = 'INDETERMINATE', next_check_at = null
where m.namespace = :namespace and m.mutation_id = any (:mutation_ids::uuid[]) and m.status = 'IN_FLIGHT';

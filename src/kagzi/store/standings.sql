-- name: lock
-- Locks automations by name, waiting for whoever holds them: what is chosen or changed next, in another statement, sees
-- all that the holder did.
select a.name
from kagzi.automations a
where a.namespace = :namespace and a.name = any (:names::text[])
order by a.name
for no key update;

-- name: take
-- Locks those of these automations that nobody holds; a batch never waits for the others.
select a.name
from kagzi.automations a
where a.namespace = :namespace and a.name = any (:names::text[])
order by a.name
for no key update skip locked;

-- name: standing
-- How handler runs stand: their handler, what `prepare` left, and the ledger's row they hold. Locks nothing; the caller
-- holds the runs, and their automations if it is going to write. Limits keep each look one probe of a key.
select r.run_id, r.automation, r.handler, coalesce(r.started_at, r.created_at) as started_at, h.kind, h.publishes,
       h.subscribes, h.removed_at is not null as removed, h.failures, h.schedule_type, h.schedule_value, h.timezone,
       h.anchor_at, p.reserved is not null as prepared, coalesce(jsonb_array_length(p.reserved), 0) > 0 as reserving,
       p.prepared_title, p.prepared_wake_at, m.mutation_id, m.status as mutation_status,
       m.attempt_id as mutation_attempt, m.claim_token as mutation_token, m.has_reconciler, m.checks, a.blocked_code,
       kagzi.now() as now
from unnest(:run_ids::uuid[]) as u(run_id)
cross join lateral (
    select r.run_id, r.automation, r.handler, r.started_at, r.created_at
    from kagzi.workflow_runs r
    where r.namespace = :namespace and r.run_id = u.run_id
    limit 1) as r
cross join lateral (
    select a.blocked_code from kagzi.automations a where a.namespace = :namespace and a.name = r.automation limit 1) as a
cross join lateral (
    select h.kind, h.publishes, h.subscribes, h.removed_at, h.failures, h.schedule_type, h.schedule_value, h.timezone,
           h.anchor_at
    from kagzi.handlers h
    where h.namespace = :namespace and h.automation = r.automation and h.name = r.handler
    limit 1) as h
left join lateral (
    select p.reserved, p.prepared_title, p.prepared_wake_at
    from kagzi.workflow_payloads p
    where p.namespace = :namespace and p.run_id = r.run_id
    limit 1) as p on true
left join lateral (
    select m.mutation_id, m.status, m.attempt_id, m.claim_token, m.has_reconciler, m.checks
    from kagzi.mutations m
    where m.namespace = :namespace and m.holder_id = r.run_id
    limit 1) as m on true;

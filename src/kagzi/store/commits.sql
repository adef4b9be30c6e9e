-- name: commit
-- Ends handler runs well: what was reserved is consumed, or skipped, the new state is stored, a producer's next time is
-- set, and a consumer that reserved something looks again. The caller holds the fence and the automations. Nobody waits
-- for a handler run: it has neither parent nor schedule.
with given as materialized (
    select u.run_id, u.token, u.operation_id, u.automation, u.handler, u.producer, u.reserving, u.ending, u.changed,
           u.state, u.encoding, u.next_run_at
    from unnest(:run_ids::uuid[], :tokens::uuid[], :operation_ids::uuid[], :automations::text[], :handlers::text[],
                :producers::boolean[], :reserving::boolean[], :endings::text[], :changed::boolean[], :states::bytea[],
                :encodings::text[], :next_run_ats::timestamptz[])
        as u(run_id, token, operation_id, automation, handler, producer, reserving, ending, changed, state, encoding,
             next_run_at)
), ended as (
    update kagzi.workflow_runs r
    set status = 'COMPLETED', available_at = null, claim_token = null, last_token = r.claim_token,
        last_operation = g.operation_id, last_worker = r.locked_by, locked_by = null, crashes = 0, waiting = null,
        finished_at = kagzi.now()
    from given g
    where r.namespace = :namespace and r.run_id = g.run_id and r.run_id = any (:run_ids::uuid[])
      and r.claim_token = g.token
    returning r.run_id, r.workflow_type, (extract(epoch from kagzi.now() - r.created_at) * 1000)::float8 as took_ms
), paid as (
    update kagzi.workflow_payloads p
    set output = g.state, output_encoding = g.encoding
    from given g
    where p.namespace = :namespace and p.run_id = g.run_id and p.run_id = any (:run_ids::uuid[]) and g.changed
), consumed as (
    update kagzi.deliveries d
    set status = g.ending, updated_at = kagzi.now()
    from given g
    where d.namespace = :namespace and d.run_id = g.run_id and d.run_id = any (:run_ids::uuid[])
      and d.status = 'RESERVED'
), moved as (
    update kagzi.handlers h
    set state = case when g.changed then g.state else h.state end,
        state_encoding = case when g.changed then g.encoding else h.state_encoding end,
        next_run_at = case when g.producer then g.next_run_at else h.next_run_at end,
        last_run_at = kagzi.now(),
        dirty = h.dirty or g.reserving,
        cause = case when g.reserving and not h.dirty then 'event' else h.cause end,
        failures = 0, not_before = null, last_run_id = g.run_id, last_failure = null
    from given g
    where h.namespace = :namespace and h.automation = g.automation and h.name = g.handler
      and h.automation = any (:automations::text[])
)
select ended.run_id, ended.workflow_type, ended.took_ms from ended;

-- name: handed
-- What the automations of these ended runs run now, where it was stored as claimed under one of these tokens.
select n.run_id, n.claim_token
from kagzi.workflow_runs e
join kagzi.workflow_runs n on n.namespace = :namespace and n.automation = e.automation and n.status = 'RUNNING'
where e.namespace = :namespace and e.run_id = any (:run_ids::uuid[]) and n.claim_token = any (:tokens::uuid[]);

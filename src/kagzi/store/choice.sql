-- name: choose
-- What these automations run next: a continuation, else who was passed over for longer than `patience`, else the consumer
-- with the oldest pending event, else the producer that is due for longest; nothing while one is paused, blocked or has a
-- run. One statement, however many handlers and topics there are. A consumer comes with a row for each of its first pending
-- events, as peeks.sql finds them, or for a topic without any. The caller holds the automations, locked before this.
with idle as materialized (
    select a.name, a.task_queue, a.definition_hash, a.continues_run_id
    from kagzi.automations a
    -- The limit keeps it a probe of the key, whatever the planner believes of the table.
    left join lateral (
        select r.run_id from kagzi.workflow_runs r
        where r.namespace = :namespace and r.automation = a.name and r.status in ('PENDING', 'RUNNING', 'SLEEPING')
        limit 1) as live on true
    where a.namespace = :namespace and a.name = any (:names::text[])
      and a.paused_at is null and a.blocked_code is null and live.run_id is null
      and exists (select 1 from kagzi.namespaces n where n.namespace = :namespace and n.enabled)
), ready as (
    select i.name as automation, h.name as handler, i.continues_run_id,
           case when i.continues_run_id is not null then 'continuation'
                -- Also when something came meanwhile: whoever asked for a time is told that it has come.
                when h.kind = 'CONSUMER' and h.wake_at <= kagzi.now() then 'wake'
                when h.queued or h.dirty then coalesce(h.cause, case h.kind when 'CONSUMER' then 'event' else 'manual' end)
                else coalesce(h.cause, 'schedule') end as trigger,
           h.kind, h.subscribes, i.task_queue, i.definition_hash, h.state, h.state_encoding, h.next_run_at,
           p.oldest,
           -- When its turn would have come, were it alone: what takes turn after turn is not passed over.
           greatest(h.last_run_at,
                    case when h.kind = 'PRODUCER' then h.next_run_at
                         else least(p.published_at, case when h.wake_at <= kagzi.now() then h.wake_at end) end,
                    h.created_at) as since
    from idle i
    cross join lateral (
        select h.automation, h.name, h.kind, h.subscribes, h.queued, h.dirty, h.cause, h.wake_at, h.next_run_at,
               h.last_run_at, h.created_at, h.not_before, h.state, h.state_encoding
        from kagzi.handlers h
        where h.namespace = :namespace and h.automation = i.name and h.removed_at is null
        offset 0) as h
    cross join lateral (
        select min(f.arrival) as oldest, min(f.published_at) as published_at
        from unnest(h.subscribes) as s(topic)
        cross join lateral (
            select d.arrival, d.published_at
            from kagzi.deliveries d
            where d.namespace = :namespace and d.automation = h.automation and d.consumer = h.name
              and d.topic = s.topic and d.status = 'PENDING'
            order by d.arrival
            limit 1) as f) as p
    where (h.not_before is null or h.not_before <= kagzi.now())
      and case when i.continues_run_id is not null
               then h.name = (select r.handler from kagzi.workflow_runs r
                              where r.namespace = :namespace and r.run_id = i.continues_run_id)
               when h.kind = 'CONSUMER' then h.dirty or h.wake_at <= kagzi.now()
               else h.queued or h.next_run_at <= kagzi.now() end
), chosen as materialized (
    select distinct on (ready.automation) ready.automation, ready.handler, ready.continues_run_id, ready.trigger,
           ready.kind, ready.subscribes, ready.task_queue, ready.definition_hash, ready.state, ready.state_encoding
    from ready
    order by ready.automation, case when ready.since < kagzi.now() - :patience::interval then ready.since end,
             ready.kind, ready.oldest, ready.next_run_at, ready.handler
)
select c.automation, c.handler, c.continues_run_id, c.trigger, c.kind, c.task_queue, c.definition_hash, c.state,
       c.state_encoding, t.topic, p.event_id, p.attempts, p.arrival, p.created_at,
       p.payload, p.payload_encoding, p.found
from chosen c
left join lateral unnest(c.subscribes[1:(:most_topics::integer)]) with ordinality as t(topic, number)
    on c.continues_run_id is null
left join lateral (
    select s.event_id, s.attempts, s.arrival, s.created_at, s.payload, s.payload_encoding, s.place, s.found
    from (
        select d.event_id, d.attempts, d.arrival, e.created_at, e.payload, e.payload_encoding,
               count(*) over () as found, row_number() over (order by d.arrival) as place,
               sum(coalesce(octet_length(e.payload), 0) + 200) over (order by d.arrival) as bytes
        from (
            select d.event_id, d.attempts, d.arrival
            from kagzi.deliveries d
            where d.namespace = :namespace and d.automation = c.automation and d.consumer = c.handler
              and d.topic = t.topic and d.status = 'PENDING'
            order by d.arrival
            limit :most_events::integer + 1) as d
        cross join lateral (
            select e.created_at, e.payload, e.payload_encoding
            from kagzi.events e
            where e.namespace = :namespace and e.automation = c.automation and e.topic = t.topic
              and e.event_id = d.event_id
            limit 1) as e
    ) as s
    where s.place <= :most_events::integer and (s.bytes <= :room::bigint or s.place = 1)
) as p on true
order by c.automation, t.number, p.place;

-- name: start
-- Stores the runs that were chosen, those with a token as already claimed, and turns their handlers' flags off, so that
-- what arrives from now on turns them on again. A continuation takes over what was prepared, reserved and begun. If a run
-- of the automation lives after all, nothing is stored for it. The caller holds the automations.
with stored as (
    insert into kagzi.workflow_runs
        (namespace, run_id, task_queue, workflow_type, status, available_at, claim_token, locked_by, seed, automation,
         handler, trigger, continues_run_id, definition_hash, started_at)
    select :namespace, u.run_id, u.task_queue, u.automation || '.' || u.handler,
           case when u.token is null then 'PENDING' else 'RUNNING' end,
           case when u.token is null then kagzi.now() else kagzi.now() + :lease::interval end,
           u.token, u.worker_id, u.seed, u.automation, u.handler, u.trigger, u.continues_run_id, u.definition_hash,
           case when u.token is not null then kagzi.now() end
    from unnest(:run_ids::uuid[], :task_queues::text[], :automations::text[], :handlers::text[], :triggers::text[],
                :continues::uuid[], :definition_hashes::text[], :seeds::bigint[], :tokens::uuid[],
                :worker_ids::uuid[])
        as u(run_id, task_queue, automation, handler, trigger, continues_run_id, definition_hash, seed, token, worker_id)
    on conflict do nothing
    returning run_id, automation, handler, continues_run_id
), paid as (
    insert into kagzi.workflow_payloads
        (namespace, run_id, input, input_encoding, reserved, prepared_data, prepared_encoding, prepared_title,
         prepared_ui, prepared_wake_at)
    select :namespace, s.run_id, h.state, h.state_encoding, p.reserved, p.prepared_data, p.prepared_encoding,
           p.prepared_title, p.prepared_ui, p.prepared_wake_at
    from stored s
    cross join lateral (
        select h.state, h.state_encoding from kagzi.handlers h
        where h.namespace = :namespace and h.automation = s.automation and h.name = s.handler
        limit 1) as h
    left join lateral (
        select p.reserved, p.prepared_data, p.prepared_encoding, p.prepared_title, p.prepared_ui, p.prepared_wake_at
        from kagzi.workflow_payloads p
        where p.namespace = :namespace and p.run_id = s.continues_run_id
        limit 1) as p on true
), flagged as (
    update kagzi.handlers h
    set queued = false, dirty = false, cause = null
    from stored s
    where h.namespace = :namespace and h.automation = s.automation and h.name = s.handler
      and h.automation = any (:automations::text[]) and s.continues_run_id is null and (h.queued or h.dirty or h.cause is not null)
), continued as (
    update kagzi.automations a
    set continues_run_id = null
    from stored s
    where a.namespace = :namespace and a.name = s.automation and a.name = any (:automations::text[])
      and s.continues_run_id is not null
), moved as (
    update kagzi.deliveries d
    set run_id = s.run_id, run_ids = d.run_ids || s.run_id
    from stored s
    where d.namespace = :namespace and d.run_id = s.continues_run_id and d.run_id = any (:continues::uuid[])
      and d.status = 'RESERVED'
), passed as (
    update kagzi.mutations m
    set holder_id = s.run_id
    from stored s
    where m.namespace = :namespace and m.holder_id = s.continues_run_id and m.holder_id = any (:continues::uuid[])
)
select s.run_id, kagzi.now() as now from stored s;

-- name: register
-- Registers what came from outside; saying it again changes only the title. The caller holds the automations.
insert into kagzi.inputs as i (namespace, automation, input_id, source, type, key, title, run_id)
select :namespace, u.automation, u.input_id, u.source, u.type, u.key, u.title, u.run_id
from unnest(:automations::text[], :input_ids::uuid[], :sources::text[], :types::text[], :keys::text[],
            :titles::text[], :run_ids::uuid[]) as u(automation, input_id, source, type, key, title, run_id)
on conflict (namespace, automation, input_id) do update
set title = excluded.title
where i.title <> excluded.title;

-- name: publish
-- Publishes events: the last write wins on the payload, deliveries stay as they are, and a new event is delivered to every
-- consumer that subscribes now. A consumer for which something is pending by this is stirred. What a consumer publishes
-- comes from what its run has reserved, up to a thousand inputs. The caller holds the automations.
with given as materialized (
    select u.automation, u.topic, u.event_id, u.payload, u.encoding, u.run_id, u.input_id, u.number
    from unnest(:automations::text[], :topics::text[], :event_ids::text[], :payloads::bytea[], :encodings::text[],
                :run_ids::uuid[], :input_ids::uuid[])
        with ordinality as u(automation, topic, event_id, payload, encoding, run_id, input_id, number)
), stored as (
    insert into kagzi.events as e (namespace, automation, topic, event_id, payload, payload_encoding, run_id)
    select :namespace, g.automation, g.topic, g.event_id, g.payload, g.encoding, g.run_id
    from given g
    order by g.number
    on conflict (namespace, automation, topic, event_id) do update
    set payload = excluded.payload, payload_encoding = excluded.payload_encoding, writes = e.writes + 1,
        updated_at = kagzi.now()
    returning e.automation, e.topic, e.event_id, e.arrival, e.writes, e.created_at
), inherited as materialized (
    select r.run_id, c.input_id
    from (select distinct g.run_id from given g where g.input_id is null and g.run_id is not null) as r
    cross join lateral (
        select distinct c.input_id
        from (select d.automation, d.topic, d.event_id from kagzi.deliveries d
              where d.namespace = :namespace and d.run_id = r.run_id and d.status = 'RESERVED' offset 0) as d
        cross join lateral (
            select c.input_id from kagzi.event_causes c
            where c.namespace = :namespace and c.automation = d.automation and c.topic = d.topic
              and c.event_id = d.event_id
            offset 0) as c
        limit 1000) as c
), caused as (
    insert into kagzi.event_causes (namespace, automation, topic, event_id, input_id)
    select :namespace, g.automation, g.topic, g.event_id, coalesce(g.input_id, i.input_id)
    from given g
    left join inherited i on g.input_id is null and i.run_id = g.run_id
    where coalesce(g.input_id, i.input_id) is not null
    on conflict do nothing
), subscribers as materialized (
    select h.automation, h.name, t.topic
    from kagzi.handlers h
    cross join lateral unnest(h.subscribes) as t(topic)
    where h.namespace = :namespace and h.automation = any (:automations::text[]) and h.removed_at is null
), delivered as (
    insert into kagzi.deliveries (namespace, automation, consumer, topic, event_id, status, arrival, published_at)
    select :namespace, s.automation, h.name, s.topic, s.event_id, 'PENDING', s.arrival, s.created_at
    from stored s
    join subscribers h on h.automation = s.automation and h.topic = s.topic
    where s.writes = 1
    on conflict do nothing
    returning automation, consumer
), pending as (
    select d.automation, d.consumer from delivered d
    union
    select d.automation, d.consumer
    from stored s
    join subscribers h on h.automation = s.automation and h.topic = s.topic
    -- Found by its key, whatever its status: the index of what is pending would lead past all of the topic.
    cross join lateral (
        select d.automation, d.consumer, d.status
        from kagzi.deliveries d
        where d.namespace = :namespace and d.automation = s.automation and d.consumer = h.name and d.topic = s.topic
          and d.event_id = s.event_id
        limit 1) as d
    where s.writes > 1 and d.status = 'PENDING'
), stirred as (
    update kagzi.handlers h
    set dirty = true, cause = 'event'
    from pending
    where h.namespace = :namespace and h.automation = pending.automation and h.name = pending.consumer
      and h.automation = any (:automations::text[]) and not h.dirty
)
select s.automation, count(*) filter (where s.writes = 1) as created, count(*) filter (where s.writes > 1) as updated
from stored s
group by s.automation;

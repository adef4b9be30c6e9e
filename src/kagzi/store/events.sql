-- name: list
-- Events of an automation, newest first, from behind the given one; as many as fit into :room bytes when payloads are
-- asked for, the first always. `found` counts one more than asked for. Locks nothing.
select p.topic, p.event_id, p.payload, p.payload_encoding, p.run_id, p.created_at, p.updated_at, p.found
from (
    select s.topic, s.event_id, s.payload, s.payload_encoding, s.run_id, s.created_at, s.updated_at,
           count(*) over () as found,
           row_number() over (order by s.created_at desc, s.topic desc, s.event_id desc) as place,
           sum(coalesce(octet_length(s.payload), 0)) over (order by s.created_at desc, s.topic desc, s.event_id desc)
               as bytes
    from (
        select e.topic, e.event_id, case when :payloads::boolean then e.payload end as payload, e.payload_encoding,
               e.run_id, e.created_at, e.updated_at
        from kagzi.events e
        where e.namespace = :namespace and e.automation = :automation
          and (:topic::text is null or e.topic = :topic) and (:event_id::text is null or e.event_id = :event_id)
          and (:run_id::uuid is null or e.run_id = :run_id)
          and (:consumer::text is null and :statuses::text[] is null or exists (
              select 1
              from kagzi.handlers h
              join kagzi.deliveries d on d.namespace = :namespace and d.automation = e.automation
                  and d.consumer = h.name and d.topic = e.topic and d.event_id = e.event_id
              where h.namespace = :namespace and h.automation = e.automation
                and (:consumer::text is null or h.name = :consumer)
                and (:statuses::text[] is null or d.status = any (:statuses::text[]))))
          and (:after_at::timestamptz is null
               or (e.created_at, e.topic, e.event_id) < (:after_at::timestamptz, :after_topic::text, :after_id::text))
        order by e.created_at desc, e.topic desc, e.event_id desc
        limit :count::integer + 1) as s) as p
where p.place <= :count and (p.bytes <= :room or p.place = 1)
order by p.place;

-- name: looked
-- The :look_at newest events of an automation from behind the given one, without payloads, and whether each is one of
-- those asked for: what is rare costs no more to look for than what is common. Limits keep each look for a delivery one
-- probe of a key. Locks nothing.
with consumers as materialized (
    select h.name
    from kagzi.handlers h
    where h.namespace = :namespace and h.automation = :automation and (:consumer::text is null or h.name = :consumer)
)
select e.topic, e.event_id, null::bytea as payload, e.payload_encoding, e.run_id, e.created_at, e.updated_at,
       (:topic::text is null or e.topic = :topic) and (:event_id::text is null or e.event_id = :event_id)
       and (:run_id::uuid is null or e.run_id = :run_id)
       and (:consumer::text is null and :statuses::text[] is null or exists (
           select 1
           from consumers c
           cross join lateral (
               select d.status
               from kagzi.deliveries d
               where d.namespace = :namespace and d.automation = :automation and d.consumer = c.name
                 and d.topic = e.topic and d.event_id = e.event_id
               limit 1) as d
           where :statuses::text[] is null or d.status = any (:statuses::text[]))) as wanted
from (
    select e.topic, e.event_id, e.payload_encoding, e.run_id, e.created_at, e.updated_at
    from kagzi.events e
    where e.namespace = :namespace and e.automation = :automation
      and (:after_at::timestamptz is null
           or (e.created_at, e.topic, e.event_id) < (:after_at::timestamptz, :after_topic::text, :after_id::text))
    order by e.created_at desc, e.topic desc, e.event_id desc
    limit :look_at) as e
order by e.created_at desc, e.topic desc, e.event_id desc;

-- name: deliveries
-- The deliveries of events, by consumer. Limits keep each look one probe of a key. Locks nothing.
with consumers as materialized (
    select h.name from kagzi.handlers h where h.namespace = :namespace and h.automation = :automation
)
select u.topic, u.event_id, c.name as consumer, d.status, d.run_id, d.attempts, d.updated_at, d.run_ids
from unnest(:topics::text[], :event_ids::text[]) as u(topic, event_id)
cross join consumers c
cross join lateral (
    select d.status, d.run_id, d.attempts, d.updated_at, d.run_ids
    from kagzi.deliveries d
    where d.namespace = :namespace and d.automation = :automation and d.consumer = c.name and d.topic = u.topic
      and d.event_id = u.event_id
    limit 1) as d
order by c.name;

-- name: causes
-- The inputs that events came from, at most :most of each. Limits keep each look one probe of a key. Locks nothing.
select u.topic, u.event_id, i.source, i.type, i.key
from unnest(:topics::text[], :event_ids::text[]) as u(topic, event_id)
cross join lateral (
    select c.input_id
    from kagzi.event_causes c
    where c.namespace = :namespace and c.automation = :automation and c.topic = u.topic and c.event_id = u.event_id
    limit :most) as c
cross join lateral (
    select i.source, i.type, i.key, i.created_at
    from kagzi.inputs i
    where i.namespace = :namespace and i.automation = :automation and i.input_id = c.input_id
    limit 1) as i
order by i.created_at, i.source, i.type, i.key;

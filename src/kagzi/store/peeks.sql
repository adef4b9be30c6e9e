-- name: peek
-- The oldest pending events of topics for consumers, from behind a place in the order of publication; as many as fit into
-- :room bytes, the first always. `found` counts one more than asked for, to tell that there is more. Locks nothing.
select u.number, p.event_id, p.attempts, p.arrival, p.created_at, p.payload, p.payload_encoding, p.found
from unnest(:automations::text[], :consumers::text[], :topics::text[], :limits::integer[], :after::bigint[])
    with ordinality as u(automation, consumer, topic, most, after, number)
cross join lateral (
    select s.event_id, s.attempts, s.arrival, s.created_at, s.payload, s.payload_encoding, count(*) over () as found,
           row_number() over (order by s.arrival) as place,
           sum(coalesce(octet_length(s.payload), 0) + 200) over (order by s.arrival) as bytes
    from (
        select d.event_id, d.attempts, d.arrival, e.created_at, e.payload, e.payload_encoding
        from (
            select d.event_id, d.attempts, d.arrival
            from kagzi.deliveries d
            where d.namespace = :namespace and d.automation = u.automation and d.consumer = u.consumer
              and d.topic = u.topic and d.status = 'PENDING' and d.arrival > u.after
            order by d.arrival
            limit u.most + 1) as d
        cross join lateral (
            select e.created_at, e.payload, e.payload_encoding
            from kagzi.events e
            where e.namespace = :namespace and e.automation = u.automation and e.topic = u.topic
              and e.event_id = d.event_id
            limit 1) as e
    ) as s
) as p
where p.place <= u.most and (p.bytes <= :room or p.place = 1)
order by u.number, p.arrival;

-- name: get
-- Events by id with their deliveries to a consumer, in the order of the ids, as far as their payloads fit into :room
-- bytes, the first always; the others are answered without payload as `cut`. Ids without an event are not answered.
select g.number, g.place, g.event_id, g.status, g.attempts, g.created_at, g.payload_encoding,
       case when not g.cut then g.payload end as payload, g.cut
from (
    select u.number, u.place, e.event_id, d.status, d.attempts, e.created_at, e.payload, e.payload_encoding,
           sum(coalesce(octet_length(e.payload), 0) + 200) over (partition by u.number order by u.place) > :room
               and row_number() over (partition by u.number order by u.place) > 1 as cut
    from unnest(:numbers::integer[], :automations::text[], :consumers::text[], :topics::text[], :event_ids::text[])
        with ordinality as u(number, automation, consumer, topic, event_id, place)
    cross join lateral (
        select e.event_id, e.created_at, e.payload, e.payload_encoding
        from kagzi.events e
        where e.namespace = :namespace and e.automation = u.automation and e.topic = u.topic
          and e.event_id = u.event_id
        limit 1) as e
    left join lateral (
        select d.status, d.attempts
        from kagzi.deliveries d
        where d.namespace = :namespace and d.automation = u.automation and d.consumer = u.consumer
          and d.topic = u.topic and d.event_id = u.event_id
        limit 1) as d on true
) as g
order by g.number, g.place;

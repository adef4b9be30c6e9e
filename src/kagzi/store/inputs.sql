-- name: list
-- Inputs of an automation, newest first, from behind the given one, with how many of the deliveries they caused are
-- pending or reserved, and whether one was skipped. Of each input :look_at deliveries are looked at, and whether there
-- are more: by range and order, as the planner would else read a table from its beginning until it has met so many. Limits
-- keep each look for a delivery one probe of a key. Locks nothing.
with consumers as materialized (
    select h.name from kagzi.handlers h where h.namespace = :namespace and h.automation = :automation
)
select i.source, i.type, i.key, i.title, i.run_id, i.created_at, w.pending, w.skipped, w.looked > :look_at as partial
from kagzi.inputs i
cross join lateral (
    select count(f.status) filter (where f.status in ('PENDING', 'RESERVED')) as pending,
           coalesce(bool_or(f.status = 'SKIPPED'), false) as skipped, count(f.event_id) as looked
    from (
        select c.event_id, d.status
        from kagzi.event_causes c
        left join lateral (
            select d.status
            from consumers h
            cross join lateral (
                select d.status
                from kagzi.deliveries d
                where d.namespace = :namespace and d.automation = :automation and d.consumer = h.name
                  and d.topic = c.topic and d.event_id = c.event_id
                limit 1) as d
        ) as d on true
        where c.namespace = :namespace and c.automation = :automation and c.input_id between i.input_id and i.input_id
        order by c.input_id
        limit :look_at::bigint + 1) as f) as w
where i.namespace = :namespace and i.automation = :automation
  and (:input_id::uuid is null or i.input_id = :input_id)
  and (:source::text is null or i.source = :source) and (:type::text is null or i.type = :type)
  and (:statuses::text[] is null
       or case when w.pending > 0 then 'PENDING' when w.skipped then 'SKIPPED' else 'DONE' end = any (:statuses::text[]))
  and (:after_at::timestamptz is null
       or (i.created_at, i.source, i.type, i.key)
          < (:after_at::timestamptz, :after_source::text, :after_type::text, :after_key::text))
order by i.created_at desc, i.source desc, i.type desc, i.key desc
limit :count;

-- name: events
-- Events that an input caused, directly or through others, oldest first, without payloads; of more than :look_at, some.
-- Locks nothing.
select e.topic, e.event_id, null::bytea as payload, e.payload_encoding, e.run_id, e.created_at, e.updated_at
from (
    select c.topic, c.event_id
    from kagzi.event_causes c
    where c.namespace = :namespace and c.automation = :automation
      and c.input_id between :input_id::uuid and :input_id::uuid
    order by c.input_id
    limit :look_at::bigint) as c
cross join lateral (
    select e.topic, e.event_id, e.payload_encoding, e.run_id, e.created_at, e.updated_at, e.arrival
    from kagzi.events e
    where e.namespace = :namespace and e.automation = :automation and e.topic = c.topic and e.event_id = c.event_id
    limit 1) as e
order by e.arrival
limit :count;

-- name: runs
-- Handler runs by id, oldest first, with what they reserved. Locks nothing.
select r.run_id, r.handler, r.status, p.prepared_title, r.continues_run_id, p.reserved::text as reserved, r.created_at,
       r.finished_at
from kagzi.workflow_runs r
left join kagzi.workflow_payloads p on p.namespace = :namespace and p.run_id = r.run_id
where r.namespace = :namespace and r.run_id = any (:run_ids::uuid[])
order by r.created_at, r.run_id
limit :count;

-- name: skip
-- Skips what is pending of an input. Each delivery is found by its key, however many an input caused, and changed where
-- it was found: the planner, as long as it knows nothing of a table, would go through all of them for each. The caller
-- holds the automation.
with caused as materialized (
    select c.topic, c.event_id
    from kagzi.event_causes c
    where c.namespace = :namespace and c.automation = :automation
      and c.input_id between :input_id::uuid and :input_id::uuid
    order by c.input_id
), found as materialized (
    select d.place
    from caused c
    cross join kagzi.handlers h
    cross join lateral (
        select d.ctid as place from kagzi.deliveries d
        where d.namespace = :namespace and d.automation = :automation and d.consumer = h.name and d.topic = c.topic
          and d.event_id = c.event_id
        limit 1) as d
    where h.namespace = :namespace and h.automation = :automation
)
update kagzi.deliveries d
set status = 'SKIPPED', updated_at = kagzi.now()
from found f
where d.ctid = f.place and d.namespace = :namespace and d.automation = :automation and d.status = 'PENDING';

-- name: reserved
-- How many deliveries of an input a run has.
select count(*) as reserved
from (
    select c.topic, c.event_id
    from kagzi.event_causes c
    where c.namespace = :namespace and c.automation = :automation
      and c.input_id between :input_id::uuid and :input_id::uuid
    order by c.input_id
    offset 0) as c
cross join kagzi.handlers h
cross join lateral (
    select d.status from kagzi.deliveries d
    where d.namespace = :namespace and d.automation = :automation and d.consumer = h.name and d.topic = c.topic
      and d.event_id = c.event_id
    limit 1) as d
where h.namespace = :namespace and h.automation = :automation and d.status = 'RESERVED';

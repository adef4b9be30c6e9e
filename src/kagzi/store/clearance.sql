-- name: outlived
-- Automations with an event, an input or a handler's name that is older than such things are kept: as their namespace
-- says, else :keep_ms; 0 is for ever. One probe of an index for each, at the old end of its list. Locks nothing.
select n.namespace, a.name
from kagzi.namespaces n
join kagzi.automations a on a.namespace = n.namespace
left join lateral (
    select e.created_at from kagzi.events e
    where e.namespace = n.namespace and e.automation = a.name
    order by e.created_at
    limit 1) as event on true
left join lateral (
    select i.created_at from kagzi.inputs i
    where i.namespace = n.namespace and i.automation = a.name
    order by i.created_at
    limit 1) as input on true
left join lateral (
    select min(h.removed_at) as removed_at from kagzi.handlers h
    where h.namespace = n.namespace and h.automation = a.name) as handler on true
where coalesce(n.retention_events_ms, :keep_ms::bigint) > 0
  and least(event.created_at, input.created_at, handler.removed_at)
      < kagzi.now() - coalesce(n.retention_events_ms, :keep_ms) * interval '1 millisecond'
order by n.namespace, a.name;

-- name: old_events
-- The next :look_at events that are older than they are kept, from behind the given one, and whether nobody needs them:
-- none of their deliveries is open, and the last one ended, and they were last published, longer ago than that. Limits
-- keep each look for a delivery one probe of a key. Locks nothing.
with kept as materialized (
    select kagzi.now() - coalesce(n.retention_events_ms, :keep_ms::bigint) * interval '1 millisecond' as before
    from kagzi.namespaces n
    where n.namespace = :namespace and coalesce(n.retention_events_ms, :keep_ms) > 0
), consumers as materialized (
    select h.name from kagzi.handlers h where h.namespace = :namespace and h.automation = :automation
)
select e.topic, e.event_id, e.created_at,
       e.updated_at < k.before and not exists (
           select 1
           from consumers c
           cross join lateral (
               select d.status, d.updated_at
               from kagzi.deliveries d
               where d.namespace = :namespace and d.automation = :automation and d.consumer = c.name
                 and d.topic = e.topic and d.event_id = e.event_id
               limit 1) as d
           where d.status in ('PENDING', 'RESERVED') or d.updated_at >= k.before) as done
from kept k
cross join lateral (
    select e.topic, e.event_id, e.created_at, e.updated_at
    from kagzi.events e
    where e.namespace = :namespace and e.automation = :automation and e.created_at < k.before
      and (e.created_at, e.topic, e.event_id) > (:after_at::timestamptz, :after_topic::text, :after_id::text)
    order by e.created_at, e.topic, e.event_id
    limit :look_at) as e
order by e.created_at, e.topic, e.event_id;

-- name: remove_events
-- Deletes those of these events that still nobody needs, with their deliveries and causes. The caller holds the
-- automation, locked by a statement before this one: whoever publishes, reserves or releases one comes before or after.
-- The arrays keep deletes from comparing all of an automation with all of these.
with kept as materialized (
    select kagzi.now() - coalesce(n.retention_events_ms, :keep_ms::bigint) * interval '1 millisecond' as before
    from kagzi.namespaces n
    where n.namespace = :namespace and coalesce(n.retention_events_ms, :keep_ms) > 0
), consumers as materialized (
    select h.name from kagzi.handlers h where h.namespace = :namespace and h.automation = :automation
), done as materialized (
    select u.topic, u.event_id
    from kept k
    cross join unnest(:topics::text[], :event_ids::text[]) as u(topic, event_id)
    cross join lateral (
        select e.updated_at
        from kagzi.events e
        where e.namespace = :namespace and e.automation = :automation and e.topic = u.topic and e.event_id = u.event_id
        limit 1) as e
    where e.updated_at < k.before and not exists (
        select 1
        from consumers c
        cross join lateral (
            select d.status, d.updated_at
            from kagzi.deliveries d
            where d.namespace = :namespace and d.automation = :automation and d.consumer = c.name
              and d.topic = u.topic and d.event_id = u.event_id
            limit 1) as d
        where d.status in ('PENDING', 'RESERVED') or d.updated_at >= k.before)
), delivered as (
    delete from kagzi.deliveries d
    using done, consumers c
    where d.namespace = :namespace and d.automation = :automation and d.consumer = c.name and d.topic = done.topic
      and d.event_id = done.event_id and d.consumer = any (array(select c.name from consumers c))
      and d.topic = any (:topics::text[]) and d.event_id = any (:event_ids::text[])
), caused as (
    delete from kagzi.event_causes c
    using done
    where c.namespace = :namespace and c.automation = :automation and c.topic = done.topic
      and c.event_id = done.event_id and c.topic = any (:topics::text[]) and c.event_id = any (:event_ids::text[])
)
delete from kagzi.events e
using done
where e.namespace = :namespace and e.automation = :automation and e.topic = done.topic and e.event_id = done.event_id
  and e.topic = any (:topics::text[]) and e.event_id = any (:event_ids::text[]);

-- name: old_inputs
-- The next :look_at inputs that are older than events are kept, from behind the given one, and whether no event that
-- came from them is left: the order leads each look to the index of causes by input, whatever the planner believes of
-- the table. Locks nothing.
with kept as materialized (
    select kagzi.now() - coalesce(n.retention_events_ms, :keep_ms::bigint) * interval '1 millisecond' as before
    from kagzi.namespaces n
    where n.namespace = :namespace and coalesce(n.retention_events_ms, :keep_ms) > 0
)
select i.input_id, i.created_at, i.source, i.type, i.key, c.input_id is distinct from i.input_id as done
from kept k
cross join lateral (
    select i.input_id, i.created_at, i.source, i.type, i.key
    from kagzi.inputs i
    where i.namespace = :namespace and i.automation = :automation and i.created_at < k.before
      and (i.created_at, i.source, i.type, i.key)
          > (:after_at::timestamptz, :after_source::text, :after_type::text, :after_key::text)
    order by i.created_at, i.source, i.type, i.key
    limit :look_at) as i
left join lateral (
    select c.input_id
    from kagzi.event_causes c
    where c.namespace = :namespace and c.automation = :automation and c.input_id >= i.input_id
    order by c.input_id
    limit 1) as c on true
order by i.created_at, i.source, i.type, i.key;

-- name: remove_inputs
-- Deletes those of these inputs of which still no event is left. The caller holds the automation, locked by a statement
-- before this one: whoever registers one and publishes for it comes before or after.
with kept as materialized (
    select kagzi.now() - coalesce(n.retention_events_ms, :keep_ms::bigint) * interval '1 millisecond' as before
    from kagzi.namespaces n
    where n.namespace = :namespace and coalesce(n.retention_events_ms, :keep_ms) > 0
), done as materialized (
    select u.input_id
    from unnest(:input_ids::uuid[]) as u(input_id)
    left join lateral (
        select c.input_id
        from kagzi.event_causes c
        where c.namespace = :namespace and c.automation = :automation and c.input_id >= u.input_id
        order by c.input_id
        limit 1) as c on true
    where c.input_id is distinct from u.input_id
)
delete from kagzi.inputs i
using done, kept k
where i.namespace = :namespace and i.automation = :automation and i.input_id = done.input_id
  and i.input_id = any (:input_ids::uuid[]) and i.created_at < k.before;

-- name: forget_handlers
-- Deletes the names of handlers that were removed longer ago than events are kept and that nothing refers to: no
-- delivery, no run that lives, no mutation whose outcome is unknown. The caller holds the automation, locked by a
-- statement before this one.
with kept as materialized (
    select kagzi.now() - coalesce(n.retention_events_ms, :keep_ms::bigint) * interval '1 millisecond' as before
    from kagzi.namespaces n
    where n.namespace = :namespace and coalesce(n.retention_events_ms, :keep_ms) > 0
)
delete from kagzi.handlers h
using kept k
where h.namespace = :namespace and h.automation = :automation and h.removed_at < k.before
  and not exists (select 1 from kagzi.workflow_runs r
                  where r.namespace = :namespace and r.automation = h.automation and r.handler = h.name
                    and r.status in ('PENDING', 'RUNNING', 'SLEEPING'))
  and not exists (select 1 from kagzi.mutations m
                  where m.namespace = :namespace and m.automation = h.automation and m.finished_at is null)
  and not exists (select 1 from kagzi.deliveries d
                  where d.namespace = :namespace and d.automation = h.automation and d.consumer = h.name);

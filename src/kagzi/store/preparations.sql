-- name: wanted
-- How the deliveries stand that consumers want to reserve, and whether that changed since their run was started; one that
-- does not exist has no status. The caller holds the automations, so that nothing changes until it writes.
select u.number, u.topic, u.event_id, d.status, coalesce(d.updated_at >= u.since, false) as lately
from unnest(:numbers::integer[], :automations::text[], :consumers::text[], :topics::text[], :event_ids::text[],
            :since::timestamptz[]) as u(number, automation, consumer, topic, event_id, since)
left join lateral (
    select d.status, d.updated_at
    from kagzi.deliveries d
    where d.namespace = :namespace and d.automation = u.automation and d.consumer = u.consumer and d.topic = u.topic
      and d.event_id = u.event_id
    limit 1) as d on true
order by u.number;

-- name: prepare
-- Stores what consumers decided: their reservations, and the time they want to be woken at, moved into its bounds now that
-- it is known when now is. One that wants anything that is not pending is left out whole, and not answered. The caller
-- holds the automations, so that no delivery changes meanwhile, or is ever inserted here: written as an insert each is one
-- probe of its key, whatever the planner believes of the table.
with wanted as materialized (
    select w.run_id, w.automation, w.consumer, w.topic, w.event_id, d.status
    from unnest(:wanted_run_ids::uuid[], :wanted_automations::text[], :wanted_consumers::text[],
                :wanted_topics::text[], :wanted_ids::text[]) as w(run_id, automation, consumer, topic, event_id)
    left join lateral (
        select d.status
        from kagzi.deliveries d
        where d.namespace = :namespace and d.automation = w.automation and d.consumer = w.consumer
          and d.topic = w.topic and d.event_id = w.event_id
        limit 1) as d on true
), decided as materialized (
    select u.run_id, u.automation, u.consumer, u.reserved, u.data, u.encoding, u.title, u.ui,
           case when u.wake_at is not null
                then least(greatest(u.wake_at, kagzi.now() + :wake_min::interval), kagzi.now() + :wake_max::interval)
           end as wake_at
    from unnest(:run_ids::uuid[], :automations::text[], :consumers::text[], :reserved::text[], :datas::bytea[],
                :encodings::text[], :titles::text[], :uis::text[], :wake_ats::timestamptz[])
        as u(run_id, automation, consumer, reserved, data, encoding, title, ui, wake_at)
    where u.run_id not in (select w.run_id from wanted w where w.status is distinct from 'PENDING')
), stored as (
    update kagzi.workflow_payloads p
    set reserved = decided.reserved::jsonb, prepared_data = decided.data, prepared_encoding = decided.encoding,
        prepared_title = decided.title, prepared_ui = decided.ui, prepared_wake_at = decided.wake_at
    from decided
    where p.namespace = :namespace and p.run_id = decided.run_id and p.run_id = any (:run_ids::uuid[])
), taken as (
    insert into kagzi.deliveries as d
        (namespace, automation, consumer, topic, event_id, status, run_id, arrival, published_at)
    select :namespace, w.automation, w.consumer, w.topic, w.event_id, 'RESERVED', w.run_id, 0, kagzi.now()
    from wanted w
    where w.run_id in (select decided.run_id from decided)
    on conflict (namespace, automation, consumer, topic, event_id) do update
    set status = 'RESERVED', run_id = excluded.run_id, run_ids = d.run_ids || excluded.run_id, updated_at = kagzi.now()
    where d.status = 'PENDING'
), waking as (
    update kagzi.handlers h
    set wake_at = decided.wake_at
    from decided
    where h.namespace = :namespace and h.automation = decided.automation and h.name = decided.consumer
      and h.automation = any (:automations::text[]) and h.wake_at is distinct from decided.wake_at
)
select decided.run_id, decided.wake_at from decided;

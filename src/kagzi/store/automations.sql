-- name: list
-- Automations by name, from behind the given one, without what they hold. What is pending is counted up to :count_to, in
-- the order of its index: without one a consumer that has nothing pending is looked for among all that others have. Limits
-- keep each look for a live run and what is its own one probe of a key, however many automations there are.
with page as materialized (
    select a.name, a.definition_hash, a.task_queue, a.paused_at, a.blocked_code, a.blocked_message, a.blocked_handler,
           a.blocked_run_id, a.blocked_mutation_id, a.blocked_at, a.last_request, a.created_at, a.deployed_at
    from kagzi.automations a
    where a.namespace = :namespace and a.name > :after and (:name::text is null or a.name = :name)
      and (:statuses::text[] is null
           or case when a.blocked_code is not null then 'BLOCKED' when a.paused_at is not null then 'PAUSED'
                   else 'ACTIVE' end = any (:statuses::text[]))
    order by a.name
    limit :count
)
select a.name, a.definition_hash, a.task_queue, a.paused_at, a.blocked_code, a.blocked_message, a.blocked_handler,
       a.blocked_run_id, a.blocked_mutation_id, a.blocked_at, a.last_request, a.created_at, a.deployed_at, r.run_id,
       r.handler, r.status, r.trigger, k.kind, r.created_at as run_created_at, p.prepared is true as prepared,
       p.prepared_title, m.status as mutation_status,
       exists (select 1 from kagzi.step_runs s
               where s.namespace = :namespace and s.run_id = r.run_id and s.step_id = 'next') as emitting,
       (select min(h.due_at) from kagzi.handlers h
        where h.namespace = :namespace and h.automation = a.name and h.due_at is not null) as next_at,
       (select count(*)
        from (select 1
              from kagzi.handlers h
              cross join lateral (
                  select 1 from kagzi.deliveries d
                  where d.namespace = :namespace and d.automation = a.name and d.consumer = h.name
                    and d.status = 'PENDING'
                  order by d.topic, d.arrival
                  limit :count_to) as w
              where h.namespace = :namespace and h.automation = a.name and h.kind = 'CONSUMER'
              limit :count_to) as counted) as pending
from page a
left join lateral (
    select r.run_id, r.handler, r.status, r.trigger, r.created_at
    from kagzi.workflow_runs r
    where r.namespace = :namespace and r.automation = a.name and r.status in ('PENDING', 'RUNNING', 'SLEEPING')
    limit 1) as r on true
left join lateral (
    select k.kind from kagzi.handlers k
    where k.namespace = :namespace and k.automation = a.name and k.name = r.handler
    limit 1) as k on true
left join lateral (
    select p.reserved is not null as prepared, p.prepared_title
    from kagzi.workflow_payloads p
    where p.namespace = :namespace and p.run_id = r.run_id
    limit 1) as p on true
left join lateral (
    select m.status from kagzi.mutations m
    where m.namespace = :namespace and m.holder_id = r.run_id
    limit 1) as m on true
order by a.name;

-- name: handlers
-- The handlers of an automation by name, with the state of one of them.
select h.name, h.kind, h.publishes, h.subscribes, h.mutates, h.schedule_type, h.schedule_value, h.timezone, h.anchor_at,
       h.next_run_at, h.last_run_at, h.queued, h.wake_at, h.dirty, h.failures, h.not_before,
       case when h.name = :state_of then h.state end as state, h.state_encoding, h.last_run_id,
       h.last_failure::text as last_failure
from kagzi.handlers h
where h.namespace = :namespace and h.automation = :name and h.removed_at is null
order by h.name;

-- name: backlog
-- What is left to do in each topic for each consumer; pending deliveries are counted up to :count_to, which they share
-- or have each. What is reserved is looked for among what live runs hold.
select s.topic, s.consumer, p.pending, p.oldest_at,
       (select count(*)
        from kagzi.workflow_runs r
        join kagzi.deliveries d on d.namespace = :namespace and d.run_id = r.run_id and d.status = 'RESERVED'
        where r.namespace = :namespace and r.automation = :name and r.status in ('PENDING', 'RUNNING', 'SLEEPING')
          and d.automation = :name and d.consumer = s.consumer and d.topic = s.topic) as reserved
from (
    select s.topic, h.name as consumer,
           case when :shared::boolean then greatest(1, :count_to::integer / count(*) over ()) else :count_to::integer end
               as share
    from kagzi.handlers h
    cross join lateral unnest(h.subscribes) as s(topic)
    where h.namespace = :namespace and h.automation = :name and h.removed_at is null) as s
cross join lateral (
    select count(*) as pending, min(w.published_at) as oldest_at
    from (select d.published_at from kagzi.deliveries d
          where d.namespace = :namespace and d.automation = :name and d.consumer = s.consumer and d.topic = s.topic
            and d.status = 'PENDING'
          order by d.arrival
          limit s.share) as w) as p
order by s.topic, s.consumer;

-- name: topics
-- Every topic that an automation knows.
select distinct t.topic
from kagzi.handlers h
cross join lateral unnest(h.publishes || h.subscribes) as t(topic)
where h.namespace = :namespace and h.automation = :name and h.removed_at is null;

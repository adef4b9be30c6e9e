-- name: pause
-- Starts nothing from now on. The caller holds the automation.
update kagzi.automations a
set paused_at = kagzi.now()
where a.namespace = :namespace and a.name = :name and a.paused_at is null;

-- name: resume
-- Goes on. The caller holds the automation.
update kagzi.automations a
set paused_at = null
where a.namespace = :namespace and a.name = :name and a.paused_at is not null;

-- name: queue
-- Queues all producers; they are due from now on, if they were not before, and so are not passed over for ever. The caller
-- holds the automation.
with asked as (
    update kagzi.automations a
    set last_request = :request_id::uuid
    where a.namespace = :namespace and a.name = :name
    returning a.name
)
update kagzi.handlers h
set queued = true, cause = 'manual', next_run_at = least(h.next_run_at, kagzi.now())
from asked
where h.namespace = :namespace and h.automation = asked.name and h.kind = 'PRODUCER' and h.removed_at is null
returning h.name;

-- name: standing
-- How an automation stands, read after it was locked.
select a.paused_at is not null as paused, a.blocked_code, a.blocked_handler, a.blocked_run_id, a.last_request,
       (select r.run_id from kagzi.workflow_runs r
        where r.namespace = :namespace and r.automation = a.name and r.status in ('PENDING', 'RUNNING', 'SLEEPING'))
           as live_run_id,
       array(select h.name from kagzi.handlers h
             where h.namespace = :namespace and h.automation = a.name and h.kind = 'PRODUCER' and h.removed_at is null
             order by h.name) as producers
from kagzi.automations a
where a.namespace = :namespace and a.name = :name;

-- name: ask_again
-- Turns a handler's flag on, by hand. The caller holds the automation.
update kagzi.handlers h
set queued = h.kind = 'PRODUCER', dirty = h.kind = 'CONSUMER', cause = 'manual'
where h.namespace = :namespace and h.automation = :name and h.name = :handler and h.removed_at is null;

-- name: due
-- Automations in which time alone lets a handler start now, wherever they are. Locks nothing.
select h.namespace, h.automation
from kagzi.handlers h
join kagzi.automations a on a.namespace = h.namespace and a.name = h.automation
where h.due_at <= kagzi.now() and a.paused_at is null and a.blocked_code is null
  -- Before a continuation nobody else starts: found again and again, they would keep the others out of the batch.
  and (a.continues_run_id is null
       or h.name = (select r.handler from kagzi.workflow_runs r
                    where r.namespace = h.namespace and r.run_id = a.continues_run_id))
  and not exists (select 1 from kagzi.workflow_runs r
                  where r.namespace = h.namespace and r.automation = h.automation
                    and r.status in ('PENDING', 'RUNNING', 'SLEEPING'))
  and exists (select 1 from kagzi.namespaces n where n.namespace = h.namespace and n.enabled)
order by h.due_at
limit :batch;

-- name: stranded
-- Automations in which something was asked for that nobody chose, as when their namespace was disabled then. Reads every
-- handler, and is therefore asked seldom. Locks nothing.
select h.namespace, h.automation
from kagzi.handlers h
join kagzi.automations a on a.namespace = h.namespace and a.name = h.automation
where (h.queued or h.dirty) and h.removed_at is null and (h.not_before is null or h.not_before <= kagzi.now())
  and a.paused_at is null and a.blocked_code is null
  and (a.continues_run_id is null
       or h.name = (select r.handler from kagzi.workflow_runs r
                    where r.namespace = h.namespace and r.run_id = a.continues_run_id))
  and not exists (select 1 from kagzi.workflow_runs r
                  where r.namespace = h.namespace and r.automation = h.automation
                    and r.status in ('PENDING', 'RUNNING', 'SLEEPING'))
  and exists (select 1 from kagzi.namespaces n where n.namespace = h.namespace and n.enabled)
limit :batch;

-- name: next_due
-- When time alone next lets a handler start; NULL when none waits for it. Locks nothing.
select kagzi.now() as now,
       (select h.due_at from kagzi.handlers h
        where h.due_at is not null and h.due_at > kagzi.now()
        order by h.due_at
        limit 1) as at;

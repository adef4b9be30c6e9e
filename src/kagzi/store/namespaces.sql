-- name: create
-- Makes a namespace. Answers nothing when the name is taken, also when another creation of it commits first; then
-- nothing is changed.
insert into kagzi.namespaces
    (namespace, description, retention_completed_ms, retention_failed_ms, retention_cancelled_ms,
     retention_events_ms)
values (:namespace, :description, :completed_ms, :failed_ms, :cancelled_ms, :events_ms)
on conflict (namespace) do nothing
returning namespace;

-- name: get
-- One namespace. Locks nothing.
select n.namespace, n.description, n.enabled, n.retention_completed_ms, n.retention_failed_ms,
       n.retention_cancelled_ms, n.retention_events_ms, n.created_at, n.updated_at
from kagzi.namespaces n
where n.namespace = :namespace;

-- name: list
-- Namespaces by name, after :after; one alone where :only is given. Locks nothing.
select n.namespace, n.description, n.enabled, n.retention_completed_ms, n.retention_failed_ms,
       n.retention_cancelled_ms, n.retention_events_ms, n.created_at, n.updated_at
from kagzi.namespaces n
where n.namespace > :after and (:enabled::boolean is null or n.enabled = :enabled)
  and (:only::text is null or n.namespace = :only)
order by n.namespace
limit :most;

-- name: update
-- Changes the description, the retention, or both; what is not given stays. Locks the namespace's row, which nothing
-- on the way of a run does.
update kagzi.namespaces n
set description = coalesce(:description::text, n.description),
    retention_completed_ms = case when :keep::boolean then n.retention_completed_ms else :completed_ms end,
    retention_failed_ms = case when :keep then n.retention_failed_ms else :failed_ms end,
    retention_cancelled_ms = case when :keep then n.retention_cancelled_ms else :cancelled_ms end,
    retention_events_ms = case when :keep then n.retention_events_ms else :events_ms end,
    updated_at = kagzi.now()
where n.namespace = :namespace;

-- name: enable
-- Lets work start, be claimed and fire. Changes nothing where it does already. Locks the namespace's row.
update kagzi.namespaces n
set enabled = true, updated_at = kagzi.now()
where n.namespace = :namespace and not n.enabled;

-- name: disable
-- Lets nothing more start, be claimed or fire; who looked before the commit still gets through. Changes nothing where
-- it is so already. Locks the namespace's row.
update kagzi.namespaces n
set enabled = false, updated_at = kagzi.now()
where n.namespace = :namespace and n.enabled;

-- name: running
-- Runs that workers hold, counted up to 10,000. Locks nothing.
select count(h.held) as running
from (select 1 as held from kagzi.workflow_runs r
      where r.namespace = :namespace and r.status = 'RUNNING' limit 10000) h;

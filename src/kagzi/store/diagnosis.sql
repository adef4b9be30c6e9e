-- name: durability
-- The settings that decide whether what was acknowledged survives a crash, and whether dead rows are removed, as they
-- are for connections like this one. Locks nothing.
select s.name, s.setting
from pg_catalog.pg_settings s
where s.name in ('fsync', 'full_page_writes', 'synchronous_commit', 'autovacuum', 'track_counts');

-- name: clock
-- The engine's time, the database's, and the process that answers: behind a pooler that is another than was greeted.
-- Locks nothing.
select kagzi.now() as engine, a.query_start as database, a.pid,
       current_setting('server_version') as version, current_setting('server_version_num')::integer as number
from pg_catalog.pg_stat_activity a
where a.pid = pg_catalog.pg_backend_pid();

-- name: dead_rows
-- Tables of the engine with more dead rows than live ones, and more than :most of them. Locks nothing.
select t.relname::text as name, t.n_live_tup as live, t.n_dead_tup as dead,
       greatest(t.last_vacuum, t.last_autovacuum) as vacuumed_at
from pg_catalog.pg_stat_user_tables t
where t.schemaname = 'kagzi' and t.n_dead_tup > :most::bigint and t.n_dead_tup > t.n_live_tup
order by t.n_dead_tup desc;

-- name: long_transactions
-- Transactions of this database that are open for too long, which keep dead rows from being removed. Locks nothing.
select a.pid, a.application_name as program, a.xact_start as since
from pg_catalog.pg_stat_activity a
where a.datname = current_database() and a.pid <> pg_catalog.pg_backend_pid() and a.backend_type = 'client backend'
  and a.xact_start < kagzi.now() - :tolerance::interval
order by a.xact_start
limit 20;

-- name: overdue
-- Runs of enabled namespaces that were due for too long and nobody took, and runs whose lease ended and nobody took
-- over; the oldest of each first. Reads the live runs. Locks nothing.
(select 'due' as kind, r.namespace, r.run_id::text as subject, r.available_at as since
 from kagzi.workflow_runs r
 join kagzi.namespaces n on n.namespace = r.namespace and n.enabled
 where r.status in ('PENDING', 'SLEEPING') and r.available_at < kagzi.now() - :tolerance::interval
 order by r.available_at
 limit 100)
union all
(select 'lease', r.namespace, r.run_id::text, r.available_at
 from kagzi.workflow_runs r
 where r.status = 'RUNNING' and r.available_at < kagzi.now() - :tolerance::interval
 order by r.available_at
 limit 100);

-- name: orphans
-- Events that a run has reserved which has ended, and which nothing will go on from: no continuation is due, the
-- automation is not blocked by it, and no mutation of it waits for an answer. Locks nothing.
select d.namespace, d.automation, count(d.event_id) as count, min(d.run_id::text) as subject
from kagzi.deliveries d
left join kagzi.workflow_runs r on r.namespace = d.namespace and r.run_id = d.run_id
where d.status = 'RESERVED' and d.updated_at < kagzi.now() - :tolerance::interval
  and (r.run_id is null or r.status in ('COMPLETED', 'FAILED', 'CANCELLED'))
  and not exists (select 1 from kagzi.automations a
                  where a.namespace = d.namespace and a.name = d.automation
                    and d.run_id in (a.continues_run_id, a.blocked_run_id))
  and not exists (select 1 from kagzi.mutations m
                  where m.namespace = d.namespace and m.holder_id = d.run_id and m.finished_at is null)
group by d.namespace, d.automation
order by d.namespace, d.automation
limit 100;

-- name: long_histories
-- Live runs with more steps on record than :most, of the 1,000 that live longest. Locks nothing.
select l.namespace, l.run_id::text as subject, l.workflow_type, h.steps
from (select r.namespace, r.run_id, r.workflow_type
      from kagzi.workflow_runs r
      where r.status in ('PENDING', 'RUNNING', 'SLEEPING')
      order by r.created_at
      limit 1000) l
cross join lateral (select count(s.step_id) as steps
                    from kagzi.step_runs s
                    where s.namespace = l.namespace and s.run_id = l.run_id and s.is_latest) h
where h.steps > :most::bigint
order by h.steps desc
limit 100;

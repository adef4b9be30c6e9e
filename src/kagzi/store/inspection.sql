-- name: step_by_id
-- The latest attempt of a step, else the last of those that were set aside; found by keys, however often it was tried.
-- Locks nothing.
select s.step_id, s.attempt_id, s.attempt_number, s.is_latest, s.kind, s.status, s.position, s.completed_seq,
       s.output, s.output_encoding, s.error, s.retry_at, nullif(s.wake_at, 'infinity') as wake_at, s.target,
       s.child_run_id, s.signal_id, s.input_hash, s.effect, s.created_at, s.started_at, s.finished_at,
       s.unclear
from kagzi.step_runs s
where s.namespace = :namespace and s.run_id = :run_id::uuid and s.step_id = :step_id
  and s.attempt_number = coalesce(
      (select l.attempt_number from kagzi.step_runs l
       where l.namespace = :namespace and l.run_id = :run_id::uuid and l.step_id = :step_id and l.is_latest),
      (select max(l.attempt_number) from kagzi.step_runs l
       where l.namespace = :namespace and l.run_id = :run_id::uuid and l.step_id = :step_id));

-- name: step_by_number
-- One attempt of a step, by its key. Locks nothing.
select s.step_id, s.attempt_id, s.attempt_number, s.is_latest, s.kind, s.status, s.position, s.completed_seq,
       s.output, s.output_encoding, s.error, s.retry_at, nullif(s.wake_at, 'infinity') as wake_at, s.target,
       s.child_run_id, s.signal_id, s.input_hash, s.effect, s.created_at, s.started_at, s.finished_at,
       s.unclear
from kagzi.step_runs s
where s.namespace = :namespace and s.run_id = :run_id::uuid and s.step_id = :step_id
  and s.attempt_number = :attempt_number::integer;

-- name: step_by_attempt
-- One attempt of a run; it is looked for among the run's steps, of which there is a limit. Locks nothing.
select s.step_id, s.attempt_id, s.attempt_number, s.is_latest, s.kind, s.status, s.position, s.completed_seq,
       s.output, s.output_encoding, s.error, s.retry_at, nullif(s.wake_at, 'infinity') as wake_at, s.target,
       s.child_run_id, s.signal_id, s.input_hash, s.effect, s.created_at, s.started_at, s.finished_at,
       s.unclear
from kagzi.step_runs s
where s.namespace = :namespace and s.run_id = :run_id::uuid and s.attempt_id = :attempt_id::uuid;

-- name: steps
-- Attempts of a run by (position, attempt_number, step_id) after the one with that key; several steps have one
-- position once some were set aside. The page ends before outputs and errors pass :most_bytes together, but has at
-- least one row; `found` counts what the page would have held, and one more. Rows are read once: joined again by their
-- key, the planner of a fresh table read the whole run for each. Locks nothing.
with page as materialized (
    select s.step_id, s.attempt_id, s.attempt_number, s.is_latest, s.kind, s.status, s.position, s.completed_seq,
           case when :outputs::boolean then s.output end as output, s.output_encoding, s.error, s.retry_at,
           nullif(s.wake_at, 'infinity') as wake_at, s.target, s.child_run_id, s.signal_id, s.input_hash, s.effect,
           s.created_at, s.started_at, s.finished_at, s.unclear,
           coalesce(octet_length(s.output), 0) * :outputs::boolean::integer
               + coalesce(octet_length(s.error::text), 0) as bytes
    from kagzi.step_runs s
    where s.namespace = :namespace and s.run_id = :run_id::uuid
      and (:superseded::boolean or s.is_latest)
      and (:step_id = '' or s.step_id = :step_id)
      and (cardinality(:statuses::text[]) = 0 or s.status = any (:statuses))
      and (s.position, s.attempt_number, s.step_id) > (:after_position::integer, :after_attempt::integer, :after_step)
    order by s.position, s.attempt_number, s.step_id
    limit :most::integer + 1
), numbered as (
    select p.step_id, p.attempt_id, p.attempt_number, p.is_latest, p.kind, p.status, p.position, p.completed_seq,
           p.output, p.output_encoding, p.error, p.retry_at, p.wake_at, p.target, p.child_run_id, p.signal_id,
           p.input_hash, p.effect, p.created_at, p.started_at, p.finished_at, p.unclear, row_number() over place as number,
           sum(p.bytes) over place as size, count(p.step_id) over () as found
    from page p
    window place as (order by p.position, p.attempt_number, p.step_id)
)
select n.step_id, n.attempt_id, n.attempt_number, n.is_latest, n.kind, n.status, n.position, n.completed_seq, n.output,
       n.output_encoding, n.error, n.retry_at, n.wake_at, n.target, n.child_run_id, n.signal_id, n.input_hash, n.effect,
       n.created_at, n.started_at, n.finished_at, n.unclear, n.found
from numbered n
where n.number <= :most and (n.size <= :most_bytes::bigint or n.number = 1)
order by n.number;

-- name: steps_by_id
-- The same by (step_id, attempt_number), which is the order of the key: a page reads its own rows alone. Locks nothing.
with page as materialized (
    select s.step_id, s.attempt_id, s.attempt_number, s.is_latest, s.kind, s.status, s.position, s.completed_seq,
           case when :outputs::boolean then s.output end as output, s.output_encoding, s.error, s.retry_at,
           nullif(s.wake_at, 'infinity') as wake_at, s.target, s.child_run_id, s.signal_id, s.input_hash, s.effect,
           s.created_at, s.started_at, s.finished_at, s.unclear,
           coalesce(octet_length(s.output), 0) * :outputs::boolean::integer
               + coalesce(octet_length(s.error::text), 0) as bytes
    from kagzi.step_runs s
    where s.namespace = :namespace and s.run_id = :run_id::uuid
      and (:superseded::boolean or s.is_latest)
      and (:step_id = '' or s.step_id = :step_id)
      and (cardinality(:statuses::text[]) = 0 or s.status = any (:statuses))
      and (s.step_id, s.attempt_number) > (:after_step::text, :after_attempt::integer)
    order by s.step_id, s.attempt_number
    limit :most::integer + 1
), numbered as (
    select p.step_id, p.attempt_id, p.attempt_number, p.is_latest, p.kind, p.status, p.position, p.completed_seq,
           p.output, p.output_encoding, p.error, p.retry_at, p.wake_at, p.target, p.child_run_id, p.signal_id,
           p.input_hash, p.effect, p.created_at, p.started_at, p.finished_at, p.unclear, row_number() over place as number,
           sum(p.bytes) over place as size, count(p.step_id) over () as found
    from page p
    window place as (order by p.step_id, p.attempt_number)
)
select n.step_id, n.attempt_id, n.attempt_number, n.is_latest, n.kind, n.status, n.position, n.completed_seq, n.output,
       n.output_encoding, n.error, n.retry_at, n.wake_at, n.target, n.child_run_id, n.signal_id, n.input_hash, n.effect,
       n.created_at, n.started_at, n.finished_at, n.unclear, n.found
from numbered n
where n.number <= :most and (n.size <= :most_bytes::bigint or n.number = 1)
order by n.number;

-- name: longer
-- Whether a run has more than :look_at attempts; counts no further. In the order of the key, as else the planner of a
-- small table reads it from its beginning. Locks nothing.
select count(s.attempt_number) > :look_at as longer
from (select s.attempt_number from kagzi.step_runs s
      where s.namespace = :namespace and s.run_id = :run_id::uuid
      order by s.step_id, s.attempt_number
      limit :look_at::integer + 1) s;

-- name: run_exists
-- Whether there is such a run; a schedule's template is none. Locks nothing.
select r.run_id
from kagzi.workflow_runs r
where r.namespace = :namespace and r.run_id = :run_id::uuid and r.status not in ('SCHEDULED', 'PAUSED');

-- name: database
-- What the database says of itself, and the last migration it has. Locks nothing.
select current_setting('server_version') as version, kagzi.now() as now,
       (select max(m.name) from kagzi.migrations m) as migration;

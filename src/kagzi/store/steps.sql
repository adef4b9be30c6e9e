-- name: complete
-- Records results; the caller holds the fence of every run. An attempt that is not on record is inserted whole, one
-- that is RUNNING gets its result, anything else (a repeat, a foreign attempt) is left and not counted.
-- At 0 the server counts position, order and attempt on, for workers that do not.
insert into kagzi.step_runs as step
    (namespace, run_id, step_id, attempt_number, attempt_id, position, completed_seq, status, kind, input_hash,
     output, output_encoding, child_run_id, signal_id, started_at, finished_at)
select :namespace, u.run_id, u.step_id,
       case when u.attempt_number > 0 then u.attempt_number else coalesce(
           (select s.attempt_number from kagzi.step_runs s where s.namespace = :namespace and s.run_id = u.run_id
                and s.step_id = u.step_id and s.attempt_id = u.attempt_id),
           (select max(s.attempt_number) + 1 from kagzi.step_runs s where s.namespace = :namespace
                and s.run_id = u.run_id and s.step_id = u.step_id and not s.set_aside), 1) end,
       u.attempt_id,
       case when u.position > 0 then u.position else coalesce(
           (select max(s.position) + 1 from kagzi.step_runs s where s.namespace = :namespace
                and s.run_id = u.run_id and not s.set_aside), 1) end,
       case when u.completed_seq > 0 then u.completed_seq else coalesce(
           (select max(s.completed_seq) + 1 from kagzi.step_runs s where s.namespace = :namespace
                and s.run_id = u.run_id and not s.set_aside), 1) end,
       'COMPLETED', u.kind, u.input_hash, u.output, u.output_encoding, u.child_run_id, u.signal_id,
       kagzi.now() - u.elapsed_us * interval '1 microsecond', kagzi.now()
from unnest(:run_ids::uuid[], :step_ids::text[], :attempt_ids::uuid[], :attempt_numbers::integer[],
            :positions::integer[], :completed_seqs::integer[], :kinds::text[], :input_hashes::bigint[],
            :outputs::bytea[], :output_encodings::text[], :child_run_ids::uuid[], :signal_ids::uuid[],
            :elapsed_us::bigint[])
    as u(run_id, step_id, attempt_id, attempt_number, position, completed_seq, kind, input_hash, output,
         output_encoding, child_run_id, signal_id, elapsed_us)
on conflict (namespace, run_id, step_id, attempt_number) do update
set status = 'COMPLETED', completed_seq = excluded.completed_seq, output = excluded.output,
    output_encoding = excluded.output_encoding, signal_id = excluded.signal_id, error = null, retry_at = null,
    child_run_id = coalesce(excluded.child_run_id, step.child_run_id), finished_at = excluded.finished_at
where step.attempt_id = excluded.attempt_id and step.status in ('PENDING', 'RUNNING', 'UNKNOWN');

-- name: fail
-- Records failed, abandoned, interrupted and doubtful attempts; the caller holds the fence of every run. `retry_ms` is
-- the delay until the next attempt, or until the reconciler of a doubtful one is asked again, NULL when none follows; only
-- the last failure of a step has an order of completion. A repeat changes nothing and is not answered.
insert into kagzi.step_runs as step
    (namespace, run_id, step_id, attempt_number, attempt_id, position, completed_seq, status, kind, input_hash,
     error, retry_at, child_run_id, started_at, finished_at, unclear)
select :namespace, u.run_id, u.step_id,
       case when u.attempt_number > 0 then u.attempt_number else coalesce(
           (select s.attempt_number from kagzi.step_runs s where s.namespace = :namespace and s.run_id = u.run_id
                and s.step_id = u.step_id and s.attempt_id = u.attempt_id),
           (select max(s.attempt_number) + 1 from kagzi.step_runs s where s.namespace = :namespace
                and s.run_id = u.run_id and s.step_id = u.step_id and not s.set_aside), 1) end,
       u.attempt_id,
       case when u.position > 0 then u.position else coalesce(
           (select max(s.position) + 1 from kagzi.step_runs s where s.namespace = :namespace
                and s.run_id = u.run_id and not s.set_aside), 1) end,
       case when u.status <> 'FAILED' or u.retry_ms is not null then null
            when u.completed_seq > 0 then u.completed_seq else coalesce(
           (select max(s.completed_seq) + 1 from kagzi.step_runs s where s.namespace = :namespace
                and s.run_id = u.run_id and not s.set_aside), 1) end,
       u.status, u.kind, u.input_hash, u.error::jsonb, kagzi.now() + u.retry_ms * interval '1 millisecond',
       u.child_run_id, kagzi.now() - u.elapsed_us * interval '1 microsecond', kagzi.now(), u.unclear
from unnest(:run_ids::uuid[], :step_ids::text[], :attempt_ids::uuid[], :attempt_numbers::integer[],
            :positions::integer[], :completed_seqs::integer[], :statuses::text[], :kinds::text[],
            :input_hashes::bigint[], :errors::text[], :retry_ms::bigint[], :child_run_ids::uuid[],
            :elapsed_us::bigint[], :unclear::smallint[])
    as u(run_id, step_id, attempt_id, attempt_number, position, completed_seq, status, kind, input_hash, error,
         retry_ms, child_run_id, elapsed_us, unclear)
on conflict (namespace, run_id, step_id, attempt_number) do update
set status = excluded.status, completed_seq = excluded.completed_seq, error = coalesce(excluded.error, step.error),
    retry_at = excluded.retry_at, finished_at = excluded.finished_at, unclear = excluded.unclear,
    child_run_id = coalesce(excluded.child_run_id, step.child_run_id)
where step.attempt_id = excluded.attempt_id and step.status in ('PENDING', 'RUNNING', 'UNKNOWN')
  and (excluded.status <> 'UNKNOWN' or step.status <> 'UNKNOWN' or excluded.unclear > step.unclear)
returning step.run_id, step.attempt_id, step.retry_at;

-- name: start
-- Records that steps were reached; the caller holds the fence of every run. The end of a timer is fixed here, on the
-- database's clock. A repeat changes nothing and is not answered.
insert into kagzi.step_runs as step
    (namespace, run_id, step_id, attempt_number, attempt_id, position, status, kind, effect, input_hash, wake_at,
     target, child_run_id, started_at)
select :namespace, u.run_id, u.step_id,
       case when u.attempt_number > 0 then u.attempt_number else coalesce(
           (select s.attempt_number from kagzi.step_runs s where s.namespace = :namespace and s.run_id = u.run_id
                and s.step_id = u.step_id and s.attempt_id = u.attempt_id),
           (select max(s.attempt_number) + 1 from kagzi.step_runs s where s.namespace = :namespace
                and s.run_id = u.run_id and s.step_id = u.step_id and not s.set_aside), 1) end,
       u.attempt_id,
       case when u.position > 0 then u.position else coalesce(
           (select s.position from kagzi.step_runs s where s.namespace = :namespace
                and s.run_id = u.run_id and s.step_id = u.step_id and not s.set_aside limit 1),
           (select max(s.position) + 1 from kagzi.step_runs s where s.namespace = :namespace
                and s.run_id = u.run_id and not s.set_aside), 1) end,
       'RUNNING', u.kind, u.effect, u.input_hash,
       coalesce(u.wake_at, kagzi.now() + u.duration_ms * interval '1 millisecond'),
       u.target, u.child_run_id, kagzi.now()
from unnest(:run_ids::uuid[], :step_ids::text[], :attempt_ids::uuid[], :attempt_numbers::integer[],
            :positions::integer[], :kinds::text[], :effects::boolean[], :input_hashes::bigint[],
            :durations_ms::bigint[], :wake_ats::timestamptz[], :targets::text[], :child_run_ids::uuid[])
    as u(run_id, step_id, attempt_id, attempt_number, position, kind, effect, input_hash, duration_ms, wake_at,
         target, child_run_id)
on conflict (namespace, run_id, step_id, attempt_number) do nothing
returning step.run_id, step.attempt_id, step.wake_at, kagzi.now() as now;

-- name: supersede
-- Makes room for a further attempt of a step. A step with a result, a final failure or an effect in doubt is never
-- superseded: the insert that follows meets it in the index `step_latest` and fails. The caller holds the fences.
update kagzi.step_runs s
set is_latest = false,
    status = case when s.status in ('PENDING', 'RUNNING') then 'INTERRUPTED' else s.status end
from unnest(:run_ids::uuid[], :step_ids::text[], :attempt_ids::uuid[]) as u(run_id, step_id, attempt_id)
where s.namespace = :namespace and s.run_id = u.run_id and s.step_id = u.step_id and s.is_latest
  and not exists (select 1 from kagzi.step_runs known where known.namespace = :namespace
      and known.run_id = u.run_id and known.step_id = u.step_id and known.attempt_id = u.attempt_id)
  and (s.status in ('PENDING', 'RUNNING') and not s.effect or s.status = 'INTERRUPTED'
       or s.status = 'FAILED' and s.retry_at is not null);

-- name: recorded
-- What is on record of these attempts, to recognise repeats.
select s.run_id, s.attempt_id, s.status, s.retry_at, s.wake_at, kagzi.now() as now
from unnest(:run_ids::uuid[], :step_ids::text[], :attempt_ids::uuid[]) as u(run_id, step_id, attempt_id)
cross join lateral (
    select s.run_id, s.attempt_id, s.status, s.retry_at, s.wake_at
    from kagzi.step_runs s
    where s.namespace = :namespace and s.run_id = u.run_id and s.step_id = u.step_id and s.attempt_id = u.attempt_id
    -- Keeps it a probe of the key, whatever the planner believes of the table.
    limit 1) as s;

-- name: failures
-- How often these steps have failed so far, not counting what a retry of the whole workflow set aside.
select u.number, count(s.attempt_id) as failures
from unnest(:run_ids::uuid[], :step_ids::text[]) with ordinality as u(run_id, step_id, number)
left join kagzi.step_runs s
    on s.namespace = :namespace and s.run_id = u.run_id and s.step_id = u.step_id and s.status = 'FAILED'
    and not s.set_aside
group by u.number;

-- name: set_aside
-- A retry of the whole workflow: the step whose error left it, everything asked for after it and whatever was given up
-- happens again, counted from its first attempt. What is set aside keeps its record under a number below 0, another for each try of the whole,
-- which the caller has counted. The caller holds the fence of every run.
update kagzi.step_runs s
set is_latest = false, set_aside = true, attempt_number = s.attempt_number - 20000 * r.attempts
from unnest(:run_ids::uuid[], :step_ids::text[]) as u(run_id, step_id)
join kagzi.step_runs f
    on f.namespace = :namespace and f.run_id = u.run_id and f.step_id = u.step_id and f.is_latest
join kagzi.workflow_runs r on r.namespace = :namespace and r.run_id = u.run_id
where s.namespace = :namespace and s.run_id = u.run_id and not s.set_aside
  and (s.position >= f.position or s.status = 'ABANDONED')
returning s.run_id, s.signal_id, s.child_run_id;

-- name: interrupt
-- Closes the bodies of runs that were ended from outside: nobody will say what became of them. Waits stay as they are,
-- for a retry of the run goes on with its timers. The caller holds the runs' locks.
update kagzi.step_runs s
set status = case when s.effect then 'UNKNOWN' else 'INTERRUPTED' end, finished_at = kagzi.now()
where s.namespace = :namespace and s.run_id = any (:run_ids::uuid[]) and s.is_latest and s.kind = 'FUNCTION'
  and s.status in ('PENDING', 'RUNNING');

-- name: latest
-- The latest attempt of each named step.
select s.step_id, s.attempt_id, s.attempt_number, s.is_latest, s.kind, s.status, s.position, s.completed_seq,
       s.output, s.output_encoding, s.error::text as error, s.retry_at, s.wake_at, s.target, s.child_run_id,
       s.signal_id, s.input_hash, s.effect, s.created_at, s.started_at, s.finished_at, s.unclear,
       s.run_id, coalesce(s.retry_at <= kagzi.now(), false) as retry_due,
       coalesce(s.wake_at <= kagzi.now(), false) as wake_due
from unnest(:run_ids::uuid[], :step_ids::text[]) as u(run_id, step_id)
join kagzi.step_runs s
    on s.namespace = :namespace and s.run_id = u.run_id and s.step_id = u.step_id and s.is_latest;

-- name: history
-- What these runs have on record, the latest attempt of each step, in the order the code asked for it.
select s.run_id, s.step_id, s.attempt_id, s.attempt_number, s.kind, s.status, s.position, s.completed_seq,
       s.output, s.output_encoding, s.error::text as error, s.retry_at, s.wake_at, s.target, s.child_run_id,
       s.signal_id, s.input_hash, s.effect, s.unclear
from kagzi.step_runs s
where s.namespace = :namespace and s.run_id = any (:run_ids::uuid[]) and s.is_latest
order by s.run_id, s.position;

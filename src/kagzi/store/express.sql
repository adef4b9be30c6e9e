-- name: advance
-- Records first results of steps and ends runs well, fence and all, in one statement that is its own transaction. Locks
-- the runs by key, in order, skipping what somebody else holds; compares the tokens of the locked versions; writes a
-- run's steps, and its end only if every step of it was written. Answers the runs that were written whole. What is not
-- answered (locked, lost, crashed before, large, a repeat, an end that concerns others) is left to the longer way, which
-- recognises whatever was written here.
with locked as materialized (
    select r.run_id, r.claim_token, r.crashes, r.history_excess,
           r.parent_run_id is null and not r.awaited and r.automation is null as single
    from kagzi.workflow_runs r
    where r.namespace = :namespace and r.run_id = any (:run_ids::uuid[])
    order by r.run_id
    for no key update skip locked
), held as materialized (
    select l.run_id, pair.steps
    from unnest(:run_ids::uuid[], :tokens::uuid[], :steps::integer[], :ends::boolean[], :slacks::bigint[])
        as pair(run_id, token, steps, ends, slack)
    join locked l on l.run_id = pair.run_id
    where l.claim_token = pair.token and l.crashes = 0 and (l.single or not pair.ends)
      and l.history_excess <= pair.slack
), recorded as (
    insert into kagzi.step_runs as step
        (namespace, run_id, step_id, attempt_number, attempt_id, position, completed_seq, status, kind, input_hash,
         output, output_encoding, started_at, finished_at)
    select :namespace, u.run_id, u.step_id, 1, u.attempt_id, u.position, u.completed_seq, 'COMPLETED', u.kind,
           u.input_hash, u.output, u.output_encoding, kagzi.now() - u.elapsed_us * interval '1 microsecond',
           kagzi.now()
    from unnest(:step_run_ids::uuid[], :step_ids::text[], :attempt_ids::uuid[], :positions::integer[],
                :completed_seqs::integer[], :kinds::text[], :input_hashes::bigint[], :outputs::bytea[],
                :output_encodings::text[], :elapsed_us::bigint[])
        as u(run_id, step_id, attempt_id, position, completed_seq, kind, input_hash, output, output_encoding,
             elapsed_us)
    join held on held.run_id = u.run_id
    on conflict (namespace, run_id, step_id, attempt_number) do update
    set status = 'COMPLETED', completed_seq = excluded.completed_seq, output = excluded.output,
        output_encoding = excluded.output_encoding, error = null, retry_at = null, finished_at = excluded.finished_at
    where step.attempt_id = excluded.attempt_id and step.status in ('PENDING', 'RUNNING', 'UNKNOWN')
    returning step.run_id
), whole as materialized (
    select held.run_id
    from held
    left join (select w.run_id, count(*) as steps from recorded w group by w.run_id) as written
        on written.run_id = held.run_id
    where coalesce(written.steps, 0) = held.steps
), ended as (
    update kagzi.workflow_runs r
    set status = 'COMPLETED', available_at = null, claim_token = null, last_token = r.claim_token,
        last_operation = u.operation_id, last_worker = r.locked_by, locked_by = null, waiting = null,
        finished_at = kagzi.now()
    from unnest(:end_run_ids::uuid[], :operation_ids::uuid[]) as u(run_id, operation_id)
    join whole on whole.run_id = u.run_id
    where r.namespace = :namespace and r.run_id = u.run_id
    returning r.run_id, r.workflow_type, (extract(epoch from kagzi.now() - r.created_at) * 1000)::float8 as took_ms
), paid as (
    update kagzi.workflow_payloads p
    set output = u.output, output_encoding = u.output_encoding
    from unnest(:end_run_ids::uuid[], :end_outputs::bytea[], :end_encodings::text[])
        as u(run_id, output, output_encoding)
    join ended on ended.run_id = u.run_id
    where p.namespace = :namespace and p.run_id = u.run_id
)
select whole.run_id, ended.workflow_type, ended.took_ms
from whole
left join ended on ended.run_id = whole.run_id;

-- A start leaves a row that a server takes away and counts; a schedule, which is no run, cannot be a parent.
create table kagzi.outside_starts (
    namespace           text not null,
    run_id              uuid not null,
    workflow_type       text not null,
    primary key (namespace, run_id)
);

-- Starts a run and answers its id. One whose run id exists, or whose external id is taken, is answered as it is (or
-- refused, with on_conflict => 'reject'). Waits for whoever inserts the same ids at this moment, and locks nothing else.
create or replace function kagzi.start_workflow(
    workflow_type text,
    input jsonb default null,
    namespace text default 'default',
    task_queue text default 'default',
    external_id text default null,
    run_id uuid default null,
    delay interval default null,
    start_at timestamptz default null,
    priority integer default 2,
    timeout interval default null,
    labels jsonb default null,
    version text default '',
    retry_policy jsonb default null,
    on_conflict text default 'return',
    dedupe text default 'active',
    parent_run_id uuid default null,
    parent_step_attempt_id uuid default null,
    detached boolean default false,
    input_data bytea default null,
    input_encoding text default null
) returns uuid
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    as $$
#variable_conflict use_column
declare
    new_id uuid := coalesce(start_workflow.run_id, gen_random_uuid());
    new_seed bigint := ('x' || left(replace(gen_random_uuid()::text, '-', ''), 15))::bit(60)::bigint + 1;
    new_input bytea := kagzi.check_payload(start_workflow.input, start_workflow.input_data, 'input');
    root uuid;
    found_id uuid;
begin
    perform kagzi.check_name(start_workflow.workflow_type, 'workflow_type', true);
    perform kagzi.check_name(start_workflow.task_queue, 'task_queue', true);
    perform kagzi.check_name(start_workflow.external_id, 'external_id', start_workflow.external_id is not null);
    perform kagzi.check_name(start_workflow.version, 'version', false);
    perform kagzi.check_name(start_workflow.input_encoding, 'input_encoding', false);
    perform kagzi.check_start(delay, start_at, priority, timeout, labels, retry_policy, on_conflict, dedupe);
    perform kagzi.check_namespace(start_workflow.namespace);
    if start_workflow.parent_run_id is not null then
        select coalesce(p.root_run_id, p.run_id) into root from kagzi.workflow_runs p
        where p.namespace = start_workflow.namespace and p.run_id = start_workflow.parent_run_id
          and p.status not in ('SCHEDULED', 'PAUSED');
        if not found then
            raise exception 'kagzi: there is no run % to be the parent', start_workflow.parent_run_id
                using errcode = 'no_data_found', hint = 'Check the id and the namespace.';
        end if;
    end if;
    for look in 1..5 loop
        begin
            insert into kagzi.workflow_runs
                (namespace, run_id, external_id, task_queue, workflow_type, version, status, priority, available_at,
                 retry_policy, deadline_at, labels, seed, parent_run_id, root_run_id, parent_step_attempt_id, detached,
                 dedupe_forever)
            select start_workflow.namespace, new_id, start_workflow.external_id, start_workflow.task_queue,
                   start_workflow.workflow_type, coalesce(start_workflow.version, ''), 'PENDING',
                   start_workflow.priority,
                   coalesce(greatest(start_workflow.start_at, kagzi.now()), kagzi.now() + start_workflow.delay,
                            kagzi.now()),
                   start_workflow.retry_policy, kagzi.now() + start_workflow.timeout,
                   nullif(start_workflow.labels, '{}'), new_seed, start_workflow.parent_run_id,
                   root, start_workflow.parent_step_attempt_id,
                   coalesce(start_workflow.detached, false), start_workflow.dedupe = 'forever'
            where start_workflow.external_id is null or not exists (
                select 1 from kagzi.workflow_runs f
                where f.namespace = start_workflow.namespace and f.external_id = start_workflow.external_id
                  and f.dedupe_forever)
            on conflict do nothing;
            if found then
                -- A run that has the external id for ever may have come and gone while this one waited for it.
                if exists (select 1 from kagzi.workflow_runs f
                           where f.namespace = start_workflow.namespace
                             and f.external_id = start_workflow.external_id and f.dedupe_forever
                             and f.run_id <> new_id) then
                    raise exception using errcode = 'KZ001';
                end if;
                insert into kagzi.workflow_payloads (namespace, run_id, input, input_encoding)
                values (start_workflow.namespace, new_id, new_input, nullif(start_workflow.input_encoding, ''));
                insert into kagzi.outside_starts (namespace, run_id, workflow_type)
                values (start_workflow.namespace, new_id, start_workflow.workflow_type);
                perform kagzi.notify_servers('w', start_workflow.namespace, start_workflow.task_queue);
                return new_id;
            end if;
        exception when sqlstate 'KZ001' then
            null;
        end;
        select r.run_id into found_id from kagzi.workflow_runs r
        where r.namespace = start_workflow.namespace and r.run_id = new_id and r.status not in ('SCHEDULED', 'PAUSED');
        if found_id is not null then
            return found_id;
        elsif exists (select 1 from kagzi.workflow_runs r
                      where r.namespace = start_workflow.namespace and r.run_id = new_id
                        and r.status in ('SCHEDULED', 'PAUSED')) then
            raise exception 'kagzi: run id % belongs to a schedule', new_id
                using errcode = 'unique_violation', hint = 'Make another id for the run, or leave run_id out.';
        end if;
        select r.run_id into found_id from kagzi.workflow_runs r
        where r.namespace = start_workflow.namespace and r.external_id = start_workflow.external_id
          and (r.status in ('PENDING', 'RUNNING', 'SLEEPING') or r.dedupe_forever)
        order by r.dedupe_forever, r.run_id
        limit 1;
        if found_id is not null and start_workflow.on_conflict = 'reject' then
            raise exception 'kagzi: external id % belongs to run %', quote_literal(start_workflow.external_id), found_id
                using errcode = 'unique_violation', hint = 'Give another, or take that run with on_conflict => ''return''.';
        elsif found_id is not null then
            return found_id;
        end if;
    end loop;
    raise exception 'kagzi: ids of this run changed hands too often' using errcode = 'serialization_failure',
        hint = 'Run the transaction again.';
end
$$;

-- What a caller can do inside its own transaction: start a run, and send a signal. Both take effect if and only if that
-- transaction commits. They lock nothing that a server waits for: a signal is only stored, and a server wakes its run.

-- A signal that was stored without waking its run; a server has not looked at it yet.
alter table kagzi.signals add column unheard boolean not null default false;
create index signal_unheard on kagzi.signals (namespace, arrival) where unheard;

-- Tells the servers that listen; equal notices of one transaction are one. The hash is the one servers compute.
create function kagzi.notify_servers(kind text, variadic parts text[]) returns void
    language sql volatile
    set search_path = pg_catalog, pg_temp
    as $$
        select pg_notify('kagzi_work', kind || left(encode(sha256(convert_to(array_to_string(parts, chr(31)), 'UTF8')),
                                                           'hex'), 12))
    $$;

-- Refuses a name that servers would refuse; an empty one only if it must be given.
create function kagzi.check_name(value text, argument text, required boolean) returns void
    language plpgsql immutable
    set search_path = pg_catalog, pg_temp
    as $$
begin
    if required and coalesce(value, '') = '' then
        raise exception 'kagzi: % is missing', argument using errcode = 'invalid_parameter_value';
    elsif octet_length(value) > 255 then
        raise exception 'kagzi: % has % bytes', argument, octet_length(value)
            using errcode = 'invalid_parameter_value', hint = 'At most 255 bytes are stored.';
    elsif value ~ '[\x01-\x1f\x7f-\x9f]' then
        raise exception 'kagzi: % holds a control character', argument
            using errcode = 'invalid_parameter_value', hint = 'Leave it out.';
    end if;
end
$$;

-- Refuses work in a namespace that is unknown or disabled.
create function kagzi.check_namespace(namespace text) returns void
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
    as $$
declare
    is_enabled boolean;
begin
    select n.enabled into is_enabled from kagzi.namespaces n where n.namespace = check_namespace.namespace;
    if is_enabled is null then
        raise exception 'kagzi: there is no namespace %', quote_literal(check_namespace.namespace)
            using errcode = 'no_data_found', hint = 'Create it, or name another.';
    elsif not is_enabled then
        raise exception 'kagzi: namespace % is disabled', quote_literal(check_namespace.namespace)
            using errcode = 'object_not_in_prerequisite_state', hint = 'Enable it before work starts in it.';
    end if;
end
$$;

-- The bytes of a value: given as such, or as JSON.
create function kagzi.check_payload(document jsonb, data bytea, argument text) returns bytea
    language plpgsql immutable
    set search_path = pg_catalog, pg_temp
    as $$
declare
    result bytea := coalesce(data, convert_to(document::text, 'UTF8'));
begin
    if octet_length(result) > 2 * 1024 * 1024 then
        raise exception 'kagzi: % has % bytes', argument, octet_length(result)
            using errcode = 'program_limit_exceeded', hint = 'At most 2 MiB are stored: store it elsewhere.';
    end if;
    return result;
end
$$;

-- Refuses what has no meaning as an option of a start.
create function kagzi.check_start(delay interval, start_at timestamptz, priority integer, timeout interval,
                                  labels jsonb, retry_policy jsonb, on_conflict text, dedupe text) returns void
    language plpgsql immutable
    set search_path = pg_catalog, pg_temp
    as $$
declare
    problem text;
    advice text := 'Correct the argument.';
begin
    if delay is not null and start_at is not null then
        problem := 'delay and start_at are both given';
        advice := 'A run starts after a delay or at a time.';
    elsif delay not between interval '0' and interval '3660 days' then
        problem := format('delay is %s', delay);
        advice := 'It must be from 0 to ten years.';
    elsif priority is null or priority not between 0 and 4 then
        problem := format('priority is %s', coalesce(priority::text, 'null'));
        advice := 'It must be from 0 to 4, higher first.';
    elsif timeout not between interval '1 millisecond' and interval '3660 days' then
        problem := format('timeout is %s', timeout);
        advice := 'It must be from 1 ms to ten years.';
    elsif on_conflict is null or on_conflict not in ('return', 'reject') then
        problem := format('on_conflict is %L', on_conflict);
        advice := 'Inside a transaction it is ''return'' or ''reject''; only a server can replace a run.';
    elsif dedupe is null or dedupe not in ('active', 'forever') then
        problem := format('dedupe is %L', dedupe);
        advice := 'It must be ''active'' or ''forever''.';
    elsif retry_policy is not null and (jsonb_typeof(retry_policy) <> 'object' or exists (
            select 1 from jsonb_each(retry_policy) as entry
            where entry.key not in ('maximum_attempts', 'initial_interval_ms', 'backoff_coefficient',
                                    'maximum_interval_ms')
               or jsonb_typeof(entry.value) <> 'number' or (entry.value #>> '{}')::numeric < 0)) then
        problem := 'retry_policy is no retry policy';
        advice := 'It holds maximum_attempts, initial_interval_ms, backoff_coefficient and maximum_interval_ms.';
    elsif jsonb_typeof(labels) <> 'object' or (select count(*) > 32 or not coalesce(bool_and(
              entry.key <> '' and octet_length(entry.key) <= 255 and jsonb_typeof(entry.value) = 'string'
              and octet_length(entry.value #>> '{}') <= 255), true)
          from jsonb_each(case when jsonb_typeof(labels) = 'object' then labels end) as entry) then
        problem := 'labels is no object of at most 32 texts';
        advice := 'Keys and values are texts of at most 255 bytes, as {"customer": "7"}.';
    else
        return;
    end if;
    raise exception 'kagzi: %', problem using errcode = 'invalid_parameter_value', hint = advice;
end
$$;

-- Starts a run and answers its id. One whose run id exists, or whose external id is taken, is answered as it is (or
-- refused, with on_conflict => 'reject'). Waits for whoever inserts the same ids at this moment, and locks nothing else.
create function kagzi.start_workflow(
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
        where p.namespace = start_workflow.namespace and p.run_id = start_workflow.parent_run_id;
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

-- Stores a message for a run, given by its id or its external id, and answers the message's id; sending twice with one
-- id is one message. Locks nothing: a server wakes the run once the caller's transaction has committed.
create function kagzi.signal(
    run_id uuid,
    name text,
    payload jsonb default null,
    namespace text default 'default',
    signal_id uuid default null,
    external_id text default null,
    payload_data bytea default null,
    payload_encoding text default null
) returns uuid
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    as $$
#variable_conflict use_column
declare
    new_id uuid := coalesce(signal.signal_id, gen_random_uuid());
    data bytea := kagzi.check_payload(signal.payload, signal.payload_data, 'payload');
    target uuid := signal.run_id;
    target_status text;
begin
    perform kagzi.check_name(signal.name, 'name', true);
    perform kagzi.check_name(signal.payload_encoding, 'payload_encoding', false);
    if (signal.run_id is null) = (signal.external_id is null) then
        raise exception 'kagzi: a signal is for the run with a run_id or with an external_id'
            using errcode = 'invalid_parameter_value', hint = 'Give one of them.';
    end if;
    if target is null then
        select r.run_id into target from kagzi.workflow_runs r
        where r.namespace = signal.namespace and r.external_id = signal.external_id
          and r.status not in ('SCHEDULED', 'PAUSED')
        order by r.status in ('PENDING', 'RUNNING', 'SLEEPING') desc, r.created_at desc, r.run_id desc
        limit 1;
    end if;
    with recursive chain as (
        select r.run_id, r.status, r.continued_as from kagzi.workflow_runs r
        where r.namespace = signal.namespace and r.run_id = target and r.status not in ('SCHEDULED', 'PAUSED')
        union all
        select r.run_id, r.status, r.continued_as from chain
        join kagzi.workflow_runs r on r.namespace = signal.namespace and r.run_id = chain.continued_as
    )
    select c.run_id, c.status into target, target_status from chain c where c.continued_as is null;
    if target_status is null then
        raise exception 'kagzi: there is no run %', coalesce(signal.run_id::text, quote_literal(signal.external_id))
            using errcode = 'no_data_found', hint = 'Check the id and the namespace.';
    end if;
    if exists (select 1 from kagzi.signals g where g.namespace = signal.namespace and g.signal_id = new_id) then
        return new_id;
    end if;
    if target_status in ('COMPLETED', 'FAILED', 'CANCELLED') then
        raise exception 'kagzi: run % has ended (%)', target, target_status
            using errcode = 'object_not_in_prerequisite_state', hint = 'An ended run receives no more signals.';
    end if;
    insert into kagzi.signals (namespace, signal_id, run_id, name, payload, payload_encoding, unheard)
    values (signal.namespace, new_id, target, signal.name, data, nullif(signal.payload_encoding, ''), true)
    on conflict do nothing;
    perform kagzi.notify_servers('t', signal.namespace, target::text);
    return new_id;
end
$$;

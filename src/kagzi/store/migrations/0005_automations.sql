-- Automations: handlers that talk through durable topics. A handler run is a workflow run; what is added here is what to
-- run next, what was published and for whom, and the ledger of what was done outside. Whoever changes anything of an
-- automation first locks its row in kagzi.automations, which comes after the rows of runs in the order of locks.

-- The definition that was in force when a handler run was started.
alter table kagzi.workflow_runs add column definition_hash text;

-- What a consumer's `prepare` decided, beside the state that went in (input) and came out (output). `reserved` is a list
-- of topics with their event ids, and NULL until `prepare` was committed.
alter table kagzi.workflow_payloads
    add column reserved jsonb,
    add column prepared_data bytea,
    add column prepared_encoding text,
    add column prepared_title text,
    add column prepared_ui text,
    add column prepared_wake_at timestamptz;

create table kagzi.automations (
    namespace           text not null,
    name                text not null,
    definition_hash     text not null,
    task_queue          text not null,
    -- Deployments that were in force, the newest last; an older one is not put in force again by a repeat.
    deployments         uuid[] not null,
    paused_at           timestamptz,
    blocked_code        text,
    blocked_message     text,
    blocked_handler     text,
    blocked_run_id      uuid,
    blocked_mutation_id uuid,
    blocked_at          timestamptz,
    -- An ended run that has to be gone on from before anything else is started.
    continues_run_id    uuid,
    -- The last RunNow, to recognise its repeat.
    last_request        uuid,
    created_at          timestamptz not null default kagzi.now(),
    deployed_at         timestamptz not null default kagzi.now(),
    primary key (namespace, name),
    constraint automation_blocked check ((blocked_code is null) = (blocked_at is null)),
    constraint automation_blocked_code check (blocked_code in ('RETRIES_USED_UP', 'NEEDS_ATTENTION', 'DEFECT',
                                                               'POISONED', 'INDETERMINATE'))
) with (fillfactor = 60);

-- A handler and its scheduling state. A removed one stays as a name for what it did and is never started.
create table kagzi.handlers (
    namespace           text not null,
    automation          text not null,
    name                text not null,
    kind                text not null,
    publishes           text[] not null default '{}',
    subscribes          text[] not null default '{}',
    mutates             boolean not null default false,
    removed_at          timestamptz,

    -- Producers: interval in milliseconds, or cron expression.
    schedule_type       text,
    schedule_value      text,
    timezone            text,
    anchor_at           timestamptz,
    next_run_at         timestamptz,
    last_run_at         timestamptz,
    queued              boolean not null default false,
    -- Consumers.
    wake_at             timestamptz,
    dirty               boolean not null default false,
    -- What turned `queued` or `dirty` on, or a schedule's time to now.
    cause               text,

    state               bytea,
    state_encoding      text,
    failures            integer not null default 0,
    not_before          timestamptz,
    last_run_id         uuid,
    last_failure        jsonb,
    created_at          timestamptz not null default kagzi.now(),

    -- When time alone may let it start. What a flag asks for is chosen in the transaction that turns the flag on, so
    -- that a flag matters here only together with a backoff; flags change often, and this column does not with them.
    due_at              timestamptz generated always as (
        case when removed_at is not null then null
             when queued or dirty then not_before
             else greatest(least(next_run_at, wake_at),
                           case when next_run_at is not null or wake_at is not null then not_before end) end) stored,
    primary key (namespace, automation, name),
    constraint handler_kind check (kind in ('PRODUCER', 'CONSUMER')),
    constraint handler_schedule check (removed_at is not null or (kind = 'PRODUCER') = (schedule_type is not null)),
    constraint handler_schedule_type check (schedule_type in ('interval', 'cron')),
    constraint handler_flags check ((kind = 'PRODUCER' or not queued) and (kind = 'CONSUMER' or not dirty))
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 500);

create index handler_due on kagzi.handlers (due_at, namespace, automation) where due_at is not null;

-- What came from outside, as a producer or a publisher named it. The id is a hash of source, type and key.
create table kagzi.inputs (
    namespace           text not null,
    automation          text not null,
    input_id            uuid not null,
    source              text not null,
    type                text not null,
    key                 text not null,
    title               text not null default '',
    run_id              uuid,
    created_at          timestamptz not null default kagzi.now(),
    primary key (namespace, automation, input_id)
);

create index input_listed on kagzi.inputs (namespace, automation, created_at, source, type, key);

create table kagzi.events (
    namespace           text not null,
    automation          text not null,
    topic               text not null,
    event_id            text not null,
    payload             bytea,
    payload_encoding    text,
    -- Order of first publication.
    arrival             bigint generated always as identity,
    -- How often it was published.
    writes              integer not null default 1,
    -- The run that first published it; NULL when it came from outside.
    run_id              uuid,
    created_at          timestamptz not null default kagzi.now(),
    updated_at          timestamptz not null default kagzi.now(),
    primary key (namespace, automation, topic, event_id)
);

create index event_listed on kagzi.events (namespace, automation, created_at, topic, event_id);

-- Which inputs an event came from, over all runs between.
create table kagzi.event_causes (
    namespace           text not null,
    automation          text not null,
    topic               text not null,
    event_id            text not null,
    input_id            uuid not null,
    primary key (namespace, automation, topic, event_id, input_id)
);

create index cause_of on kagzi.event_causes (namespace, automation, input_id);

-- One row for each event and each consumer that subscribed when it was published.
create table kagzi.deliveries (
    namespace           text not null,
    automation          text not null,
    consumer            text not null,
    topic               text not null,
    event_id            text not null,
    status              text not null,
    -- The run that has or consumed it, and all that ever had it.
    run_id              uuid,
    run_ids             uuid[] not null default '{}',
    attempts            integer not null default 0,
    -- As in the event.
    arrival             bigint not null,
    published_at        timestamptz not null,
    updated_at          timestamptz not null default kagzi.now(),
    primary key (namespace, automation, consumer, topic, event_id),
    constraint delivery_status check (status in ('PENDING', 'RESERVED', 'CONSUMED', 'SKIPPED')),
    constraint delivery_run check (run_id is not null or status in ('PENDING', 'SKIPPED'))
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);

-- One bounded probe finds the oldest pending of a topic, for peeks and for the choice.
create index delivery_pending on kagzi.deliveries (namespace, automation, consumer, topic, arrival)
    where status = 'PENDING';
create index delivery_reserved on kagzi.deliveries (namespace, run_id) where status = 'RESERVED';

-- The ledger: a change of the outside, written down before it is tried.
create table kagzi.mutations (
    namespace           text not null,
    mutation_id         uuid not null,
    automation          text not null,
    handler             text not null,
    -- The run it began in, and the one that has it now: one a run.
    run_id              uuid not null,
    holder_id           uuid not null,
    -- The attempt, and its token, that may call the tool.
    attempt_id          uuid not null,
    claim_token         uuid not null,
    tool                text not null,
    idempotency_key     text not null,
    title               text not null default '',
    status              text not null,
    parameters          bytea,
    parameters_encoding text,
    result              bytea,
    result_encoding     text,
    failure             jsonb,
    has_reconciler      boolean not null,
    checks              integer not null default 0,
    next_check_at       timestamptz,
    -- What a person said last, and why.
    resolution          text,
    resolution_reason   text,
    created_at          timestamptz not null default kagzi.now(),
    finished_at         timestamptz,
    primary key (namespace, mutation_id),
    constraint mutation_status check (status in ('IN_FLIGHT', 'APPLIED', 'FAILED', 'INDETERMINATE', 'SKIPPED')),
    constraint mutation_finished check ((finished_at is null) = (status in ('IN_FLIGHT', 'INDETERMINATE')))
) with (fillfactor = 70);

create unique index mutation_holder on kagzi.mutations (namespace, holder_id);
create index mutation_open on kagzi.mutations (namespace, automation) where finished_at is null;

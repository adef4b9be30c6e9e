-- The engine's tables. Every table carries the namespace and every key begins with it, so that the rows of a namespace
-- can live on one node of a distributed PostgreSQL.
--
-- There are no foreign keys: whatever writes for a run holds the lock on its row in the same transaction, which is
-- stronger than a foreign key's check, and a check on a shared parent row would make all writers of a namespace meet.

create schema if not exists kagzi;

-- The one clock of the engine. STABLE over statement_timestamp(), so that indexes on times stay usable.
create function kagzi.now() returns timestamptz
    language sql stable parallel safe
    as 'select statement_timestamp()';

create table kagzi.namespaces (
    namespace           text primary key,
    description         text not null default '',
    enabled             boolean not null default true,
    -- How long what has ended is kept, in milliseconds; NULL: the server's setting, 0: for ever.
    retention_completed_ms bigint,
    retention_failed_ms bigint,
    retention_cancelled_ms bigint,
    retention_events_ms bigint,
    created_at          timestamptz not null default kagzi.now(),
    updated_at          timestamptz not null default kagzi.now(),
    constraint namespace_name check (octet_length(namespace) between 1 and 255)
);

insert into kagzi.namespaces (namespace, description) values ('default', 'Where runs go unless told otherwise.');

create table kagzi.api_keys (
    namespace           text not null,
    key_id              uuid not null,
    name                text not null default '',
    role                text not null,
    secret_hash         bytea not null,
    created_at          timestamptz not null default kagzi.now(),
    last_used_at        timestamptz,
    revoked_at          timestamptz,
    primary key (namespace, key_id),
    constraint key_role check (role in ('reader', 'client', 'worker', 'admin'))
);

-- Runs, and schedule templates (SCHEDULED and PAUSED), which nothing that deals with runs may see.
create table kagzi.workflow_runs (
    namespace           text not null,
    run_id              uuid not null,
    external_id         text,
    task_queue          text not null,
    workflow_type       text not null,
    version             text not null default '',
    status              text not null,
    priority            smallint not null default 2,
    -- When the row may be claimed next: due time, retry time, wake time, or end of its lease. 'infinity' waits for
    -- something other than time.
    available_at        timestamptz,

    claim_token         uuid,
    locked_by           uuid,
    last_token          uuid,
    last_operation      uuid,
    last_worker         uuid,

    -- Failed tries of the whole workflow.
    attempts            integer not null default 0,
    -- Leases that ran out since the last progress.
    crashes             smallint not null default 0,
    -- Its lease ran out before: it may take its worker down, and is claimed apart from the others.
    suspect             boolean generated always as (crashes > 0) stored,
    retry_policy        jsonb,
    deadline_at         timestamptz,
    cancel_requested_at timestamptz,
    cancel_reason       text,

    labels              jsonb,
    state               jsonb,
    state_number        integer not null default 0,
    error               jsonb,
    -- What a suspended run waits for, for people.
    waiting             jsonb,
    -- The definition that could not go on; another one releases the run.
    parked_hash         text,
    seed                bigint not null default 0,

    parent_run_id       uuid,
    root_run_id         uuid,
    parent_step_attempt_id uuid,
    detached            boolean not null default false,
    continued_as        uuid,
    retried_from        uuid,
    dedupe_forever      boolean not null default false,

    -- Templates and the runs they fire.
    schedule_id         uuid,
    scheduled_for       timestamptz,
    cron_expr           text,
    interval            interval,
    anchor_at           timestamptz,
    timezone            text,
    overlap             text,
    max_catchup         integer,
    jitter              interval,
    starts_at           timestamptz,
    ends_at             timestamptz,
    run_limit           integer,
    fired               integer,
    schedule_text       text,
    schedule_error      text,
    paused_reason       text,
    run_timeout         interval,

    -- Handler runs of automations.
    automation          text,
    handler             text,
    trigger             text,
    continues_run_id    uuid,

    created_at          timestamptz not null default kagzi.now(),
    started_at          timestamptz,
    finished_at         timestamptz,

    primary key (namespace, run_id),
    constraint run_status check (status in ('PENDING', 'RUNNING', 'SLEEPING', 'COMPLETED', 'FAILED', 'CANCELLED',
                                            'SCHEDULED', 'PAUSED')),
    constraint run_priority check (priority between 0 and 4),
    -- available_at is the one clock of visibility: only what can never be due has none.
    constraint run_available check ((available_at is null) = (status in ('COMPLETED', 'FAILED', 'CANCELLED', 'PAUSED'))),
    constraint run_finished check ((finished_at is null) = (status not in ('COMPLETED', 'FAILED', 'CANCELLED'))),
    constraint run_token check ((claim_token is null) = (status <> 'RUNNING'))
) with (fillfactor = 75, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
        autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1);

-- One bounded probe for each (type, version, suspect, priority) finds what is due, whatever else stands in the table.
create index run_claimable on kagzi.workflow_runs
    (namespace, task_queue, workflow_type, version, suspect, priority, available_at)
    where status in ('PENDING', 'RUNNING', 'SLEEPING');
create unique index run_external_active on kagzi.workflow_runs (namespace, external_id)
    where external_id is not null and status in ('PENDING', 'RUNNING', 'SLEEPING');
create unique index run_external_template on kagzi.workflow_runs (namespace, external_id)
    where external_id is not null and status in ('SCHEDULED', 'PAUSED');
create unique index run_external_forever on kagzi.workflow_runs (namespace, external_id)
    where external_id is not null and dedupe_forever;
create index run_external_newest on kagzi.workflow_runs (namespace, external_id, created_at)
    where external_id is not null;
create unique index run_slot on kagzi.workflow_runs (namespace, schedule_id, scheduled_for)
    where schedule_id is not null;
create unique index run_automation_live on kagzi.workflow_runs (namespace, automation)
    where automation is not null and status in ('PENDING', 'RUNNING', 'SLEEPING');
create index run_template_due on kagzi.workflow_runs (available_at, namespace) where status = 'SCHEDULED';
create index run_listed on kagzi.workflow_runs (namespace, created_at, run_id)
    where status not in ('SCHEDULED', 'PAUSED');
create index run_children on kagzi.workflow_runs (namespace, parent_run_id) where parent_run_id is not null;
create index run_held on kagzi.workflow_runs (namespace, locked_by) where status = 'RUNNING';
create index run_deadline on kagzi.workflow_runs (deadline_at, namespace)
    where deadline_at is not null and status in ('PENDING', 'RUNNING', 'SLEEPING');
create index run_parked on kagzi.workflow_runs (namespace, workflow_type) where parked_hash is not null;
create index run_finished on kagzi.workflow_runs (namespace, status, finished_at) where finished_at is not null;
create index run_failed on kagzi.workflow_runs (namespace, finished_at) where status = 'FAILED';
create index run_retried on kagzi.workflow_runs (namespace, retried_from) where retried_from is not null;

-- What runs take and give, apart from the rows the queue works on.
create table kagzi.workflow_payloads (
    namespace           text not null,
    run_id              uuid not null,
    input               bytea,
    input_encoding      text,
    output              bytea,
    output_encoding     text,
    created_at          timestamptz not null default kagzi.now(),
    primary key (namespace, run_id)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);

-- One row an attempt.
create table kagzi.step_runs (
    namespace           text not null,
    run_id              uuid not null,
    step_id             text not null,
    attempt_number      integer not null,
    attempt_id          uuid not null,
    is_latest           boolean not null default true,
    -- Left out by a retry of the whole workflow; its failures no longer count.
    set_aside           boolean not null default false,
    -- Order in which the code asked for it; order in which its result was handed to the code.
    position            integer not null,
    completed_seq       integer,
    status              text not null,
    kind                text not null,
    effect              boolean not null default false,
    input_hash          bigint,
    output              bytea,
    output_encoding     text,
    error               jsonb,
    -- SLEEP: when it wakes. SIGNAL: when waiting ends.
    wake_at             timestamptz,
    -- When the next attempt of a failed step is due; NULL when none follows.
    retry_at            timestamptz,
    -- SIGNAL: the name waited for. CHILD_WORKFLOW: the child's type.
    target              text,
    child_run_id        uuid,
    signal_id           uuid,
    created_at          timestamptz not null default kagzi.now(),
    started_at          timestamptz,
    finished_at         timestamptz,
    primary key (namespace, run_id, step_id, attempt_number),
    constraint step_status check (status in ('PENDING', 'RUNNING', 'COMPLETED', 'FAILED', 'UNKNOWN', 'ABANDONED',
                                             'INTERRUPTED')),
    constraint step_kind check (kind in ('FUNCTION', 'SLEEP', 'SIGNAL', 'CHILD_WORKFLOW', 'NOW', 'CANCEL', 'PATCH'))
) with (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.05);

create unique index step_latest on kagzi.step_runs (namespace, run_id, step_id) where is_latest;

-- Messages to runs, in the order of their arrival. The rows stay after being received.
create table kagzi.signals (
    namespace           text not null,
    signal_id           uuid not null,
    run_id              uuid not null,
    name                text not null,
    arrival             bigint generated always as identity,
    payload             bytea,
    payload_encoding    text,
    -- The attempt that received it.
    received_by         uuid,
    received_at         timestamptz,
    created_at          timestamptz not null default kagzi.now(),
    primary key (namespace, signal_id)
);

create index signal_of_run on kagzi.signals (namespace, run_id, arrival);

create table kagzi.workers (
    namespace           text not null,
    worker_id           uuid not null,
    -- Made by the worker when it starts, so that two workers of one process are two rows.
    instance            text not null,
    task_queue          text not null,
    hostname            text not null default '',
    pid                 integer not null default 0,
    version             text not null default '',
    types               text[] not null,
    type_versions       text[] not null,
    type_hashes         text[] not null,
    concurrency         integer not null default 0,
    labels              jsonb,
    status              text not null,
    drain_requested_at  timestamptz,
    registered_at       timestamptz not null default kagzi.now(),
    last_heartbeat_at   timestamptz not null default kagzi.now(),
    deregistered_at     timestamptz,
    primary key (namespace, worker_id),
    constraint worker_status check (status in ('ONLINE', 'DRAINING', 'OFFLINE'))
) with (fillfactor = 70);

create unique index worker_instance on kagzi.workers (namespace, instance);
create index worker_listed on kagzi.workers (namespace, registered_at, worker_id);
create index worker_live on kagzi.workers (namespace, task_queue) where status <> 'OFFLINE';

-- Counts a minute, for charts. A row belongs to one server, which sets it to what it has counted so far: servers never
-- meet on a row, and a repeated write counts nothing twice.
create table kagzi.stats (
    namespace           text not null,
    minute              timestamptz not null,
    server_id           uuid not null,
    -- '' for what is counted without regard to a type.
    workflow_type       text not null default '',
    started             bigint not null default 0,
    completed           bigint not null default 0,
    failed              bigint not null default 0,
    cancelled           bigint not null default 0,
    steps_completed     bigint not null default 0,
    steps_failed        bigint not null default 0,
    leases_lost         bigint not null default 0,
    -- How many took how long, by buckets of time: from due to claimed, from created to ended.
    pickup              bigint[] not null default '{}',
    duration            bigint[] not null default '{}',
    -- What was there when last counted; only in rows without a type.
    counted_at          timestamptz,
    pending_due         bigint,
    running             bigint,
    sleeping            bigint,
    oldest_due_ms       bigint,
    primary key (namespace, minute, server_id, workflow_type)
);

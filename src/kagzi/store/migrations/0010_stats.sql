-- Charts of days read a row an hour instead of sixty, and one row for all types together instead of one for each. What
-- stands in the queues is kept as it was last counted, so that looking at it costs the same however much it is.
alter table kagzi.stats add column span smallint not null default 1;
alter table kagzi.stats drop constraint stats_pkey;
alter table kagzi.stats add primary key (namespace, span, minute, server_id, workflow_type);
alter table kagzi.stats add constraint stats_span check (span in (1, 60));

create table kagzi.queue_depths (
    namespace           text not null,
    task_queue          text not null,
    workflow_type       text not null,
    counted_at          timestamptz not null,
    pending_due         integer not null,
    pending_later       integer not null,
    running             integer not null,
    sleeping            integer not null,
    oldest_due_ms       bigint not null,
    oldest_run_id       uuid,
    workers             integer not null,
    free_slots          integer not null,
    primary key (namespace, task_queue, workflow_type)
) with (fillfactor = 60);

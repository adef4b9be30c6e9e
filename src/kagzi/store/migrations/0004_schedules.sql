-- Schedules: what a template says of itself, and how the end of a run finds the run of its schedule that waits for it.
alter table kagzi.workflow_runs
    -- Of a template: why it is PAUSED; the last slot a run was started for; what people should know although it fires;
    -- when somebody last changed it.
    add column pause text,
    add column last_slot timestamptz,
    add column schedule_notice text,
    add column updated_at timestamptz,
    -- Of a run: the next run of its schedule waits for its end.
    add column awaited boolean not null default false,
    add constraint run_pause check (pause in ('ASKED', 'FINISHED', 'RUN_LIMIT'));

-- A run that continues as new passes its slot on to its successor, which is the same work for its schedule.
drop index kagzi.run_slot;
create unique index run_slot on kagzi.workflow_runs (namespace, schedule_id, scheduled_for)
    where schedule_id is not null and continued_as is null;
create index run_of_schedule on kagzi.workflow_runs (namespace, schedule_id, created_at, run_id)
    where schedule_id is not null;
create index run_of_schedule_live on kagzi.workflow_runs (namespace, schedule_id)
    where schedule_id is not null and status in ('PENDING', 'RUNNING', 'SLEEPING');

-- What runs and steps keep besides: ids that recognise a repeated resolution or resumption, how often a reconciler could
-- not say, what a person should know of a run that goes on all the same, and how large a history may have become.
alter table kagzi.step_runs
    add column resolution_id uuid,
    add column unclear smallint not null default 0;

alter table kagzi.workflow_runs
    add column resumed_by uuid,
    -- By step: {"message": ..., "at": ...}.
    add column warnings jsonb,
    -- An upper bound of what the history holds beyond an even share of the limit for each step.
    add column history_excess bigint not null default 0;

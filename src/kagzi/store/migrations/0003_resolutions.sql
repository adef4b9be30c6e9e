-- What a person says became of a step whose outcome is unknown. It stands beside the record until the holder of the
-- run's lease has given it to the code, and stays there afterwards, to recognise a repeated resolution.
alter table kagzi.step_runs
    add column resolution text,
    add column resolution_output bytea,
    add column resolution_encoding text,
    add column resolution_reason text,
    add constraint step_resolution check (resolution in ('APPLIED', 'NOT_APPLIED', 'FAIL'));

create index step_resolved on kagzi.step_runs (namespace, run_id) where resolution is not null;

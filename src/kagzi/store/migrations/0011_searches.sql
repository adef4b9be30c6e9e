-- What people look for among a million runs, each found without reading the others: the children of one run, those that
-- failed or were cancelled, those with a label, those that wait for somebody to say what became of a step; and schedules
-- that cannot fire.
drop index kagzi.run_children;
create index run_children on kagzi.workflow_runs (namespace, parent_run_id, created_at, run_id)
    where parent_run_id is not null;
create index run_unlucky on kagzi.workflow_runs (namespace, status, created_at, run_id)
    where status in ('FAILED', 'CANCELLED');
create index run_labelled on kagzi.workflow_runs using gin (labels jsonb_path_ops) where labels is not null;
create index run_doubtful on kagzi.workflow_runs (namespace)
    where status = 'SLEEPING' and waiting @> '[{"doubt": true}]';
create index run_broken on kagzi.workflow_runs (namespace, external_id) where schedule_error is not null;

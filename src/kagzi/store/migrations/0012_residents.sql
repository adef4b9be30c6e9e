-- The worker that keeps a suspended run in its memory, as far as it said: for a moment it is offered the run before
-- anybody else. It may have forgotten the run since, so this says where to look first and nothing more.
alter table kagzi.workflow_runs add column kept_by uuid;

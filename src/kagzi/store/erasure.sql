-- name: erase
-- Deletes a namespace and every row of it, in whatever table. Locks all that it deletes, waits for whoever holds some of
-- it, and is everything or nothing.
with gone_deliveries as (delete from kagzi.deliveries t where t.namespace = :namespace),
     gone_event_causes as (delete from kagzi.event_causes t where t.namespace = :namespace),
     gone_events as (delete from kagzi.events t where t.namespace = :namespace),
     gone_inputs as (delete from kagzi.inputs t where t.namespace = :namespace),
     gone_mutations as (delete from kagzi.mutations t where t.namespace = :namespace),
     gone_handlers as (delete from kagzi.handlers t where t.namespace = :namespace),
     gone_automations as (delete from kagzi.automations t where t.namespace = :namespace),
     gone_signals as (delete from kagzi.signals t where t.namespace = :namespace),
     gone_step_runs as (delete from kagzi.step_runs t where t.namespace = :namespace),
     gone_workflow_payloads as (delete from kagzi.workflow_payloads t where t.namespace = :namespace),
     gone_workflow_runs as (delete from kagzi.workflow_runs t where t.namespace = :namespace),
     gone_workers as (delete from kagzi.workers t where t.namespace = :namespace),
     gone_stats as (delete from kagzi.stats t where t.namespace = :namespace),
     gone_queue_depths as (delete from kagzi.queue_depths t where t.namespace = :namespace),
     gone_outside_starts as (delete from kagzi.outside_starts t where t.namespace = :namespace),
     gone_api_keys as (delete from kagzi.api_keys t where t.namespace = :namespace)
delete from kagzi.namespaces n where n.namespace = :namespace;

-- name: task
-- What the worker of a handler run needs beside its history: the state that went in, and what `prepare` left.
select r.run_id, r.automation, r.handler, h.kind, h.subscribes, r.trigger, r.definition_hash, r.continues_run_id, p.input,
       p.input_encoding, p.reserved::text as reserved, p.prepared_data, p.prepared_encoding, p.prepared_title,
       p.prepared_ui, p.prepared_wake_at,
       exists (select 1 from kagzi.step_runs s
               where s.namespace = :namespace and s.run_id = r.run_id and s.step_id = 'next') as emitting
from kagzi.workflow_runs r
cross join lateral (
    select h.kind, h.subscribes from kagzi.handlers h
    where h.namespace = :namespace and h.automation = r.automation and h.name = r.handler
    limit 1) as h
left join lateral (
    select p.input, p.input_encoding, p.reserved, p.prepared_data, p.prepared_encoding, p.prepared_title, p.prepared_ui,
           p.prepared_wake_at
    from kagzi.workflow_payloads p
    where p.namespace = :namespace and p.run_id = r.run_id
    limit 1) as p on true
where r.namespace = :namespace and r.run_id = any (:run_ids::uuid[]);

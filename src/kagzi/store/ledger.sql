-- name: held
-- The mutations that these runs hold; parameters and results only if asked for. Locks nothing.
select m.holder_id, m.mutation_id, m.automation, m.handler, m.run_id, m.tool, m.idempotency_key, m.title, m.status,
       case when :whole::boolean then m.parameters end as parameters, m.parameters_encoding,
       case when :whole then m.result end as result, m.result_encoding, m.failure::text as failure, m.has_reconciler,
       m.checks, m.next_check_at, m.resolution, m.created_at, m.finished_at, m.attempt_id, m.claim_token
from kagzi.mutations m
where m.namespace = :namespace and m.holder_id = any (:run_ids::uuid[]);

-- name: get
-- Mutations by id; parameters and results only if asked for. Locks nothing.
select m.holder_id, m.mutation_id, m.automation, m.handler, m.run_id, m.tool, m.idempotency_key, m.title, m.status,
       case when :whole::boolean then m.parameters end as parameters, m.parameters_encoding,
       case when :whole then m.result end as result, m.result_encoding, m.failure::text as failure, m.has_reconciler,
       m.checks, m.next_check_at, m.resolution, m.created_at, m.finished_at, m.attempt_id, m.claim_token
from kagzi.mutations m
where m.namespace = :namespace and m.mutation_id = any (:mutation_ids::uuid[]);

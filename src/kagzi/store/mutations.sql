-- name: begin
-- Writes mutations into the ledger before they are tried. The caller holds the runs; one that has a mutation already, or
-- whose mutation id is taken, is left out and not answered.
insert into kagzi.mutations
    (namespace, mutation_id, automation, handler, run_id, holder_id, attempt_id, claim_token, tool, idempotency_key,
     title, status, parameters, parameters_encoding, has_reconciler)
select :namespace, u.mutation_id, u.automation, u.handler, u.run_id, u.run_id, u.attempt_id, u.claim_token, u.tool,
       u.idempotency_key, u.title, 'IN_FLIGHT', u.parameters, u.encoding, u.has_reconciler
from unnest(:mutation_ids::uuid[], :automations::text[], :handlers::text[], :run_ids::uuid[], :attempt_ids::uuid[],
            :claim_tokens::uuid[], :tools::text[], :idempotency_keys::text[], :titles::text[], :parameters::bytea[],
            :encodings::text[], :has_reconciler::boolean[])
    as u(mutation_id, automation, handler, run_id, attempt_id, claim_token, tool, idempotency_key, title, parameters,
         encoding, has_reconciler)
on conflict do nothing
returning holder_id, created_at;

-- name: finish
-- Writes down what became of mutations, or that nobody knows yet. The caller holds the automations and has decided.
update kagzi.mutations m
set status = u.status, result = u.result, result_encoding = u.encoding, failure = u.failure::jsonb, checks = u.checks,
    next_check_at = case when u.status = 'IN_FLIGHT' then kagzi.now() + u.pause end,
    finished_at = case when u.status not in ('IN_FLIGHT', 'INDETERMINATE') then kagzi.now() end
from unnest(:mutation_ids::uuid[], :statuses::text[], :results::bytea[], :encodings::text[], :failures::text[],
            :checks::integer[], :pauses::interval[])
    as u(mutation_id, status, result, encoding, failure, checks, pause)
where m.namespace = :namespace and m.mutation_id = u.mutation_id and m.mutation_id = any (:mutation_ids::uuid[])
returning m.mutation_id, m.status, m.next_check_at;

-- name: interrupt
-- The attempt that called the tool and was cut off is over, now that somebody else found out what became of it. The
-- caller holds the runs.
update kagzi.step_runs s
set status = 'INTERRUPTED', finished_at = kagzi.now()
from kagzi.mutations m
where s.namespace = :namespace and m.namespace = :namespace and m.mutation_id = any (:mutation_ids::uuid[])
  and s.run_id = m.run_id and s.attempt_id = m.attempt_id and s.status = 'RUNNING';

-- name: block
-- Blocks automations that are not blocked yet, with what is wrong and where. The caller holds their rows.
update kagzi.automations a
set blocked_code = u.code, blocked_message = u.message, blocked_handler = u.handler, blocked_run_id = u.run_id,
    blocked_mutation_id = u.mutation_id, blocked_at = kagzi.now()
from unnest(:names::text[], :codes::text[], :messages::text[], :handlers::text[], :run_ids::uuid[],
            :mutation_ids::uuid[]) as u(name, code, message, handler, run_id, mutation_id)
where a.namespace = :namespace and a.name = u.name and a.blocked_code is null;

-- name: unblock
-- Lets an automation go on, and its handlers without a memory of their failures. The caller holds its row.
with freed as (
    update kagzi.automations a
    set blocked_code = null, blocked_message = null, blocked_handler = null, blocked_run_id = null,
        blocked_mutation_id = null, blocked_at = null
    where a.namespace = :namespace and a.name = :name
    returning a.name
)
update kagzi.handlers h
set failures = 0, not_before = null
from freed
where h.namespace = :namespace and h.automation = freed.name and h.failures > 0;

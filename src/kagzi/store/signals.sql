-- name: send
-- Stores messages for runs, each once by its id. The caller holds the runs' locks.
insert into kagzi.signals (namespace, signal_id, run_id, name, payload, payload_encoding)
select :namespace, u.signal_id, u.run_id, u.name, u.payload, u.payload_encoding
from unnest(:signal_ids::uuid[], :run_ids::uuid[], :names::text[], :payloads::bytea[], :payload_encodings::text[])
         with ordinality as u(signal_id, run_id, name, payload, payload_encoding, number)
order by u.number
on conflict (namespace, signal_id) do nothing;

-- name: wake
-- Makes suspended runs due that wait for one of these messages. The caller holds the runs' locks, taken whatever their
-- status; one that is RUNNING is answered too, to be told.
update kagzi.workflow_runs r
set available_at = case when r.status = 'SLEEPING' then least(r.available_at, kagzi.now()) else r.available_at end
where r.namespace = :namespace and r.run_id = any (:run_ids::uuid[])
  and r.status in ('SLEEPING', 'RUNNING') and r.parked_hash is null
  and exists (select 1
              from unnest(:run_ids::uuid[], :names::text[]) as u(run_id, name)
              join kagzi.step_runs s on s.namespace = :namespace and s.run_id = u.run_id and s.target = u.name
                  and s.kind = 'SIGNAL' and s.status = 'RUNNING' and s.is_latest
              where u.run_id = r.run_id)
returning r.run_id, r.status, r.task_queue;

-- name: stored
-- Where these messages are, to answer a repeated one as the first time.
select g.signal_id, g.run_id
from kagzi.signals g
where g.namespace = :namespace and g.signal_id = any (:signal_ids::uuid[]);

-- name: receive
-- Marks messages as received by the attempts that got them; one that another attempt has is left and not answered.
-- The caller holds the runs' fences.
update kagzi.signals g
set received_by = u.attempt_id, received_at = kagzi.now()
from unnest(:signal_ids::uuid[], :run_ids::uuid[], :attempt_ids::uuid[]) as u(signal_id, run_id, attempt_id)
where g.namespace = :namespace and g.signal_id = u.signal_id and g.run_id = u.run_id
  and (g.received_by is null or g.received_by = u.attempt_id)
returning g.signal_id;

-- name: give_back
-- Messages whose receipt was set aside can be received again. The caller holds the runs' fences.
update kagzi.signals g
set received_by = null, received_at = null
where g.namespace = :namespace and g.signal_id = any (:signal_ids::uuid[]);

-- name: next
-- The oldest message of a name that the run has not received.
select g.signal_id, g.name, g.payload, g.payload_encoding, g.created_at
from kagzi.signals g
where g.namespace = :namespace and g.run_id = :run_id::uuid and g.name = :name and g.received_by is null
order by g.arrival
limit 1;

-- name: get
-- One message.
select g.signal_id, g.name, g.payload, g.payload_encoding, g.created_at
from kagzi.signals g
where g.namespace = :namespace and g.signal_id = :signal_id::uuid;

-- name: waiting
-- Messages that these runs have not received, in the order of their arrival.
select g.run_id, g.signal_id, g.name, g.payload, g.payload_encoding, g.created_at
from kagzi.signals g
where g.namespace = :namespace and g.run_id = any (:run_ids::uuid[]) and g.received_by is null
order by g.run_id, g.arrival;

-- name: final_run
-- The last run of a chain of continue-as-new, where a message to any of them belongs.
with recursive chain as (
    select r.run_id, r.status, r.continued_as from kagzi.workflow_runs r
    where r.namespace = :namespace and r.run_id = :run_id::uuid
    union all
    select r.run_id, r.status, r.continued_as from chain
    join kagzi.workflow_runs r on r.namespace = :namespace and r.run_id = chain.continued_as
)
select run_id, status from chain where continued_as is null;

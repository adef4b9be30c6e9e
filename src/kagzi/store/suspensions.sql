-- name: suspend
-- Gives runs back until one of the named steps can go on. Looks, under the lock the caller took before, whether a signal,
-- a child's end, a resolution or a cancel is there already: then the run is due now. Else at its earliest timer, or never.
-- A token that is not the current one, or a step that is not on record, changes nothing and is not answered.
update kagzi.workflow_runs r
set status = 'SLEEPING', claim_token = null, last_token = r.claim_token, last_operation = u.operation_id,
    last_worker = r.locked_by, locked_by = null, crashes = 0, parked_hash = u.parked_hash,
    kept_by = case when u.kept then r.locked_by end,
    waiting = coalesce(u.parked::jsonb, waits.waiting),
    available_at = case when u.parked is not null and not (r.automation is not null and (
                            -- A person may have said meanwhile what became of the mutation it is parked over.
                            r.cancel_requested_at is not null or exists (
                                select 1 from kagzi.mutations m
                                where m.namespace = :namespace and m.holder_id = u.run_id
                                  and m.status <> 'INDETERMINATE')))
                        then 'infinity'
                        when u.parked is not null then kagzi.now()
                        when waits.met or r.cancel_requested_at is not null and not cancelled.recorded
                        then kagzi.now()
                        else coalesce(waits.wake_at, 'infinity') end
from unnest(:run_ids::uuid[], :tokens::uuid[], :operation_ids::uuid[], :parked::text[], :parked_hashes::text[],
            :named::integer[], :kept::boolean[])
         as u(run_id, token, operation_id, parked, parked_hash, named, kept)
cross join lateral (
    select min(case when s.kind in ('SLEEP', 'SIGNAL') and s.status = 'RUNNING' then s.wake_at
                    -- The next attempt; the next question to a reconciler that could not say.
                    when s.status in ('FAILED', 'UNKNOWN') then s.retry_at
                    -- The end of a run that somebody else started wakes nobody here: look again.
                    when s.kind = 'CHILD_WORKFLOW' and s.status = 'RUNNING' and not exists (
                        select 1 from kagzi.workflow_runs c
                        where c.namespace = :namespace and c.run_id = s.child_run_id and c.parent_run_id = u.run_id)
                    then kagzi.now() + interval '1 second' end) as wake_at,
           coalesce(bool_or(
               s.kind = 'SIGNAL' and s.status = 'RUNNING' and exists (
                   select 1 from kagzi.signals g
                   where g.namespace = :namespace and g.run_id = u.run_id and g.name = s.target
                     and g.received_by is null)
               or s.kind = 'CHILD_WORKFLOW' and s.status = 'RUNNING' and exists (
                   with recursive chain as (
                       select c.run_id, c.status, c.continued_as from kagzi.workflow_runs c
                       where c.namespace = :namespace and c.run_id = s.child_run_id
                       union all
                       select c.run_id, c.status, c.continued_as from chain
                       join kagzi.workflow_runs c on c.namespace = :namespace and c.run_id = chain.continued_as)
                   select 1 from chain
                   where chain.continued_as is null and chain.status in ('COMPLETED', 'FAILED', 'CANCELLED'))
               or s.status = 'UNKNOWN' and s.resolution is not null
               -- What has its outcome, or whose body is to run, keeps nobody waiting.
               or s.status in ('COMPLETED', 'ABANDONED', 'INTERRUPTED') or s.status = 'FAILED' and s.retry_at is null
               or s.status in ('PENDING', 'RUNNING') and s.kind not in ('SLEEP', 'SIGNAL', 'CHILD_WORKFLOW')
                  and not s.effect),
               false) as met,
           jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
               'step', s.step_id, 'kind', s.kind, 'until', coalesce(s.wake_at, s.retry_at), 'signal',
               case when s.kind = 'SIGNAL' then s.target end, 'child', s.child_run_id,
               -- Only a person can say what became of it.
               'doubt', case when s.status = 'UNKNOWN' and s.resolution is null
                              and coalesce(s.wake_at, s.retry_at) is null then true end)) order by s.position) as waiting,
           count(s.step_id) as known
    from unnest(:wait_run_ids::uuid[], :wait_step_ids::text[]) as w(run_id, step_id)
    join kagzi.step_runs s
        on s.namespace = :namespace and s.run_id = w.run_id and s.step_id = w.step_id and s.is_latest
    where w.run_id = u.run_id
) as waits
cross join lateral (
    select exists (select 1 from kagzi.step_runs s
                   where s.namespace = :namespace and s.run_id = u.run_id and s.kind = 'CANCEL' and s.is_latest)
        as recorded
) as cancelled
where r.namespace = :namespace and r.run_id = u.run_id and r.run_id = any (:run_ids::uuid[])
  and r.claim_token = u.token
  and waits.known = u.named
returning r.run_id, r.task_queue, r.status, nullif(r.available_at, 'infinity') as available_at,
          r.available_at <= kagzi.now() as due;

-- name: asked_to_cancel
-- Those of these runs that somebody asked to end, or whose time is up. The caller holds the fence.
select r.run_id
from kagzi.workflow_runs r
where r.namespace = :namespace and r.run_id = any (:run_ids::uuid[]) and r.cancel_requested_at is not null;

-- name: warn
-- Notes what a person should know of runs that go on, once for each step and for a hundred of them at most. The caller
-- holds the fence.
update kagzi.workflow_runs r
set warnings = fresh.warnings || coalesce(r.warnings, '{}')
from (select u.run_id, array_agg(u.step_id) as step_ids,
             jsonb_object_agg(u.step_id, jsonb_build_object('message', u.message, 'at', kagzi.now())) as warnings
      from unnest(:run_ids::uuid[], :step_ids::text[], :messages::text[]) as u(run_id, step_id, message)
      group by u.run_id) as fresh
where r.namespace = :namespace and r.run_id = fresh.run_id and r.status = 'RUNNING'
  and not coalesce(r.warnings, '{}') ?& fresh.step_ids
  and (select count(*) from jsonb_object_keys(coalesce(r.warnings, '{}'))) < 100;

-- name: release
-- Gives runs back for anybody to claim now, `retry_ms` later for a step that is tried again by replay. A token that is
-- not the current one changes nothing and is not answered. The caller holds the fence.
update kagzi.workflow_runs r
set status = 'PENDING', available_at = kagzi.now() + u.retry_ms * interval '1 millisecond', claim_token = null,
    last_token = r.claim_token, last_operation = u.operation_id, last_worker = r.locked_by, locked_by = null, crashes = 0
from unnest(:run_ids::uuid[], :tokens::uuid[], :operation_ids::uuid[], :retry_ms::bigint[])
         as u(run_id, token, operation_id, retry_ms)
where r.namespace = :namespace and r.run_id = u.run_id and r.run_id = any (:run_ids::uuid[])
  and r.claim_token = u.token
returning r.run_id, r.task_queue, r.status, r.available_at, r.available_at <= kagzi.now() as due;

-- name: set_state
-- Publishes documents; one with a number not above the stored one changes nothing. Answers the numbers that are stored
-- then. The caller holds the fence.
update kagzi.workflow_runs r
set state = case when r.state_number < u.number then u.state::jsonb else r.state end,
    state_number = greatest(r.state_number, u.number)
from unnest(:run_ids::uuid[], :states::text[], :numbers::integer[]) as u(run_id, state, number)
where r.namespace = :namespace and r.run_id = u.run_id and r.run_id = any (:run_ids::uuid[])
  and r.status = 'RUNNING'
returning r.run_id, r.state_number;

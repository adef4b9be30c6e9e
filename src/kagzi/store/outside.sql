-- name: namespaces
-- Where runs were started by SQL that nobody has counted. Goes from one namespace to the next along the primary key,
-- however many starts each has. Locks nothing.
with recursive jumps as (
    (select o.namespace from kagzi.outside_starts o order by o.namespace limit 1)
    union all
    select (select o.namespace from kagzi.outside_starts o where o.namespace > j.namespace order by o.namespace limit 1)
    from jumps j
    where j.namespace is not null
)
select j.namespace
from jumps j
where j.namespace is not null
limit :most;

-- name: take
-- Takes starts away to be counted, and tells in which transaction. Locks what it deletes and skips what another server
-- takes at this moment, so that each is taken once.
delete from kagzi.outside_starts o
where o.namespace = :namespace and o.run_id = any (array(
    select t.run_id
    from kagzi.outside_starts t
    where t.namespace = :namespace
    order by t.run_id
    limit :most
    for update skip locked))
returning o.workflow_type, pg_current_xact_id()::text as transaction_id;

-- name: committed
-- Whether a transaction did. NULL while it is under way; one that the database does not know, as after a promotion that
-- lost it, did not. Locks nothing.
select case when t.id > pg_current_xact_id() then false
            when pg_xact_status(t.id) = 'in progress' then null
            else coalesce(pg_xact_status(t.id) = 'committed', false) end as committed
from (select :transaction_id::text::xid8 as id) t;

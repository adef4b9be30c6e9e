-- name: namespaces
-- Where runs were started by SQL that nobody has counted. Locks nothing.
select distinct o.namespace
from kagzi.outside_starts o
limit :most;

-- name: take
-- Takes starts away to be counted. Locks what it deletes and skips what another server takes at this moment, so that each
-- is taken once.
delete from kagzi.outside_starts o
where o.namespace = :namespace and o.run_id = any (array(
    select t.run_id
    from kagzi.outside_starts t
    where t.namespace = :namespace
    order by t.run_id
    limit :most
    for update skip locked))
returning o.workflow_type;

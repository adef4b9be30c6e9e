-- How many runs a worker said it holds with its last heartbeat: pages of many busy workers need not count every lease.
alter table kagzi.workers add column reported integer not null default 0;

-- A page of those that are there is read in its order, among however many.
create index worker_here on kagzi.workers (namespace, registered_at, worker_id) where status <> 'OFFLINE';

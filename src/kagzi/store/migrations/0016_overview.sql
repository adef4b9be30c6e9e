-- Workers of one deployment serve the same: who jumps along this index from one kind of worker to the next sees a thousand
-- of them as one. Names of types may be longer than an entry of an index, so it holds their hashes.
create index worker_fleet on kagzi.workers
    (namespace, task_queue, hash_array_extended(types, 0), hash_array_extended(type_versions, 0), status)
    where status <> 'OFFLINE';
drop index kagzi.worker_live;
-- What is blocked is looked for with every overview, among any number that are not.
create index automation_blocked on kagzi.automations (namespace, blocked_at) where blocked_at is not null;

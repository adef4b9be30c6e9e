-- name: create
-- Makes a key. Answers nothing when the id is taken, also when another creation with it commits first; then nothing is
-- changed.
insert into kagzi.api_keys (namespace, key_id, name, role, secret_hash)
values (:namespace, :key_id, :name, :role, :secret_hash)
on conflict (namespace, key_id) do nothing;

-- name: get
-- One key, valid or revoked. Locks nothing.
select k.namespace, k.key_id, k.name, k.role, k.secret_hash, k.created_at, k.revoked_at
from kagzi.api_keys k
where k.namespace = :namespace and k.key_id = :key_id;

-- name: list
-- The keys of a namespace, newest first, after the one made at :before_at with :before_id. Locks nothing.
select k.namespace, k.key_id, k.name, k.role, k.secret_hash, k.created_at, k.revoked_at
from kagzi.api_keys k
where k.namespace = :namespace and (:revoked::boolean or k.revoked_at is null)
  and (:before_at::timestamptz is null or (k.created_at, k.key_id) < (:before_at, :before_id::uuid))
order by k.created_at desc, k.key_id desc
limit :most;

-- name: revoke
-- Ends a key. Changes nothing where it has ended already: the first time stays. Locks the key's row.
update kagzi.api_keys k
set revoked_at = kagzi.now()
where k.namespace = :namespace and k.key_id = :key_id and k.revoked_at is null;

-- name: valid
-- Those of the keys that are not revoked. Locks nothing.
select k.namespace, k.key_id
from unnest(:namespaces::text[], :key_ids::uuid[]) u (namespace, key_id)
join kagzi.api_keys k on k.namespace = u.namespace and k.key_id = u.key_id
where k.revoked_at is null;

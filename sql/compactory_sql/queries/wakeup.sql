-- Falling asleep and waking up. The key of the lock is the root table's oid in four bytes: an oid above 2^31
-- does not fit a signed integer, so its bits are taken as they are.

-- name: wakeup_lock
-- Announces that the source is about to sleep: from now on writers of the table notify. Poll once more after it
-- returned true. False: a transaction that wrote the table is open (or another source sleeps), try again later.
SELECT pg_catalog.pg_try_advisory_lock(%(lock_class)s::int4, %(table_oid)s::int8::bit(32)::int4);

-- name: wakeup_unlock
-- The source is awake: writers need not notify.
SELECT pg_catalog.pg_advisory_unlock(%(lock_class)s::int4, %(table_oid)s::int8::bit(32)::int4);

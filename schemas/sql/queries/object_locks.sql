-- Legal holds on objects of a bucket with Object Lock; see 011_object_locks.sql.

-- name: held_tenants
-- The tenants that are held with everything they have.
SELECT DISTINCT tenant FROM active_holds WHERE tenant IS NOT NULL ORDER BY tenant;

-- name: held_trajectories
-- What else is held, or needed by what is held, and has come here; with the start day that is in the path of its files.
SELECT t.trajectory_id, t.tenant,
  to_char(least((uuid7_time(t.trajectory_id) AT TIME ZONE 'UTC')::date, date '9999-12-31'), 'YYYY-MM-DD')
FROM with_all_ancestors((
  SELECT array_agg(DISTINCT c.id) FROM active_holds h CROSS JOIN LATERAL covered_by(h.hold_id) AS c(id)
  WHERE h.tenant IS NULL)) AS f(id)
JOIN trajectories t ON t.trajectory_id = f.id WHERE t.head_sequence >= 0 ORDER BY t.trajectory_id;

-- name: warm_references
-- Bodies in the warm tier that may refer to content, of held tenants and trajectories.
SELECT tenant, body FROM all_events
WHERE (tenant = ANY (%(tenants)s::text[]) OR trajectory_id = ANY (%(trajectory_ids)s::uuid[]))
  AND position('\x7b2224626c6f62223a'::bytea IN body) > 0;

-- name: locks
-- The objects that we have locked.
SELECT place, path FROM object_locks ORDER BY place, path;

-- name: locks_among
-- Those of some objects of a place.
SELECT path FROM object_locks WHERE place = %(place)s AND path = ANY (%(paths)s::text[]) ORDER BY path;

-- name: note
-- This object is about to be locked.
INSERT INTO object_locks (place, path) VALUES (%(place)s, %(path)s) ON CONFLICT DO NOTHING;

-- name: forget
-- This object is released.
DELETE FROM object_locks WHERE place = %(place)s AND path = %(path)s;

-- name: new_files
-- What a rewrite has written.
SELECT path FROM rewrite_files WHERE rewrite_id = %(rewrite_id)s AND role = 'new' ORDER BY path;

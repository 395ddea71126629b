-- The deployment (samekey.deployment): whether this worker may deliver what is in the database. The functions are in the
-- migration.
--
-- A worker keeps the id that DeploymentCheck returned. Each claim compares it with the row in its own statement, so no
-- flag in memory decides. W is a worker that is at work, D the person who changes the row:
--
--   W checks, D adopts the database for another     samekey.adopt refuses: W holds its lock (55006). If W does not hold
--   deployment, W claims                            it yet, W's claims find another id and take nothing; W's next
--                                                   heartbeat reports it
--   W's claim has begun; W loses its session, so    the claim's snapshot has the old row, and it may commit: its calls
--   D's adopt finds no worker; D commits            are made, as calls in flight are. W claims nothing more
--   calls of W are in flight, D adopts              they are settled: outcomes are true, whatever deployment adopted the database
--   a dump is restored over the database while W    between the drop and the row's return, claims fail or find no row;
--   is at work (pg_restore --clean)                 then they find another id. In both cases they take nothing
--   data is restored into the tables of W's         two rows: claims take nothing as soon as the second is committed.
--   database (pg_restore --data-only)               Postgres's tools load samekey.deployment before samekey.outbox;
--                                                   with several jobs, the order is not certain
--   two workers of two deployments name a new       one update changes the row, and the other waits and finds the name
--   database at once                                set: problem is 'name'
--   W's server fails over to a physical replica     the same row and the same identity: W goes on

-- name: DeploymentCheck :one
select c.id, coalesce(c.belongs_to, '')::text as belongs_to, coalesce(c.problem, '')::text as problem
from samekey.check_deployment(@deployment::text) as c;

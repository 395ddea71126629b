package schema

// Every advisory lock number of samekey. The table at the top of migrations/0001_samekey.sql says who holds which lock.
// The first three are written in SQL functions: call samekey.key_lock, samekey.ordering_lock and samekey.worker_class
// instead of repeating the number.
const (
	keyLockSeed      = 7309453201 // samekey.key_lock hashes a key with it
	orderingLockSeed = 8243107313 // samekey.ordering_lock hashes an ordering key with it
	workerLockClass  = 1935764331 // the first number of a worker's lock; the second is the worker's id
	migrateLock      = 7309453202 // Migrate and Grant hold it, so that several processes may run them at once
	sharesLock       = 7309453203 // a worker holds it while it registers its actions; see samekey.share_of_replace
	templateLockSeed = 0          // samekeytest hashes the name of a template database with it, in a database without the schema
)

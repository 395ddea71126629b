package dispatcher

import "time"

// Times that several parts share.

const (
	claimTimeout   = 10 * time.Second // for one claim
	settleTimeout  = 3 * time.Second  // for one statement that settles, or that a call waits for
	sessionTimeout = 5 * time.Second  // for each statement of a session
)

// times are those that tests shorten.
type times struct{ shift, riverPatience, alarmAfter, stopMargin time.Duration }

func defaultTimes() times { return times{shiftLength, riverPatience, alarmAfter, stopMargin} }

// alarmAfter is how long something may be due, with nothing in the way of its claim, before the worker reports that it
// is stuck. A claim may take claimTimeout, and is made again once.
const alarmAfter = 25 * time.Second

// shiftLength is how long a drain lasts. Then River is asked again, so that River shows which process drains, and its
// stop and rescue have an effect.
const shiftLength = 5 * time.Minute

// riverPatience is how long River has to begin a drain.
const riverPatience = time.Second

// stopMargin is how much longer than StopTimeout a stop takes at most, for the last settles and for River's own end
// each.
const stopMargin = 5 * time.Second

// settlingOrphans is the settling delay of an intent whose worker never wrote an outcome. Its lease, which is longer
// than its timeout, has run out by then.
const settlingOrphans = 5 * time.Second

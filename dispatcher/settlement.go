package dispatcher

import (
	"time"

	"github.com/samekey/samekey/internal/intent"
)

// settlement is the result of a claim: the row's next status, and the event for its history. The fields have the names
// of OutboxQueueSettle's parameters.
type settlement struct {
	status       string        // the next status; delivered and refused finish the intent
	delay        time.Duration // until it is due again
	attemptsUsed int           // the new value of attempts_used
	clearSent    bool          // no vendor saw the key: reset first_sent_at and what goes with it
	keepLease    bool          // the same worker goes on with the intent
	leaveOrder   bool          // the intent leaves its ordering key
	wasSent      bool          // the request may have left the worker
	forbidResend bool          // after this, an absent lookup must not lead to another send

	event     string
	outcome   string
	response  Response
	reference string // the vendor's
	err       string
	took      time.Duration
}

func (s settlement) finishes() bool { return intent.IsFinished(s.status) }

// Short names of the statuses that the worker meets; package intent has all.
const (
	statusPending   = intent.Pending
	statusLeased    = intent.Leased
	statusUnknown   = intent.Unknown
	statusAnswered  = intent.Answered
	statusAwaiting  = intent.AwaitingApproval
	statusParked    = intent.Parked
	statusDead      = intent.Dead
	statusDelivered = intent.Delivered
	statusRefused   = intent.Refused
)

// codeAccepted marks an unknown intent that the vendor has taken.
const codeAccepted = "accepted"

// The codes of intents that an earlier release may have sent elsewhere, or in another form, or whose worker is gone.
const (
	codeMoved    = "moved"
	codeForm     = "form"
	codeOrphaned = "orphaned" // OutboxQueueRelease writes it
	codeSettling = "settling" // OutboxQueueSettle knows it
)

// codePayloadVersion marks a pending intent whose payload a later release wrote, which waits for newerPayloadDelay.
const (
	codePayloadVersion = "payload_version"
	newerPayloadDelay  = 10 * time.Second
)

// The codes of intents that name an endpoint to which nothing is sent.
const (
	codeEndpointStopped = "endpoint_stopped"
	codeEndpointMissing = "endpoint_missing"
)

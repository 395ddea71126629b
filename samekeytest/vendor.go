package samekeytest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"
)

// Vendor is an http.Handler that behaves as a payment or mail vendor does: it
// acts once per idempotency key, replays its stored answer, and keeps a ledger
// of every call and every effect, by which a test or an audit can say what
// really happened. Faults are injected on demand: [Vendor.Next],
// [Vendor.SetFaults], [Vendor.Hold].
//
// POST to any path is a call. GET /lookup?key=... (or ?identity=...) answers
// 200 with the stored answer, its status in the header Stored-Status; 409 while
// the call is running; else 404. Paths under /_control/ steer it; see
// [Vendor.ServeHTTP].
//
// It holds no goroutine of its own and is safe for concurrent use.
type Vendor struct {
	opts VendorOptions

	mu       sync.Mutex
	file     *os.File
	broken   error // the first failed write to file: nothing acts after it
	keys     map[string]*keyState
	calls    []VendorCall // calls[i].Call == i+1
	effects  []VendorRecord
	declined []VendorRecord
	byID     map[string]int // effects per path and identity
	lookups  int
	doubles  int
	open     int
	maxOpen  int
	faults   map[string]int

	deck    deck
	next    []Fault
	hold    holdPoint
	release chan struct{} // closed and replaced by Release
	changed chan struct{} // closed and replaced whenever a count changes
	closing chan struct{}
	closed  bool
}

// keyState is the vendor's memory of one key.
type keyState struct {
	calls   int
	running bool
	done    *VendorRecord
	strikes int // calls of this key that the fault plan still strikes
}

type holdPoint int

const (
	holdNothing holdPoint = iota
	holdCalls
	holdAnswers
)

const maxVendorBody = 16 << 20

// NewVendor returns a vendor that remembers what opts.LedgerFile holds. A nil
// opts is the zero value. Close it when the server in front of it has stopped
// taking requests.
func NewVendor(opts *VendorOptions) (*Vendor, error) {
	v := &Vendor{
		keys:    map[string]*keyState{},
		byID:    map[string]int{},
		faults:  map[string]int{},
		release: make(chan struct{}),
		changed: make(chan struct{}),
		closing: make(chan struct{}),
	}
	v.opts = opts.withDefaults()
	if err := v.SetFaults(v.opts.Faults); err != nil {
		return nil, err
	}
	if v.opts.LedgerFile != "" {
		if err := v.openLedger(v.opts.LedgerFile); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// Close ends every parked call without an answer, waits until no call is open,
// and closes the ledger file. It returns the first error that kept the ledger
// from being written. Calls that come later are cut off.
func (v *Vendor) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.closed {
		v.closed = true
		close(v.closing)
	}
	for v.open > 0 {
		changed := v.changed
		v.mu.Unlock()
		<-changed
		v.mu.Lock()
	}
	if v.file != nil {
		if err := v.file.Close(); err != nil && v.broken == nil {
			v.broken = err
		}
		v.file = nil
	}
	return v.broken
}

// ServeHTTP serves the vendor's API and, under /_control/, what steers it:
//
//	GET    /_control/ledger    the [Ledger]
//	GET    /_control/open      the [VendorCounts]; ?at_least=10&within=5s first
//	                           waits until so many calls are open, at most so
//	                           long; ?effects=10 waits for effects
//	GET    /_control/faults    the [FaultPlan]
//	PUT    /_control/faults    replaces it; {} turns all faults off
//	POST   /_control/hold      [Vendor.Hold]; ?answers=true: [Vendor.HoldAnswers]
//	POST   /_control/release   [Vendor.Release]
//
// Faults never touch look-ups or control.
func (v *Vendor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case isControl(r.URL.Path):
		v.serveControl(w, r)
	case r.Method == http.MethodGet && r.URL.Path == "/lookup":
		v.serveLookup(w, r)
	case r.Method == http.MethodPost:
		v.serveCall(w, r)
	default:
		write(w, refusal(http.StatusMethodNotAllowed, "method_not_allowed", "calls are POST, look-ups GET /lookup?key="))
	}
}

// openCall is a call between its arrival and its end.
type openCall struct {
	VendorRequest
	rec     VendorCall // as in the ledger, completed by end
	state   *keyState  // nil if this call neither runs nor replays its key
	owns    bool       // this call runs the key: end lets go of it
	stored  *VendorRecord
	refuse  *VendorAnswer // set if the call is refused at the door
	fault   Fault
	release chan struct{}
	hold    holdPoint
	ended   bool
}

func (v *Vendor) serveCall(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxVendorBody))
	if err != nil {
		// Not a whole request, so not a call: nothing to judge or to count.
		write(w, refusal(http.StatusBadRequest, "body", "the body could not be read to its end"))
		return
	}
	c, ok := v.arrive(r, body)
	if !ok {
		drop(w, false)
		return
	}
	defer v.end(c, 0, false) // a panic in the business rule must not leave the call open

	if c.refuse != nil {
		v.answer(w, r, c, *c.refuse)
		return
	}
	if c.hold == holdCalls && !v.park(r.Context(), c) {
		v.abandon(w, r, c)
		return
	}
	v.play(w, r, c)
}

// arrive writes the call into the ledger, claims its key and picks its fault.
// It says false once the vendor is closing.
func (v *Vendor) arrive(r *http.Request, body []byte) (*openCall, bool) {
	key, keyErr := parseKey(r.Header.Values(v.opts.KeyHeader))
	attempt, _ := strconv.Atoi(r.Header.Get(v.opts.AttemptHeader))
	sum := sha256.Sum256(body)
	bodyHash := hex.EncodeToString(sum[:])

	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return nil, false
	}
	c := &openCall{
		VendorRequest: VendorRequest{
			Call: int64(len(v.calls)) + 1, Path: r.URL.RequestURI(), Key: key, Header: r.Header.Clone(), Body: body,
		},
		release: v.release,
		hold:    v.hold,
	}
	c.rec = VendorCall{
		Call: c.Call, Path: c.Path, Key: key, Attempt: attempt, BodyHash: bodyHash,
		Identity: v.identity(key, body, bodyHash), Arrived: time.Now(),
	}
	v.judge(c, keyErr)
	c.rec.Fault = c.fault
	v.calls = append(v.calls, c.rec)
	if c.fault != "" {
		v.faults[c.fault.kind()]++
	}
	v.open++
	v.maxOpen = max(v.maxOpen, v.open)
	if err := v.append(event{Kind: "call", Call: &c.rec}); err != nil && c.refuse == nil {
		c.refuse = ledgerBroken()
	}
	v.broadcast()
	return c, true
}

// judge decides whether the call runs its key, replays it or is refused.
// v.mu is held.
func (v *Vendor) judge(c *openCall, keyErr error) {
	if v.opts.IgnoreKeys {
		state := v.state(c.rec.Identity)
		if keyErr == nil {
			state = v.state(c.Key)
		}
		v.strike(c, state)
		return
	}
	if keyErr != nil {
		c.refuse = ptr(refusal(http.StatusBadRequest, "idempotency_key", v.opts.KeyHeader+": "+keyErr.Error()))
		return
	}
	state := v.state(c.Key)
	switch done := state.done; {
	case state.running:
		state.calls++
		c.rec.Nth = state.calls
		c.refuse = ptr(refusal(http.StatusConflict, "key_in_flight", "a call with this key is still running: try again later"))
		return
	case done != nil && (done.Path != c.Path || done.BodyHash != c.rec.BodyHash):
		state.calls++
		c.rec.Nth = state.calls
		c.refuse = ptr(refusal(v.opts.ConflictStatus, "key_reused", "this key was first used with another request: do not try again"))
		return
	case done != nil:
		c.stored = done
		c.rec.Replayed = true
	default:
		state.running = true
		c.owns = true
	}
	c.state = state
	v.strike(c, state)
}

// strike counts the call and picks its fault. v.mu is held.
func (v *Vendor) strike(c *openCall, state *keyState) {
	state.calls++
	c.rec.Nth = state.calls
	c.fault = v.pickFault(c, state)
}

func (v *Vendor) state(key string) *keyState {
	s := v.keys[key]
	if s == nil {
		s = &keyState{}
		v.keys[key] = s
	}
	return s
}

func (v *Vendor) identity(key string, body []byte, bodyHash string) string {
	if v.opts.Identity != nil {
		if id := v.opts.Identity(body); id != "" {
			return id
		}
	}
	if key != "" {
		return key
	}
	return bodyHash
}

// act makes the decision of this call's key: once, whoever asks. What it
// returns has been written to the ledger.
func (v *Vendor) act(c *openCall) VendorAnswer {
	return v.decide(c, v.opts.Answer)
}

func (v *Vendor) decide(c *openCall, rule func(VendorRequest) VendorAnswer) VendorAnswer {
	if c.stored != nil {
		return replayOf(c.stored.Answer)
	}
	a := rule(c.VendorRequest)
	effect := a.Status >= 200 && a.Status < 300
	if a.Forget && !effect {
		return a
	}
	rec := VendorRecord{
		Call: c.Call, Key: c.Key, Path: c.Path, Identity: c.rec.Identity,
		BodyHash: c.rec.BodyHash, Body: c.Body, Answer: a, At: time.Now(),
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.append(event{Kind: "record", Record: &rec}); err != nil {
		return *ledgerBroken()
	}
	v.keep(rec)
	c.rec.Effect = effect
	c.stored = &rec
	v.broadcast()
	return a
}

// keep puts a decision into the vendor's memory. v.mu is held, or v is not
// shared yet.
func (v *Vendor) keep(rec VendorRecord) {
	if rec.Key != "" {
		v.state(rec.Key).done = &rec
	}
	if !rec.effect() {
		v.declined = append(v.declined, rec)
		return
	}
	v.effects = append(v.effects, rec)
	id := rec.business()
	v.byID[id]++
	if v.byID[id] > 1 {
		v.doubles++
	}
}

// end closes the call's entry in the ledger, before its answer is sent, so
// that whoever has the answer finds a complete ledger. The first end counts.
func (v *Vendor) end(c *openCall, status int, gone bool) {
	if c.ended {
		return
	}
	c.ended = true
	v.mu.Lock()
	defer v.mu.Unlock()
	if c.owns {
		c.state.running = false
	}
	c.rec.Status = status
	c.rec.ClientGone = gone
	c.rec.Ended = ptr(time.Now())
	v.calls[c.Call-1] = c.rec
	_ = v.append(event{Kind: "end", Call: &c.rec}) // kept in v.broken
	v.open--
	v.broadcast()
}

// answer ends the call and sends a, if anybody is still there.
func (v *Vendor) answer(w http.ResponseWriter, r *http.Request, c *openCall, a VendorAnswer) {
	if r.Context().Err() != nil {
		v.abandon(w, r, c)
		return
	}
	v.end(c, a.Status, false)
	write(w, a)
}

// abandon ends the call without an answer: its client went, or the vendor is
// closing.
func (v *Vendor) abandon(w http.ResponseWriter, r *http.Request, c *openCall) {
	v.end(c, 0, r.Context().Err() != nil)
	drop(w, false)
}

// park keeps the call open until Release; it says false if the client went or
// the vendor is closing.
func (v *Vendor) park(ctx context.Context, c *openCall) bool {
	select {
	case <-c.release:
		return true
	case <-ctx.Done():
		return false
	case <-v.closing:
		return false
	}
}

func (v *Vendor) broadcast() {
	close(v.changed)
	v.changed = make(chan struct{})
}

// replayOf marks a stored answer as a replay.
func replayOf(a VendorAnswer) VendorAnswer {
	a.Header = a.Header.Clone()
	if a.Header == nil {
		a.Header = http.Header{}
	}
	a.Header.Set("Idempotent-Replayed", "true")
	return a
}

func ptr[T any](x T) *T { return &x }

package samekeytest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"testing"
	"time"
)

// Vendor is an http.Handler that behaves as a payment or mail vendor: it acts once per idempotency key, replays its
// stored answer, and keeps a ledger of every call and every effect. A test reads the ledger to learn what really
// happened. Faults are injected on demand, with Next, [Vendor.SetFaults] and Hold.
//
// POST to any path is a call. GET /lookup?key=... (or ?identity=...) answers 200 with the stored answer, its status in
// the header Stored-Status; 409 while the call is running; else 404. Paths under /_control/ control the vendor, see
// [Vendor.ServeHTTP].
//
// A Vendor holds no goroutine of its own and is safe for concurrent use.
type Vendor struct {
	URL string // http://127.0.0.1:port without a slash at its end, if StartVendor started it

	engine
	opts   VendorOptions
	server *httptest.Server // of StartVendor

	// engine.mu guards the rest.
	file     *os.File
	broken   error // the first failed write to file: nothing acts after it
	keys     map[string]*keyState
	calls    []VendorCall // calls[i].Call == i+1
	effects  []VendorRecord
	declined []VendorRecord
	byID     map[string]int // effects per path and identity
	lookups  int
	doubles  int
	maxOpen  int
	faults   map[string]int
	deck     deck
}

// keyState is the vendor's memory of one key.
type keyState struct {
	calls   int
	running bool
	done    *VendorRecord
	strikes int // calls of this key that the plan still strikes
}

// StartVendor starts a vendor on the loopback interface. It closes the vendor at the end of the test, after which no
// connection and no goroutine of it is left. A nil opts is the zero value.
func StartVendor(t testing.TB, opts *VendorOptions) *Vendor {
	t.Helper()
	v, err := NewVendor(opts)
	if err != nil {
		t.Fatal(err)
	}
	v.server = httptest.NewServer(v)
	v.URL = v.server.URL
	t.Cleanup(func() {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	return v
}

// NewVendor returns a vendor for a server of your own. It remembers what opts.LedgerFile holds. A nil opts is the zero
// value. Close the vendor when its server takes no more requests.
func NewVendor(opts *VendorOptions) (*Vendor, error) {
	v := &Vendor{
		engine: newEngine(checkVendorFault),
		opts:   opts.withDefaults(),
		keys:   map[string]*keyState{},
		byID:   map[string]int{},
		faults: map[string]int{},
	}
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

// Close ends every parked call without an answer, waits until no call is open, and closes the ledger file and the
// server of [StartVendor]. It returns the first error that kept the ledger from being written. The ledger can still be
// read.
func (v *Vendor) Close() error {
	v.mu.Lock()
	v.stop()
	v.mu.Unlock()
	_ = v.waitFor(context.Background(), 0, "", func() int { return -v.open })
	if v.server != nil {
		v.server.CloseClientConnections()
		v.server.Close()
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.file != nil {
		if err := v.file.Close(); err != nil && v.broken == nil {
			v.broken = err
		}
		v.file = nil
	}
	return v.broken
}

// ServeHTTP serves the vendor's API and, under /_control/, its controls:
//
//	GET    /_control/ledger    the [Ledger]
//	GET    /_control/open      the [VendorCounts]; ?at_least=10&within=5s waits up
//	                           to 5 s until 10 calls are open; ?effects=10 waits
//	                           for effects
//	GET    /_control/faults    the [FaultPlan]
//	PUT    /_control/faults    replaces it; {} turns all faults off
//	POST   /_control/hold      Hold; ?answers=true: HoldAnswers
//	POST   /_control/release   Release
//
// Faults never affect lookups or controls.
func (v *Vendor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case isControl(r.URL.Path):
		v.serveControl(w, r)
	case r.Method == http.MethodGet && r.URL.Path == "/lookup":
		v.serveLookup(w, r)
	case r.Method == http.MethodPost:
		v.serve(w, r, v.admit)
	default:
		write(w, refusal(http.StatusMethodNotAllowed, "method_not_allowed", "calls are POST, lookups are GET /lookup?key="))
	}
}

// openCall is a call between its arrival and its end.
type openCall struct {
	VendorRequest
	v      *Vendor
	entry  VendorCall    // as in the ledger; record completes it
	state  *keyState     // nil if this call neither runs nor replays its key
	owns   bool          // this call runs the key; record lets go of it
	stored *VendorRecord // the decision of its key
	refuse *VendorAnswer // set if the call is refused on arrival
}

// admit writes the call into the ledger, claims its key and picks its fault. v.mu is held.
func (v *Vendor) admit(visit *visit, body []byte) {
	r := visit.r
	key, keyErr := parseKey(r.Header.Values(v.opts.KeyHeader))
	attempt, _ := strconv.Atoi(r.Header.Get(v.opts.AttemptHeader))
	sum := sha256.Sum256(body)
	bodyHash := hex.EncodeToString(sum[:])

	c := &openCall{
		v: v,
		VendorRequest: VendorRequest{
			Call: int64(len(v.calls)) + 1, Path: r.URL.RequestURI(), Key: key, Header: r.Header.Clone(), Body: body,
		},
	}
	c.entry = VendorCall{
		Call: c.Call, Path: c.Path, Key: key, Attempt: attempt, BodyHash: bodyHash,
		Identity: v.identity(key, body, bodyHash), Arrived: time.Now(),
	}
	v.judge(c, keyErr)
	visit.behavior, visit.fault = c, c.entry.Fault
	v.calls = append(v.calls, c.entry)
	if c.entry.Fault != "" {
		v.faults[c.entry.Fault.kind()]++
	}
	v.maxOpen = max(v.maxOpen, v.open)
	if err := v.append(event{Kind: "call", Call: &c.entry}); err != nil && c.refuse == nil {
		c.refuse = ledgerBroken()
	}
	if c.refuse != nil {
		visit.fault, visit.hold = "", holdNothing
	}
}

// judge decides whether the call runs its key, replays it or is refused. v.mu is held.
func (v *Vendor) judge(c *openCall, keyErr error) {
	if v.opts.IgnoreKeys {
		state := v.state(c.entry.Identity)
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
		c.entry.Nth = state.calls
		c.refuse = ptr(refusal(http.StatusConflict, "key_in_flight", "a call with this key is still running: try again later"))
		return
	case done != nil && (done.Path != c.Path || done.BodyHash != c.entry.BodyHash):
		state.calls++
		c.entry.Nth = state.calls
		c.refuse = ptr(refusal(v.opts.ConflictStatus, "key_reused", "this key was first used with another request: do not try again"))
		return
	case done != nil:
		c.stored = done
		c.entry.Replayed = true
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
	c.entry.Nth = state.calls
	if state.calls == 1 {
		state.strikes = v.deck.newKey()
	}
	fault := v.pick(func() Fault {
		switch {
		case state.strikes > 0 && len(v.deck.plan.Faults) > 0:
			state.strikes--
			return v.deck.deal()
		case v.opts.Script != nil:
			return v.opts.Script(c.entry)
		}
		return ""
	})
	if c.stored == nil || fault.kind() != decline {
		c.entry.Fault = fault
	}
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

func (c *openCall) act() VendorAnswer {
	if c.refuse != nil {
		return *c.refuse
	}
	return c.decide(c.v.opts.Answer)
}

// decline is the fault that is a decision of the vendor.
const decline = "402"

func (c *openCall) special(kind string) (VendorAnswer, bool) {
	if kind != decline {
		return VendorAnswer{}, false
	}
	return c.decide(func(VendorRequest) VendorAnswer {
		return refusal(http.StatusPaymentRequired, "card_declined", "the card was declined")
	}), true
}

// decide makes the decision of this call's key, once. The decision is in the ledger before decide returns it.
func (c *openCall) decide(rule func(VendorRequest) VendorAnswer) VendorAnswer {
	if c.stored != nil {
		return replayOf(c.stored.Answer)
	}
	a := rule(c.VendorRequest)
	effect := a.Status >= 200 && a.Status < 300
	if a.Forget && !effect {
		return a
	}
	rec := VendorRecord{
		Call: c.Call, Key: c.Key, Path: c.Path, Identity: c.entry.Identity,
		BodyHash: c.entry.BodyHash, Body: c.Body, Answer: a, At: time.Now(),
	}
	c.v.mu.Lock()
	defer c.v.mu.Unlock()
	if err := c.v.append(event{Kind: "record", Record: &rec}); err != nil {
		return *ledgerBroken()
	}
	c.v.keep(rec)
	c.entry.Effect = effect
	c.stored = &rec
	c.v.broadcast()
	return a
}

// keep puts a decision into the vendor's memory. v.mu is held, or v is not shared yet.
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

func (c *openCall) record(status int, clientGone bool) {
	if c.owns {
		c.state.running = false
	}
	c.entry.Status = status
	c.entry.ClientGone = clientGone
	c.entry.Ended = ptr(time.Now())
	c.v.calls[c.Call-1] = c.entry
	_ = c.v.append(event{Kind: "end", Call: &c.entry}) // the error is kept in v.broken
}

func (*openCall) write(w http.ResponseWriter, a VendorAnswer, n int) {
	writeHead(w, a)
	_, _ = w.Write(a.Body[:n]) // a client that has gone is no error of the vendor's
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

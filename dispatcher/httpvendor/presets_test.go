package httpvendor

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// vendor is a server that follows a script made from a vendor's documentation: the n-th call of a key gets the n-th
// step, and later calls get the last step.
type vendor struct {
	*httptest.Server
	key    func(r *http.Request, body []byte) string // from the place where this vendor takes it
	script []step

	mu      sync.Mutex
	wire    []wireCall // all calls, in order
	effects map[string]int
	asked   []string // lookups
	log     func(r *http.Request) (status int, body string)
}

// step is the vendor's reaction to one call.
type step struct {
	act    bool // it has its effect, unless this key already had it
	lose   bool // the answer never arrives
	status int
	header map[string]string
	body   string
}

type wireCall struct {
	attempt           int
	target, key, body string
}

func startVendor(t *testing.T, key func(*http.Request, []byte) string, script ...step) *vendor {
	t.Helper()
	v := &vendor{key: key, script: script, effects: map[string]int{}}
	v.Server = httptest.NewServer(http.HandlerFunc(v.serve))
	t.Cleanup(v.Close)
	return v
}

func (v *vendor) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	v.mu.Lock()
	defer v.mu.Unlock()
	if r.Method == http.MethodGet {
		v.asked = append(v.asked, r.RequestURI)
		status, body := v.log(r)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
		return
	}
	attempt, _ := strconv.Atoi(r.Header.Get("Samekey-Attempt"))
	call := wireCall{attempt, r.Method + " " + r.RequestURI + " " + r.Header.Get("Content-Type"), v.key(r, body), string(body)}
	v.wire = append(v.wire, call)
	s := v.script[min(len(v.wire), len(v.script))-1]
	if s.act && (v.effects[call.key] == 0 || call.key == "") {
		v.effects[call.key]++
	}
	if s.lose {
		c, _, _ := http.NewResponseController(w).Hijack()
		_ = c.Close()
		return
	}
	for name, value := range s.header {
		w.Header().Set(name, value)
	}
	w.WriteHeader(s.status)
	_, _ = io.WriteString(w, s.body)
}

func header(name string) func(*http.Request, []byte) string {
	return func(r *http.Request, _ []byte) string { return r.Header.Get(name) }
}

func quoted(name string) func(*http.Request, []byte) string {
	return func(r *http.Request, _ []byte) string {
		value := r.Header.Get(name)
		if len(value) < 2 || value[0] != '"' || value[len(value)-1] != '"' {
			return "not quoted: " + value
		}
		return value[1 : len(value)-1]
	}
}

func bodyField(name string) func(*http.Request, []byte) string {
	return func(r *http.Request, body []byte) string {
		var fields map[string]any
		_ = json.Unmarshal(body, &fields)
		text, _ := fields[name].(string)
		if len(r.Header.Values("Idempotency-Key")) > 0 {
			return "in a header"
		}
		return text
	}
}

// played delivers one intent until it rests, and returns its record.
func played(t *testing.T, db *samekeytest.DB, dest Destination, v *vendor, action Action) outbox.Entry {
	t.Helper()
	id := inserted(t, db)
	for range 40 {
		drain(t, db, dest, v, action)
		entry, err := outbox.Get(t.Context(), db.Pool, id)
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains([]outbox.Status{"delivered", "refused", "dead", "parked"}, entry.Status) {
			v.compare(t, entry)
			return entry
		}
		samekeytest.Elapse(t, db, time.Minute)
	}
	t.Fatal("the intent does not rest")
	return outbox.Entry{}
}

const charge = `{"id":"c-1","amount":9007199254740993}`

func inserted(t *testing.T, db *samekeytest.DB) (id uuid.UUID) {
	t.Helper()
	key, err := samekey.NewKey(t.Name(), "test", "charge")
	if err != nil {
		t.Fatal(err)
	}
	err = pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) (err error) {
		id, err = outbox.Insert(t.Context(), tx, outbox.Intent{Key: key, Action: "charge_card", Payload: json.RawMessage(charge)})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// drain runs one worker of one release.
func drain(t *testing.T, db *samekeytest.DB, dest Destination, v *vendor, action Action) {
	t.Helper()
	dest.Name, dest.URL = "stripe", v.URL
	client := testClient(t, dest)
	if action.Policy.Backoff == 0 {
		action.Policy.Backoff, action.Policy.MaxBackoff = time.Second, time.Second
	}
	if action.Request == "" {
		action.Request = "POST /v1/charges"
	}
	if action.Policy.Class == 0 {
		action.Policy.Class = dispatcher.IdempotentWrite
	}
	if action.Policy.Class == dispatcher.IdempotentWrite && dest.Vendor.Window == 0 {
		action.Policy.KeyWindow = 24 * time.Hour
	}
	d := dispatcher.New(db.Pool, &dispatcher.Config{Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	client.register(d, "charge_card", action)
	if err := d.Check(); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// compare compares the recorded attempts with the requests on the wire.
func (v *vendor) compare(t *testing.T, entry outbox.Entry) {
	t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	var recorded, seen []int
	for _, e := range entry.History {
		if e.Event == "attempt" && e.Code != "maybe_sent" && e.Code != "key_window" {
			recorded = append(recorded, e.Attempt)
		}
	}
	for _, call := range v.wire {
		seen = append(seen, call.attempt)
		call.attempt = v.wire[0].attempt
		if call != v.wire[0] {
			t.Errorf("the vendor saw %+v, first %+v", call, v.wire[0])
		}
	}
	if fmt.Sprint(recorded) != fmt.Sprint(seen) {
		t.Errorf("the history has the attempts %v, the wire had %v", recorded, seen)
	}
}

var presets = []struct {
	name    string
	dest    func() Destination
	key     func(*http.Request, []byte) string
	running step // the answer to a call while the first one runs
	reused  step // the answer to the key with another request
	refused step
}{
	{"stripe", Stripe, header("Idempotency-Key"),
		step{status: 409, body: `{"error":{"code":"idempotency_key_in_use","type":"idempotency_error"}}`},
		step{status: 400, body: `{"error":{"type":"idempotency_error","message":"Keys can only be used with the same parameters"}}`},
		step{act: true, status: 402, body: `{"error":{"type":"card_error","code":"card_declined"}}`}},
	{"adyen", Adyen, header("Idempotency-Key"),
		step{status: 422, header: map[string]string{"Transient-Error": "true"}, body: `{"status":422,"errorCode":"704","errorType":"validation"}`},
		step{status: 422, body: `{"status":422,"errorCode":"100"}`},
		step{act: true, status: 200, body: `{"resultCode":"Refused","refusalReasonCode":"2"}`}},
	{"paypal", PayPal, header("PayPal-Request-Id"),
		step{status: 409, body: `{"name":"RESOURCE_CONFLICT","details":[{"issue":"PREVIOUS_REQUEST_IN_PROGRESS"}]}`},
		step{status: 422, body: `{"name":"UNPROCESSABLE_ENTITY","details":[{"issue":"PAYPAL_REQUEST_ID_PREVIOUSLY_USED"}]}`},
		step{act: true, status: 422, body: `{"name":"UNPROCESSABLE_ENTITY","details":[{"issue":"INSTRUMENT_DECLINED"}]}`}},
	{"square", Square, bodyField("idempotency_key"),
		step{status: 429, body: `{"errors":[{"category":"RATE_LIMIT_ERROR","code":"RATE_LIMITED"}]}`},
		step{status: 400, body: `{"errors":[{"category":"INVALID_REQUEST_ERROR","code":"IDEMPOTENCY_KEY_REUSED"}]}`},
		step{act: true, status: 402, body: `{"errors":[{"category":"PAYMENT_METHOD_ERROR","code":"CARD_DECLINED"}]}`}},
	{"checkout", Checkout, header("Cko-Idempotency-Key"),
		step{status: 409, body: ``},
		step{status: 422, body: `{"error_type":"request_invalid"}`},
		step{act: true, status: 201, body: `{"id":"pay_1","approved":false,"status":"Declined"}`}},
	{"resend", Resend, header("Idempotency-Key"),
		step{status: 409, body: `{"statusCode":409,"name":"concurrent_idempotent_requests"}`},
		step{status: 409, body: `{"statusCode":409,"name":"invalid_idempotent_request"}`},
		step{}},
	{"generic", Generic, quoted("Idempotency-Key"),
		step{status: 409, body: `{"type":"about:blank","title":"A request is outstanding for this Idempotency-Key"}`},
		step{status: 422, body: `{"title":"Idempotency-Key is already used"}`},
		step{}},
}

// The vendor acts and its answer is lost. The next attempt arrives while the vendor still works, and the third gets the
// answer.
func TestPresetsLostAnswerHasOneEffect(t *testing.T) {
	db := database(t)
	for _, p := range presets {
		t.Run(p.name, func(t *testing.T) {
			v := startVendor(t, p.key, step{act: true, lose: true}, p.running, p.running, step{status: 200, body: `{"id":"ch_1"}`})
			entry := played(t, db, p.dest(), v, Action{})
			if entry.Status != "delivered" || len(v.wire) != 4 || len(v.effects) != 1 || v.effects[entry.DeliveryKey.String()] != 1 {
				t.Errorf("is %s after %d calls with the effects %v", entry.Status, len(v.wire), v.effects)
			}
			if last := entry.History[len(entry.History)-1]; string(last.Response) != `{"id":"ch_1"}` {
				t.Errorf("kept %s", last.Response)
			}
			if !strings.Contains(v.wire[0].body, "9007199254740993") {
				t.Errorf("sent %s", v.wire[0].body)
			}
		})
	}
}

func TestPresetsReusedKeyIsDead(t *testing.T) {
	db := database(t)
	for _, p := range presets {
		t.Run(p.name, func(t *testing.T) {
			v := startVendor(t, p.key, p.reused)
			entry := played(t, db, p.dest(), v, Action{})
			if entry.Status != "dead" || len(v.wire) != 1 || entry.Code != strconv.Itoa(p.reused.status) {
				t.Errorf("is %s %s after %d calls", entry.Status, entry.Code, len(v.wire))
			}
			says := entry.History[len(entry.History)-1].Error
			if documented := p.name != "adyen" && p.name != "checkout"; strings.Contains(says, "another request") != documented {
				t.Errorf("says %q", says)
			} else if mismatch := p.dest().Vendor.Mismatch; (mismatch == dispatcher.MismatchRefused) != documented {
				t.Errorf("the description has %d for it", mismatch)
			}
		})
	}
}

func TestPresetsRefuseDeclines(t *testing.T) {
	db := database(t)
	for _, p := range presets {
		if p.refused.status == 0 {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			v := startVendor(t, p.key, step{act: true, lose: true}, p.refused)
			entry := played(t, db, p.dest(), v, Action{})
			if last := entry.History[len(entry.History)-1]; entry.Status != "refused" || string(last.Response) != p.refused.body {
				t.Errorf("is %s with %s", entry.Status, last.Response)
			}
		})
	}
}

// Case 20.
func TestRetriesUseNoAttempt(t *testing.T) {
	db := database(t)
	for _, p := range presets {
		t.Run(p.name, func(t *testing.T) {
			v := startVendor(t, p.key, append(slices.Repeat([]step{p.running}, 3), step{status: 401}, step{status: 200, act: true})...)
			entry := played(t, db, p.dest(), v, Action{Policy: dispatcher.Policy{Attempts: 1}})
			if entry.Status != "delivered" || len(v.wire) != 5 {
				t.Errorf("is %s after %d calls", entry.Status, len(v.wire))
			}
		})
	}
}

// presetCase is an answer that a preset must not misread as delivered, or as "the vendor did not act".
type presetCase struct {
	preset string
	answer step
	want   string
}

func presetAnswers() (cases []presetCase) {
	add := func(preset string, want string, code int, header, body string) {
		s := step{act: true, status: code, body: body}
		if name, value, found := strings.Cut(header, ": "); found {
			s.header = map[string]string{name: value}
		}
		cases = append(cases, presetCase{preset, s, want})
	}
	for status, want := range map[string]string{
		"succeeded": "delivered", "requires_capture": "delivered", "canceled": "delivered", "requires_payment_method": "refused",
		"processing": "accepted", "requires_action": "accepted", "requires_confirmation": "accepted",
	} {
		add("stripe", want, 200, "", fmt.Sprintf(`{"id":"pi_1","object":"payment_intent","status":%q}`, status))
	}
	for _, code := range []int{400, 402, 403, 404, 408, 409, 412, 423, 424, 425, 430, 499} {
		add("stripe", "retry", code, "Stripe-Should-Retry: true", `{"error":{"type":"invalid_request_error"}}`)
	}
	for _, code := range []int{408, 409, 423, 424, 425, 499, 500, 502, 503, 599} {
		add("stripe", "stuck", code, "Stripe-Should-Retry: false", `{"error":{"type":"api_error"}}`)
	}
	for code, want := range map[int]string{200: "delivered", 302: "stuck", 400: "dead", 401: "denied", 402: "refused", 403: "dead", 404: "dead", 412: "stuck", 429: "retry"} {
		add("stripe", want, code, "Stripe-Should-Retry: false", `{"error":{"type":"invalid_request_error"}}`)
	}
	for code, want := range map[int]string{200: "delivered", 302: "stuck", 401: "denied", 429: "retry", 500: "unknown", 503: "unknown"} {
		add("stripe", want, code, "Stripe-Should-Retry: true", `{"error":{"type":"invalid_request_error"}}`)
	}
	for _, says := range []string{"", "Stripe-Should-Retry: true"} {
		add("stripe", "dead", 400, says, `{"error":{"type":"idempotency_error"}}`)
		add("stripe", "retry", 409, says, `{"error":{"type":"idempotency_error","code":"idempotency_key_in_use"}}`)
	}
	add("stripe", "stuck", 409, "Stripe-Should-Retry: false", `{"error":{"type":"idempotency_error","code":"idempotency_key_in_use"}}`)
	add("stripe", "retry", 409, "", `{"error":{"type":"invalid_request_error","code":"lock_timeout"}}`)
	add("stripe", "unknown", 424, "", `{"error":{"type":"api_error"}}`)
	add("stripe", "stuck", 500, "Idempotent-Replayed: true", `{"error":{"type":"api_error"}}`)
	for code, want := range map[string]string{
		"Authorised": "delivered", "PartiallyAuthorised": "delivered", "AuthenticationFinished": "delivered",
		"Refused": "refused", "Cancelled": "refused", "Error": "refused",
		"Pending": "accepted", "Received": "accepted", "RedirectShopper": "accepted", "PresentToShopper": "accepted",
		"ChallengeShopper": "accepted", "IdentifyShopper": "accepted",
	} {
		add("adyen", want, 200, "", fmt.Sprintf(`{"pspReference":"993617894903480A","resultCode":%q}`, code))
	}
	for _, code := range []int{409, 422} {
		add("adyen", "stuck", code, "", `{"errorCode":"704","message":"request already processed or in progress"}`)
		add("adyen", "stuck", code, "Transient-Error: false", `{"errorCode":"704"}`)
		add("adyen", "retry", code, "Transient-Error: true", `{"errorCode":"704"}`)
	}
	add("adyen", "dead", 422, "", `{"errorCode":"100"}`)
	add("adyen", "unknown", 503, "", `{"errorCode":"703"}`)
	issue := func(name string) string { return fmt.Sprintf(`{"name":"X","details":[{"issue":%q}]}`, name) }
	add("paypal", "retry", 409, "", issue("PREVIOUS_REQUEST_IN_PROGRESS"))
	add("paypal", "retry", 422, "", issue("ORDER_COMPLETION_IN_PROGRESS"))
	add("paypal", "stuck", 409, "", issue("OTHER"))
	for _, name := range []string{"ORDER_ALREADY_CAPTURED", "ORDER_ALREADY_AUTHORIZED", "AUTHORIZATION_ALREADY_CAPTURED", "CAPTURE_FULLY_REFUNDED", "DUPLICATE_INVOICE_ID"} {
		add("paypal", "stuck", 422, "", issue(name))
	}
	add("paypal", "dead", 422, "", issue("CURRENCY_NOT_SUPPORTED"))
	add("paypal", "refused", 422, "", issue("INSTRUMENT_DECLINED"))
	captures := func(order string, statuses ...string) string {
		var list []string
		for _, s := range statuses {
			list = append(list, fmt.Sprintf(`{"id":"1","status":%q}`, s))
		}
		return fmt.Sprintf(`{"id":"5O1","status":%q,"purchase_units":[{"payments":{"captures":[%s]}}]}`, order, strings.Join(list, ","))
	}
	add("paypal", "delivered", 201, "", `{"id":"5O1","status":"CREATED"}`)
	add("paypal", "delivered", 201, "", captures("COMPLETED", "COMPLETED"))
	add("paypal", "delivered", 201, "", captures("COMPLETED", "DECLINED", "COMPLETED"))
	add("paypal", "accepted", 201, "", captures("COMPLETED", "PENDING"))
	add("paypal", "accepted", 201, "", captures("COMPLETED", "COMPLETED", "PENDING"))
	add("paypal", "refused", 201, "", captures("COMPLETED", "DECLINED"))
	add("paypal", "accepted", 200, "", `{"id":"5O1","status":"PAYER_ACTION_REQUIRED"}`)
	add("paypal", "accepted", 201, "", `{"id":"2GG","status":"PENDING"}`)
	add("paypal", "refused", 201, "", `{"id":"2GG","status":"FAILED"}`)
	for status, want := range map[string]string{"COMPLETED": "delivered", "APPROVED": "delivered", "PENDING": "accepted", "FAILED": "refused"} {
		add("square", want, 200, "", fmt.Sprintf(`{"payment":{"id":"p","status":%q}}`, status))
	}
	for status, want := range map[string]string{"COMPLETED": "delivered", "PENDING": "accepted", "FAILED": "refused", "REJECTED": "refused"} {
		add("square", want, 200, "", fmt.Sprintf(`{"refund":{"id":"r","status":%q}}`, status))
	}
	add("square", "stuck", 409, "", `{"errors":[{"code":"CONFLICT"}]}`)
	add("checkout", "delivered", 201, "", `{"id":"pay_1","approved":true,"status":"Authorized"}`)
	add("checkout", "accepted", 202, "", `{"id":"pay_1","status":"Pending"}`)
	add("checkout", "accepted", 202, "", `{"action_id":"act_1"}`)
	add("checkout", "accepted", 201, "", `{"id":"pay_1","approved":false,"status":"Pending"}`)
	add("checkout", "refused", 201, "", `{"id":"pay_1","approved":false,"status":"Declined"}`)
	add("resend", "delivered", 200, "", `{"id":"49a3"}`)
	add("resend", "stuck", 409, "", `{"name":"new"}`)
	add("resend", "retry", 409, "", `{"name":"concurrent_idempotent_requests"}`)
	add("resend", "dead", 409, "", `{"name":"invalid_idempotent_request"}`)
	add("generic", "retry", 409, "", `{}`)
	add("generic", "dead", 422, "", `{}`)
	add("generic", "stuck", 303, "", `{}`)
	add("mail", "stuck", 409, "", `{}`)
	add("mail", "stuck", 302, "", `{}`)
	add("mail", "delivered", 202, "", ``)
	for _, code := range []int{200, 204, 206, 207} {
		add("webhooks", "delivered", code, "", ``)
	}
	for _, code := range []int{302, 400, 401, 403, 404, 408, 409, 412, 422, 424, 499, 500, 600} {
		add("webhooks", "unknown", code, "", ``)
	}
	add("webhooks", "gone", 410, "", ``)
	add("webhooks", "retry", 429, "", ``)
	return cases
}

// The meaning of a vendor's answers according to its documentation. A write that is sent once may be repeated only if
// the vendor did not act.
func TestPresetsOutcomes(t *testing.T) {
	for _, tc := range presetAnswers() {
		dest := map[string]func() Destination{"stripe": Stripe, "adyen": Adyen, "paypal": PayPal, "square": Square, "checkout": Checkout,
			"resend": Resend, "generic": Generic, "mail": Mail, "webhooks": func() Destination { return StandardWebhooks("whsec_" + strings.Repeat("A", 44)) }}[tc.preset]()
		dest.URL = replying(t, tc.answer.status, tc.answer.header, tc.answer.body).URL
		call := testCall(`{}`)
		call.Rendered = &dispatcher.Rendered{Type: renderedType, Request: sending{method: "POST", path: "/v1/charges", body: []byte("{}")}.bytes()}
		for _, class := range []dispatcher.Class{dispatcher.IdempotentWrite, dispatcher.NonIdempotentWrite, dispatcher.IrreversibleWrite} {
			want := tc.want
			if class != dispatcher.IdempotentWrite && tc.want == retry && tc.answer.status != 429 {
				want = "unknown"
			}
			_, err := attempt(t, testHandler(t, dest, Action{Policy: dispatcher.Policy{Class: class}}), call, patience)
			if verdict(err) != want {
				t.Errorf("%s, %v: %d %v %s is %s (%v), want %s", tc.preset, class, tc.answer.status, tc.answer.header, tc.answer.body, verdict(err), err, want)
			}
		}
	}
}

// A call that the vendor still works on, or has already done, is looked up: one call, and the lookup's outcome.
func TestPresetsLookUpUnfinishedCalls(t *testing.T) {
	db := database(t)
	for name, tc := range map[string]struct {
		dest   Destination
		key    string
		answer step
		asks   int
	}{
		"paypal, already captured": {PayPal(), "PayPal-Request-Id", step{act: true, status: 422, body: `{"details":[{"issue":"ORDER_ALREADY_CAPTURED"}]}`}, 1},
		"adyen, 704":               {Adyen(), "Idempotency-Key", step{act: true, status: 422, body: `{"errorCode":"704"}`}, 1},
		"adyen, redirect":          {Adyen(), "Idempotency-Key", step{act: true, status: 200, body: `{"resultCode":"RedirectShopper"}`}, 3},
		"checkout, 202":            {Checkout(), "Cko-Idempotency-Key", step{act: true, status: 202, body: `{"status":"Pending"}`}, 3},
		"stripe, processing":       {Stripe(), "Idempotency-Key", step{act: true, status: 200, body: `{"status":"processing"}`}, 3},
		"resend, another 409":      {Resend(), "Idempotency-Key", step{act: true, status: 409, body: `{"name":"new"}`}, 1},
		"a 409":                    {Destination{}, "Idempotency-Key", step{act: true, status: 409}, 1},
		"a redirect":               {Destination{}, "Idempotency-Key", step{act: true, status: 303}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			v := startVendor(t, header(tc.key), tc.answer)
			v.log = func(r *http.Request) (int, string) {
				if len(v.asked) < tc.asks {
					return 200, `{"state":"running"}`
				}
				return 200, `{"state":"done"}`
			}
			state := func(s string) Match { return Match{Status: status(200, 200), Field: "/state", Values: []string{s}} }
			entry := played(t, db, tc.dest, v, Action{Lookup: &Lookup{
				Request: "GET /seen/{{.Key}}", Rules: []Rule{{Match: state("running"), Outcome: dispatcher.Accepted}, {Match: state("done"), Outcome: dispatcher.Delivered}},
			}})
			if entry.Status != "delivered" || len(v.wire) != 1 || len(v.asked) != tc.asks {
				t.Errorf("is %s after %d calls and the lookups %v", entry.Status, len(v.wire), v.asked)
			}
			without := startVendor(t, header(tc.key), tc.answer)
			t.Run("no lookup", func(t *testing.T) {
				entry := played(t, db, tc.dest, without, Action{Policy: dispatcher.Policy{CompletionTime: time.Second}})
				if entry.Status != "parked" || len(without.wire) != 1 {
					t.Errorf("is %s after %d calls", entry.Status, len(without.wire))
				}
			})
		})
	}
}

// Stripe stores a 500 under the key, and each further attempt would get it.
func TestStored500IsLookedUp(t *testing.T) {
	db := database(t)
	stored := step{status: 500, header: map[string]string{"Idempotent-Replayed": "true"}, body: `{"error":{"type":"api_error"}}`}
	lookup := SentLog("GET /v1/charges?transfer_group={{.Key}}", "/data", "/transfer_group")
	for name, tc := range map[string]struct {
		dest   Destination
		lookup *Lookup
		acted  bool
		want   string
	}{
		"it acted":       {Stripe(), lookup, true, "delivered"},
		"it did not":     {Stripe(), lookup, false, "parked"},
		"no lookup":      {Stripe(), nil, true, "parked"},
		"without preset": {Destination{}, lookup, true, "delivered"},
		"should not":     {Stripe(), lookup, true, "delivered"},
	} {
		t.Run(name, func(t *testing.T) {
			second := stored
			if name == "should not" {
				second.header = map[string]string{"Stripe-Should-Retry": "false"}
			}
			v := startVendor(t, header("Idempotency-Key"), step{act: tc.acted, status: 500}, second)
			v.log = func(r *http.Request) (int, string) {
				if key := r.URL.Query().Get("transfer_group"); v.effects[key] == 1 {
					return 200, fmt.Sprintf(`{"data":[{"id":"ch_1","transfer_group":%q}]}`, key)
				}
				return 200, `{"data":[]}`
			}
			entry := played(t, db, tc.dest, v, Action{Lookup: tc.lookup, Policy: dispatcher.Policy{Attempts: 10}})
			if string(entry.Status) != tc.want || len(v.wire) != 2 {
				t.Errorf("is %s after %d calls, %d lookups", entry.Status, len(v.wire), len(v.asked))
			}
			if looked := map[string]int{"it did not": 2, "no lookup": 0}; len(v.asked) != looked[name] && len(v.asked) != 1 {
				t.Errorf("asked %v", v.asked)
			}
		})
	}
}

// A mail API without keys: the log of sent mails decides, or a person does.
func TestMailPresetLooksUpUnknownMails(t *testing.T) {
	db := database(t)
	inLog := func(_ *http.Request, body []byte) string {
		var mail struct{ Metadata struct{ Key string } }
		_ = json.Unmarshal(body, &mail)
		return mail.Metadata.Key
	}
	for name, tc := range map[string]struct {
		acted, resend bool
		log           string // instead of the real log
		want          string
		mails, calls  int
	}{
		"sent":                         {true, false, "", "delivered", 1, 1},
		"not sent":                     {false, false, "", "parked", 0, 1},
		"not sent, once more":          {false, true, "", "delivered", 1, 2},
		"the log answers another list": {true, true, `{"Other":[]}`, "parked", 1, 1},
		"the log has another mail":     {true, true, `{"Messages":[{"Metadata":{"key":"other"}}]}`, "parked", 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			v := startVendor(t, inLog, step{act: tc.acted, lose: true}, step{act: true, status: 200, body: `{"ErrorCode":0}`})
			v.log = func(r *http.Request) (int, string) {
				if tc.log != "" {
					return 200, tc.log
				}
				if key := r.URL.Query().Get("metadata_key"); v.effects[key] > 0 {
					return 200, fmt.Sprintf(`{"Messages":[{"Metadata":{"key":%q}}]}`, key)
				}
				return 200, `{"Messages":[]}`
			}
			entry := played(t, db, Mail(), v, Action{
				Request: "POST /email", Body: Body{Format: JSON, Template: `{"To": "a@b.example", "Metadata": {"key": {{.Key}}, "order": {{.Payload.id}}}}`},
				Lookup: SentLog("GET /messages/outbound?count=10&offset=0&metadata_key={{.Key}}", "/Messages", "/Metadata/key"),
				Policy: dispatcher.Policy{Class: dispatcher.NonIdempotentWrite, ResendAbsent: tc.resend},
			})
			mails := 0
			for _, n := range v.effects {
				mails += n
			}
			if string(entry.Status) != tc.want || mails != tc.mails || len(v.wire) != tc.calls {
				t.Errorf("is %s with %d mails after %d calls and the lookups %v", entry.Status, mails, len(v.wire), v.asked)
			}
		})
	}
}

func TestVendorWithoutKeysHasNoIdempotentWrite(t *testing.T) {
	dest := Mail()
	dest.Name, dest.URL = "mail", "https://api.example.com"
	d := dispatcher.New(nil, nil)
	testClient(t, dest).register(d, "send", Action{Request: "POST /", Policy: dispatcher.Policy{Class: dispatcher.IdempotentWrite, KeyWindow: time.Hour}})
	if err := d.Check(); err == nil || !strings.Contains(err.Error(), `"send": Class: IdempotentWrite does not fit the vendor`) {
		t.Error(err)
	}
}

// Case 202: accepted, and finished later.
func TestAcceptedCallIsPolled(t *testing.T) {
	db := database(t)
	v := startVendor(t, header("Idempotency-Key"), step{act: true, status: 202, body: `{"state":"queued"}`})
	polls := 0
	v.log = func(r *http.Request) (int, string) {
		if polls++; polls < 3 {
			return 200, `{"state":"queued"}`
		}
		return 200, `{"state":"done"}`
	}
	state := func(s string) Match { return Match{Status: status(200, 200), Field: "/state", Values: []string{s}} }
	entry := played(t, db, Destination{}, v, Action{Accepted: status(202, 202), Lookup: &Lookup{
		Request: "GET /v1/charges/{{.Key}}", Rules: []Rule{{Match: state("queued"), Outcome: dispatcher.Accepted}, {Match: state("done"), Outcome: dispatcher.Delivered}},
	}})
	if entry.Status != "delivered" || len(v.wire) != 1 || polls != 3 {
		t.Errorf("is %s after %d calls and %d polls", entry.Status, len(v.wire), polls)
	}
}

// Case 5: another release, with another template, projection and credentials, continues an intent.
func TestAnotherReleaseSendsTheSameBytes(t *testing.T) {
	db := database(t)
	id := inserted(t, db)
	v := startVendor(t, func(r *http.Request, body []byte) string {
		form, _ := url.ParseQuery(string(body))
		return form.Get("ref")
	}, step{act: true, lose: true}, step{status: 503}, step{status: 200})
	short := Destination{Vendor: dispatcher.Vendor{
		Key:    dispatcher.KeyRules{Place: dispatcher.KeyInBody, Name: "ref", MaxLength: 25},
		Window: 24 * time.Hour, Replay: dispatcher.ReplayAnswer,
	}}
	drain(t, db, short, v, Action{Request: "POST /v1/charges/{{.Payload.id}}", Body: Body{Format: Form}})
	samekeytest.Elapse(t, db, time.Minute)
	long := short
	long.Vendor.Key.MaxLength, long.Auth.Bearer = 0, "sk_live_51Hx"
	drain(t, db, long, v, Action{Request: "PUT /v2/{{.Payload.gone}}", Body: Body{Format: JSON, Template: `{"new": true}`}})
	samekeytest.Elapse(t, db, time.Minute)
	drain(t, db, Stripe(), v, Action{Request: "POST /plain"})
	entry, err := outbox.Get(t.Context(), db.Pool, id)
	if err != nil {
		t.Fatal(err)
	}
	v.compare(t, entry)
	if entry.Status != "delivered" || len(v.wire) != 3 || v.wire[0].target != "POST /v1/charges/c-1 application/x-www-form-urlencoded" ||
		len(v.wire[0].key) != 25 || v.wire[0].key != entry.Sent.CarriedKey || len(v.effects) != 1 {
		t.Errorf("is %s, sent as %q, on the wire %+v", entry.Status, entry.Sent.CarriedKey, v.wire)
	}
}

// Case 23, with an intent: nothing is sent, no attempt is used, and it is delivered when the range is allowed.
func TestPrivateAddressWaitsUntilAllowed(t *testing.T) {
	db := database(t)
	id := inserted(t, db)
	v := startVendor(t, header("Idempotency-Key"), step{act: true, status: 200})
	port := v.URL[strings.LastIndex(v.URL, ":"):]
	for _, allow := range [][]netip.Prefix{nil, loopback} {
		client, err := New(Destination{Name: "stripe", URL: "http://api.stripe.example" + port, AllowPrivate: allow, resolver: resolverTo(t, "127.0.0.1")})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(client.Close)
		d := dispatcher.New(db.Pool, &dispatcher.Config{Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
		client.register(d, "charge_card", Action{Request: "POST /", Policy: dispatcher.Policy{Class: dispatcher.IdempotentWrite, KeyWindow: time.Hour, Attempts: 1}})
		if _, err := d.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		samekeytest.Elapse(t, db, time.Minute)
	}
	entry, err := outbox.Get(t.Context(), db.Pool, id)
	if err != nil {
		t.Fatal(err)
	}
	if entry.Status != "delivered" || entry.History[0].Outcome != "unsent" || !strings.Contains(entry.History[0].Error, "not public") || len(v.wire) != 1 {
		t.Errorf("is %s: %+v", entry.Status, entry.History)
	}
}

package samekeytest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func TestVendorFaultsThenRetryHasOneEffect(t *testing.T) {
	eof := func(r reply) bool { return errors.Is(r.err, io.EOF) }
	reset := func(r reply) bool { return errors.Is(r.err, syscall.ECONNRESET) }
	status := func(want int) func(reply) bool {
		return func(r reply) bool { return r.err == nil && r.status == want }
	}
	retryAfter := func(status int, want ...string) func(reply) bool {
		return func(r reply) bool { return r.status == status && slices.Equal(r.header.Values("Retry-After"), want) }
	}
	for _, c := range []struct {
		fault  Fault
		want   func(reply) bool
		acted  bool // at the first call
		retry  int  // the status of the second call
		effect int  // at the end
	}{
		{FaultNone, status(201), true, 201, 1},
		{FaultLoseAnswer, eof, true, 201, 1},
		{FaultResetBefore, reset, false, 201, 1},
		{FaultResetAfter, reset, true, 201, 1},
		{"500", status(500), false, 201, 1},
		{"500_after", status(500), true, 201, 1},
		{"503_after", status(503), true, 201, 1},
		{"429", retryAfter(429, "1"), false, 201, 1},
		{"429()", retryAfter(429), false, 201, 1},
		{"503(Wed, 21 Oct 2026 07:28:00 GMT)", retryAfter(503, "Wed, 21 Oct 2026 07:28:00 GMT"), false, 201, 1},
		{"402", status(402), false, 402, 0},
		{"slow(1ms)", status(201), true, 201, 1},
		{FaultTruncate, func(r reply) bool {
			return r.status == 201 && errors.Is(r.err, io.ErrUnexpectedEOF) && r.body == `{"id":"`
		}, true, 201, 1},
	} {
		t.Run(string(c.fault), func(t *testing.T) {
			v := StartVendor(t, nil)
			v.Next(c.fault)
			if r := post(testContext(t), v.URL+"/v1/charges", "k", "{}"); !c.want(r) {
				t.Errorf("first call: status %d, header %v, body %q, error %v", r.status, r.header, r.body, r.err)
			}
			if acted := len(v.Ledger().Effects) == 1; acted != c.acted {
				t.Errorf("acted: %v, want %v", acted, c.acted)
			}
			wantStatus(t, post(testContext(t), v.URL+"/v1/charges", "k", "{}"), c.retry)
			wantEffects(t, v, c.effect)
			l := v.Ledger()
			wantFaults := 1
			if c.fault == FaultNone {
				wantFaults = 0
			}
			if n := l.Counts.Faults[c.fault.kind()]; n != wantFaults || l.ByKey()["k"].Faults != wantFaults {
				t.Errorf("faults counted: %v", l.Counts.Faults)
			}
			if second := l.Calls[1]; second.Replayed != (c.acted || c.retry == 402) {
				t.Errorf("second call: %+v", second)
			}
		})
	}
}

func TestVendorReleaseLetsHangingCallsGo(t *testing.T) {
	for _, fault := range []Fault{FaultHang, FaultHangAfter, FaultLate} {
		t.Run(string(fault), func(t *testing.T) {
			v := StartVendor(t, nil)
			v.Next(fault)
			call := posting(testContext(t), v.URL+"/v1/charges", "k", "{}")
			if err := v.WaitOpen(testContext(t), 1); err != nil {
				t.Fatal(err)
			}
			if fault == FaultHangAfter {
				if err := v.WaitEffects(testContext(t), 1); err != nil {
					t.Fatal(err)
				}
			} else {
				wantEffects(t, v, 0)
			}
			v.Release()
			wantStatus(t, <-call, 201)
			AssertOneEffect(t, v, "k")
		})
	}
}

func TestHangingCallWhoseClientIsGone(t *testing.T) {
	for fault, effects := range map[Fault]int{FaultHang: 0, FaultHangAfter: 1, FaultLate: 1, "slow(1h)": 1} {
		t.Run(string(fault), func(t *testing.T) {
			v := StartVendor(t, nil)
			v.Next(fault)
			ctx, cancel := context.WithCancel(testContext(t))
			call := posting(ctx, v.URL+"/v1/charges", "k", "{}")
			if err := v.WaitOpen(testContext(t), 1); err != nil {
				t.Fatal(err)
			}
			if fault == FaultHangAfter || effects == 1 && fault != FaultLate {
				if err := v.WaitEffects(testContext(t), 1); err != nil {
					t.Fatal(err)
				}
			}
			cancel()
			if r := <-call; !errors.Is(r.err, context.Canceled) {
				t.Fatalf("got %d, error %v", r.status, r.err)
			}
			if err := v.waitFor(testContext(t), 0, "", func() int { return -v.open }); err != nil {
				t.Fatal(err)
			}
			wantEffects(t, v, effects)
			if c := v.Ledger().Calls[0]; !c.ClientGone || c.Status != 0 || c.Ended == nil {
				t.Errorf("call: %+v", c)
			}
			wantStatus(t, post(testContext(t), v.URL+"/v1/charges", "k", "{}"), 201)
			AssertOneEffect(t, v, "k")
		})
	}
}

func TestHoldParksBeforeAndHoldAnswersAfterTheEffect(t *testing.T) {
	for _, answers := range []bool{false, true} {
		t.Run(fmt.Sprintf("answers=%v", answers), func(t *testing.T) {
			v := StartVendor(t, nil)
			const n = 12
			if answers {
				v.HoldAnswers()
			} else {
				v.Hold()
			}
			var calls []<-chan reply
			for i := range n {
				calls = append(calls, posting(testContext(t), v.URL+"/v1/charges", fmt.Sprint("k", i), "{}"))
			}
			if err := v.WaitOpen(testContext(t), n); err != nil {
				t.Fatal(err)
			}
			if answers {
				if err := v.WaitEffects(testContext(t), n); err != nil {
					t.Fatal(err)
				}
			} else {
				wantEffects(t, v, 0)
			}
			v.Release()
			for _, call := range calls {
				wantStatus(t, <-call, 201)
			}
			wantEffects(t, v, n)
			wantStatus(t, post(testContext(t), v.URL+"/v1/charges", "later", "{}"), 201) // nothing parks after Release
			if c := v.Counts(); c.Open != 0 || c.MaxOpen != n {
				t.Errorf("counts: %+v", c)
			}
		})
	}
}

func TestAFaultOnAReplayHasNoSecondEffect(t *testing.T) {
	for _, fault := range []Fault{FaultLoseAnswer, FaultResetBefore, FaultResetAfter, "500", "500_after", "402", FaultTruncate} {
		v := StartVendor(t, nil)
		wantStatus(t, post(testContext(t), v.URL+"/v1/charges", "k", "{}"), 201)
		v.Next(fault)
		r := post(testContext(t), v.URL+"/v1/charges", "k", "{}")
		if fault == "402" && (r.status != 201 || v.Counts().Faults["402"] != 0) {
			t.Errorf("a key that has its answer was declined: %d, faults %v", r.status, v.Counts().Faults)
		}
		wantStatus(t, post(testContext(t), v.URL+"/v1/charges", "k", "{}"), 201)
		AssertOneEffect(t, v, "k")
	}
}

func TestPlanDealsFaultsEvenlyAndBySeed(t *testing.T) {
	plan := FaultPlan{Faults: []Fault{FaultLoseAnswer, FaultResetBefore, "500", "429"}, Every: 3, Seed: 7}
	run := func(seed uint64) (sequence []Fault, counts map[string]int) {
		plan.Seed = seed
		v := StartVendor(t, &VendorOptions{Faults: plan})
		for i := range 60 {
			for range 2 { // the second call of a struck key passes
				post(testContext(t), v.URL+"/v1/charges", fmt.Sprint("k", i), "{}")
			}
		}
		l := v.Ledger()
		wantEffects(t, v, 60)
		for i, c := range l.Calls {
			if c.Fault != "" && (c.Nth != 1 || (i/2+1)%3 != 0) {
				t.Errorf("call %d of key %d was struck", c.Nth, i/2)
			}
			sequence = append(sequence, c.Fault)
		}
		return sequence, l.Counts.Faults
	}
	first, counts := run(7)
	for _, f := range plan.Faults {
		if counts[string(f)] != 5 {
			t.Errorf("faults: %v, want 5 of each", counts)
		}
	}
	if again, _ := run(7); !slices.Equal(first, again) {
		t.Errorf("the same seed dealt %v and %v", first, again)
	}
	if other, _ := run(8); slices.Equal(first, other) {
		t.Errorf("another seed dealt the same")
	}
}

func TestPlanStrikesFirstCallsOfAKeyUntilTurnedOff(t *testing.T) {
	v := StartVendor(t, &VendorOptions{Faults: FaultPlan{Faults: []Fault{"500"}, Calls: 2}})
	for _, want := range []int{500, 500, 201} {
		wantStatus(t, post(testContext(t), v.URL+"/v1/charges", "k", "{}"), want)
	}
	wantStatus(t, post(testContext(t), v.URL+"/v1/charges", "k2", "{}"), 500)
	if err := v.SetFaults(FaultPlan{}); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, post(testContext(t), v.URL+"/v1/charges", "k2", "{}"), 201)
	wantStatus(t, post(testContext(t), v.URL+"/v1/charges", "k3", "{}"), 201)
}

func TestScriptDecidesLast(t *testing.T) {
	v := StartVendor(t, &VendorOptions{Script: func(c VendorCall) Fault {
		if c.Nth == 1 {
			return "408"
		}
		return ""
	}})
	v.Next(FaultNone)
	for key, want := range map[string][]int{"k1": {201, 201}} {
		for _, w := range want {
			wantStatus(t, post(testContext(t), v.URL+"/v1/charges", key, "{}"), w)
		}
	}
	wantStatus(t, post(testContext(t), v.URL+"/v1/charges", "k2", "{}"), 408)
	wantStatus(t, post(testContext(t), v.URL+"/v1/charges", "k2", "{}"), 201)
}

func TestUnknownVendorFaultIsRefused(t *testing.T) {
	for _, s := range []string{"", "lose", "slow", "slow(x)", "slow(-1s)", "600", "100", "hang(1s)", "429(1", "5000", "500_before"} {
		if checkVendorFault(Fault(s)) == nil || checkProxyFault(Fault(s)) == nil {
			t.Errorf("%q is a fault", s)
		}
	}
	if _, err := NewVendor(&VendorOptions{Faults: FaultPlan{Faults: []Fault{"lose"}}}); err == nil || !strings.Contains(err.Error(), "lose_answer") {
		t.Errorf("error: %v", err)
	}
	if got, err := ParseFaults(" lose_answer, slow(1s),429(2) ,"); err != nil || !slices.Equal(got, []Fault{"lose_answer", "slow(1s)", "429(2)"}) {
		t.Errorf("ParseFaults: %v, %v", got, err)
	}
	if _, err := ParseFaults("500,lose"); err == nil {
		t.Error("ParseFaults took an unknown fault")
	}
	defer func() {
		if recover() == nil {
			t.Error("Next took an unknown fault")
		}
	}()
	v := StartVendor(t, nil)
	v.Next("lose")
}

func TestVendorControlsOverHTTP(t *testing.T) {
	v := StartVendor(t, nil)
	control := func(method, path, body string) reply {
		t.Helper()
		req, err := http.NewRequestWithContext(testContext(t), method, v.URL+"/_control/"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		return do(req)
	}
	wantStatus(t, control("PUT", "faults", `{"faults":["500"],"every":2,"next":["lose_answer"]}`), 200)
	if r := control("GET", "faults", ""); r.body != `{"faults":["500"],"every":2,"calls":1,"next":["lose_answer"]}`+"\n" {
		t.Errorf("plan: %s", r.body)
	}
	for _, bad := range []string{`{"faults":["lose"]}`, `{"fault":["500"]}`, `{`, `{"every":-1}`} {
		wantStatus(t, control("PUT", "faults", bad), 400)
	}
	if r := post(testContext(t), v.URL+"/v1/charges", "k1", "{}"); !errors.Is(r.err, io.EOF) {
		t.Errorf("next was not obeyed: %d, %v", r.status, r.err)
	}
	wantStatus(t, post(testContext(t), v.URL+"/v1/charges", "k2", "{}"), 500)
	wantStatus(t, control("PUT", "faults", `{}`), 200)
	wantStatus(t, post(testContext(t), v.URL+"/v1/charges", "k4", "{}"), 201)

	wantStatus(t, control("POST", "hold", ""), 200)
	call := posting(testContext(t), v.URL+"/v1/charges", "k5", "{}")
	if r := control("GET", "open?at_least=1&within=20s", ""); !strings.Contains(r.body, `"open":1`) {
		t.Errorf("open: %s", r.body)
	}
	if r := control("GET", "open?at_least=2&within=1ms", ""); !strings.Contains(r.body, `"open":1`) {
		t.Errorf("open: %s", r.body)
	}
	wantStatus(t, control("GET", "open?at_least=2", ""), 400)
	wantStatus(t, control("GET", "open?effects=x&within=1s", ""), 400)
	wantStatus(t, control("POST", "release", ""), 200)
	wantStatus(t, <-call, 201)

	wantStatus(t, control("POST", "hold?answers=true", ""), 200)
	call = posting(testContext(t), v.URL+"/v1/charges", "k6", "{}")
	if r := control("GET", "open?effects=4&within=20s", ""); !strings.Contains(r.body, `"effects":4`) {
		t.Errorf("effects: %s", r.body)
	}
	wantStatus(t, control("POST", "release", ""), 200)
	wantStatus(t, <-call, 201)
	r := control("GET", "ledger", "")
	for _, want := range []string{`"key":"k1"`, `"fault":"lose_answer"`, `"effects":4`, `"doubles":0`, `"max_open":1`} {
		if !strings.Contains(r.body, want) {
			t.Errorf("ledger lacks %s: %s", want, r.body)
		}
	}
	wantStatus(t, control("GET", "nothing", ""), 404)
}

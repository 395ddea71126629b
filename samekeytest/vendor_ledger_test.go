package samekeytest

import (
	"bytes"
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAnEffectIsInTheLedgerFileBeforeItsAnswerIsSent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	v := StartVendor(t, &VendorOptions{LedgerFile: path, Identity: IdentityField("order_id")})
	v.HoldAnswers()
	call := posting(testContext(t), v.URL+"/v1/charges", "k", `{"order_id":"o1"}`)
	if err := v.WaitEffects(testContext(t), 1); err != nil {
		t.Fatal(err)
	}
	l, err := ReadLedger(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Effects) != 1 || string(l.Effects[0].Body) != `{"order_id":"o1"}` || l.Effects[0].Identity != "o1" {
		t.Errorf("effects in the file: %+v", l.Effects)
	}
	if c := l.Calls; len(c) != 1 || !c[0].Effect || c[0].Ended != nil || l.Counts.Open != 1 {
		t.Errorf("calls in the file: %+v", c)
	}
	v.Release()
	wantStatus(t, <-call, 201)
	if l, err = ReadLedger(path); err != nil || l.Calls[0].Status != 201 || l.Counts.Open != 0 {
		t.Errorf("after the answer: %+v, %v", l.Calls, err)
	}
}

func TestAVendorStartedOnItsLedgerRemembersItsKeys(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	opts := &VendorOptions{LedgerFile: path, Identity: IdentityField("order_id"), Answer: func(r VendorRequest) VendorAnswer {
		if r.Path == "/v1/declined" {
			return VendorAnswer{Status: 402, Body: []byte("no\xff")}
		}
		return VendorAnswer{Status: 201, Body: append([]byte("\x00\xff"), r.Body...)}
	}}
	v := StartVendor(t, opts)
	v.Next(FaultLoseAnswer)
	post(testContext(t), v.URL+"/v1/charges", "k1", `{"order_id":"o1"}`)
	wantStatus(t, post(testContext(t), v.URL+"/v1/declined", "k2", `{"order_id":"o2"}`), 402)
	v.Next(FaultHang)
	hung := posting(testContext(t), v.URL+"/v1/charges", "k3", `{"order_id":"o3"}`)
	if err := v.WaitOpen(testContext(t), 1); err != nil {
		t.Fatal(err)
	}
	// What a killed vendor leaves: no line reports that k3 ended, and one is torn.
	image, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	v.Release()
	<-hung
	before := v.Ledger()
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(image, `{"event":"record","record":{"call":3,`...), 0o600); err != nil {
		t.Fatal(err)
	}

	again := StartVendor(t, opts)
	if n := again.Counts(); n.Open != 0 || n.Calls != 3 || n.Effects != 1 || n.Declined != 1 || n.Faults["lose_answer"] != 1 {
		t.Errorf("counts after the restart: %+v", n)
	}
	r := post(testContext(t), again.URL+"/v1/charges", "k1", `{"order_id":"o1"}`)
	wantStatus(t, r, 201)
	if r.body != "\x00\xff"+`{"order_id":"o1"}` || r.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("replay after the restart: %q, %v", r.body, r.header)
	}
	wantStatus(t, post(testContext(t), again.URL+"/v1/charges", "k1", `{"order_id":"o9"}`), 422)
	if r := post(testContext(t), again.URL+"/v1/declined", "k2", `{"order_id":"o2"}`); r.status != 402 || r.body != "no\xff" {
		t.Errorf("decline after the restart: %d %q", r.status, r.body)
	}
	wantStatus(t, post(testContext(t), again.URL+"/v1/charges", "k3", `{"order_id":"o3"}`), 201)
	for _, key := range []string{"k1", "k3"} {
		AssertOneEffect(t, again, key)
	}
	l, err := ReadLedger(path)
	if err != nil || len(l.Calls) != 7 || len(l.Effects) != 2 || l.Calls[6].Nth != 2 {
		t.Errorf("the file after both: %d calls, %d effects, %v", len(l.Calls), len(l.Effects), err)
	}
	if !l.Effects[0].At.Equal(before.Effects[0].At) {
		t.Errorf("the effect's time changed")
	}
}

func TestAVendorThatCannotWriteItsLedgerDoesNotAct(t *testing.T) {
	v, err := NewVendor(&VendorOptions{LedgerFile: filepath.Join(t.TempDir(), "ledger")})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(v)
	defer server.Close()
	wantStatus(t, post(testContext(t), server.URL+"/v1/charges", "k0", "{}"), 201)
	v.Hold()
	call := posting(testContext(t), server.URL+"/v1/charges", "k1", "{}")
	if err := v.WaitOpen(testContext(t), 1); err != nil {
		t.Fatal(err)
	}
	v.mu.Lock()
	v.file.Close() // the disk fails between the call's arrival and its effect
	v.mu.Unlock()
	v.Release()
	wantStatus(t, <-call, 500)
	for _, key := range []string{"k0", "k2"} { // not even a replay goes unrecorded
		wantStatus(t, post(testContext(t), server.URL+"/v1/charges", key, "{}"), 500)
	}
	AssertEffects(t, v, 1)
	if err := v.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Close hides that the ledger is not whole: %v", err)
	}
}

func TestABrokenLedgerFileIsRefused(t *testing.T) {
	dir := t.TempDir()
	good := `{"event":"start"}` + "\n"
	for name, content := range map[string]string{
		"not JSON":      good + "x\n" + good,
		"unknown":       `{"event":"other"}` + "\n",
		"gap":           `{"event":"call","call":{"call":2}}` + "\n",
		"end of no one": `{"event":"end","call":{"call":1}}` + "\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := NewVendor(&VendorOptions{LedgerFile: path}); err == nil || !strings.Contains(err.Error(), "line ") {
			t.Errorf("%s: error %v", name, err)
		}
		if after, _ := os.ReadFile(path); !bytes.Equal(after, []byte(content)) {
			t.Errorf("%s: the file was changed", name)
		}
	}
	if _, err := ReadLedger(filepath.Join(dir, "absent")); err == nil {
		t.Error("a ledger that is not there was read")
	}
	if _, err := NewVendor(&VendorOptions{LedgerFile: filepath.Join(dir, "no", "dir")}); err == nil {
		t.Error("a ledger that cannot be made was accepted")
	}
}

func TestIdentityComesFromAMemberOfTheBody(t *testing.T) {
	id := IdentityField("order_id")
	for body, want := range map[string]string{
		`{"order_id":"o1"}`: "o1", `{"order_id":12345678901234567890}`: "12345678901234567890",
		`{"order_id":null}`: "", `{"order_id":{}}`: "", `{}`: "", `[]`: "", `x`: "", ``: "",
	} {
		if got := id([]byte(body)); got != want {
			t.Errorf("%s: %q, want %q", body, got, want)
		}
	}
}

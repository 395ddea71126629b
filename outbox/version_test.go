package outbox_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/samekey/samekey/outbox"
)

type invoiceV1 struct{ Total int64 }

type invoice struct {
	Cents    int64
	Currency string
}

func upgradeInvoice(old invoiceV1) (invoice, error) { return invoice{old.Total * 100, "eur"}, nil }

func ExampleAction_Version() {
	sendInvoice := outbox.NewAction[invoice]("send_invoice").Version(2, outbox.From(1, upgradeInvoice))

	// An intent that the former release wrote:
	stored, err := sendInvoice.Decode("application/json", []byte(`{"Total": 12}`))
	fmt.Println(stored.Cents, stored.Currency, err)

	// One of today:
	fmt.Println(sendInvoice.Intent(invoice{}).ContentType)
	// Output:
	// 1200 eur <nil>
	// application/json; payload-version=2
}

func TestDecodeReadsTheVersionsThatAreDeclared(t *testing.T) {
	older := outbox.From(1, upgradeInvoice)
	for name, tc := range map[string]struct {
		action      outbox.Action[invoice]
		contentType string
		payload     string
		want        string // the invoice, or a part of the error
	}{
		"no versions":              {outbox.NewAction[invoice]("a"), "application/json", `{"Cents":1}`, "{1 }"},
		"no versions, later":       {outbox.NewAction[invoice]("a"), "application/json; payload-version=2", `{"Cents":1}`, "a later release delivers it"},
		"today's":                  {outbox.NewAction[invoice]("a").Version(2, older), "application/json; payload-version=2", `{"Cents":9007199254740993}`, "{9007199254740993 }"},
		"older":                    {outbox.NewAction[invoice]("a").Version(2, older), "application/json", `{"Total":3}`, "{300 eur}"},
		"older, not declared":      {outbox.NewAction[invoice]("a").Version(3, older), "application/json; payload-version=2", `{}`, "declare how the old one is read"},
		"later":                    {outbox.NewAction[invoice]("a").Version(2, older), "application/json; payload-version=3", `{}`, "a later release delivers it"},
		"older, of another type":   {outbox.NewAction[invoice]("a").Version(2, older), "", `{"Total":"4242"}`, `member "Total"`},
		"today's, of another type": {outbox.NewAction[invoice]("a").Version(2), "application/json; payload-version=2", `{"Cents":"4242"}`, `member "Cents"`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := tc.action.Decode(tc.contentType, []byte(tc.payload))
			if text := fmt.Sprint(got); err == nil && text != tc.want || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, %v; want %s", got, err, tc.want)
			}
			if err != nil && strings.Contains(err.Error(), "4242") {
				t.Errorf("the error quotes the payload: %v", err)
			}
		})
	}
	_, err := outbox.NewAction[invoice]("a").Version(4).Decode("", nil)
	if e := (*outbox.PayloadVersionError)(nil); !errors.As(err, &e) || e.Version != 1 || e.Newest != 4 || e.Action != "a" {
		t.Errorf("%v", err)
	}
}

func TestVersionPanicsOnMistakes(t *testing.T) {
	older := outbox.From(1, upgradeInvoice)
	for name, tc := range map[string]struct {
		declare func()
		want    string
	}{
		"too low":  {func() { outbox.NewAction[invoice]("a").Version(1) }, "a version is 2 to 9999"},
		"too high": {func() { outbox.NewAction[invoice]("a").Version(10_000) }, "a version is 2 to 9999"},
		"twice":    {func() { outbox.NewAction[invoice]("a").Version(3, older, older) }, "From(1) is given twice"},
		"its own":  {func() { outbox.NewAction[invoice]("a").Version(2, outbox.From(2, upgradeInvoice)) }, "From(2) is not of an earlier version"},
		"zero":     {func() { outbox.NewAction[invoice]("a").Version(2, outbox.From(0, upgradeInvoice)) }, "From(0) is not of an earlier version"},
		"bytes": {func() {
			outbox.NewAction[[]byte]("a").Version(2, outbox.From(1, func(old []byte) ([]byte, error) { return old, nil }))
		}, "which is not decoded"},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, tc.want) {
					t.Errorf("panic %q, want %q", got, tc.want)
				}
			}()
			tc.declare()
		})
	}
}

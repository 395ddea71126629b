package httpvendor_test

import (
	"fmt"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/dispatcher/httpvendor"
	"github.com/samekey/samekey/outbox"
)

var (
	chargeCard  = outbox.NewAction[[]byte]("charge_card")
	sendReceipt = outbox.NewAction[[]byte]("send_receipt")
)

// Charges by Stripe: a form made from the payload, the key in a header, and a lookup if the outcome is unknown.
func ExampleStripe() {
	dest := httpvendor.Stripe()
	dest.Name, dest.URL = "stripe", "https://api.stripe.com"
	dest.Auth.Bearer = "sk_test_..." // from a secret

	client, err := httpvendor.New(dest)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()

	d := dispatcher.New(nil, nil) // with a pool
	client.Register(d)
	dispatcher.Handle(d, chargeCard, httpvendor.Delivery[[]byte](client, httpvendor.Action{
		Request: "POST /v1/charges",
		Body:    httpvendor.Body{Format: httpvendor.Form, Fields: []httpvendor.Field{{Name: "transfer_group", Value: "{{.Key}}"}}},
		Lookup:  httpvendor.SentLog("GET /v1/charges?transfer_group={{.Key}}", "/data", "/transfer_group"),
		Policy:  dispatcher.Policy{Class: dispatcher.IdempotentWrite, Timeout: 20 * time.Second},
	}))
	fmt.Println(d.Check())
	// Output: <nil>
}

// Mails through an API without keys. If the outcome is unknown, the lookup searches the vendor's log of sent mails.
func ExampleMail() {
	dest := httpvendor.Mail()
	dest.Name, dest.URL = "mail", "https://api.postmarkapp.com"
	dest.Auth.Header, dest.Auth.Value = "X-Postmark-Server-Token", "..." // from a secret

	client, err := httpvendor.New(dest)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()

	d := dispatcher.New(nil, nil) // with a pool
	client.Register(d)
	dispatcher.Handle(d, sendReceipt, httpvendor.Delivery[[]byte](client, httpvendor.Action{
		Request: "POST /email",
		Body: httpvendor.Body{Format: httpvendor.JSON, Template: `{
			"From": "shop@example.com", "To": {{.Payload.to}}, "Subject": "Your receipt",
			"TextBody": {{printf "You paid %s." .Payload.amount}}, "Metadata": {"key": {{.Key}}}}`},
		Lookup: httpvendor.SentLog("GET /messages/outbound?count=10&offset=0&metadata_key={{.Key}}", "/Messages", "/Metadata/key"),
		Policy: dispatcher.Policy{Class: dispatcher.NonIdempotentWrite, SettlingDelay: time.Minute},
	}))
	fmt.Println(d.Check())
	// Output: <nil>
}

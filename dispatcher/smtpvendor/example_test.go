package smtpvendor_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/wneessen/go-mail"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/dispatcher/smtpvendor"
)

var (
	pool     *pgxpool.Pool
	provider interface {
		Find(ctx context.Context, messageID string) (id string, err error)
	}
)

func composeReceipt(ctx context.Context, call *dispatcher.Call, r Receipt) (*mail.Msg, error) {
	m := mail.NewMsg()
	if err := errors.Join(m.From("shop@example.com"), m.To(r.To)); err != nil {
		return nil, err
	}
	m.Subject("Receipt " + r.Number)
	m.SetBodyString(mail.TypeTextPlain, r.Text)
	return m, nil
}

func findInLog(ctx context.Context, messageID string) (dispatcher.Outcome, error) {
	id, err := provider.Find(ctx, messageID)
	switch {
	case err != nil:
		return dispatcher.Outcome{}, err // the log could not be asked: the lookup is repeated
	case id == "":
		return dispatcher.Absent(dispatcher.Response{Code: "none"}), nil
	}
	return dispatcher.Delivered(dispatcher.Response{Code: "sent", Body: []byte(id)}), nil
}

// A receipt by mail. If the server's reply is lost, the lookup searches the provider's log before the mail is parked.
func Example() {
	relay, err := smtpvendor.New(smtpvendor.Server{Host: "smtp.example.com", Username: "shop", Password: "from your secrets"})
	if err != nil {
		log.Fatal(err)
	}
	d := dispatcher.New(pool, nil)
	d.Destination("mail", dispatcher.Limits{Concurrency: 8})
	delivery := smtpvendor.Delivery(relay, dispatcher.Policy{
		Class: dispatcher.NonIdempotentWrite, Destination: "mail",
		Timeout: 2 * time.Minute, SettlingDelay: 5 * time.Minute, // longer than the log takes
	}, composeReceipt)
	delivery.Lookup = smtpvendor.SentLog[Receipt](findInLog)
	dispatcher.Handle(d, sendReceipt, delivery)
	fmt.Println(d.Check())
	// In main: err := d.Run(ctx)

	// Output: <nil>
}

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

// A receipt by mail. Where the server's answer was lost, the provider's log is asked before a person is.
func Example() {
	relay, err := smtpvendor.New(smtpvendor.Server{Host: "smtp.example.com", Username: "shop", Password: "from your secrets"})
	if err != nil {
		log.Fatal(err)
	}
	d := dispatcher.New(pool, nil)
	d.Destination("mail", dispatcher.Limits{Concurrency: 8})
	smtpvendor.Handle(d, relay, "send_receipt",
		dispatcher.Policy{
			Class: dispatcher.NonIdempotentWrite, Destination: "mail",
			Timeout: 2 * time.Minute, SettlingDelay: 5 * time.Minute, // longer than the log takes
		},
		func(ctx context.Context, call *dispatcher.Call, r Receipt) (*mail.Msg, error) {
			m := mail.NewMsg()
			if err := errors.Join(m.From("shop@example.com"), m.To(r.To)); err != nil {
				return nil, err
			}
			m.Subject("Receipt " + r.Number)
			m.SetBodyString(mail.TypeTextPlain, r.Text)
			return m, nil
		},
		smtpvendor.WithSentLog(func(ctx context.Context, messageID string) (dispatcher.Finding, error) {
			id, err := provider.Find(ctx, messageID)
			switch {
			case err != nil:
				return dispatcher.Finding{}, err // could not be asked: tried again
			case id == "":
				return dispatcher.Absent(dispatcher.Answer{Code: "none"}), nil
			}
			return dispatcher.Found(dispatcher.Answer{Code: "sent", Body: []byte(id)}), nil
		}))
	fmt.Println(d.Check())
	// In main: err := d.Run(ctx)

	// Output: <nil>
}

// Package smtpvendor delivers intents as mails over SMTP. You compose the mail with go-mail; the package sets its
// Message-ID, stores its bytes, and never repeats it without proof that it was not accepted.
//
//	relay, err := smtpvendor.New(smtpvendor.Server{Host: "smtp.example.com", Username: "shop", Password: password})
//	...
//	d.Destination("mail", dispatcher.Limits{Concurrency: 8})
//	delivery := smtpvendor.Delivery(relay,
//		dispatcher.Policy{Class: dispatcher.NonIdempotentWrite, Destination: "mail", Timeout: 2 * time.Minute},
//		func(ctx context.Context, call *dispatcher.Call, r Receipt) (*mail.Msg, error) {
//			m := mail.NewMsg()
//			if err := errors.Join(m.From("shop@example.com"), m.To(r.To)); err != nil {
//				return nil, err
//			}
//			m.Subject("Receipt " + r.Number)
//			m.SetBodyString(mail.TypeTextPlain, r.Text)
//			return m, nil
//		})
//	delivery.Lookup = smtpvendor.SentLog[Receipt](findInTheProvidersLog)
//	dispatcher.Handle(d, SendReceipt, delivery) // outbox.NewAction[Receipt]("send_receipt")
//
// # Guarantees
//
// SMTP deduplicates nothing, and servers do not deduplicate by Message-ID. The class is dispatcher.NonIdempotentWrite
// (or dispatcher.IrreversibleWrite): a mail is sent again only if it was provably not accepted. An attempt that ends
// between the mail's final dot and the server's reply is unknown: the mail is looked up by its Message-ID in the sent
// log ([SentLog]), or parked for a person if there is none.
//
// Message-ID, Date, boundaries, envelope and everything else are made once, before the first attempt, and stored
// (dispatcher.Delivery.Render). Each attempt sends the same bytes, even if your code or this package changes. The
// Message-ID is the delivery key at the sender's domain, whatever your function sets. Your function must not call out.
//
// An attempt is one connection and one mail. Nothing is sent after its deadline. If the last command gets no reply, the
// connection is reset, so that nothing that the kernel has queued arrives later. A mail is accepted for all recipients
// or for none: write one intent for each recipient whose refusal must not affect the others.
//
// # Outcomes
//
//	what happened                                        the outcome
//	no connection, no TLS, no STARTTLS offered,
//	  or the connection breaks before the final dot      unsent: a server must not deliver a mail without its end
//	4yz to anything, also after the final dot            retry: the server did not accept; uses no attempt
//	5yz to the connection, EHLO or AUTH                  denied: repeated, uses no attempt; correct the account
//	5yz to MAIL, or to DATA                              dead: a person must change something
//	5yz to RCPT                                          refused: a business refusal, such as an unknown mailbox
//	  but 530, or an enhanced code x.7.y                 dead: this account may not send to this address
//	5yz after the final dot                              dead: content or policy; a person must change something
//	250 after the final dot                              delivered: to the server, which may still bounce it
//	anything else after the final dot                    unknown
//
// The response's code is the reply's code, with the enhanced code if there is one, such as "550 5.1.1". Its body is the
// text.
//
// A server may take minutes to reply after the final dot (RFC 5321 has clients wait 10 minutes). With a short
// Policy.Timeout, mails that arrive have unknown outcomes.
//
// # Secrets
//
// Certificates are verified. Without TLS nothing is sent, unless Server.Plaintext is set, and then never credentials.
// Errors consist of this package's own words and a reply's code. User name and password are removed from the stored
// text of a reply if they have 4 bytes or more; of replies to AUTH nothing is stored. The stored mail contains what you
// composed.
//
// Line breaks and other control characters in headers and addresses are how headers are injected. A mail or a part with
// such a value makes the intent dead before anything is sent. So does a carriage return without a line feed in a text
// that is not encoded, which some servers take for the end of the mail. Check yourself what you pass to go-mail's
// SetGenHeaderPreformatted.
//
// # Limits
//
// A mail has at most 2 MiB as it is sent, which is about 1.5 MB of attachments. AUTH is by SCRAM-SHA-256, PLAIN or
// LOGIN.
package smtpvendor

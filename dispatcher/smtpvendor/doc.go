// Package smtpvendor delivers intents as mails over SMTP: you compose the mail with go-mail, the package sees to its
// Message-ID, to its bytes, and that it is never sent twice blindly.
//
//	relay, err := smtpvendor.New(smtpvendor.Server{Host: "smtp.example.com", Username: "shop", Password: password})
//	...
//	d.Destination("mail", dispatcher.Limits{Concurrency: 8})
//	smtpvendor.Handle(d, relay, "send_receipt",
//		dispatcher.Policy{Class: dispatcher.NonIdempotentWrite, Destination: "mail", Timeout: 2 * time.Minute},
//		func(ctx context.Context, call *dispatcher.Call, r Receipt) (*mail.Msg, error) {
//			m := mail.NewMsg()
//			if err := errors.Join(m.From("shop@example.com"), m.To(r.To)); err != nil {
//				return nil, err
//			}
//			m.Subject("Receipt " + r.Number)
//			m.SetBodyString(mail.TypeTextPlain, r.Text)
//			return m, nil
//		},
//		smtpvendor.WithSentLog(findInTheProvidersLog))
//
// # What is guaranteed
//
// SMTP deduplicates nothing, and a Message-ID makes no server do so. The class is dispatcher.NonIdempotentWrite (or
// dispatcher.IrreversibleWrite): a mail is sent again only where it provably was not accepted. An attempt that ends between
// the mail's final dot and the server's answer is unknown: it is looked up by its Message-ID in the sent log, if there is
// one ([WithSentLog]), else parked for a person.
//
// Message-ID, Date, boundaries, envelope and everything else are made once, before the first attempt, and stored
// (dispatcher.WithRender): each attempt sends the same bytes, also where your code or this package changed in between. The
// Message-ID is the delivery key at the sender's domain, whatever the function set. So composing must not call out.
//
// An attempt is one connection and one mail; nothing leaves once its deadline is past, and where the
// last command has no reply the connection is reset, so that nothing that the kernel has queued arrives later. All recipients of a mail are
// accepted, or it goes to none: write an intent for each recipient whose refusal must not hold up the others.
//
// # What happens means
//
//	what happened                                        the attempt is
//	no connection, no TLS, no STARTTLS on offer,
//	  or it breaks before the final dot                  unsent: no server may deliver what has no end
//	4yz to anything, also after the final dot            put off: the server did not accept; spends nothing
//	5yz to the connection, EHLO or AUTH                  denied: made again, spends nothing; correct the account
//	5yz to MAIL, or to DATA                              dead: a person must mend something
//	5yz to RCPT                                          refused: a business no, such as a mailbox that does not exist
//	  but 530, or an enhanced code x.7.y                 dead: this account may not send there
//	5yz after the final dot                              dead: content or policy; a person must mend something
//	250 after the final dot                              delivered: to the server, which may still bounce it
//	anything else after the final dot                    unknown
//
// The Answer's code is the reply's, with the enhanced one if there is any, such as "550 5.1.1"; its body is the text.
//
// The server may take minutes to answer after the final dot (RFC 5321 has clients wait 10): a short Policy.Timeout makes
// unknown outcomes of mails that arrive.
//
// # Secrets
//
// Certificates are verified. Without TLS nothing is sent, except where Server.Plaintext says so, and then never
// credentials. Errors are words of this package's own and a reply's code; in the text that is kept of a reply, user name and
// password are struck out (from 4 bytes on), and of the replies to AUTH nothing is kept. The stored mail holds what you composed.
//
// Values with line breaks or other control characters in headers, of the mail and of its parts, and in addresses, which is how
// headers are injected, make the intent dead before anything is sent, and so does a carriage return without a line feed in a
// text that is not encoded, which some servers take for the mail's end. What go-mail's SetGenHeaderPreformatted is given is yours to check.
//
// # Limits
//
// A mail has at most 2 MiB as it is sent, about 1.5 MB of attachments. AUTH is by SCRAM-SHA-256, PLAIN or LOGIN.
package smtpvendor

package httpvendor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/redact"
)

// Credentials are what the calls of a destination carry for a time. Each attempt and each lookup carries one set from
// its start to its end. What is set replaces the field of the same name of [Destination]; Headers and Secrets are in
// addition to the destination's, and a header here wins. The rules for those fields apply: a mistake counts as an error
// of the function.
//
// All values of Auth and WebhookSecrets, the password in URL, and Secrets are removed from answers, as those of the
// destination are. Those of the last four sets before stay removed as well, since a vendor may repeat an old answer.
type Credentials struct {
	Auth           Auth
	Headers        map[string]string
	WebhookSecrets []string
	Secrets        []string

	// ActionHeaders are headers of single actions, by the action's name. They are in addition to those of [Action], and
	// win over them and over Headers.
	ActionHeaders map[string]map[string]string

	// URL may differ from the destination's in its user, path and query. Its scheme and its host must be the same.
	URL string

	// Until is when they are over, by this process's clock. They are renewed a little earlier: by a tenth of their time,
	// and by at most a minute. Zero: they are good until an answer means dispatcher.Denied.
	Until time.Time
}

// account is what calls carry at one time. It is not changed.
type account struct {
	base    *url.URL // without a user
	header  http.Header
	own     map[string]http.Header // of an action, by its name
	signer  *signer                // nil: calls are not signed
	secrets redact.Secrets         // removed from answers
}

const (
	// fetchTime bounds a call of Destination.Credentials.
	fetchTime = 30 * time.Second

	// fetchPause is the least time between two of them. The breaker of the destination makes it longer.
	fetchPause = time.Second

	// renewEarly bounds how long before their end credentials are renewed.
	renewEarly = time.Minute

	// generations is of how many earlier sets the secrets are still removed.
	generations = 4
)

// changing has the credentials of a destination whose credentials change.
//
//	an attempt finds                        it
//	credentials that are good               takes them
//	  that are due to be renewed            takes them, and a fetch begins
//	none, or that are over, or denied       waits for a fetch, no longer than its own time
//	  a fetch ended less than a pause ago   takes what it had: an error, or credentials that were denied since. So calls
//	                                        that are denied with new credentials fetch once in a pause, at most
//
// An answer that denies an earlier set changes nothing: 32 calls that are denied together fetch once.
type changing struct {
	of    *Client
	pause time.Duration

	mu      sync.Mutex
	now     *account // nil: none yet
	until   time.Time
	renew   time.Time // zero: not before they are over
	denied  bool      // now was
	failed  error     // of the last fetch, also if it only repeated what it had
	resting time.Time // no fetch begins before
	fetch   *fetch    // that runs; nil: none
	closed  bool

	// Of the fetch that runs.
	held    token
	wait    tokenWait
	has     Credentials // what now was made of
	earlier []redact.Secrets
}

// fetch is a call of Destination.Credentials.
type fetch struct {
	cancel  context.CancelFunc
	done    chan struct{}
	account *account
	err     error // both to be read after done
}

// current returns what a call carries that begins now.
func (c *Client) current(ctx context.Context) (*account, error) {
	if c.changing == nil {
		return &c.account, nil
	}
	return c.changing.get(ctx)
}

// answered notes what an answer says about the credentials of its call.
func (c *Client) answered(with *account, outcome dispatcher.Outcome) {
	if c.changing != nil && outcome.Kind() == denied {
		c.changing.deny(with)
	}
}

var denied = kind(dispatcher.Denied)

func (k *changing) deny(with *account) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.denied = k.denied || with == k.now
}

func (k *changing) get(ctx context.Context) (*account, error) {
	k.mu.Lock()
	now, at := k.now, time.Now()
	good := now != nil && !k.denied && (k.until.IsZero() || at.Before(k.until))
	if due := !good || !k.renew.IsZero() && !at.Before(k.renew); due && k.fetch == nil && !at.Before(k.resting) {
		// Not of ctx: what is sent for the credentials would count as sent by the attempt.
		fetching, cancel := context.WithTimeout(context.Background(), fetchTime)
		k.fetch = &fetch{cancel: cancel, done: make(chan struct{})}
		go k.run(fetching, k.fetch, k.denied)
	}
	running, failed := k.fetch, k.failed
	k.mu.Unlock()
	switch {
	case good:
		return now, nil
	case running == nil && failed != nil:
		return nil, failed
	case running == nil:
		return now, nil
	}
	select {
	case <-running.done:
		return running.account, running.err
	case <-ctx.Done():
		return nil, errors.New("they did not arrive within the attempt's time")
	}
}

// close ends a fetch.
func (k *changing) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	if k.fetch != nil {
		k.fetch.cancel()
	}
}

// run fetches credentials, afresh if those of before were denied.
func (k *changing) run(ctx context.Context, f *fetch, afresh bool) {
	defer f.cancel()
	var until, renew time.Time
	var late error
	f.err = errors.New("the function ended its goroutine")
	defer func() { // also if the function ended the goroutine
		k.mu.Lock()
		before, closed := k.failed, k.closed
		k.failed = f.err
		if f.err == nil {
			k.now, k.until, k.renew, k.denied, k.failed = f.account, until, renew, false, late
		}
		k.fetch, k.resting = nil, time.Now().Add(k.pause)
		after := k.failed
		k.mu.Unlock()
		close(f.done)
		if !closed {
			k.report(before, after)
		}
	}()
	began := time.Now()
	got, err := k.call(ctx)
	if err != nil {
		f.err = err
		return
	}
	until, renew = got.Until, renewal(began, got.Until)
	auth := got.Auth
	if auth == (Auth{}) {
		auth = k.of.dest.Auth
	}
	if of := auth.OAuth2; of != nil {
		if late, err = k.token(ctx, *of, afresh); err != nil {
			f.err = err
			return
		}
		got.Auth = Auth{Bearer: k.held.text}
		got.Secrets = slices.Concat(got.Secrets, []string{of.ClientSecret, of.basic()})
		until, renew = earlier(until, k.held.until), earlier(renew, k.held.renew)
	}
	f.account, f.err = k.account(got)
}

// renewal is when credentials are renewed that are over at until. Not all workers renew at once.
func renewal(began, until time.Time) time.Time {
	if !until.After(began) {
		return time.Time{}
	}
	early := min(until.Sub(began)/10, renewEarly)
	return until.Add(-early/2 - rand.N(early/2+1))
}

// earlier is the earlier one of two times. A zero time is later than any other.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// call calls the function. The error contains no URL, and no secret that is known.
func (k *changing) call(ctx context.Context) (got Credentials, err error) {
	if k.of.dest.Credentials == nil { // there are tokens only
		return got, nil
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the function of Destination.Credentials panicked with a value of type %T", p)
		}
	}()
	got, err = k.of.dest.Credentials(ctx)
	if err != nil {
		known := k.of.secrets
		if k.now != nil {
			known = k.now.secrets
		}
		err = errors.New(known.Text(redact.WithoutURLs(err)))
	}
	return got, err
}

// account returns what calls carry with credentials. It is the present one if nothing has changed.
func (k *changing) account(got Credentials) (*account, error) {
	got.Until = time.Time{}
	if k.now != nil && reflect.DeepEqual(got, k.has) {
		return k.now, nil
	}
	dest, err := got.in(k.of)
	if err != nil {
		return nil, err
	}
	next := &Client{dest: dest}
	m := next.check()
	next.own = map[string]http.Header{}
	for action, headers := range got.ActionHeaders {
		next.own[action] = next.actionHeaders(headers, m.in(fmt.Sprintf("ActionHeaders[%q]", action)))
		next.secrets = next.secrets.With(credentials(next.own[action])...)
	}
	if err := next.mistakes.Err(); err != nil {
		return nil, err
	}
	made, own := next.account, next.secrets
	for _, before := range append(k.earlier, k.of.secrets) {
		made.secrets = made.secrets.And(before)
	}
	k.has, k.earlier = got, append(k.earlier, own)
	k.earlier = k.earlier[max(0, len(k.earlier)-generations):]
	return &made, nil
}

// in returns a client's destination with the credentials in it.
func (got Credentials) in(c *Client) (Destination, error) {
	dest := c.dest
	dest.Credentials = nil
	if got.Auth != (Auth{}) {
		dest.Auth = got.Auth
	}
	if len(got.WebhookSecrets) > 0 {
		dest.WebhookSecrets = got.WebhookSecrets
	}
	dest.Headers = maps.Clone(dest.Headers)
	for name, value := range got.Headers {
		for other := range dest.Headers {
			if http.CanonicalHeaderKey(other) == http.CanonicalHeaderKey(name) {
				delete(dest.Headers, other)
			}
		}
		if dest.Headers == nil {
			dest.Headers = map[string]string{}
		}
		dest.Headers[name] = value
	}
	dest.Secrets = slices.Concat(dest.Secrets, got.Secrets)
	if got.URL == "" {
		return dest, nil
	}
	base, err := parseURL(got.URL)
	switch {
	case err != nil:
		return dest, fmt.Errorf("the URL of the credentials %w", err)
	case c.stored() || base.Scheme != c.base.Scheme || base.Host != c.base.Host:
		return dest, errors.New("the URL of the credentials has another scheme or host: restart with the new URL")
	}
	dest.URL = got.URL
	return dest, nil
}

// report logs the first failure of several, and their end.
func (k *changing) report(before, now error) {
	dest := slog.String("destination", k.of.dest.Name)
	switch {
	case now != nil && before == nil:
		slog.Warn("httpvendor: the destination's credentials cannot be renewed; intents that need new ones stay unsent", dest, slog.String("error", now.Error()))
	case now == nil && before != nil:
		slog.Info("httpvendor: the destination's credentials are renewed again", dest)
	}
}

// carried is a receiver of calls that an account was made into.
type carried struct {
	receiver
	of     *account
	action string
}

// carrying returns the receiver of an action's calls that carry an account.
func (o *operation) carrying(with *account, action string) receiver {
	if made := o.carried.Load(); made != nil && made.of == with && made.action == action {
		return made.receiver
	}
	made := &carried{of: with, action: action,
		receiver: receiver{base: with.base, header: with.header.Clone(), signer: with.signer, secrets: with.secrets.With(credentials(o.own)...)}}
	maps.Copy(made.header, o.own)
	maps.Copy(made.header, with.own[action])
	o.carried.Store(made)
	return made.receiver
}

// noCredentials is the outcome of a call that was not made for want of credentials.
func (o *operation) noCredentials(err error) (dispatcher.Outcome, error) {
	return dispatcher.Unknown(dispatcher.Response{Code: "credentials"}),
		fmt.Errorf("httpvendor: %s: no credentials, %w: %s", o.client.dest.Name, dispatcher.ErrUnsent, cmp.Or(err.Error(), "the error has no text"))
}

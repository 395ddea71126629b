package httpkey

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/reply"
	"github.com/samekey/samekey/processed"
)

// Middleware makes handlers safe to repeat. One Middleware serves any number of routes that share its Options.
type Middleware struct {
	pool *pgxpool.Pool
	o    Options
}

// New returns a middleware. Its records, and the handlers' transactions, live in the pool's database. It reports
// everything that is wrong with the options at once. It sends nothing to the database; schema.Check does.
func New(pool *pgxpool.Pool, o Options) (*Middleware, error) {
	o, err := o.withDefaults()
	if pool == nil {
		err = errors.Join(errors.New("httpkey: the pool is nil"), err)
	}
	if err != nil {
		return nil, err
	}
	return &Middleware{pool: pool, o: o}, nil
}

// Handler returns next with keys: its POST and PATCH requests (or those of Options.Methods) run as the package comment
// describes. Other requests reach next unchanged and without a transaction.
//
// next must do the work before it returns. A framework's adaptor that only notes the call and runs the handler later
// cannot work. Fiber's adaptor.HTTPMiddleware is refused with a 500 and a log line before anything is done. With any
// other such adaptor the client gets a 500 too, because next returns without an answer.
func (m *Middleware) Handler(next http.Handler) http.Handler {
	misfit := misfitOf(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !slices.Contains(m.o.Methods, r.Method):
			next.ServeHTTP(w, r)
		case misfit != nil:
			m.fail(w, r, samekey.Key{}, problemInternal, misfit)
		default:
			m.serve(w, r, next)
		}
	})
}

// misfitOf recognizes Fiber's adaptor, the only one that would hide the 500: its handler runs afterwards, and its
// answer would replace ours.
func misfitOf(next http.Handler) error {
	if f, ok := next.(http.HandlerFunc); ok {
		code := runtime.FuncForPC(reflect.ValueOf(f).Pointer())
		file, _ := code.FileLine(code.Entry()) // not the name alone: the function may be inlined into another one
		if strings.Contains(file, "/gofiber/fiber/") && strings.Contains(file, "/middleware/adaptor/") && strings.Contains(code.Name(), "HTTPMiddleware") {
			return errFiber
		}
	}
	return nil
}

var (
	errFiber     = errors.New("httpkey: Fiber's adaptor.HTTPMiddleware runs the handler after the middleware, outside its transaction: use package processed/httpkey/fiberkey (Fiber v3), or adaptor.HTTPHandler around keyed.Handler")
	errLate      = errors.New("httpkey: Tx was called after the middleware had answered and its transaction had ended: either the framework runs the handler after the middleware (use its adaptor: ginkey, echokey or fiberkey), or the handler did not wait for one of its goroutines")
	errStrayed   = errors.New("httpkey: after a collision the handler was called again, and answered without the transaction that it had used before: state of the first call, such as a router's, misled it; nothing was stored")
	errForgotten = errors.New("httpkey: the answer is not stored")
	errSentOn    = errors.New("httpkey: the handler used its transaction and then redirected the same request (307, 308): its rows were rolled back, and the redirect was sent")
	errTwice     = errors.New("httpkey: the request passes two of these middlewares: remove one")
)

func (m *Middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if r.Context().Value(callKey{}) != nil {
		m.fail(w, r, samekey.Key{}, problemInternal, errTwice)
		return
	}
	key, present, problem := m.keyOf(r)
	if problem != nil {
		m.refuse(w, r, *problem)
		return
	}
	body, problem := m.bodyOf(w, r, key)
	if problem != nil {
		m.refuse(w, r, *problem)
		return
	}
	var err error
	req := processed.Request{Key: key, Retain: m.o.Retain, Isolation: m.o.Isolation, Payload: body}
	if present {
		req.Payload, err = m.payloadOf(r, body)
	} else {
		req.Payload = samekey.FingerprintBytes(body) // it is never compared
	}
	if err != nil {
		m.refuse(w, r, *problemBody(err))
		return
	}
	m.run(w, r, next, req, body)
}

// run answers from the record, or from the handler once its work is committed.
func (m *Middleware) run(w http.ResponseWriter, r *http.Request, next http.Handler, req processed.Request, body []byte) {
	var c *call // the last call of the handler
	returned := false
	defer func() {
		if c != nil {
			c.answer.close()
			c.routes.keep()
		}
		if !returned { // The handler panicked. An outer recovery may answer nothing itself.
			m.refuse(w, r, problemInternal)
		}
	}()
	late := sync.OnceFunc(func() { m.log(r, req.Key, errLate) })
	touched := false // by an earlier call
	handle := func(ctx context.Context, tx pgx.Tx, op *processed.Operation) (reply.Reply, error) {
		if c != nil {
			touched = touched || c.touched
			c.answer.close()
		}
		c = &call{tx: tx, op: op, key: req.Key, answer: hold(w, m.o.MaxAnswer), late: late}
		c.handle(ctx, next, r, body)
		if touched && !c.touched && c.err == nil {
			c.err = errStrayed
		}
		return m.judge(r, c)
	}
	res, err := m.attempt(r, req, handle)
	for wait := newWait(m.o.Wait); errors.Is(err, processed.ErrInFlight) && c == nil && wait.next(r.Context()); {
		res, err = m.attempt(r, req, handle)
	}
	returned = true
	switch {
	case errors.Is(err, errForgotten):
		if c.sendsOn() && c.touched {
			m.log(r, req.Key, errSentOn)
		}
		c.answer.send(w)
	case isPayload(err) && c == nil:
		m.refuse(w, r, *problemBody(inBody(err, body)))
	case err != nil && c != nil && c.err != nil:
		m.fail(w, r, req.Key, problemOfHandler(err), err)
	case err != nil:
		m.fail(w, r, req.Key, problemOf(err), err)
	case !res.Deduplicated && c.err == nil:
		m.sendFirst(w, r, req.Key, c.answer, res.Value)
	case !res.Deduplicated: // processed.Fail
		m.sendStored(w, r, req.Key, res.Value, false)
	case m.o.Authorize != nil && !m.o.Authorize(r):
		m.refuse(w, r, problemForbidden)
	default:
		m.sendStored(w, r, req.Key, res.Value, true)
	}
}

func (m *Middleware) attempt(r *http.Request, req processed.Request,
	handle func(context.Context, pgx.Tx, *processed.Operation) (reply.Reply, error),
) (processed.Result[reply.Reply], error) {
	ctx, cancel := m.outlive(r.Context())
	defer cancel()
	if m.o.Steps {
		return processed.Steps(ctx, m.pool, req, func(ctx context.Context, op *processed.Operation) (reply.Reply, error) {
			return handle(ctx, nil, op)
		})
	}
	return processed.Run(ctx, m.pool, req, func(ctx context.Context, tx pgx.Tx) (reply.Reply, error) {
		return handle(ctx, tx, nil)
	})
}

// judge decides the fate of the handler's answer and of its rows.
func (m *Middleware) judge(r *http.Request, c *call) (reply.Reply, error) {
	if c.err != nil {
		return reply.Reply{}, c.err
	}
	if err := c.answer.finish(); err != nil {
		return reply.Reply{}, err
	}
	fate := c.fate()
	if fate == forgotten {
		return reply.Reply{}, errForgotten
	}
	stored, err := m.stored(r, c.answer)
	if err == nil && fate == rolledBack {
		return reply.Reply{}, &stored
	}
	return stored, err
}

// outlive returns a context that does not end when the client disconnects, which net/http signals by a cancellation
// without a cause. It ends with the timeout, with ctx's deadline, and with a cancellation that has a cause.
func (m *Middleware) outlive(ctx context.Context) (context.Context, context.CancelFunc) {
	lasting, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
			cancel(cause)
		}
	})
	lasting, end := context.WithTimeout(lasting, m.o.Timeout)
	return lasting, func() { stop(); end(); cancel(nil) }
}

// fail answers with a problem of the service, and logs the reason if it is a 5xx.
func (m *Middleware) fail(w http.ResponseWriter, r *http.Request, key samekey.Key, p Problem, reason error) {
	if p.Status >= 500 {
		m.log(r, key, reason)
	}
	m.refuse(w, r, p)
}

func (m *Middleware) log(r *http.Request, key samekey.Key, reason error) {
	m.o.Logger.ErrorContext(r.Context(), "keyed request failed", "method", r.Method, "route", r.Pattern, "key", key, "error", reason)
}

func (m *Middleware) refuse(w http.ResponseWriter, r *http.Request, p Problem) {
	p.Type = m.o.ProblemTypes + p.Code
	if p.retrySeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(p.retrySeconds))
	}
	m.o.Problem(w, r, p)
}

func isPayload(err error) bool {
	_, ok := errors.AsType[*samekey.FingerprintError](err)
	return ok
}

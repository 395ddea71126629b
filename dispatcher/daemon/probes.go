package daemon

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// probes answers /healthz and /readyz.
type probes struct {
	server *http.Server // nil: off
	state  atomic.Pointer[func() error]
	served chan struct{}
}

func startProbes(o Options, logger *slog.Logger) (*probes, error) {
	p := &probes{served: make(chan struct{})}
	p.ready(func() error { return errors.New("starting") })
	address := o.env("LISTEN_ADDR", ":8080")
	if address == "" || address == "off" {
		close(p.served)
		return p, nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("daemon: LISTEN_ADDR: %w (set it to \"off\" to run without probes)", err)
	}
	p.server = &http.Server{
		Handler: p, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
	logger.Info("daemon: probes listen", "address", listener.Addr().String())
	go func() {
		defer close(p.served)
		_ = p.server.Serve(listener) // until close
	}()
	return p, nil
}

func (p *probes) ready(state func() error) { p.state.Store(&state) }

func (p *probes) close() {
	if p.server != nil {
		_ = p.server.Close()
	}
	<-p.served
}

func (p *probes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	var err error
	switch r.URL.Path {
	case "/healthz":
	case "/readyz":
		err = (*p.state.Load())()
	default:
		http.NotFound(w, r)
		return
	}
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, err.Error()+"\n")
		return
	}
	_, _ = io.WriteString(w, "ok\n")
}

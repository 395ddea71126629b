package samekeytest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
)

// IdentityField returns a function for VendorOptions.Identity: it reads this member, a string or a number, of a JSON
// body.
func IdentityField(name string) func(body []byte) string {
	return func(body []byte) string {
		var object map[string]json.RawMessage
		if json.Unmarshal(body, &object) != nil {
			return ""
		}
		raw := object[name]
		var s string
		if json.Unmarshal(raw, &s) == nil {
			return s
		}
		var n json.Number
		if json.Unmarshal(raw, &n) == nil {
			return n.String()
		}
		return ""
	}
}

// parseKey reads the key from its header, bare or as a quoted string of a structured field.
func parseKey(values []string) (string, error) {
	switch len(values) {
	case 0:
		return "", errors.New("is missing")
	case 1:
	default:
		return "", errors.New("was sent more than once")
	}
	key := values[0]
	if strings.HasPrefix(key, `"`) {
		var err error
		if key, err = unquote(key); err != nil {
			return "", err
		}
	}
	if key == "" || len(key) > 255 {
		return "", fmt.Errorf("has %d bytes: want 1 to 255", len(key))
	}
	for i := range len(key) {
		if key[i] < ' ' || key[i] > '~' {
			return "", fmt.Errorf("byte %d is not printable ASCII", i)
		}
	}
	return key, nil
}

func unquote(s string) (string, error) {
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '"':
			if i != len(s)-1 {
				return "", errors.New("has text after the closing quote")
			}
			return b.String(), nil
		case '\\':
			i++
			if i == len(s) || (s[i] != '"' && s[i] != '\\') {
				return "", errors.New("has a broken escape")
			}
		}
		b.WriteByte(s[i])
	}
	return "", errors.New("has no closing quote")
}

func refusal(status int, code, message string) VendorAnswer {
	body, _ := json.Marshal(map[string]any{"error": map[string]string{"code": code, "message": message}})
	return VendorAnswer{Status: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: body}
}

func ledgerBroken() *VendorAnswer {
	return ptr(refusal(http.StatusInternalServerError, "ledger", "the vendor's ledger cannot be written, so it does not act"))
}

func writeHead(w http.ResponseWriter, a VendorAnswer) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	for name, values := range a.Header {
		h[http.CanonicalHeaderKey(name)] = values
	}
	h.Set("Content-Length", strconv.Itoa(len(a.Body)))
	w.WriteHeader(a.Status)
}

func write(w http.ResponseWriter, a VendorAnswer) {
	writeHead(w, a)
	_, _ = w.Write(a.Body) // a client that has gone is no error of the vendor's
}

// drop closes the connection without an answer. With reset, the client reads ECONNRESET instead of EOF.
func drop(w http.ResponseWriter, reset bool) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // HTTP/2: the stream is reset
	}
	if c, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = c.NetConn() // TLS
	}
	if tcp, ok := conn.(*net.TCPConn); ok && reset {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

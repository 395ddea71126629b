package jsonvalue_test

import (
	"bytes"
	"errors"
	"io"
	"math/big"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/samekey/samekey/internal/jsonvalue"
)

type (
	hidden   struct{ a int }
	open     struct{ A int }
	promoted struct{ open }
	locked   struct{ sync.Mutex }
	dashed   struct {
		A int `json:"-"`
	}
	named struct {
		A int `json:"-,"` //nolint:staticcheck // this is how a member is named "-"
	}
	tagged struct {
		hidden `json:"h"` // not exported, so not encoded
		B      int
	}
)

func TestOpaqueValues(t *testing.T) {
	for _, v := range []any{
		io.NopCloser(strings.NewReader("x")), strings.NewReader("x"), &bytes.Buffer{}, (*bytes.Buffer)(nil), bytes.Buffer{},
		hidden{1}, &hidden{1}, locked{}, dashed{1}, errors.New("x"), func() {}, make(chan int), big.Int{},
	} {
		if !jsonvalue.Opaque(v) {
			t.Errorf("a %T was let through", v)
		}
	}
	at := time.Now()
	pointer := &at
	for _, v := range []any{
		nil, 1, "x", []byte("x"), struct{}{}, &struct{}{}, open{1}, &open{1}, promoted{open{1}}, named{1}, tagged{B: 1}, at, &at, &pointer,
		big.NewInt(1), netip.Addr{}, map[string]any{}, (*open)(nil),
	} {
		if jsonvalue.Opaque(v) {
			t.Errorf("a %T was refused", v)
		}
	}
}

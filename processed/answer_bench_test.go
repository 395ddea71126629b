package processed

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

type benchLine struct {
	SKU    string `json:"sku"`
	Count  int    `json:"count"`
	Amount int64  `json:"amount"`
	Note   string `json:"note,omitempty"`
}

type benchOrder struct {
	ID       string      `json:"id"`
	Customer string      `json:"customer"`
	Lines    []benchLine `json:"lines"`
}

// What it costs to make sure, before the commit, that an answer of 1 KB replays as it is.
func BenchmarkAnswerOf1KB(b *testing.B) {
	order := benchOrder{ID: "ord_0001", Customer: "cus_0001"}
	for i := range 10 {
		order.Lines = append(order.Lines, benchLine{fmt.Sprint("sku-", i), i, 9007199254740993, strings.Repeat("x", 40)})
	}
	text, err := json.Marshal(order)
	if err != nil {
		b.Fatal(err)
	}
	loose := map[string]any{}
	if err := json.Unmarshal(text, &loose); err != nil {
		b.Fatal(err)
	}
	b.Run("encode only", func(b *testing.B) {
		for b.Loop() {
			_, _ = json.Marshal(order)
		}
	})
	b.Run("a struct", func(b *testing.B) { benchAnswer(b, order) })
	b.Run("any", func(b *testing.B) { benchAnswer[any](b, loose) })
	b.Run("bytes", func(b *testing.B) { benchAnswer(b, text) })
}

func benchAnswer[T any](b *testing.B, value T) {
	for b.Loop() {
		ans, _, err := keepable(value)
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(len(ans.body)))
	}
}

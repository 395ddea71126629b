package ginkey_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/samekey/samekey/internal/exampletb"
	"github.com/samekey/samekey/processed/httpkey"
	"github.com/samekey/samekey/processed/httpkey/ginkey"
)

func Example() {
	db, done := exampletb.DB("create table orders (id bigint generated always as identity, item text)")
	defer done()
	keyed, err := httpkey.New(db.Pool, httpkey.Options{Scope: func(r *http.Request) []string {
		return []string{ginkey.Context(r).GetString("tenant"), "orders.create"}
	}})
	if err != nil {
		log.Fatal(err)
	}
	router := gin.New()
	router.Use(func(c *gin.Context) { c.Set("tenant", "acme") }) // who is logged in
	router.POST("/orders", ginkey.Handler(keyed, func(c *gin.Context) {
		ctx := c.Request.Context()
		var id int64
		err := httpkey.Tx(ctx).QueryRow(ctx, "insert into orders (item) values ('tea') returning id").Scan(&id)
		if err != nil {
			_ = c.Error(err)
			return
		}
		c.JSON(http.StatusCreated, gin.H{"id": id})
	}))

	request := httptest.NewRequest(http.MethodPost, "/orders", nil)
	request.Header.Set("Idempotency-Key", "order-1")
	w := httptest.NewRecorder()
	router.ServeHTTP(w, request)
	fmt.Println(w.Code, strings.TrimSpace(w.Body.String()))
	// Output: 201 {"id":1}
}

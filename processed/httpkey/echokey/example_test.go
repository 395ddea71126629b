package echokey_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/samekey/samekey/internal/exampletb"
	"github.com/samekey/samekey/processed/httpkey"
	"github.com/samekey/samekey/processed/httpkey/echokey"
)

func Example() {
	db, done := exampletb.DB("create table orders (id bigint generated always as identity, item text)")
	defer done()
	keyed, err := httpkey.New(db.Pool, httpkey.Options{Scope: func(r *http.Request) []string {
		tenant, _ := echokey.Context(r).Get("tenant").(string)
		return []string{tenant, "orders.create"}
	}})
	if err != nil {
		log.Fatal(err)
	}
	e := echo.New()
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error { c.Set("tenant", "acme"); return next(c) } // who is logged in
	})
	e.POST("/orders", func(c echo.Context) error {
		ctx := c.Request().Context()
		var id int64
		err := httpkey.Tx(ctx).QueryRow(ctx, "insert into orders (item) values ('tea') returning id").Scan(&id)
		if err != nil {
			return err
		}
		return c.JSON(http.StatusCreated, map[string]int64{"id": id})
	}, echokey.Middleware(keyed))

	request := httptest.NewRequest(http.MethodPost, "/orders", nil)
	request.Header.Set("Idempotency-Key", "order-1")
	w := httptest.NewRecorder()
	e.ServeHTTP(w, request)
	fmt.Println(w.Code, strings.TrimSpace(w.Body.String()))
	// Output: 201 {"id":1}
}

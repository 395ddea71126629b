package fiberkey_test

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/gofiber/fiber/v3"

	"github.com/samekey/samekey/internal/exampletb"
	"github.com/samekey/samekey/processed/httpkey"
	"github.com/samekey/samekey/processed/httpkey/fiberkey"
)

func Example() {
	db, done := exampletb.DB("create table orders (id bigint generated always as identity, item text)")
	defer done()
	keyed, err := httpkey.New(db.Pool, httpkey.Options{Scope: func(r *http.Request) []string {
		tenant, _ := fiberkey.Context(r).Locals("tenant").(string)
		return []string{tenant, "orders.create"}
	}})
	if err != nil {
		log.Fatal(err)
	}
	app := fiber.New()
	app.Use(func(c fiber.Ctx) error { c.Locals("tenant", "acme"); return c.Next() }) // who is logged in
	app.Post("/orders", fiberkey.Handler(keyed, func(c fiber.Ctx) error {
		var id int64
		err := httpkey.Tx(c.Context()).QueryRow(c.Context(), "insert into orders (item) values ('tea') returning id").Scan(&id)
		if err != nil {
			return err
		}
		return c.Status(fiber.StatusCreated).JSON(fiber.Map{"id": id})
	}))

	request := httptest.NewRequest(http.MethodPost, "/orders", nil)
	request.Header.Set("Idempotency-Key", "order-1")
	response, err := app.Test(request)
	if err != nil {
		log.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	fmt.Println(response.StatusCode, string(body), err)
	// Output: 201 {"id":1} <nil>
}

package fiberkey_test

import (
	"net/http"

	"github.com/gofiber/fiber/v3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/processed/httpkey"
	"github.com/samekey/samekey/processed/httpkey/fiberkey"
)

func Example() {
	var pool *pgxpool.Pool // of the database with samekey's schema
	keyed, err := httpkey.New(pool, httpkey.Options{Scope: func(r *http.Request) []string {
		tenant, _ := fiberkey.Context(r).Locals("tenant").(string)
		return []string{tenant, "orders.create"}
	}})
	if err != nil {
		return
	}
	app := fiber.New()
	app.Post("/orders", fiberkey.Handler(keyed, func(c fiber.Ctx) error {
		var id int64
		err := httpkey.Tx(c.Context()).QueryRow(c.Context(), "insert into orders (item) values ('tea') returning id").Scan(&id)
		if err != nil {
			return err
		}
		return c.Status(fiber.StatusCreated).JSON(fiber.Map{"id": id})
	}))
}

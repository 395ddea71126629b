package echokey_test

import (
	"net/http"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"

	"github.com/samekey/samekey/processed/httpkey"
	"github.com/samekey/samekey/processed/httpkey/echokey"
)

func Example() {
	var pool *pgxpool.Pool // of the database with samekey's schema
	keyed, err := httpkey.New(pool, httpkey.Options{Scope: func(r *http.Request) []string {
		tenant, _ := echokey.Context(r).Get("tenant").(string)
		return []string{tenant, "orders.create"}
	}})
	if err != nil {
		return
	}
	e := echo.New()
	e.POST("/orders", func(c echo.Context) error {
		ctx := c.Request().Context()
		var id int64
		err := httpkey.Tx(ctx).QueryRow(ctx, "insert into orders (item) values ('tea') returning id").Scan(&id)
		if err != nil {
			return err
		}
		return c.JSON(http.StatusCreated, map[string]int64{"id": id})
	}, echokey.Middleware(keyed))
}

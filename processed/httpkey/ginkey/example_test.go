package ginkey_test

import (
	"net/http"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/processed/httpkey"
	"github.com/samekey/samekey/processed/httpkey/ginkey"
)

func Example() {
	var pool *pgxpool.Pool // of the database with samekey's schema
	keyed, err := httpkey.New(pool, httpkey.Options{Scope: func(r *http.Request) []string {
		return []string{ginkey.Context(r).GetString("tenant"), "orders.create"}
	}})
	if err != nil {
		return
	}
	router := gin.New()
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
}

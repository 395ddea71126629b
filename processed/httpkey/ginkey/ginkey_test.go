package ginkey_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"go.uber.org/goleak"

	"github.com/samekey/samekey/processed/httpkey"
	"github.com/samekey/samekey/processed/httpkey/ginkey"
	"github.com/samekey/samekey/processed/httpkey/internal/adaptortest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var shop = adaptortest.Adaptor{Scope: scope, Serve: serve}

func TestGinConforms(t *testing.T) { shop.Conform(t) }

func TestHandlerWithoutAnswerIsAnError(t *testing.T) {
	s := shop.Start(t)
	if got := s.Post("k1", "silent"); got.Status != 500 || !strings.Contains(got.Body, "internal") {
		t.Errorf("%+v", got)
	}
	s.Holds(0, 0, 1)
}

func scope(r *http.Request) []string {
	return []string{ginkey.Context(r).GetString("tenant"), "orders.create"}
}

func serve(s *adaptortest.Shop, keyed *httpkey.Middleware) (url string) {
	gin.SetMode(gin.ReleaseMode)
	g := gin.New()
	g.Use(gin.RecoveryWithWriter(io.Discard), func(c *gin.Context) {
		c.Set("tenant", c.GetHeader("X-Tenant"))
		c.Header("X-Outer", "1")
		c.Next()
		if c.Request.Method == "POST" && (!c.Writer.Written() || c.Writer.Status() == http.StatusOK || adaptortest.IsKeyed(c.Request)) {
			s.T.Errorf("a log further out sees %d", c.Writer.Status())
		}
	})
	v1 := g.Group("/v1")
	v1.POST("/orders/:item", ginkey.Handler(keyed, create(s)))
	v1.GET("/orders/:item", ginkey.Handler(keyed, func(c *gin.Context) {
		if c.Param("item") == "missing" {
			c.AbortWithStatus(http.StatusNotFound)
			return
		}
		c.String(http.StatusOK, c.Param("item"))
	}))
	server := httptest.NewServer(g)
	s.T.Cleanup(server.Close)
	return server.URL
}

// create is the handler of a POST.
func create(s *adaptortest.Shop) gin.HandlerFunc {
	return func(c *gin.Context) {
		var asked struct{ Quantity int }
		if err := c.ShouldBindJSON(&asked); err != nil || asked.Quantity != 1 {
			s.T.Errorf("the body is %+v, %v", asked, err)
		}
		if _, seen := c.Get("seen"); seen {
			s.T.Error("the second run sees what the first one has set")
		}
		c.Set("seen", true)
		c.Header("X-Run", "1")
		c.Header("Location", "/half")
		id, err := s.Order(c.Request.Context(), c.Param("item"))
		switch {
		case errors.Is(err, adaptortest.ErrSoldOut):
			_ = c.AbortWithError(http.StatusConflict, err)
		case err != nil:
			_ = c.Error(err)
		case c.Param("item") == "empty":
			c.Status(http.StatusNoContent)
		case c.Param("item") == "silent":
		default:
			c.Header("Location", fmt.Sprint("/v1/orders/", id))
			c.JSON(http.StatusCreated, gin.H{"id": id})
		}
	}
}

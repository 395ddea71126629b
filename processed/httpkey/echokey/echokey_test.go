package echokey_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	"go.uber.org/goleak"

	"github.com/samekey/samekey/processed/httpkey"
	"github.com/samekey/samekey/processed/httpkey/echokey"
	"github.com/samekey/samekey/processed/httpkey/internal/adaptortest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var shop = adaptortest.Adaptor{Scope: scope, Serve: serve}

func TestEchoConforms(t *testing.T) { shop.Conform(t) }

func TestErrorAfterTheAnswerCommitsNothing(t *testing.T) {
	s := shop.Start(t)
	if got := s.Post("k1", "late"); got.Status != 500 || !strings.Contains(got.Body, "internal") {
		t.Errorf("%+v", got)
	}
	s.Holds(0, 0, 1)
}

func scope(r *http.Request) []string {
	tenant, _ := echokey.Context(r).Get("tenant").(string)
	return []string{tenant, "orders.create"}
}

func serve(s *adaptortest.Shop, keyed *httpkey.Middleware) (url string) {
	e := echo.New()
	e.Logger.SetOutput(io.Discard)
	byDefault := e.HTTPErrorHandler
	e.HTTPErrorHandler = func(err error, c echo.Context) {
		if adaptortest.IsConflict(err) {
			_ = c.JSON(http.StatusConflict, map[string]string{"error": "sold"})
			return
		}
		byDefault(err, c)
	}
	e.Use(middleware.Recover(), func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			c.Set("tenant", c.Request().Header.Get("X-Tenant"))
			c.Response().Header().Set("X-Outer", "1")
			err := next(c)
			if err == nil && (!c.Response().Committed || c.Response().Header().Get("X-Outer") == "" || adaptortest.IsKeyed(c.Request())) {
				s.T.Errorf("a log further out sees %d", c.Response().Status)
			}
			return err
		}
	})
	v1 := e.Group("/v1", echokey.Middleware(keyed))
	v1.POST("/orders/:item", create(s))
	v1.GET("/orders/:item", func(c echo.Context) error {
		if c.Param("item") == "missing" {
			return echo.ErrNotFound
		}
		return c.String(http.StatusOK, c.Param("item"))
	})
	server := httptest.NewServer(e)
	s.T.Cleanup(server.Close)
	return server.URL
}

// create is the handler of a POST.
func create(s *adaptortest.Shop) echo.HandlerFunc {
	return func(c echo.Context) error {
		var asked struct{ Quantity int }
		if err := c.Bind(&asked); err != nil || asked.Quantity != 1 {
			s.T.Errorf("the body is %+v, %v", asked, err)
		}
		c.Response().Header().Add("X-Run", "1")
		c.Response().Header().Set("Location", "/half")
		id, err := s.Order(c.Request().Context(), c.Param("item"))
		switch {
		case err != nil:
			return err
		case c.Param("item") == "empty":
			return c.NoContent(http.StatusNoContent)
		case c.Param("item") == "late":
			return errors.Join(c.NoContent(http.StatusCreated), errors.New("late"))
		}
		c.Response().Header().Set("Location", fmt.Sprint("/v1/orders/", id))
		return c.JSON(http.StatusCreated, map[string]int64{"id": id})
	}
}

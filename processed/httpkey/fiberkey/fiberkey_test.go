package fiberkey_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/adaptor"
	"github.com/gofiber/fiber/v3/middleware/recover"
	"go.uber.org/goleak"

	"github.com/samekey/samekey/processed/httpkey"
	"github.com/samekey/samekey/processed/httpkey/fiberkey"
	"github.com/samekey/samekey/processed/httpkey/internal/adaptortest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"), goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"))
}

var shop = adaptortest.Adaptor{Scope: scope, Serve: serve}

func TestFiberConforms(t *testing.T) { shop.Conform(t) }

// Fiber's adaptor would run the handler after the middleware, and the handler's answer would replace the 500.
func TestFibersOwnAdaptorIsRefused(t *testing.T) {
	s := shop.Start(t)
	for range 3 {
		if got := s.Post("k1", "tea/adapted"); got.Status != 500 || !strings.Contains(got.Body, "internal") {
			t.Errorf("%+v", got)
		}
	}
	s.Holds(0, 0, 0)
	if log := s.Log(); !strings.Contains(log, "fiberkey") {
		t.Errorf("the log does not say what to do: %s", log)
	}
}

func TestNilWithoutAnswerIsAnEmpty200(t *testing.T) {
	s := shop.Start(t)
	first := s.Post("k1", "silent")
	s.Same(first, s.Post("k1", "silent"))
	if first.Status != 200 || first.Body != "" {
		t.Errorf("%+v", first)
	}
	s.Holds(1, 1, 1)
}

func scope(r *http.Request) []string {
	if fiberkey.Context(r) == nil { // the adaptor
		return []string{"acme", "orders.create"}
	}
	tenant, _ := fiberkey.Context(r).Locals("tenant").(string)
	return []string{tenant, "orders.create"}
}

func serve(s *adaptortest.Shop, keyed *httpkey.Middleware) (url string) {
	app := fiber.New(fiber.Config{ErrorHandler: func(c fiber.Ctx, err error) error {
		if adaptortest.IsConflict(err) {
			return c.Status(fiber.StatusConflict).JSON(fiber.Map{"error": "sold"})
		}
		return fiber.DefaultErrorHandler(c, err)
	}})
	app.Use(recover.New(), func(c fiber.Ctx) error {
		c.Locals("tenant", c.Get("X-Tenant"))
		c.Set("X-Outer", "1")
		return c.Next()
	})
	v1 := app.Group("/v1")
	v1.Post("/orders/:item", fiberkey.Handler(keyed, create(s)))
	v1.Get("/orders/:item", fiberkey.Handler(keyed, func(c fiber.Ctx) error {
		if c.Params("item") == "missing" {
			return fiber.ErrNotFound
		}
		return c.SendString(c.Params("item"))
	}))
	v1.Post("/orders/:item/adapted", adaptor.HTTPMiddleware(keyed.Handler), func(c fiber.Ctx) error {
		s.Ran.Add(1)
		_, err := s.DB.Exec(c.Context(), "insert into orders (item) values ($1)", c.Params("item"))
		return err
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.T.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- app.Listener(listener, fiber.ListenConfig{DisableStartupMessage: true}) }()
	s.T.Cleanup(func() {
		if err := errors.Join(app.Shutdown(), <-ended); err != nil {
			s.T.Error(err)
		}
	})
	return "http://" + listener.Addr().String()
}

// create is the handler of a POST.
func create(s *adaptortest.Shop) fiber.Handler {
	return func(c fiber.Ctx) error {
		var asked struct{ Quantity int }
		if err := c.Bind().Body(&asked); err != nil || asked.Quantity != 1 {
			s.T.Errorf("the body is %+v, %v", asked, err)
		}
		c.Response().Header.Add("X-Run", "1")
		c.Location("/half")
		id, err := s.Order(c.Context(), c.Params("item"))
		switch {
		case err != nil:
			return err
		case c.Params("item") == "empty":
			return c.SendStatus(fiber.StatusNoContent)
		case c.Params("item") == "silent":
			return nil
		}
		c.Location(fmt.Sprint("/v1/orders/", id))
		return c.Status(fiber.StatusCreated).JSON(fiber.Map{"id": id})
	}
}

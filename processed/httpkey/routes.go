package httpkey

import (
	"context"
	"reflect"
	"sync"
)

// routeContext is a router's state of one request, such as chi.Context. It is stored in the context, and routers change
// it as they consume the path.
type routeContext interface {
	RoutePattern() string
	Reset()
}

// routes is the context of one call of the handler. It returns a copy of the router's state that belongs to this call,
// so that the next call is routed like the first one.
type routes struct {
	context.Context //nolint:containedctx // it is a context itself

	mu     sync.Mutex
	copies map[routeContext]routeContext // by their original
}

func (r *routes) Value(key any) any {
	value := r.Context.Value(key)
	original, ok := value.(routeContext)
	if !ok || reflect.TypeOf(value).Kind() != reflect.Pointer {
		return value
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.copies[original] == nil {
		own := copyOf(original)
		if own == nil {
			return value
		}
		if r.copies == nil {
			r.copies = map[routeContext]routeContext{}
		}
		r.copies[original] = own
	}
	return r.copies[original]
}

// keep shows outer handlers, such as a log, how the call was routed.
func (r *routes) keep() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for original, own := range r.copies {
		reflect.ValueOf(original).Elem().Set(reflect.ValueOf(own).Elem())
	}
}

// copyOf returns a copy of the struct that original points to, or nil if it points to something else. Appending to the
// copy's slices does not reach the original.
func copyOf(original routeContext) routeContext {
	from := reflect.ValueOf(original).Elem()
	if from.Kind() != reflect.Struct {
		return nil
	}
	to := reflect.New(from.Type())
	to.Elem().Set(from)
	clip(to.Elem())
	own, _ := to.Interface().(routeContext)
	return own
}

// clip removes the spare capacity from the slices in a struct.
func clip(v reflect.Value) {
	for i := range v.NumField() {
		switch field := v.Field(i); {
		case !field.CanSet():
		case field.Kind() == reflect.Slice && !field.IsNil():
			field.Set(field.Slice3(0, field.Len(), field.Len()))
		case field.Kind() == reflect.Struct:
			clip(field)
		}
	}
}

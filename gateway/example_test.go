package gateway_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/gateway"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/router"
)

// A service serves the gateway on its own HTTP server, next to its router.
func Example() {
	type sum struct{ A, B int }
	meshtest.Example(func(ctx context.Context, url string) error {
		nc, err := nats.Connect(url, client.ConnectOptions()...)
		if err != nil {
			return err
		}
		defer nc.Close()
		r, err := router.New(nc, nil)
		if err != nil {
			return err
		}
		defer r.Close()
		s, err := r.CreateSession(ctx, &router.SessionOptions{ID: "lab"})
		if err != nil {
			return err
		}
		if _, err := s.Handle("add", host.Func(func(_ context.Context, in sum) (int, error) { return in.A + in.B, nil })); err != nil {
			return err
		}

		g, err := gateway.New(gateway.Options{Dial: func(options ...nats.Option) (*nats.Conn, error) {
			return nats.Connect(url, append(client.ConnectOptions(), options...)...)
		}})
		if err != nil {
			return err
		}
		defer g.Close()
		web := httptest.NewServer(g) // in a program an http.Server, or gateway.Listen
		defer web.Close()

		request, err := http.NewRequestWithContext(ctx, http.MethodPost, web.URL+"/v1/tools/add", strings.NewReader(`{"A":2,"B":3}`))
		if err != nil {
			return err
		}
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("Mesh-Session", "lab")
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		fmt.Println(answer.Status, strings.TrimSpace(string(body)))
		return err
	})
	// Output: 200 OK 5
}

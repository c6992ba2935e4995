package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	sideRaw         = "raw"
	sideGo          = "go"
	sidePython      = "python"
	sidePlainGo     = "plain-go"     // the tools of sideGo, called by a plain NATS client
	sidePlainPython = "plain-python" // those of sidePython
)

var allSides = []string{sideRaw, sideGo, sidePython, sidePlainGo, sidePlainPython}

// callTimeout is far above the time of any call.
const callTimeout = 30 * time.Second

// caller is the calling process: one connection for the raw side, one for the mesh.
type caller struct {
	raw, conn *nats.Conn
	mesh      *client.Client
	web       web
}

// startCaller makes a caller. args: the broker's URL.
func startCaller(_ context.Context, args []string) (_ role, err error) {
	c := &caller{}
	if c.raw, err = nats.Connect(args[0]); err == nil {
		if c.conn, err = connect(args[0]); err == nil {
			c.mesh, err = client.New(c.conn, nil)
		}
	}
	return role{do: c.serve, stop: func() { c.mesh.Close(); c.conn.Close(); c.raw.Close() }}, err
}

func (c *caller) serve(ctx context.Context, r request) (answer, error) {
	switch r.Do {
	case "install":
		return answer{}, c.install(ctx, r.Text)
	case "web":
		return answer{}, c.web.begin(ctx, r.Text)
	case "unary":
		return each(r.N, c.one(ctx, r.Side))
	case "load":
		return c.load(ctx, r), nil
	case "burst":
		return together(r.N, r.Callers, c.one(ctx, r.Side))
	case "stream":
		return c.stream(ctx, r)
	case "objects":
		return c.objects(ctx, r.N)
	case "large":
		return c.large(ctx, r.N)
	case "hang":
		_, err := c.mesh.Call(ctx, goIndex+".hang", nil)
		return answer{Text: string(toolmesh.CodeOf(err))}, nil
	case "figures":
		return answer{Figures: ownFigures(c.conn)}, nil
	}
	return answer{}, errUnknown(r)
}

func (c *caller) install(ctx context.Context, source string) error {
	b, err := bus.New(c.conn, nil)
	if err != nil {
		return err
	}
	defer b.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for _, err := range deploy.Install(ctx, b, deploy.Request{Source: source}, nil) {
		if err != nil {
			return fmt.Errorf("install: %w", err)
		}
	}
	return nil
}

func (c *caller) one(ctx context.Context, side string) func() error {
	if one := c.web.one(ctx, side); one != nil {
		return one
	}
	args := []byte(callArgs)
	mesh, plain := plainOf[side]
	if plain || side == sideRaw {
		subject, err := rawSubject, error(nil)
		if plain {
			subject, err = subjects.Tool(subjects.DefaultSession, subjects.ToolID(toolOf(mesh, "refund")))
		}
		return func() error {
			if err != nil {
				return err
			}
			m, err := c.raw.Request(subject, args, callTimeout)
			if err == nil && string(m.Data) != callResult {
				err = fmt.Errorf("the result is %s", m.Data)
			}
			return err
		}
	}
	id := subjects.ToolID(side)
	if !strings.Contains(side, ".") {
		id = subjects.ToolID(toolOf(side, "refund"))
	}
	return func() error {
		r, err := c.mesh.Call(ctx, id, json.RawMessage(args))
		if err == nil && string(r.Value) != callResult {
			err = fmt.Errorf("the result is %s", r.Value)
		}
		return err
	}
}

func (c *caller) stream(ctx context.Context, r request) (answer, error) {
	if r.Side == "http" {
		return c.web.stream(ctx, r.N)
	}
	began := time.Now()
	n := 0
	for chunk, err := range c.mesh.Stream(ctx, subjects.ToolID(toolOf(r.Side, "count")), countArgs{To: r.N}) {
		if err != nil {
			return answer{}, fmt.Errorf("after %d items: %w", n, err)
		}
		if n++; len(chunk.Data) < len(itemText) {
			return answer{}, fmt.Errorf("item %d is %s", n, chunk.Data)
		}
	}
	if n != r.N {
		return answer{}, fmt.Errorf("the stream had %d items of %d", n, r.N)
	}
	return answer{Took: time.Since(began), Ops: n}, nil
}

// wideArgs returns 64 MB of arguments, which are the result, too.
var wideArgs = sync.OnceValue(func() json.RawMessage {
	return json.RawMessage(`{"text":"` + strings.Repeat("0123456789abcdef", 4_000_000) + `"}`)
})

// objects measures the min cost of a large argument and a large result: an object store takes and
// returns each.
func (c *caller) objects(ctx context.Context, n int) (answer, error) {
	js, err := jetstream.New(c.raw)
	if err != nil {
		return answer{}, err
	}
	store, err := js.CreateOrUpdateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: "RAW_OBJECTS"})
	if err != nil {
		return answer{}, err
	}
	return each(n, func() error {
		for _, name := range []string{"argument", "result"} {
			if _, err := store.PutBytes(ctx, name, wideArgs()); err != nil {
				return err
			}
			if _, err := store.GetBytes(ctx, name); err != nil {
				return err
			}
		}
		return nil
	})
}

// large measures calls with that argument and result.
func (c *caller) large(ctx context.Context, n int) (answer, error) {
	return each(n, func() error {
		r, err := c.mesh.Call(ctx, goIndex+".echo", wideArgs())
		if err == nil && len(r.Value) != len(wideArgs()) {
			err = fmt.Errorf("%d bytes came back", len(r.Value))
		}
		return err
	})
}

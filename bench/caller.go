package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	sideRaw         = "raw"
	sideGo          = "go"
	sidePython      = "python"
	sidePlainGo     = "plain-go"     // the tools of sideGo, called by a plain NATS client
	sidePlainPython = "plain-python" // likewise
)

// callTimeout is far beyond what a call may take.
const callTimeout = 30 * time.Second

// caller is the calling process: one connection for the raw side and one for
// the mesh.
type caller struct {
	raw, conn *nats.Conn
	mesh      *client.Client
}

// startCaller makes a caller. args: the broker's URL.
func startCaller(_ context.Context, args []string) (_ role, err error) {
	c := &caller{}
	if c.raw, err = nats.Connect(args[0]); err == nil {
		if c.conn, err = nats.Connect(args[0], client.ConnectOptions()...); err == nil {
			c.mesh, err = client.New(c.conn, nil)
		}
	}
	return role{do: c.serve, stop: func() { c.mesh.Close(); c.conn.Close(); c.raw.Close() }}, err
}

func (c *caller) serve(ctx context.Context, r request) (answer, error) {
	switch r.Do {
	case "install":
		return answer{}, c.install(ctx, r.Text)
	case "unary":
		return each(r.N, c.one(ctx, r.Side))
	case "load":
		return c.load(ctx, r)
	case "burst":
		return together(r.N, r.Callers, c.one(ctx, r.Side))
	case "cached":
		return c.cached(ctx, r.N)
	case "stream":
		return c.stream(ctx, r)
	case "writes":
		return c.writes(ctx, r.N)
	case "publishes":
		return c.publishes(ctx, r.N)
	case "tasks":
		return c.tasks(ctx, r.N)
	case "keyed":
		return c.keyed(ctx, r.N)
	case "turns":
		return c.turns(ctx, r.N)
	case "objects":
		return c.objects(ctx, r.N)
	case "large":
		return c.large(ctx, r.N)
	case "batch":
		return c.batches(ctx, r.N, r.Callers)
	case "counters":
		s := c.conn.Stats()
		return answer{In: s.InMsgs, Out: s.OutMsgs}, nil
	}
	return answer{}, errUnknown(r)
}

func (c *caller) install(ctx context.Context, source string) error {
	subject, err := subjects.Admin("install")
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string]string{"source": source})
	if err != nil {
		return err
	}
	reply := c.conn.NewInbox()
	sub, err := c.conn.SubscribeSync(reply)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := c.conn.PublishRequest(subject, reply, body); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return fmt.Errorf("install: %w", err)
		}
		if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
			// The broker has yet to hear of the agent's subscription.
			if err := c.conn.PublishRequest(subject, reply, body); err != nil {
				return err
			}
			continue
		}
		if len(m.Data) == 0 {
			return nil
		}
		var line struct{ Error json.RawMessage }
		if json.Unmarshal(m.Data, &line) == nil && line.Error != nil {
			return fmt.Errorf("install: %s", line.Error)
		}
	}
}

func (c *caller) one(ctx context.Context, side string) func() error {
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
	id := subjects.ToolID(toolOf(side, "refund"))
	return func() error {
		r, err := c.mesh.Call(ctx, id, json.RawMessage(args))
		if err == nil && string(r.Value) != callResult {
			err = fmt.Errorf("the result is %s", r.Value)
		}
		return err
	}
}

func (c *caller) stream(ctx context.Context, r request) (answer, error) {
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

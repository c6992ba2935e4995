package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"runtime/debug"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh/agent"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/broker"
	"github.com/toolmesh/toolmesh/subjects"
)

// startBroker is the broker's process. args: a folder, its name, its configuration.
func startBroker(ctx context.Context, args []string) (role, error) {
	debug.SetGCPercent(gcPercent)
	b, err := broker.Start(ctx, broker.Options{StoreDir: args[0], Name: args[1], Config: args[2], MaxStore: 64 << 30})
	if err != nil {
		return role{}, err
	}
	do := func(_ context.Context, r request) (answer, error) {
		v, err := b.Server().Varz(nil)
		if err != nil || r.Do != "figures" {
			return answer{}, cmp.Or(err, errUnknown(r))
		}
		f := ownFigures(nil)
		f.InMsgs, f.OutMsgs, f.InBytes, f.Subscriptions = uint64(v.InMsgs), uint64(v.OutMsgs), uint64(v.InBytes), uint64(v.Subscriptions) //nolint:gosec // counts
		return answer{Figures: f}, nil
	}
	return role{do, b.URL(), b.Shutdown}, nil
}

func errUnknown(r request) error { return fmt.Errorf("request %q is not for this process", r.Do) }

// gcPercent is what mesh, mesh-agent and mesh-router set for themselves. The
// broker serves both sides; the processes that stand for a program of a user's
// (the raw service, the Go service, the caller) keep Go's default.
const gcPercent = 400

const (
	rawSubject = "raw.echo"
	rawStream  = "RAW"
	rawItems   = "raw.items"
)

// startRaw is the serving process of the raw side: one subscriber, and a
// publisher of streams. args: the broker's URL.
func startRaw(ctx context.Context, args []string) (role, error) {
	nc, err := nats.Connect(args[0])
	if err != nil {
		return role{}, err
	}
	result := []byte(callResult)
	if _, err := nc.Subscribe(rawSubject, func(m *nats.Msg) { _ = m.Respond(result) }); err != nil {
		return role{}, err
	}
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(rawWindow))
	if err == nil {
		_, err = js.CreateStream(ctx, jetstream.StreamConfig{
			Name: rawStream, Subjects: []string{rawItems}, Storage: jetstream.FileStorage, AllowDirect: true,
			MaxAge: 15 * time.Minute, MaxBytes: 1 << 30, Discard: jetstream.DiscardNew,
		})
	}
	if err != nil {
		return role{}, err
	}
	item := []byte(itemText)
	do := func(ctx context.Context, r request) (answer, error) {
		if r.Do != "stream" {
			return answer{}, errUnknown(r)
		}
		began := time.Now()
		for range r.N {
			if _, err := js.PublishMsgAsync(&nats.Msg{Subject: rawItems, Data: item}); err != nil {
				return answer{}, err
			}
		}
		select {
		case <-js.PublishAsyncComplete():
		case <-time.After(time.Minute):
			return answer{}, errors.New("the store did not take the items within a minute")
		}
		return answer{Took: time.Since(began), Ops: r.N}, nil
	}
	return role{do: do, stop: nc.Close}, nil
}

// rawWindow is how many items the raw publisher has on their way: larger ones
// were not faster.
const rawWindow = 1024

// refundArgs and refundResult are what a call carries.
type refundArgs struct {
	Order  string `json:"order"`
	Amount int    `json:"amount"`
}

type refundResult struct {
	Order    string `json:"order"`
	Refunded int    `json:"refunded"`
}

const (
	callArgs   = `{"order":"A-1041","amount":7}`
	callResult = `{"order":"A-1041","refunded":7}`
)

type countArgs struct {
	To int `json:"to"`
}

// item is an item of a stream, 128 bytes of JSON.
type item struct {
	Text string `json:"text"`
}

const (
	itemWords = "The quick brown fox jumps over the lazy dog while a mesh of agents carries one token after the other, as it comes."
	itemText  = `{"text":"` + itemWords + `"}`
)

func refund(_ context.Context, in refundArgs) (refundResult, error) {
	return refundResult{Order: in.Order, Refunded: in.Amount}, nil
}

func count(_ context.Context, in countArgs) iter.Seq2[item, error] {
	return func(yield func(item, error) bool) {
		for range in.To {
			if !yield(item{Text: itemWords}, nil) {
				return
			}
		}
	}
}

// streamQuota is beyond what all rounds together store.
const streamQuota = 8 << 30

// echo returns its arguments.
func echo(ctx context.Context, call *host.Call, sink host.Sink) error {
	return sink.Send(ctx, call.Args)
}

// hang does not end.
func hang(ctx context.Context, _ struct{}) (struct{}, error) {
	<-ctx.Done()
	return struct{}{}, context.Cause(ctx)
}

// startHost is a service with Go tools. args: the brokers.
func startHost(ctx context.Context, args []string) (role, error) {
	nc, err := connect(args[0])
	if err != nil {
		return role{}, err
	}
	h, err := host.New(nc, &host.Options{Index: goIndex, StreamQuota: streamQuota})
	if err != nil {
		return role{}, err
	}
	for name, handler := range map[string]host.Handler{"refund": host.Func(refund), "count": host.Stream(count), "hang": host.Func(hang), "echo": host.HandlerFunc(echo)} {
		var schema []host.ToolOption
		if name == "echo" {
			schema = append(schema, host.Schema(json.RawMessage(`{"type":"object"}`), nil))
		}
		if _, err = h.Handle(name, handler, schema...); err != nil {
			break
		}
	}
	if err == nil {
		err = h.Start(ctx)
	}
	if err != nil {
		return role{}, err
	}
	return role{stop: stops(h.Stop, nc)}, nil
}

// startAgent is one machine's agent. args: the brokers, a folder, the node's id.
func startAgent(ctx context.Context, args []string) (role, error) {
	debug.SetGCPercent(gcPercent)
	nc, err := connect(args[0])
	if err != nil {
		return role{}, err
	}
	a, err := agent.New(nc, args[1], &agent.Options{
		Node: subjects.NodeID(args[2]), Environ: os.Environ(), StreamQuota: streamQuota, PrivateSources: true, Logger: warnings(),
	})
	if err == nil {
		err = a.Start(ctx)
	}
	if err != nil {
		return role{}, err
	}
	return role{do: around(nc, a.Ready), stop: stops(a.Stop, nc)}, nil
}

func warnings() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// around serves the requests to a process that has one connection and a view.
func around(nc *nats.Conn, ready func(context.Context) error) func(context.Context, request) (answer, error) {
	return func(ctx context.Context, r request) (answer, error) {
		switch r.Do {
		case "ready":
			return answer{}, ready(ctx)
		case "figures":
			return answer{Figures: ownFigures(nc)}, nil
		case "reconnect":
			return answer{}, nc.ForceReconnect()
		}
		return answer{}, errUnknown(r)
	}
}

// stops ends a node and its connection.
func stops(stop func(context.Context) error, nc *nats.Conn) func() {
	return func() {
		end, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = stop(end)
		nc.Close()
	}
}

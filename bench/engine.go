package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/tool"
)

// The section "engine": the executor alone, in a process of its own, without a
// message on NATS. What it is held against is a pipe echo by cat, which reads and
// writes by bare system calls.

const (
	flightWait  = 50 * time.Millisecond
	flightCalls = 1000 // at once
)

const engineTools = `
import argparse, asyncio, dataclasses, decimal, email.message, http.client, json, sqlite3, urllib.request, uuid, xml.dom.minidom

def weather(city: str, days: int = 1) -> dict:
    """The weather of some days."""
    return {"city": city, "days": days, "summary": "fine", "degrees": 21.5}

def count(n: int):
    """As many items as asked."""
    for i in range(n):
        yield i

async def wait(seconds: float) -> None:
    """Wait without computing."""
    await asyncio.sleep(seconds)

def forever() -> None:
    """Compute without end."""
    print("begun", flush=True)
    while True:
        pass
`

type engine struct {
	dir  string
	x    *executor.Executor
	env  *executor.Env
	ix   *executor.Index
	bare *executor.Index

	echo *exec.Cmd
	in   io.WriteCloser
	out  io.Reader
}

// startEngine is that process's start. args: a folder.
func startEngine(ctx context.Context, args []string) (role, error) {
	e := &engine{dir: args[0]}
	if err := e.start(ctx); err != nil {
		e.stop()
		return role{}, err
	}
	return role{do: e.do, stop: e.stop}, nil
}

func (e *engine) start(ctx context.Context) (err error) {
	if err := os.MkdirAll(e.tools(), 0o750); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(e.tools(), "t.py"), []byte(engineTools), 0o600); err != nil {
		return err
	}
	if e.x, err = executor.New(filepath.Join(e.dir, "executor"), &executor.Options{Environ: os.Environ()}); err != nil {
		return err
	}
	if e.env, err = e.x.Environment(ctx, e.tools(), executor.Lock{}, executor.Making{}, nil); err != nil {
		return err
	}
	names := []string{"t.weather", "t.count", "t.wait", "t.forever"}
	if e.ix, err = e.open(ctx, nil, names...); err != nil {
		return err
	}
	if e.bare, err = e.open(ctx, map[string]executor.Policy{"t.weather": {Sandbox: tool.SandboxNone}}, "t.weather"); err != nil {
		return err
	}
	return e.startEcho()
}

// tools is the folder of the index.
func (e *engine) tools() string { return filepath.Join(e.dir, "t") }

func (e *engine) open(ctx context.Context, policies map[string]executor.Policy, names ...string) (*executor.Index, error) {
	return e.x.Open(ctx, executor.Spec{Name: "engine", SourceDir: e.tools(), Env: e.env, Tools: names, Policies: policies})
}

func (e *engine) startEcho() (err error) {
	e.echo = exec.Command("cat") //nolint:noctx // ends with its standard input
	if e.in, err = e.echo.StdinPipe(); err != nil {
		return err
	}
	if e.out, err = e.echo.StdoutPipe(); err != nil {
		return err
	}
	return e.echo.Start()
}

func (e *engine) stop() {
	if e.in != nil {
		_ = e.in.Close()
		_ = e.echo.Wait()
	}
	if e.x != nil {
		_ = e.x.Close()
	}
}

// engineTurns are what is measured, in the order of a round: how many operations
// of a full round and at least, and in how many rounds at most, because some take
// long.
var engineTurns = []struct {
	name       string
	ops, least int
	rounds     int
	do         func(e *engine, ctx context.Context, n int) (answer, error)
}{
	{"echo", 1000, 20, 100, (*engine).echoes},
	{"warm", 1000, 20, 100, func(e *engine, ctx context.Context, n int) (answer, error) { return e.calls(ctx, n, e.ix, "") }},
	{"bare", 1000, 20, 100, func(e *engine, ctx context.Context, n int) (answer, error) { return e.calls(ctx, n, e.bare, "") }},
	{"fork", 100, 2, 100, func(e *engine, ctx context.Context, n int) (answer, error) {
		return e.calls(ctx, n, e.ix, toolmesh.IsolationFork)
	}},
	{"fresh", 2, 1, 5, func(e *engine, ctx context.Context, n int) (answer, error) {
		return e.calls(ctx, n, e.ix, toolmesh.IsolationFresh)
	}},
	{"items", 200_000, 1000, 100, (*engine).items},
	{"flight", 5 * flightCalls, flightCalls, 7, (*engine).flight},
	{"cancel", 50, 2, 100, (*engine).cancels},
	{"cold", 1, 1, 7, (*engine).opens},
	{"python", 1, 1, 7, func(e *engine, ctx context.Context, n int) (answer, error) {
		return each(n, func() error { return e.python(ctx, "import t; print(t.weather('Oslo', 3))") })
	}},
}

// do makes one measurement of r.N operations.
func (e *engine) do(ctx context.Context, r request) (answer, error) {
	for _, turn := range engineTurns {
		if turn.name == r.Do {
			return turn.do(e, ctx, r.N)
		}
	}
	return answer{}, errUnknown(r)
}

func (e *engine) echoes(_ context.Context, n int) (answer, error) {
	message, buf := make([]byte, 89), make([]byte, 89)
	return each(n, func() error {
		if _, err := e.in.Write(message); err != nil {
			return err
		}
		_, err := io.ReadFull(e.out, buf)
		return err
	})
}

var forOslo = json.RawMessage(`{"city":"Oslo","days":3}`)

func (e *engine) calls(ctx context.Context, n int, ix *executor.Index, isolation toolmesh.Isolation) (answer, error) {
	return each(n, func() error {
		_, err := ix.Call(ctx, executor.Call{Tool: "t.weather", Args: forOslo, Isolation: isolation}, nil)
		return err
	})
}

func (e *engine) items(ctx context.Context, n int) (answer, error) {
	sink := &counter{}
	began := time.Now()
	_, err := e.ix.Call(ctx, executor.Call{Tool: "t.count", Args: json.RawMessage(fmt.Sprintf(`{"n":%d}`, n)), Stream: true}, sink)
	if err == nil && sink.n != n {
		err = fmt.Errorf("%d of %d items came", sink.n, n)
	}
	return answer{Took: time.Since(began), Ops: n}, err
}

// python runs a program beside the tools.
func (e *engine) python(ctx context.Context, program string) error {
	cmd := exec.CommandContext(ctx, e.env.Python, "-c", program) //nolint:gosec // our own
	cmd.Dir = e.tools()
	return cmd.Run()
}

// flight makes n calls that wait, flightCalls at once.
func (e *engine) flight(ctx context.Context, n int) (answer, error) {
	one := executor.Call{Tool: "t.wait", Args: json.RawMessage(fmt.Sprintf(`{"seconds":%g}`, flightWait.Seconds()))}
	return together(n, flightCalls, func() error {
		_, err := e.ix.Call(ctx, one, nil)
		return err
	})
}

// cancels times from a cancellation to the call's end, and has another call run
// after each, which must not be hit.
func (e *engine) cancels(ctx context.Context, n int) (answer, error) {
	return timed(n, func() (time.Duration, error) {
		inner, cancel := context.WithCancel(ctx)
		defer cancel()
		sink := &counter{begun: make(chan struct{}, 1)}
		ended := make(chan error, 1)
		go func() {
			_, err := e.ix.Call(inner, executor.Call{Tool: "t.forever"}, sink)
			ended <- err
		}()
		select {
		case <-sink.begun:
		case err := <-ended:
			return 0, fmt.Errorf("the call that never ends has ended: %w", err)
		}
		began := time.Now()
		cancel()
		err := <-ended
		took := time.Since(began)
		if toolmesh.CodeOf(err) != toolmesh.CodeCancelled {
			return 0, fmt.Errorf("the cancelled call ended otherwise: %w", err)
		}
		if _, err := e.ix.Call(ctx, executor.Call{Tool: "t.weather", Args: forOslo}, nil); err != nil {
			return 0, fmt.Errorf("the call after a cancelled one: %w", err)
		}
		return took, nil
	})
}

// opens times the opening of an index together with a first call.
func (e *engine) opens(ctx context.Context, n int) (answer, error) {
	return timed(n, func() (time.Duration, error) {
		began := time.Now()
		ix, err := e.open(ctx, nil, "t.weather")
		if err != nil {
			return 0, err
		}
		_, err = ix.Call(ctx, executor.Call{Tool: "t.weather", Args: forOslo}, nil)
		took := time.Since(began)
		return took, errors.Join(err, ix.Close(ctx))
	})
}

type counter struct {
	n     int
	begun chan struct{}
}

// Item implements [executor.Sink].
func (c *counter) Item(context.Context, json.RawMessage) error { c.n++; return nil }

// Log implements [executor.Sink].
func (c *counter) Log(executor.Record) {
	if c.begun != nil {
		select {
		case c.begun <- struct{}{}:
		default:
		}
	}
}

func (p *plan) measureEngine(ctx context.Context, stderr io.Writer, dir string, r *result) error {
	c, err := startChild(ctx, stderr, "engine", filepath.Join(dir, "engine"))
	if err != nil {
		return err
	}
	defer c.end()
	for _, turn := range engineTurns { // each is warm before anything counts
		if _, err := c.ask(request{Do: turn.name, N: turn.least}); err != nil {
			return fmt.Errorf("%s: %w", turn.name, err)
		}
	}
	r.samples["engine"] = make(map[string][]answer)
	for round := range p.Rounds {
		for _, turn := range engineTurns {
			if round >= turn.rounds {
				continue
			}
			n := max(turn.ops*min(p.Calls, 1000)/1000, turn.least)
			a, err := c.ask(request{Do: turn.name, N: n})
			if err != nil {
				return fmt.Errorf("%s: %w", turn.name, err)
			}
			r.samples["engine"][turn.name] = append(r.samples["engine"][turn.name], a)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

func (r *result) concludeEngine() {
	got := r.samples["engine"]
	if len(got) == 0 {
		return
	}
	of := func(name string, f func(answer) float64) float64 { return medianOf(got[name], f) }
	compared := func(what, ours, raw string, limit bound) {
		r.compared("engine: "+what, got[ours], got[raw], p50, micros, &limit)
	}
	alone := func(what, ours string, value float64, limit bound) {
		l := line{What: "engine: " + what, Ours: ours}
		l.Must, l.Verdict = limit.verdict(value)
		r.add(l, nil)
	}
	ms := func(name string) float64 { return of(name, p50) / 1e6 }
	text := func(ms float64) string { return fmt.Sprintf("%.2f", ms) }

	compared("warm call p50, against an echo by bare system calls over pipes", "warm", "echo", bound{must: 7, goal: 4}) // about 3.5 when that was set
	compared("what sandbox guard adds to it, against none", "warm", "bare", bound{must: 1.1, goal: 1.03})
	compared("fork-isolated call p50, against a fresh interpreter", "fork", "fresh", bound{must: 1.0 / 45, goal: 1.0 / 50})
	alone("fork-isolated call p50 in ms", text(ms("fork")), ms("fork"), bound{must: 4.5, goal: 2})
	alone("items/s of a generator, one worker, in thousands", perSecond(of("items", rate)), of("items", rate)/1e3, bound{must: 200, goal: 400, least: true})
	ideal := float64(flightCalls) / flightWait.Seconds()
	alone(fmt.Sprintf("%d coroutines of %v in flight, against the ideal %.0f/s", flightCalls, flightWait, ideal),
		perSecond(of("flight", rate)), of("flight", rate)/ideal, bound{must: 0.75, goal: 0.8, least: true})
	alone("from the cancellation of a loop to the call's end, p50 in ms", text(ms("cancel")), ms("cancel"), bound{must: 2, goal: 1})
	compared("cold index to first answer, against a plain interpreter with the same imports", "cold", "python", bound{must: 1.0 / 4, goal: 1.0 / 6})
}

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
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/executor/output"
	"github.com/toolmesh/toolmesh/tool"
)

// The section "engine": the executor alone, in a process of its own, without a
// message on NATS. What it is held against is a pipe echo: a child that reads
// and writes by bare system calls, as a C program would. No C compiler is needed
// for it, so it is this program again; the Go runtime sleeps meanwhile.

// echoRole is the echo's first argument.
const echoRole = rolePrefix + "echo"

// engineRequests are what the process of the section measures, once per round.
const (
	engineEcho     = "echo"
	engineWarm     = "warm"     // sandbox guard
	engineBare     = "bare"     // sandbox none
	engineFork     = "fork"     // fork after fork
	engineFresh    = "fresh"    // a new interpreter for each call
	engineItems    = "items"    // of a generator
	engineFlight   = "flight"   // a thousand coroutines that wait
	engineSteady   = "steady"   // as flight, four times as long: beginning and end count for less
	engineCancel   = "cancel"   // of a loop
	engineTogether = "together" // describe tools in one import
	engineSingly   = "singly"   // an interpreter for each
	engineCold     = "cold"     // from nothing to the first answer
	enginePython   = "python"   // the interpreter with the same imports
	engineAsyncio  = "asyncio"  // as flight, without any of us
	engineForked   = "forked"   // a fork of an interpreter with the same imports, until it runs
)

const (
	flightWait  = 50 * time.Millisecond
	flightCalls = 1000 // at once
	manyTools   = 12
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

// What Python itself takes for as much, in nanoseconds: these are no limits, they
// say how near to one we can come on this machine.
const (
	asyncioAlone = `
import asyncio, time
async def wait(): await asyncio.sleep(%g)
async def caller():
    for _ in range(%d): await asyncio.create_task(wait())
async def main():
    began = time.perf_counter_ns()
    await asyncio.gather(*[caller() for _ in range(%d)])
    print(time.perf_counter_ns() - began)
asyncio.run(main())
`
	forkAlone = `
import os, time, t
took = []
for _ in range(%d):
    r, w = os.pipe()
    began = time.perf_counter_ns()
    pid = os.fork()
    if not pid:
        os.write(w, b"x")
        os._exit(0)
    os.read(r, 1)
    took.append(time.perf_counter_ns() - began)
    os.waitpid(pid, 0)
    os.close(r), os.close(w)
print(sorted(took)[len(took) // 2])
`
)

// echo copies its standard input to its standard output.
func echo() int {
	runtime.LockOSThread()
	buf := make([]byte, 64<<10)
	for {
		n, err := syscall.Read(0, buf)
		if err == syscall.EINTR { //nolint:errorlint // a plain errno
			continue
		}
		if n <= 0 || err != nil {
			return 0
		}
		for done := 0; done < n; {
			m, err := syscall.Write(1, buf[done:n])
			if err == syscall.EINTR { //nolint:errorlint // as above
				continue
			}
			if err != nil {
				return 1
			}
			done += m
		}
	}
}

// engine is the process of the section.
type engine struct {
	dir  string
	x    *executor.Executor
	env  *executor.Env
	own  *executor.Executor // whose indexes have an interpreter each
	ix   *executor.Index
	bare *executor.Index

	echo    *exec.Cmd
	in, out *os.File
}

// startEngine is that process's start. args: a folder.
func startEngine(ctx context.Context, args []string) (roleFunc, string, func(), error) {
	e := &engine{dir: args[0]}
	if err := e.start(ctx); err != nil {
		e.stop()
		return nil, "", nil, err
	}
	return e.do, "", e.stop, nil
}

func (e *engine) start(ctx context.Context) (err error) {
	for i := range manyTools {
		if err := writeModule(e.folder("many"), fmt.Sprintf("m%d", i), engineTools); err != nil {
			return err
		}
	}
	if err := writeModule(e.folder("t"), "t", engineTools); err != nil {
		return err
	}
	if e.x, err = executor.New(filepath.Join(e.dir, "executor"), &executor.Options{Environ: os.Environ()}); err != nil {
		return err
	}
	if e.env, err = e.x.Environment(ctx, e.folder("t"), executor.Lock{}, nil); err != nil {
		return err
	}
	if e.own, err = executor.New(filepath.Join(e.dir, "own"), &executor.Options{Environ: os.Environ(), OwnInterpreters: true}); err != nil {
		return err
	}
	names := []string{"t.weather", "t.count", "t.wait", "t.forever"}
	if e.ix, err = e.open(ctx, "t", nil, names...); err != nil {
		return err
	}
	if e.bare, err = e.open(ctx, "t", map[string]executor.Policy{"t.weather": {Sandbox: tool.SandboxNone}}, "t.weather"); err != nil {
		return err
	}
	return e.startEcho()
}

func (e *engine) folder(name string) string { return filepath.Join(e.dir, name) }

func writeModule(dir, name, text string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name+".py"), []byte(text), 0o600)
}

func (e *engine) open(ctx context.Context, folder string, policies map[string]executor.Policy, names ...string) (*executor.Index, error) {
	return e.openIn(ctx, e.x, folder, policies, names...)
}

func (e *engine) openIn(ctx context.Context, x *executor.Executor, folder string, policies map[string]executor.Policy, names ...string,
) (*executor.Index, error) {
	return x.Open(ctx, executor.Spec{Name: "engine", SourceDir: e.folder(folder), Env: e.env, Tools: names, Policies: policies})
}

func (e *engine) startEcho() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	inR, inW, err := os.Pipe()
	if err != nil {
		return err
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		return errors.Join(err, inR.Close(), inW.Close())
	}
	e.in, e.out = inW, outR
	e.echo = exec.Command(self, echoRole) //nolint:gosec,noctx // ourselves; ends with its standard input
	e.echo.Stdin, e.echo.Stdout = inR, outW
	return errors.Join(e.echo.Start(), inR.Close(), outW.Close())
}

func (e *engine) stop() {
	if e.in != nil {
		_ = e.in.Close()
		_ = e.echo.Wait()
		_ = e.out.Close()
	}
	for _, x := range []*executor.Executor{e.x, e.own} {
		if x != nil {
			_ = x.Close()
		}
	}
}

// do makes one measurement of r.N operations.
func (e *engine) do(ctx context.Context, r request) (answer, error) {
	switch r.Do {
	case engineEcho:
		message, buf := make([]byte, 89), make([]byte, 89)
		return each(r.N, func() error {
			if _, err := e.in.Write(message); err != nil {
				return err
			}
			_, err := io.ReadFull(e.out, buf)
			return err
		})
	case engineWarm, engineBare, engineFork, engineFresh:
		ix, one := e.ix, executor.Call{Tool: "t.weather", Args: json.RawMessage(`{"city":"Oslo","days":3}`)}
		switch r.Do {
		case engineBare:
			ix = e.bare
		case engineFork:
			one.Isolation = toolmesh.IsolationFork
		case engineFresh:
			one.Isolation = toolmesh.IsolationFresh
		}
		return each(r.N, func() error {
			_, err := ix.Call(ctx, one, nil)
			return err
		})
	case engineItems:
		sink := &counter{}
		begin := time.Now()
		_, err := e.ix.Call(ctx, executor.Call{Tool: "t.count", Args: json.RawMessage(fmt.Sprintf(`{"n":%d}`, r.N)), Stream: true}, sink)
		if err == nil && sink.n != r.N {
			err = fmt.Errorf("%d of %d items came", sink.n, r.N)
		}
		return answer{Took: time.Since(begin), Ops: r.N}, err
	case engineFlight, engineSteady:
		return e.flight(ctx, r.N)
	case engineCancel:
		return e.cancels(ctx, r.N)
	case engineTogether, engineSingly, engineCold:
		return e.begins(ctx, r)
	case enginePython:
		return each(r.N, func() error {
			cmd := exec.CommandContext(ctx, e.env.Python, "-c", "import t; print(t.weather('Oslo', 3))") //nolint:gosec // our own
			cmd.Dir = e.folder("t")
			return cmd.Run()
		})
	case engineAsyncio:
		took, err := e.alone(ctx, fmt.Sprintf(asyncioAlone, flightWait.Seconds(), r.N/flightCalls, flightCalls))
		return answer{Took: took, Ops: r.N / flightCalls * flightCalls}, err
	case engineForked:
		p50, err := e.alone(ctx, fmt.Sprintf(forkAlone, r.N))
		return answer{P50: p50, Ops: r.N}, err
	}
	return answer{}, errUnknown(r)
}

// alone runs a program of Python that prints nanoseconds.
func (e *engine) alone(ctx context.Context, program string) (time.Duration, error) {
	cmd := exec.CommandContext(ctx, e.env.Python, "-c", program) //nolint:gosec // our own
	cmd.Dir = e.folder("t")
	text, err := cmd.Output()
	if err != nil {
		return 0, err
	}
	ns, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return time.Duration(ns), err
}

// each times n operations one by one.
func each(n int, do func() error) (answer, error) {
	times := make([]time.Duration, n)
	begin := time.Now()
	for i := range times {
		start := time.Now()
		if err := do(); err != nil {
			return answer{}, err
		}
		times[i] = time.Since(start)
	}
	took := time.Since(begin)
	slices.Sort(times)
	return answer{P50: times[n/2], P99: times[n*99/100], Took: took, Ops: n}, nil
}

// flight makes n calls that wait, flightCalls at once.
func (e *engine) flight(ctx context.Context, n int) (answer, error) {
	one := executor.Call{Tool: "t.wait", Args: json.RawMessage(fmt.Sprintf(`{"seconds":%g}`, flightWait.Seconds()))}
	var wg sync.WaitGroup
	failed := make(chan error, flightCalls)
	begin := time.Now()
	for range flightCalls {
		wg.Go(func() {
			for range n / flightCalls {
				if _, err := e.ix.Call(ctx, one, nil); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(begin)
	select {
	case err := <-failed:
		return answer{}, err
	default:
	}
	return answer{Took: took, Ops: n / flightCalls * flightCalls}, nil
}

// cancels times from a cancellation to the call's end, and has another call run
// after each, which must not be hit.
func (e *engine) cancels(ctx context.Context, n int) (answer, error) {
	times := make([]time.Duration, n)
	for i := range times {
		inner, cancel := context.WithCancel(ctx)
		sink := &counter{begun: make(chan struct{}, 1)}
		ended := make(chan error, 1)
		go func() {
			_, err := e.ix.Call(inner, executor.Call{Tool: "t.forever"}, sink)
			ended <- err
		}()
		select {
		case <-sink.begun:
		case err := <-ended:
			cancel()
			return answer{}, fmt.Errorf("the call that never ends has ended: %w", err)
		}
		start := time.Now()
		cancel()
		err := <-ended
		times[i] = time.Since(start)
		if toolmesh.CodeOf(err) != toolmesh.CodeCancelled {
			return answer{}, fmt.Errorf("the cancelled call ended otherwise: %w", err)
		}
		if _, err := e.ix.Call(ctx, executor.Call{Tool: "t.weather", Args: json.RawMessage(`{"city":"Oslo"}`)}, nil); err != nil {
			return answer{}, fmt.Errorf("the call after a cancelled one: %w", err)
		}
	}
	slices.Sort(times)
	return answer{P50: times[n/2], Ops: n}, nil
}

// begins times the opening of indexes. What an import costs is measured with
// interpreters that have imported nothing before.
func (e *engine) begins(ctx context.Context, r request) (answer, error) {
	var sets [][]string
	folder, x := "many", e.own
	switch r.Do {
	case engineTogether:
		sets = [][]string{nil}
		for i := range manyTools {
			sets[0] = append(sets[0], fmt.Sprintf("m%d.weather", i))
		}
	case engineSingly:
		for i := range manyTools {
			sets = append(sets, []string{fmt.Sprintf("m%d.weather", i)})
		}
	default:
		folder, x, sets = "t", e.x, [][]string{{"t.weather"}}
	}
	times := make([]time.Duration, r.N)
	for i := range times {
		var open []*executor.Index
		start := time.Now()
		for _, names := range sets {
			ix, err := e.openIn(ctx, x, folder, nil, names...)
			if err != nil {
				return answer{}, err
			}
			open = append(open, ix)
			if len(ix.Tools()) != len(names) {
				return answer{}, fmt.Errorf("%d of %d tools are described", len(ix.Tools()), len(names))
			}
			if r.Do == engineCold {
				if _, err := ix.Call(ctx, executor.Call{Tool: names[0], Args: json.RawMessage(`{"city":"Oslo"}`)}, nil); err != nil {
					return answer{}, err
				}
			}
		}
		times[i] = time.Since(start)
		for _, ix := range open {
			if err := ix.Close(ctx); err != nil {
				return answer{}, err
			}
		}
	}
	slices.Sort(times)
	return answer{P50: times[r.N/2], Ops: r.N}, nil
}

// counter is a sink that counts.
type counter struct {
	n     int
	begun chan struct{}
}

// Item implements [output.Sink].
func (c *counter) Item(context.Context, json.RawMessage) error { c.n++; return nil }

// Log implements [output.Sink].
func (c *counter) Log(output.Record) {
	if c.begun != nil {
		select {
		case c.begun <- struct{}{}:
		default:
		}
	}
}

// engineTurns are what is measured, in the order of a round: how many operations
// of a full round, and how many rounds at most, because some take long.
var engineTurns = []struct {
	do         string
	ops, least int
	rounds     int
}{
	{engineEcho, 1000, 20, 100},
	{engineWarm, 1000, 20, 100},
	{engineBare, 1000, 20, 100},
	{engineFork, 100, 2, 100},
	{engineFresh, 2, 1, 5},
	{engineItems, 200_000, 1000, 100},
	{engineFlight, 5 * flightCalls, flightCalls, 7},
	{engineSteady, 20 * flightCalls, flightCalls, 7},
	{engineCancel, 50, 2, 100},
	{engineTogether, 1, 1, 5},
	{engineSingly, 1, 1, 3},
	{engineCold, 1, 1, 7},
	{enginePython, 1, 1, 7},
	{engineAsyncio, 5 * flightCalls, flightCalls, 7},
	{engineForked, 100, 2, 7},
}

// measureEngine runs the section's rounds.
func (p *plan) measureEngine(ctx context.Context, stderr io.Writer, dir string, r *result) error {
	c, err := startChild(ctx, stderr, "engine", filepath.Join(dir, "engine"))
	if err != nil {
		return err
	}
	defer c.end()
	for _, turn := range engineTurns { // each is warm before anything counts
		if _, err := c.ask(request{Do: turn.do, N: turn.least}); err != nil {
			return fmt.Errorf("%s: %w", turn.do, err)
		}
	}
	r.samples["engine"] = make(map[string][]sample)
	for round := range p.Rounds {
		for _, turn := range engineTurns {
			if round >= turn.rounds {
				continue
			}
			n := max(turn.ops*min(p.Calls, 1000)/1000, turn.least)
			a, err := c.ask(request{Do: turn.do, N: n})
			if err != nil {
				return fmt.Errorf("%s: %w", turn.do, err)
			}
			r.samples["engine"][turn.do] = append(r.samples["engine"][turn.do], sample{answer: a})
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// concludeEngine makes the section's lines.
func (r *result) concludeEngine() {
	got := r.samples["engine"]
	if len(got) == 0 {
		return
	}
	if r.rounds == 0 {
		r.rounds = len(got[engineEcho])
	}
	of := func(do string, f func(sample) float64) float64 { return medianOf(got[do], f) }
	// compared is a line of two sides; times is how much the first must be of the second.
	compared := func(what, ours, raw string, limit bound) {
		l := line{What: "engine: " + what, Ours: micros(of(ours, p50)), Raw: micros(of(raw, p50)), Ratio: ratioOf(got[ours], got[raw], p50)}
		l.Must, l.Verdict = limit.verdict(l.Ratio)
		r.Lines = append(r.Lines, l)
	}
	alone := func(what, ours, floor string, value float64, limit bound) {
		l := line{What: "engine: " + what, Ours: ours, Raw: floor}
		l.Must, l.Verdict = limit.verdict(value)
		r.Lines = append(r.Lines, l)
	}
	perSecond := func(do string) string { return fmt.Sprintf("%.0f/s", of(do, rate)) }
	ms := func(do string) float64 { return of(do, p50) / 1e6 }

	compared("warm call p50, against an echo by bare system calls over pipes", engineWarm, engineEcho, bound{must: 7, goal: 4}) // about 3.5 when that was set
	compared("what sandbox guard adds to it, against none", engineWarm, engineBare, bound{must: 1.1, goal: 1.05})
	compared("fork-isolated call p50, against a fresh interpreter", engineFork, engineFresh, bound{must: 1.0 / 45, goal: 1.0 / 50})
	alone("fork-isolated call p50 in ms", fmt.Sprintf("%.2f", ms(engineFork)), fmt.Sprintf("os.fork %.2f", ms(engineForked)), ms(engineFork), bound{must: 4.5, goal: 2})
	alone("items/s of a generator, one worker, in thousands", perSecond(engineItems), "", of(engineItems, rate)/1e3, bound{must: 200, goal: 400, least: true})
	ideal := float64(flightCalls) / flightWait.Seconds()
	alone(fmt.Sprintf("%d coroutines of %v in flight, against the ideal %.0f/s", flightCalls, flightWait, ideal),
		perSecond(engineFlight), "asyncio "+perSecond(engineAsyncio), of(engineFlight, rate)/ideal, bound{must: 0.75, goal: 0.8, least: true})
	r.Lines = append(r.Lines, line{What: "engine:   the same over a second instead of a quarter, of the ideal", Ours: perSecond(engineSteady), Ratio: of(engineSteady, rate) / ideal})
	alone("from the cancellation of a loop to the call's end, p50 in ms", fmt.Sprintf("%.2f", ms(engineCancel)), "", ms(engineCancel), bound{must: 2, goal: 1})
	compared(fmt.Sprintf("%d tools described in one import, against an interpreter for each", manyTools), engineTogether, engineSingly, bound{must: 1.0 / 8, goal: 1.0 / 10})
	compared("cold index to first answer, against a plain interpreter with the same imports", engineCold, enginePython, bound{must: 1.0 / 17, goal: 1.0 / 20})
}

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/toolmesh/toolmesh/internal/wake"
)

// rolePrefix is the prefix of the first argument of a child process.
const rolePrefix = "role="

// request is one line from the coordinator to a process.
type request struct {
	Do      string `json:"do"`
	Side    string `json:"side,omitempty"`
	N       int    `json:"n,omitempty"`
	Callers int    `json:"callers,omitempty"`
	Text    string `json:"text,omitempty"`
}

// answer is the line in reply. The request decides which fields are set.
type answer struct {
	Error string `json:"error,omitempty"`
	Text  string `json:"text,omitempty"`

	P50  time.Duration `json:"p50,omitempty"`
	Took time.Duration `json:"took,omitempty"`
	Ops  int           `json:"ops,omitempty"`

	Figures figures `json:"figures,omitzero"`
	Loaded  loaded  `json:"loaded,omitzero"`
}

// role is the work of one process. do serves a request (nil: there are none), hello is sent to the
// coordinator, stop is called at the end.
type role struct {
	do    func(ctx context.Context, r request) (answer, error)
	hello string
	stop  func()
}

// starters start the roles with args. After an error the process ends.
var starters = map[string]func(ctx context.Context, args []string) (role, error){
	"broker": startBroker, "raw": startRaw, "host": startHost, "agent": startAgent,
	"caller": startCaller, "gateway": startGateway, "nodes": startNodes, "router": startRouter,
}

// serveRole runs one process until its standard input ends.
func serveRole(ctx context.Context, name string, args []string, in io.Reader, out, stderr io.Writer) int {
	enc := json.NewEncoder(out)
	start := starters[name]
	if start == nil {
		fmt.Fprintln(stderr, "bench: no role", name)
		return 2
	}
	role, err := start(ctx, args)
	if err != nil {
		_ = enc.Encode(answer{Error: name + ": " + err.Error()})
		return 1
	}
	defer role.stop()
	_ = enc.Encode(answer{Text: role.hello})
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var r request
		err := json.Unmarshal(lines.Bytes(), &r)
		var a answer
		switch {
		case err != nil:
		case role.do == nil:
			err = errUnknown(r)
		default:
			a, err = role.do(ctx, r)
		}
		if err != nil {
			a.Error = name + ": " + err.Error()
		}
		if enc.Encode(a) != nil {
			return 1
		}
	}
	return 0
}

// each measures n operations one after the other.
func each(n int, do func() error) (answer, error) {
	times := make([]time.Duration, n)
	began := time.Now()
	for i := range times {
		start := time.Now()
		if err := do(); err != nil {
			return answer{}, err
		}
		times[i] = time.Since(start)
	}
	took := time.Since(began)
	slices.Sort(times)
	return answer{P50: times[n/2], Took: took, Ops: n}, nil
}

// together measures about n operations of concurrent callers.
func together(n, callers int, do func() error) (answer, error) {
	each := max(n/callers, 1)
	var group errgroup.Group
	began := time.Now()
	for range callers {
		group.Go(func() error {
			for range each {
				if err := do(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := group.Wait()
	return answer{Took: time.Since(began), Ops: each * callers}, err
}

// retried does something that soon succeeds, up to 20 times.
func retried(ctx context.Context, do func() error) error {
	for try := 0; ; try++ {
		if err := do(); err == nil || try == 20 || !wake.After(ctx, time.Second) {
			return err
		}
	}
}

type child struct {
	name  string
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
	hello string
}

// executable is the program of the roles: this one, except in [plan.measureBefore].
var executable = os.Executable

// startChild starts this program again as a role.
func startChild(ctx context.Context, stderr io.Writer, name string, args ...string) (*child, error) {
	self, err := executable()
	if err != nil {
		return nil, err
	}
	c := &child{name: name, cmd: exec.CommandContext(ctx, self, append([]string{rolePrefix + name}, args...)...)} //nolint:gosec // ourselves
	c.cmd.Stderr = stderr
	c.cmd.WaitDelay = 5 * time.Second
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = bufio.NewReader(out)
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	a, err := c.read()
	if err != nil {
		c.end()
		return nil, err
	}
	c.hello = a.Text
	return c, nil
}

// ask sends one request and returns the answer.
func (c *child) ask(r request) (answer, error) {
	line, err := json.Marshal(r)
	if err != nil {
		return answer{}, err
	}
	if _, err := c.in.Write(append(line, '\n')); err != nil {
		return answer{}, fmt.Errorf("%s has ended: %w", c.name, err)
	}
	return c.read()
}

func (c *child) read() (answer, error) {
	var a answer
	line, err := c.out.ReadBytes('\n')
	if err != nil {
		return a, fmt.Errorf("%s has ended: %w", c.name, err)
	}
	if err := json.Unmarshal(line, &a); err != nil {
		return a, fmt.Errorf("%s wrote %q: %w", c.name, strings.TrimSpace(string(line)), err)
	}
	if a.Error != "" {
		return a, errors.New(a.Error)
	}
	return a, nil
}

// end closes the process's standard input and waits for its end.
func (c *child) end() {
	_ = c.in.Close()
	_ = c.cmd.Wait()
}

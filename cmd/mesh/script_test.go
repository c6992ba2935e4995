package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"github.com/toolmesh/toolmesh/cmd/internal/process"
	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/internal/broker"
	"github.com/toolmesh/toolmesh/internal/connect"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// The test binary is also the three commands: a script that runs mesh runs it,
// in a process of its own. A command that ends well must have ended all it began.
func TestMain(m *testing.M) {
	// A command that reads stdin ends with the process.
	leaks := append(meshtest.LeakOptions(), goleak.IgnoreAnyFunction("github.com/toolmesh/toolmesh/internal/bridge.(*Bridge).read"))
	command := func(run func() int) func() {
		return func() {
			status := run()
			err := goleak.Find(leaks...)
			for range 10 { // on a loaded machine pending output takes time
				if err == nil {
					break
				}
				err = goleak.Find(leaks...)
			}
			if status == 0 && err != nil {
				fmt.Fprintf(os.Stderr, "goroutines outlive the command: %v\n", err)
				status = 70
			}
			os.Exit(status)
		}
	}
	testscript.Main(checked{m}, map[string]func(){
		"mesh": command(func() int {
			return run(context.Background(), os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr)
		}),
		"mesh-agent": command(func() int {
			return process.Agent(context.Background(), os.Args[1:], os.Environ(), os.Stdout, os.Stderr, "test")
		}),
		"mesh-router": command(func() int {
			return process.Router(context.Background(), os.Args[1:], os.Environ(), os.Stdout, os.Stderr, "test")
		}),
	})
}

// checked runs the tests, and fails if a goroutine outlives them.
type checked struct{ m *testing.M }

func (c checked) Run() (status int) {
	meshtest.Parallel(4)
	goleak.VerifyTestMain(c.m, append(meshtest.LeakOptions(), goleak.Cleanup(func(code int) { status = code }))...)
	return status
}

func TestScripts(t *testing.T) {
	examples, err := filepath.Abs("../../examples/indexes")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("testdata/script/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	if testing.Short() {
		files = slices.DeleteFunc(files, func(f string) bool { return slices.Contains([]string{"demo.txtar", "plan.txtar"}, filepath.Base(f)) })
	}
	testscript.Run(t, testscript.Params{
		Files:               files,
		RequireExplicitExec: true,
		Condition: func(name string) (bool, error) {
			if name != "root" {
				return false, fmt.Errorf("unknown condition %q", name)
			}
			return os.Geteuid() == 0, nil
		},
		Setup: func(e *testscript.Env) error {
			home := filepath.Join(e.WorkDir, "home")
			for name, value := range map[string]string{
				"HOME": home, "XDG_DATA_HOME": filepath.Join(home, "data"), "XDG_STATE_HOME": filepath.Join(home, "state"),
				"XDG_CONFIG_HOME": filepath.Join(home, "config"), "EXAMPLES": examples, "UID": strconv.Itoa(os.Geteuid()),
				"GIT_CONFIG_GLOBAL": os.DevNull, "GIT_CONFIG_SYSTEM": os.DevNull,
			} {
				e.Setenv(name, value)
			}
			meshtest.Warm(filepath.Join(home, "data", "toolmesh", "executor"), e.Defer)
			return os.MkdirAll(home, 0o755)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"status": scriptStatus, "field": scriptField, "keys": scriptKeys,
			"meshup": scriptUp, "broker": scriptBroker, "commit": scriptCommit, "background": scriptBackground, "eventually": scriptEventually,
			"bundles": scriptBundles, "chunks": scriptChunks,
		},
	})
}

// scriptStatus runs a command that must end with one exit status:
// status 2 mesh call.
func scriptStatus(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N command...")
	}
	err := ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if want, err := strconv.Atoi(args[0]); err != nil || got != want {
		ts.Fatalf("exit status %d, want %s\nstdout: %s\nstderr: %s", got, args[0], ts.ReadFile("stdout"), ts.ReadFile("stderr"))
	}
}

// lastLine parses the last line of stdout and follows a path of names and
// numbers in it: error.details.errors.0.pointer; "." is all of it.
func lastLine(ts *testscript.TestScript, path string) any {
	lines := strings.Split(strings.TrimSpace(ts.ReadFile("stdout")), "\n")
	var value any
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &value); err != nil {
		ts.Fatalf("the last line of stdout is not JSON: %v\n%s", err, lines[len(lines)-1])
	}
	if path == "." {
		return value
	}
	for part := range strings.SplitSeq(path, ".") {
		switch v := value.(type) {
		case map[string]any:
			inner, ok := v[part]
			if !ok {
				ts.Fatalf("no %q on the way to %s in %s", part, path, lines[len(lines)-1])
			}
			value = inner
		case []any:
			i, err := strconv.Atoi(part)
			if err != nil || i >= len(v) {
				ts.Fatalf("no element %s on the way to %s in %s", part, path, lines[len(lines)-1])
			}
			value = v[i]
		default:
			ts.Fatalf("nothing below %q on the way to %s in %s", part, path, lines[len(lines)-1])
		}
	}
	return value
}

// scriptField compares a value of the last line of stdout with a regular
// expression: field error.code tool_error.
func scriptField(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: field path regexp")
	}
	value := lastLine(ts, args[0])
	text, ok := value.(string)
	if !ok {
		data, err := json.Marshal(value)
		if err != nil {
			ts.Fatalf("%v", err)
		}
		text = string(data)
	}
	if regexp.MustCompile("^(?:"+args[1]+")$").MatchString(text) == neg {
		ts.Fatalf("%s is %s; matches %q: %t", args[0], text, args[1], !neg)
	}
}

// scriptKeys compares the names of an object: keys tools.0 id,index.
func scriptKeys(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: keys path a,b,c")
	}
	object, ok := lastLine(ts, args[0]).(map[string]any)
	if !ok {
		ts.Fatalf("%s is no object", args[0])
	}
	var got []string
	for name := range object {
		got = append(got, name)
	}
	want := strings.Split(args[1], ",")
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		ts.Fatalf("%s has %q, want %q", args[0], got, want)
	}
}

// scriptUp starts a mesh in the background, on any free port unless told, which
// goes when the script ends.
func scriptUp(ts *testscript.TestScript, neg bool, args []string) {
	if !slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "--nats-listen") }) {
		args = append(args, "--nats-listen=127.0.0.1:0")
	}
	err := ts.Exec("mesh", append([]string{"up", "-d"}, args...)...)
	if (err != nil) != neg {
		ts.Fatalf("mesh up: %v\n%s", err, ts.ReadFile("stderr"))
	}
	if neg {
		return
	}
	said := strings.Fields(ts.ReadFile("stdout")) // ready nats=URL http=URL
	ts.Setenv("URL", strings.TrimPrefix(said[1], "nats="))
	if len(said) > 2 {
		ts.Setenv("GATEWAY", strings.TrimPrefix(said[2], "http="))
	}
	url := ts.Getenv("URL")
	env := scriptEnv(ts)
	ts.Defer(func() {
		down := exec.Command("mesh", "down", "--server="+url)
		down.Env = env
		_ = down.Run() // the script may have stopped it
	})
}

// scriptStore inspects the stored data of the mesh at $URL.
func scriptStore(ts *testscript.TestScript, look func(ctx context.Context, js jetstream.JetStream)) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	nc, _, err := connect.Connect(ctx, connect.Options{
		Settings: connect.Settings{URL: ts.Getenv("URL")}, Name: "test", Role: access.Admin, Env: scriptEnv(ts),
	})
	ts.Check(err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	ts.Check(err)
	look(ctx, js)
}

// scriptBundles holds how many bundles the mesh at $URL stores: bundles N.
func scriptBundles(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: bundles N")
	}
	scriptStore(ts, func(ctx context.Context, js jetstream.JetStream) {
		store, err := js.ObjectStore(ctx, "MESH_BUNDLES")
		ts.Check(err)
		all, err := store.List(ctx)
		if err != nil && !errors.Is(err, jetstream.ErrNoObjectsFound) {
			ts.Check(err)
		}
		if strconv.Itoa(len(all)) != args[0] {
			ts.Fatalf("the mesh stores %d bundles, want %s", len(all), args[0])
		}
	})
}

// scriptChunks holds a field of the configuration of the stream of chunks at
// $URL: chunks max_bytes 1000000000.
func scriptChunks(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: chunks field value")
	}
	scriptStore(ts, func(ctx context.Context, js jetstream.JetStream) {
		stream, err := js.Stream(ctx, subjects.StreamChunks)
		ts.Check(err)
		data, err := json.Marshal(stream.CachedInfo().Config)
		ts.Check(err)
		var config map[string]json.RawMessage
		ts.Check(json.Unmarshal(data, &config))
		if got := strings.Trim(string(config[args[0]]), `"`); got != args[1] {
			ts.Fatalf("the stream of chunks has %s %s, want %s", args[0], got, args[1])
		}
	})
}

func scriptEnv(ts *testscript.TestScript) []string {
	var env []string
	for _, name := range []string{"HOME", "PATH", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "TMPDIR"} {
		env = append(env, name+"="+ts.Getenv(name))
	}
	return env
}

// scriptBroker starts a NATS server without a mesh, with a configuration file if one
// is named; its address is $BROKER.
func scriptBroker(ts *testscript.TestScript, _ bool, args []string) {
	o := broker.Options{StoreDir: ts.MkAbs(strings.Join(append([]string{"broker"}, args...), "-"))}
	for _, file := range args {
		o.Config += ts.ReadFile(file)
	}
	b, err := broker.Start(context.Background(), o)
	if err != nil {
		ts.Fatalf("%v", err)
	}
	ts.Defer(b.Shutdown)
	ts.Setenv("BROKER", b.URL())
}

// scriptCommit makes all files of a folder a commit, in a new repository if
// there is none: commit dir message.
func scriptCommit(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: commit dir message")
	}
	for _, git := range [][]string{
		{"init", "-q", "-b", "main"}, {"add", "-A"},
		{"-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-q", "-m", args[1]},
	} {
		ts.Check(ts.Exec("git", append([]string{"-C", ts.MkAbs(args[0])}, git...)...))
	}
}

// scriptBackground starts a command that runs until the script ends, and waits
// until its stderr has a text: background ready mesh-agent --server=….
func scriptBackground(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: background text command...")
	}
	cmd := exec.Command(args[1], args[2:]...)
	cmd.Env, cmd.Dir = scriptEnv(ts), ts.Getenv("WORK")
	watch := newWatch(args[0])
	cmd.Stderr = watch
	ts.Check(cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // ends with the command, which the script's end stops
	ts.Defer(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := <-ended; err != nil {
			ts.Fatalf("%q: %v\n%s", args[1:], err, watch.text())
		}
	})
	select {
	case <-watch.seen:
	case err := <-ended:
		ended <- err
		ts.Fatalf("%q ended: %v\n%s", args[1:], err, watch.text())
	case <-time.After(time.Minute):
		ts.Fatalf("%q did not say %q:\n%s", args[1:], args[0], watch.text())
	}
}

// scriptEventually runs a command until its output matches, for at most a minute: for changes by another process
// that sends no signal.
// Negated: until it does not match.
func scriptEventually(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: eventually regexp command...")
	}
	want := regexp.MustCompile(args[0])
	for deadline := time.Now().Add(time.Minute); ; {
		_ = ts.Exec(args[1], args[2:]...)
		if printed := ts.ReadFile("stdout") + ts.ReadFile("stderr"); want.MatchString(printed) != neg {
			return
		} else if time.Now().After(deadline) {
			ts.Fatalf("a minute long %q prints\n%s", args[1:], printed)
		}
	}
}

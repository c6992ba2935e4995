package conformance_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

func TestMain(m *testing.M) { meshtest.Main(m) }

const root = "../.."

type step struct {
	Call        subjects.ToolID    `json:"call"`
	Stream      subjects.ToolID    `json:"stream"`
	Describe    subjects.ToolID    `json:"describe"`
	File        string             `json:"file"`
	Together    []step             `json:"together"`
	Args        json.RawMessage    `json:"args"`
	Timeout     float64            `json:"timeout"` // seconds
	RPCID       subjects.RPCID     `json:"rpc_id"`
	Session     subjects.SessionID `json:"session"`
	Isolation   toolmesh.Isolation `json:"isolation"`
	CancelAfter float64            `json:"cancel_after"`
	Take        int                `json:"take"`
}

type conformanceCase struct {
	ID     string            `json:"id"`
	What   string            `json:"what"`
	Steps  []json.RawMessage `json:"steps"`
	Expect []json.RawMessage `json:"expect"`
}

func cases(t *testing.T) []conformanceCase {
	t.Helper()
	data, err := os.ReadFile("cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []conformanceCase
	if err := json.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// Every row is a case, or has its reason in elsewhere.json.
func TestEveryRowHasItsPlace(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("elsewhere.json")
	if err != nil {
		t.Fatal(err)
	}
	var elsewhere map[string]string
	if err := json.Unmarshal(data, &elsewhere); err != nil {
		t.Fatal(err)
	}
	here := make(map[string]bool)
	for _, c := range cases(t) {
		for id := range strings.SplitSeq(c.ID, ", ") {
			here[id] = true
		}
		if len(c.Steps) != len(c.Expect) {
			t.Errorf("%s: %d steps and %d outcomes", c.ID, len(c.Steps), len(c.Expect))
		}
	}
	rows := map[string]int{"5-R": 10, "5-C": 10, "5-S": 8, "5-F": 6, "5-Q": 8, "5-T": 9, "5-X": 8, "5-P": 10, "5-H": 5, "5-V": 7, "5-L": 7, "5-N": 5, "5-M": 4, "7.3-K": 16}
	for kind, n := range rows {
		for i := range n {
			if id := kind + strconv.Itoa(i+1); here[id] == (elsewhere[id] != "") {
				t.Errorf("%s is a case: %v; elsewhere: %q", id, here[id], elsewhere[id])
			}
		}
	}
	out, err := exec.CommandContext(t.Context(), "git", "-C", root, "grep", "-ohE", "^func Test[A-Za-z0-9]+", "--", "*_test.go").Output()
	if err != nil {
		t.Skip("no git here: ", err)
	}
	for id, why := range elsewhere {
		for _, name := range regexp.MustCompile(`Test[A-Z]\w+`).FindAllString(why, -1) {
			if !bytes.Contains(out, []byte("func "+name+"\n")) {
				t.Errorf("%s names %s, which there is not", id, name)
			}
		}
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	python := environment(t)
	url := mesh(t)
	hosts := map[string]string{"index": "", "go host": goHost(t, url), "python host": pythonHost(t, url, python)}
	clients := map[string]func(t *testing.T, all []conformanceCase) map[string][]any{
		"go": func(t *testing.T, all []conformanceCase) map[string][]any { return byGo(t, url, all) },
	}
	for _, mode := range []string{"sync", "async"} {
		clients[mode] = func(t *testing.T, all []conformanceCase) map[string][]any {
			return byPython(t, python, mode, url, all)
		}
	}
	for name, prefix := range hosts {
		for by, run := range clients {
			// A row that fails is the fault of one side: each kind of host has the Go client, each client has the index.
			if by != "go" && name != "index" && !meshtest.Soak() {
				continue
			}
			t.Run(strings.ReplaceAll(name+" by "+by, " ", "-"), func(t *testing.T) {
				t.Parallel()
				prefix := prefix // of this client
				if name == "index" {
					prefix = ownIndex(t, url, "conf"+by)
				}
				all := cases(t)
				tmp := t.TempDir()
				// Tools of an index have users of their own.
				for dir := tmp; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
					if err := os.Chmod(dir, 0o777); err != nil {
						t.Fatal(err)
					}
				}
				for i := range all {
					for _, part := range [][]json.RawMessage{all[i].Steps, all[i].Expect} {
						for j := range part {
							part[j] = expanded(t, part[j], map[string]string{"host": prefix, "tmp": tmp, "id": strings.ReplaceAll(name+by, " ", "")})
						}
					}
				}
				got := run(t, all)
				for _, c := range all {
					outcomes := got[c.ID]
					if len(outcomes) != len(c.Steps) {
						t.Errorf("%s %s: %d outcomes of %d steps", c.ID, c.What, len(outcomes), len(c.Steps))
						continue
					}
					for i, outcome := range outcomes {
						var want any
						if err := json.Unmarshal(c.Expect[i], &want); err != nil {
							t.Fatal(err)
						}
						if why := differs(normal(t, outcome), want, ""); why != "" {
							t.Errorf("%s %s\nstep %.300s\n%s", c.ID, c.What, c.Steps[i], why)
						}
					}
				}
			})
		}
	}
}

var (
	named   = regexp.MustCompile(`\{(host|tmp|id)\}`)
	sized   = regexp.MustCompile(`"\{(\d+)\}"`)
	numbers = regexp.MustCompile(`"\{0\.\.(\d+)\}"`)
)

// expanded fills in the placeholders of a case.
func expanded(t *testing.T, text json.RawMessage, values map[string]string) json.RawMessage {
	t.Helper()
	s := named.ReplaceAllStringFunc(string(text), func(m string) string { return values[m[1:len(m)-1]] })
	s = sized.ReplaceAllStringFunc(s, func(m string) string {
		n, err := strconv.Atoi(m[2 : len(m)-2])
		if err != nil {
			t.Fatal(err)
		}
		return `"` + strings.Repeat("x", n) + `"`
	})
	s = numbers.ReplaceAllStringFunc(s, func(m string) string {
		n, err := strconv.Atoi(numbers.FindStringSubmatch(m)[1])
		if err != nil {
			t.Fatal(err)
		}
		list := make([]string, n+1)
		for i := range list {
			list[i] = strconv.Itoa(i)
		}
		return "[" + strings.Join(list, ",") + "]"
	})
	return json.RawMessage(s)
}

// normal is a value as JSON has it.
func normal(t *testing.T, value any) any {
	t.Helper()
	data, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	var out any
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// differs returns the place where an outcome differs from the expected one. An expected object lists required
// members, except in results.
func differs(got, want any, at string) string {
	object, ok := want.(map[string]any)
	if !ok || strings.HasPrefix(at, ".value") && !strings.Contains(at, "schema") && at != ".value" || strings.HasPrefix(at, ".items") {
		if list, isList := want.([]any); isList && !strings.HasPrefix(at, ".value") && !strings.HasPrefix(at, ".items") {
			other, _ := got.([]any)
			if len(other) != len(list) {
				return fmt.Sprintf("%s: %.500v, want %.500v", at, got, want)
			}
			for i := range list {
				if why := differs(other[i], list[i], at+"["+strconv.Itoa(i)+"]"); why != "" {
					return why
				}
			}
			return ""
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Sprintf("%s: %.500v, want %.500v", at, got, want)
		}
		return ""
	}
	other, ok := got.(map[string]any)
	if !ok {
		return fmt.Sprintf("%s: %.500v, want %.500v", at, got, want)
	}
	if at == "" {
		for key := range other {
			if _, ok := object[key]; !ok && key == "error" {
				return fmt.Sprintf("%.500v, want %.500v", got, want)
			}
		}
	}
	for key, value := range object {
		one, ok := other[key]
		if !ok {
			return fmt.Sprintf("%s.%s is missing in %.500v", at, key, got)
		}
		if why := differs(one, value, at+"."+key); why != "" {
			return why
		}
	}
	return ""
}

// environment makes a virtual environment with nats-py, or skips the test where
// packages cannot be had.
func environment(t *testing.T) string {
	t.Helper()
	python, err := meshtest.Python(filepath.Join(t.TempDir(), "venv"), "nats-py==2.16.0")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skipf("no environment for Python: %v", err)
	}
	return python
}

func run(t *testing.T, home string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = homeOf(home)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

func homeOf(home string) []string {
	return append(os.Environ(), "HOME="+home, "XDG_STATE_HOME="+home+"/state", "XDG_DATA_HOME="+home+"/data", "XDG_CONFIG_HOME="+home+"/config")
}

var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "mesh-conformance-")
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "mesh"), meshtest.Programs(dir, "mesh")
})

func binary(t *testing.T) string {
	t.Helper()
	path, err := built()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(filepath.Dir(path)) })
	return path
}

// mesh starts one, and returns its URL.
func mesh(t *testing.T) string {
	t.Helper()
	home := t.TempDir()
	cmd := exec.Command(binary(t), "up", "--open", "--nats-listen=127.0.0.1:0", "--data-dir", filepath.Join(home, "mesh"))
	cmd.Env = homeOf(home)
	return started(t, cmd, regexp.MustCompile(`nats=(\S+)`))
}

// ownIndex installs testdata/conf under a name, and returns what its tools' ids begin with. Each client has an index, and
// so workers, of its own: a call that waits behind those of other clients may be refused as busy.
func ownIndex(t *testing.T, url, name string) string {
	t.Helper()
	bin, err := built()
	if err != nil {
		t.Fatal(err)
	}
	run(t, t.TempDir(), bin, "install", "file://"+repository(t, filepath.Join("testdata", "conf"), name), "-s", url)
	return name + ".conf"
}

// repository is a copy of a folder as a git repository of this name, which any agent may read.
func repository(t *testing.T, folder, name string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	if err := os.CopyFS(dir, os.DirFS(folder)); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "-A"}, {"-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-qm", "conf"}} {
		run(t, dir, "git", append([]string{"-C", dir}, args...)...)
	}
	return dir
}

// started starts a program, which ends with the test, and returns the text of its first line.
func started(t *testing.T, cmd *exec.Cmd, ready *regexp.Regexp) string {
	t.Helper()
	var logs bytes.Buffer
	cmd.Stderr = &logs
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s:\n%s", cmd, logs.String())
		}
	})
	buffer := make([]byte, 4096)
	n, err := out.Read(buffer)
	found := ready.FindSubmatch(buffer[:n])
	if found == nil {
		t.Fatalf("%s says %q: %v\n%s", cmd, buffer[:n], err, logs.String())
	}
	return string(found[len(found)-1])
}

// pythonHost serves the tools by testdata/host.py.
func pythonHost(t *testing.T, url, python string) string {
	t.Helper()
	cmd := exec.Command(python, filepath.Join("testdata", "host.py"), url, "pyhost")
	source, err := filepath.Abs(filepath.Join(root, "python", "src"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(homeOf(t.TempDir()), "PYTHONPATH="+source, "TOOLMESH_BINARY="+binary(t))
	var logs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &logs, &logs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("the Python host:\n%s", logs.String())
		}
	})
	served(t, url, "pyhost.add")
	return "pyhost"
}

// served waits until a node serves a tool.
func served(t *testing.T, url string, id subjects.ToolID) {
	t.Helper()
	c := goClient(t, url)
	meshtest.Until(t, string(id)+" is served", func() bool {
		_, err := c.Call(t.Context(), id, map[string]any{"a": 1})
		return err == nil
	})
}

func connected(t *testing.T, url string) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, client.ConnectOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func goClient(t *testing.T, url string) *client.Client {
	t.Helper()
	c := testmesh.Client(t, connected(t, url), nil)
	return c
}

// byPython runs the cases by testdata/client.py.
func byPython(t *testing.T, python, mode, url string, all []conformanceCase) map[string][]any {
	t.Helper()
	data, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	source, err := filepath.Abs(filepath.Join(root, "python", "src"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), python, "-X", "dev", "-W", "error", filepath.Join("testdata", "client.py"), mode, url)
	cmd.Env = append(homeOf(t.TempDir()), "PYTHONPATH="+source)
	cmd.Stdin = bytes.NewReader(data)
	var logs bytes.Buffer
	cmd.Stderr = &logs
	out, err := cmd.Output()
	if err != nil || logs.Len() > 0 {
		t.Fatalf("%v\n%s", err, logs.String())
	}
	got := make(map[string][]any)
	for line := range bytes.Lines(out) {
		var one struct {
			ID       string `json:"id"`
			Outcomes []any  `json:"outcomes"`
		}
		if err := json.Unmarshal(line, &one); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		got[one.ID] = one.Outcomes
	}
	return got
}

// byGo runs the cases by the Go client.
func byGo(t *testing.T, url string, all []conformanceCase) map[string][]any {
	t.Helper()
	c := goClient(t, url)
	nc := connected(t, url)
	got := make(map[string][]any)
	for _, one := range all {
		for _, text := range one.Steps {
			var s step
			if err := json.Unmarshal(text, &s); err != nil {
				t.Fatal(err)
			}
			got[one.ID] = append(got[one.ID], take(t, nc, c, s))
		}
	}
	return got
}

type outcome map[string]any

// argument is a value of the cases as Go's.
func argument(value any) any {
	switch v := value.(type) {
	case map[string]any:
		if text, ok := v["$b64"].(string); ok {
			data, _ := base64.StdEncoding.DecodeString(text)
			return data
		}
		if _, ok := v["$nan"]; ok {
			return math.NaN()
		}
		if _, ok := v["$object"]; ok {
			return make(chan int)
		}
		for key, one := range v {
			v[key] = argument(one)
		}
	case []any:
		for i, one := range v {
			v[i] = argument(one)
		}
	}
	return value
}

func take(t *testing.T, nc *nats.Conn, c *client.Client, s step) any {
	t.Helper()
	if s.Session != "" {
		c = c.In(s.Session)
	}
	var args any
	if len(s.Args) > 0 {
		d := json.NewDecoder(bytes.NewReader(s.Args))
		d.UseNumber()
		if err := d.Decode(&args); err != nil {
			t.Fatal(err)
		}
		args = argument(args)
	}
	var opts []client.CallOption
	if s.Timeout > 0 {
		opts = append(opts, client.WithTimeout(time.Duration(s.Timeout*float64(time.Second))))
	}
	if s.RPCID != "" {
		opts = append(opts, client.WithRPCID(s.RPCID))
	}
	if s.Isolation != "" {
		opts = append(opts, client.WithIsolation(s.Isolation))
	}
	switch {
	case s.Call != "" && s.CancelAfter > 0:
		ended := make(chan outcome, 1)
		go func() { ended <- called(t.Context(), c, s.Call, args, opts) }()
		time.Sleep(time.Duration(s.CancelAfter * float64(time.Second)))
		cancelled, err := c.Cancel(t.Context(), s.RPCID)
		if err != nil {
			t.Error(err)
		}
		o := <-ended
		o["cancelled"] = cancelled
		return o
	case s.Call != "":
		return called(t.Context(), c, s.Call, args, opts)
	case s.Stream != "":
		items, err := []json.RawMessage{}, error(nil)
		for chunk, e := range c.Stream(t.Context(), s.Stream, args, opts...) {
			if e != nil {
				err = e
				break
			}
			items = append(items, chunk.Data)
			if len(items) == s.Take {
				break
			}
		}
		o := outcome{"items": items}
		if err != nil {
			o["error"] = failure(err)
		}
		return o
	case s.Describe != "":
		body, err := json.Marshal(map[string]any{"tool": s.Describe})
		if err != nil {
			t.Fatal(err)
		}
		m, err := nc.Request("mesh.registry."+string(c.Session())+".describe", body, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		var d struct {
			InputSchema json.RawMessage `json:"input_schema"`
			Annotations struct {
				Streaming bool `json:"streaming"`
			} `json:"annotations"`
		}
		if err := json.Unmarshal(m.Data, &d); err != nil {
			t.Fatal(err)
		}
		return outcome{"value": map[string]any{"input_schema": d.InputSchema, "streaming": d.Annotations.Streaming}}
	case s.File != "":
		var text string
		meshtest.Until(t, s.File, func() bool {
			data, err := os.ReadFile(s.File)
			text = string(data)
			return err == nil && text != ""
		})
		return outcome{"value": text}
	}
	outcomes := make([]any, len(s.Together))
	var together sync.WaitGroup
	for i, one := range s.Together {
		together.Go(func() { outcomes[i] = take(t, nc, c, one) })
	}
	together.Wait()
	return outcomes
}

func called(ctx context.Context, c *client.Client, id subjects.ToolID, args any, opts []client.CallOption) outcome {
	r, err := c.Call(ctx, id, args, opts...)
	if err != nil {
		return outcome{"error": failure(err)}
	}
	return outcome{"value": r.Value}
}

func failure(err error) map[string]any {
	e := toolmesh.AsError(err)
	f := map[string]any{"code": e.Code, "message": e.Message, "origin": e.Origin, "details": e.Details}
	switch e.Started {
	case toolmesh.StartedYes:
		f["started"] = true
	case toolmesh.StartedNo:
		f["started"] = false
	}
	return f
}

// goHost serves the tools of testdata/conf as Go functions.
func goHost(t *testing.T, url string) string {
	t.Helper()
	const index = "gohost"
	nc := connected(t, url)
	c := goClient(t, url)
	h := testmesh.Host(t, nc, &host.Options{Index: index})
	handlers := map[string]host.Handler{
		"echo": host.Func(func(_ context.Context, in struct {
			Value json.RawMessage `json:"value"`
		}) (json.RawMessage, error) {
			return in.Value, nil
		}),
		"add": host.Func(func(_ context.Context, in struct {
			A int  `json:"a"`
			B *int `json:"b,omitempty"`
		}) (int, error) {
			if in.B == nil {
				return in.A + 1, nil
			}
			return in.A + *in.B, nil
		}),
		"raw": host.Func(func(_ context.Context, in struct {
			Data []byte `json:"data"`
		}) ([]byte, error) {
			slices.Reverse(in.Data)
			return in.Data, nil
		}),
		"fail": host.Func(func(_ context.Context, in struct {
			Message string `json:"message"`
		}) (any, error) {
			return nil, errors.New(in.Message)
		}),
		"wait": host.Func(func(ctx context.Context, in struct {
			Seconds float64 `json:"seconds"`
			Mark    string  `json:"mark,omitempty"`
			Value   any     `json:"value,omitempty"`
		}) (any, error) {
			how, err := "slept", error(nil)
			select {
			case <-time.After(time.Duration(in.Seconds * float64(time.Second))):
			case <-ctx.Done():
				how, err = "cut", context.Cause(ctx)
			}
			if in.Mark != "" {
				err = errors.Join(err, os.WriteFile(in.Mark, []byte(how), 0o644)) //nolint:gosec
			}
			return in.Value, err
		}),
		"count": host.Stream(func(ctx context.Context, in struct {
			To    int     `json:"to"`
			Pause float64 `json:"pause,omitempty"`
		}) iter.Seq2[int, error] {
			return func(yield func(int, error) bool) {
				for i := range in.To {
					if !yield(i, nil) {
						return
					}
					select {
					case <-time.After(time.Duration(in.Pause * float64(time.Second))):
					case <-ctx.Done():
						return
					}
				}
			}
		}),
		"breaks": host.Stream(func(_ context.Context, in struct {
			After int `json:"after"`
		}) iter.Seq2[int, error] {
			return func(yield func(int, error) bool) {
				for i := range in.After {
					if !yield(i, nil) {
						return
					}
				}
				yield(0, errors.New("broken"))
			}
		}),
		"endless": host.Stream(func(ctx context.Context, in struct {
			Mark string `json:"mark"`
		}) iter.Seq2[int, error] {
			return func(yield func(int, error) bool) {
				for i := 0; yield(i, nil) && ctx.Err() == nil; i++ {
					time.Sleep(time.Millisecond)
				}
				_ = os.WriteFile(in.Mark, []byte("closed"), 0o644) //nolint:gosec
			}
		}),
		"unserializable": host.Func(func(context.Context, struct{}) (any, error) { return map[string]any{"bad": make(chan int)}, nil }),
		"big": host.Func(func(_ context.Context, in struct {
			Size int `json:"size"`
		}) (string, error) {
			return strings.Repeat("x", in.Size), nil
		}),
		"once": host.Func(func(_ context.Context, in struct {
			Mark string `json:"mark"`
		}) (int, error) {
			f, err := os.OpenFile(in.Mark, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644) //nolint:gosec
			if err != nil {
				return 0, err
			}
			_, err = f.WriteString(".")
			if err = errors.Join(err, f.Close()); err != nil {
				return 0, err
			}
			data, err := os.ReadFile(in.Mark)
			return len(data), err
		}),
		"optional": host.Func(func(_ context.Context, in struct {
			Given *int `json:"given"`
		}) (any, error) {
			if in.Given == nil {
				return "null", nil
			}
			return *in.Given, nil
		}),
		"nothing": host.Func(func(context.Context, struct{}) (any, error) { return nil, nil }),
		"nested": host.Func(func(ctx context.Context, in struct {
			Tool subjects.ToolID `json:"tool"`
			Args map[string]any  `json:"args"`
		}) (json.RawMessage, error) {
			r, err := c.Call(ctx, in.Tool, in.Args)
			if err != nil {
				return nil, err
			}
			return r.Value, nil
		}),
		"relayed": host.Stream(func(ctx context.Context, in struct {
			Tool subjects.ToolID `json:"tool"`
			Args map[string]any  `json:"args"`
		}) iter.Seq2[[]json.RawMessage, error] {
			return func(yield func([]json.RawMessage, error) bool) {
				for item, err := range c.Stream(ctx, in.Tool, in.Args) {
					var r *client.Result
					if err == nil {
						r, err = c.Call(ctx, index+".add", map[string]any{"a": item.Data})
					}
					if err != nil {
						yield(nil, err)
						return
					}
					if !yield([]json.RawMessage{item.Data, r.Value}, nil) {
						return
					}
				}
			}
		}),
		"length": host.Func(func(_ context.Context, in struct {
			Text string `json:"text"`
		}) (int, error) {
			return len(in.Text), nil
		}),
	}
	for name, handler := range handlers {
		if _, err := h.Handle(name, handler, host.Schema(schemas[name], nil)); err != nil {
			t.Fatal(err)
		}
	}
	testmesh.Start(t, h)
	served(t, url, index+".add")
	return index
}

// schemas are those that Go's types cannot express.
var schemas = map[string]json.RawMessage{
	"echo":     json.RawMessage(`{"type":"object","properties":{"value":{}},"required":["value"],"additionalProperties":false}`),
	"optional": json.RawMessage(`{"type":"object","properties":{"given":{"type":["integer","null"]}},"required":["given"],"additionalProperties":false}`),
}

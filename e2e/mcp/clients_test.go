package mcp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolmesh/toolmesh/meshtest"
)

// Several clients use one mesh. The Go SDK's client lists, calls, gets progress and cancels over HTTP in both eras,
// and with mesh mcp, which writes only the protocol to stdout and ends with its stdin.
func TestClients(t *testing.T) {
	r := newRig(t)
	stdio := r.mesh("mcp", "--no-prefix", "--tools=conformance.**,waits.**", "--server="+r.nats)
	for name, transport := range map[string]mcp.Transport{
		"2025-11-25": &mcp.StreamableClientTransport{Endpoint: r.url + "/mcp?prefix=off&tools=conformance.**,waits.**"},
		"2026-07-28": &mcp.StreamableClientTransport{Endpoint: r.url + "/mcp?prefix=off&tools=conformance.**,waits.**"},
		"stdio":      &mcp.CommandTransport{Command: stdio},
	} {
		progress := make(chan string, 10)
		c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
			ProgressNotificationHandler: func(_ context.Context, q *mcp.ProgressNotificationClientRequest) {
				progress <- fmt.Sprint(q.Params.Progress, q.Params.Message)
			},
		})
		o := &mcp.ClientSessionOptions{}
		if name != "stdio" {
			o.ProtocolVersion = name
		}
		s, err := c.Connect(t.Context(), transport, o)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		listed, err := s.ListTools(t.Context(), nil)
		if err != nil || len(listed.Tools) != 15 || listed.Tools[0].Name != "json_schema_2020_12_tool" {
			t.Errorf("%s: %+v, %v", name, listed, err)
		}
		params := &mcp.CallToolParams{Name: "test_tool_with_progress"}
		params.SetProgressToken("p")
		if a, err := s.CallTool(t.Context(), params); err != nil || a.IsError {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
		if got := <-progress; got != "0Completed step 0 of 100" {
			t.Errorf("%s: progress %s", name, got)
		}
		file, left := filepath.Join(t.TempDir(), "cancelled"), make(chan struct{})
		ctx, leave := context.WithCancel(t.Context())
		go func() {
			defer close(left)
			_, _ = s.CallTool(ctx, &mcp.CallToolParams{Name: "wait", Arguments: map[string]string{"path": file}})
		}()
		appears(t, file+".begun")
		leave()
		<-left
		appears(t, file)
		if err := s.Close(); err != nil {
			t.Errorf("%s: it ends with %v", name, err)
		}
	}
	t.Run("the page", func(t *testing.T) { pageOf(t, r) })
	t.Run("others", func(t *testing.T) { others(t, r) })
}

// others runs other projects' clients through the same steps; the tool shows that its call was cancelled.
func others(t *testing.T, r *rig) {
	node, python := filepath.Join(r.tools, "node_modules", ".bin", "node"), filepath.Join(r.tools, "venv", "bin", "python")
	url, home := r.url+"/mcp?prefix=off&tools=conformance.**,waits.**", t.TempDir()
	run := func(t *testing.T, program ...string) []byte {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), program[0], program[1:]...)
		cmd.Env = append(os.Environ(), "MESH_MCP_TOOLS="+r.tools, "HOME="+home)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v\n%s%s", err, out, stderr.String())
		}
		return out
	}
	for _, one := range []struct {
		name    string
		program []string
	}{
		{"TypeScript SDK v1, 2025-11-25", []string{node, "client.mjs", "v1", "legacy"}},
		{"TypeScript SDK, 2025-11-25", []string{node, "client.mjs", "newest", "legacy"}},
		{"TypeScript SDK, 2026-07-28", []string{node, "client.mjs", "newest", "modern"}},
		{"Python SDK, 2025-11-25", []string{python, "client.py", "sdk", "legacy"}},
		{"Python SDK, 2026-07-28", []string{python, "client.py", "sdk", "modern"}},
		{"fastmcp, 2025-11-25", []string{python, "client.py", "fastmcp", "legacy"}},
		{"fastmcp, 2026-07-28", []string{python, "client.py", "fastmcp", "modern"}},
	} {
		t.Run(one.name, func(t *testing.T) {
			t.Parallel()
			out := run(t, append(one.program, url, filepath.Join(t.TempDir(), "cancelled"))...)
			var got struct {
				Tools, Progress []string
				Text            string
				Cancelled       bool
				Rows, Whole     int
			}
			if err := json.Unmarshal(out, &got); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if len(got.Tools) != 15 || got.Text != "This is a simple text response for testing." || !got.Cancelled || got.Rows < 10 || got.Rows > 2000 || got.Whole != 1_300_001 ||
				!slices.Contains(got.Progress, "Completed step 0 of 100") { // on a busy machine later steps come too close to each other
				t.Errorf("%s", out)
			}
		})
	}
	// The Inspector's command line shows no progress, and cancels by ending.
	for _, era := range []string{"legacy", "modern"} {
		t.Run("Inspector, "+era, func(t *testing.T) {
			t.Parallel()
			inspector := []string{
				node, filepath.Join(r.tools, "node_modules", "@modelcontextprotocol", "inspector", "clients", "launcher", "build", "index.js"),
				"--cli", "--server-url", url, "--transport", "http", "--protocol-era", era, "--format", "json", "--method",
			}
			if out := run(t, append(slices.Clone(inspector), "tools/list")...); strings.Count(string(out), `"inputSchema"`) != 15 {
				t.Errorf("%s", out)
			}
			if out := run(t, append(slices.Clone(inspector), "tools/call", "--tool-name", "test_simple_text")...); !strings.Contains(string(out), "This is a simple text response for testing.") {
				t.Errorf("%s", out)
			}
			file := filepath.Join(t.TempDir(), "cancelled")
			cmd := exec.CommandContext(t.Context(), inspector[0], append(inspector[1:], "tools/call", "--tool-name", "wait", "--tool-arg", "path="+file)...)
			cmd.Env = append(os.Environ(), "HOME="+home)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			appears(t, file+".begun")
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			appears(t, file)
		})
	}
}

// appears waits for a file, which the tool wait makes.
func appears(t *testing.T, file string) {
	t.Helper()
	meshtest.Until(t, file+" is there", func() bool { _, err := os.Stat(file); return err == nil })
}

// pageOf runs the commands of docs/mcp.md on a mesh that is up.
func pageOf(t *testing.T, r *rig) {
	page, err := os.ReadFile("../../docs/mcp.md")
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, block := range regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindAllStringSubmatch(string(page), -1) {
		for _, line := range strings.Split(strings.TrimSpace(block[1]), "\n") {
			words := strings.Fields(line)
			if words[0] != "mesh" || words[1] == "up" {
				continue
			}
			out, err := r.mesh(append(words[1:], "--server="+r.nats)...).CombinedOutput()
			if err != nil {
				t.Errorf("%s: %v\n%s", line, err, out)
			}
			ran++
		}
	}
	if ran < 3 {
		t.Errorf("the page has %d commands", ran)
	}
}

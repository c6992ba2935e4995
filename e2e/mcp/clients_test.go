package mcp_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The Go SDK's client lists, calls and gets progress by HTTP in both eras, and from mesh mcp, whose stdout has
// the protocol alone and which ends with its stdin.
func TestGoClient(t *testing.T) {
	r := newRig(t)
	stdio := r.mesh("mcp", "--no-prefix", "--tools=conformance.**", "--server="+r.nats)
	for name, transport := range map[string]mcp.Transport{
		"2025-11-25": &mcp.StreamableClientTransport{Endpoint: r.url + "/mcp?prefix=off&tools=conformance.**"},
		"2026-07-28": &mcp.StreamableClientTransport{Endpoint: r.url + "/mcp?prefix=off&tools=conformance.**"},
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
		if err != nil || len(listed.Tools) != 13 || listed.Tools[0].Name != "json_schema_2020_12_tool" {
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
		if err := s.Close(); err != nil {
			t.Errorf("%s: it ends with %v", name, err)
		}
	}
	t.Run("the page", func(t *testing.T) { pageOf(t, r) })
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

package main

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/broker"
	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/internal/index"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/tool"
)

// One long cell, such as the default of an argument, does not widen each line of a table by its length.
func TestALongCellIsCut(t *testing.T) {
	t.Parallel()
	var printed strings.Builder
	rows := append(slices.Repeat([][]string{{"days", "integer", "how many"}}, 1000), []string{"city", strings.Repeat("x", 100_000), "where"})
	(&app{out: &output{to: &printed}}).table([]string{"ARGUMENT", "TYPE", "DESCRIPTION"}, rows)
	if printed.Len() > 2<<20 {
		t.Errorf("a table of 1,001 short rows has %d bytes", printed.Len())
	}
}

// The author of an index forges no line of what a person agrees to or pastes into a shell.
func TestTextOfAnAuthorIsOneFact(t *testing.T) {
	t.Parallel()
	var shown strings.Builder
	forged := "x\ninit      -\n"
	writeFacts(&shown, planFacts(&deploy.Plan{Init: []string{"sh", forged, strings.Repeat(" \n", 1000), strings.Repeat("y", 10_000)}, Paths: []index.Folder{{Path: "/" + forged}}}))
	writeFacts(&shown, []string{"warning", forged})
	if got := strings.Count("\n"+shown.String(), "\ninit "); got != 1 || shown.Len() > 4000 {
		t.Errorf("%d lines begin with init, in %d bytes", got, shown.Len())
	}
	if !strings.Contains(shown.String(), "characters; mesh install --dry-run --json shows all") {
		t.Error("it is not said that the command is cut")
	}
	whole := planFacts(&deploy.Plan{Init: []string{"sh", "-c", strings.Repeat("true; ", 200) + "last", "x"}})
	if !slices.ContainsFunc(whole, func(fact string) bool { return strings.HasSuffix(fact, "true; last' x") }) {
		t.Errorf("a command of ordinary length is cut: %q", whole)
	}
	got := exampleCall(&tool.Descriptor{ID: "a.b"}, []parameter{{name: "city", required: true}, {name: "-o", kind: "object", required: true}, {name: "x;id", required: true}, {name: "$(id)", kind: "array", required: true}})
	if want := "mesh call a.b city=… -- -o:='{…}' 'x;id=…' '$(id):=[…]'"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// A line that shows progress fits into one line of its terminal, which alone can be wiped, also if stdout is none.
func TestProgressFitsItsTerminal(t *testing.T) {
	t.Parallel()
	shown := newWatch("…")
	a := &app{err: shown, term: terminal{err: true, redraws: 40, plain: true}}
	stop := a.redraw(time.Millisecond, func(time.Duration) string { return strings.Repeat("x", 60) })
	select {
	case <-shown.seen:
	case <-t.Context().Done():
	}
	stop()
	if !strings.Contains(shown.text(), strings.Repeat("x", 39)+"…") || strings.Contains(shown.text(), strings.Repeat("x", 40)) {
		t.Errorf("shown: %q", shown.text())
	}
}

// A tool's description, results and errors cannot control a terminal.
func TestTextOfToolsSteersNoTerminal(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	b, err := broker.Start(t.Context(), broker.Options{StoreDir: filepath.Join(home, "broker")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Shutdown)
	nc, err := nats.Connect(b.URL(), client.ConnectOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	const hostile = "nice\x1b[2J\x1b]0;owned\a\u009b31m\u202ecod\rover\r\x1b[K\x1b[1mforged"
	h := testmesh.Host(t, nc, &host.Options{Index: "hostile", Version: hostile, Labels: map[string]string{"of": hostile}})
	for name, say := range map[string]func(context.Context, struct{}) (string, error){
		"say":  func(context.Context, struct{}) (string, error) { return hostile, nil },
		"fail": func(context.Context, struct{}) (string, error) { return "", errors.New(hostile) },
	} {
		if _, err := h.Handle(name, host.Func(say), host.Description(hostile+"\nsecond line")); err != nil {
			t.Fatal(err)
		}
	}
	// The result is no number: the warning about it is text of the tool, too.
	if err := h.Publish(t.Context(), host.Service{Index: "liar", Tools: []host.Tool{{
		Descriptor: &tool.Descriptor{
			ID: "liar.say", Name: "say", Source: tool.SourceGo, InputSchema: json.RawMessage(`{"type":"object"}`), OutputSchema: json.RawMessage(`{"type":"integer"}`),
		},
		Handler: host.HandlerFunc(func(ctx context.Context, _ *host.Call, sink host.Sink) error {
			value, _ := json.Marshal(hostile)
			return sink.Send(ctx, value)
		}),
	}}}); err != nil {
		t.Fatal(err)
	}
	testmesh.Start(t, h)
	startAgent(t, home, b.URL(), "one") // answers for the registry
	for _, args := range [][]string{
		{"ls"}, {"ls", "--json"}, {"info", "hostile.say"}, {"call", "hostile.say"}, {"call", "liar.say"}, {"info", "liar.say"}, {"call", "hostile.fail"},
		{"call", "hostile.fail", "--json"}, {"nodes"}, {"node", "show", string(h.Node())},
	} {
		out, _ := meshCommand(t, home, append(args, "--server="+b.URL())...).CombinedOutput()
		if !strings.Contains(string(out), "nice") && !strings.Contains(string(out), "hostile") || slices.Contains(args, "liar.say") && !strings.Contains(string(out), "does not fit the output schema") {
			t.Errorf("mesh %v prints %q", args, out)
		}
		if at := strings.IndexFunc(string(out), func(c rune) bool { return unicode.IsControl(c) && c != '\n' && c != '\t' || c == '\u202e' }); at >= 0 {
			t.Errorf("mesh %v prints %q at %d of %q", args, out[at], at, out)
		}
	}
}

// The name of a session cannot forge lines of an audit.
func TestARowIsOneLine(t *testing.T) {
	t.Parallel()
	if got := oneLine(auditRow(codec.CallEvent{Session: "ann\n2026-01-02 03:04:05\tbob", RPCID: "rpc_1"}), "  "); strings.ContainsAny(got, "\n\t") || !strings.HasSuffix(got, "rpc_1") {
		t.Errorf("%q", got)
	}
}

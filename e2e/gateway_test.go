package e2e_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// upper is a tool that reads a file and returns another one.
const upper = `"""Texts."""
# /// script
# dependencies = []
# ///
import os
import tempfile

from toolmesh import File


def upper(file: File, title: str) -> File:
    """Put a file into capitals."""
    path = os.path.join(tempfile.mkdtemp(), "upper.txt")
    with open(file.path) as text, open(path, "w") as out:
        out.write(title + ": " + text.read().upper())
    return File(path, type="text/plain")
`

// Every command of docs/gateway.md works, and the gateway's lists are those that the commands print.
func TestGatewayPage(t *testing.T) {
	t.Parallel()
	needsPackages(t)
	u := newUser(t)
	p, url := u.gateway(t)
	u.env = append(u.env, "DATA="+p.dir)
	for name, text := range map[string]string{"texts.py": upper, "notes.txt": "hello"} {
		if err := os.WriteFile(filepath.Join(u.home, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, source := range []string{"./texts.py", "file://" + example(t, "weather"), "file://" + example(t, "lab")} {
		u.mesh(t, 0, "install", source, "--server="+p.url)
	}
	shell := func(line string) string {
		t.Helper()
		r := u.do(t, "sh", "-c", strings.ReplaceAll(line, "http://127.0.0.1:8420", url))
		if r.status != 0 {
			t.Errorf("%s: %v", line, r)
		}
		return r.stdout
	}
	prints := map[string]string{ // expected output of commands
		"forecast.today -d": `"city":"Oslo"`, "openapi.json": "", "lab.streams.words": "event: complete\ndata: {\"count\":4}", "texts.upper": `"href":"/v1/files/`,
		"/v1/tool-calls": `"tool_call_id":"call_1"`, "respond-async": `{"id":"task_`, "/v1/tasks": `"tool":"weather.forecast.today"`, "/v1/nodes": `"state":"serving"`,
	}
	for _, block := range fencedBlocks(t, filepath.Join("docs", "gateway.md")) {
		for line := range strings.Lines(block.text) {
			line = strings.TrimSpace(line)
			out := shell(strings.Replace(line, "curl ", "curl --fail-with-body ", 1))
			known := false
			for command, want := range prints {
				if strings.Contains(line, command) && strings.Contains(out, want) {
					known = true
					delete(prints, command)
					break
				}
			}
			if !known {
				t.Errorf("%s prints %s", line, out)
			}
		}
	}
	if len(prints) > 0 {
		t.Errorf("the page has no command with %v", prints)
	}
	if document, err := os.ReadFile(filepath.Join(u.home, "openapi.json")); err != nil || !strings.Contains(string(document), `"operationId":"weather-forecast-today"`) {
		t.Errorf("the OpenAPI document: %v %.200s", err, document)
	}
	const admin = ` -H "Authorization: Bearer $(cat $DATA/keys/admin.nk)"`
	for path, command := range map[string]string{"indexes": "indexes", "sessions": "session ls", "tools": "ls"} {
		want := u.mesh(t, 0, append(strings.Fields(command), "--json", "--server="+p.url)...).stdout
		if got := shell("curl -s http://127.0.0.1:8420/v1/" + path + admin); got != want {
			t.Errorf("/v1/%s answers\n%s\nmesh %s --json prints\n%s", path, got, command, want)
		}
	}
	// The file of the page, and a batch that an agent runs.
	href := shell(`curl -s http://127.0.0.1:8420/v1/tools/texts.texts.upper -F file=@notes.txt -F 'title=My notes'`)
	if _, href, _ = strings.Cut(href, `"href":"`); href == "" {
		t.Fatal("no file")
	}
	href, _, _ = strings.Cut(href, `"`)
	if got := shell("curl -s 'http://127.0.0.1:8420" + href + "'"); got != "My notes: HELLO" {
		t.Errorf("the file is %q", got)
	}
	if got := shell(`curl -s http://127.0.0.1:8420/v1/calls:batch -d '{"calls":[{"tool":"weather.forecast.today","args":{"city":"Oslo"}},{"tool":"lab.bank.withdraw"}]}'`); !strings.Contains(got, `"rpc_id":"batch_`) || !strings.Contains(got, `"city":"Oslo"`) || !strings.Contains(got, `"code":"invalid_arguments"`) {
		t.Errorf("a batch: %s", got)
	}
	// Only mesh install takes folders: a source that an agent cannot fetch is a problem.
	if got := shell(`curl -s http://127.0.0.1:8420/v1/indexes -H 'Content-Type: application/json' -d '{"source":"./texts.py"}'` + admin); !strings.Contains(got, `"code":"invalid_request"`) || !strings.Contains(got, "mesh install") {
		t.Errorf("a folder: %s", got)
	}
	if got := shell(`curl -s http://127.0.0.1:8420/v1/indexes -d '{"source":"https://127.0.0.1:1/nothing.git"}'` + admin); !strings.Contains(got, "event: step\n") || !strings.Contains(got, "event: problem\n") {
		t.Errorf("what cannot be fetched: %s", got)
	}
	// The gateway of a stopping router tells readers to continue at another gateway.
	var readers struct{ Token string }
	u.json(t, &readers, "session", "create", "readers", "--key", "--json", "--server="+p.url)
	router, _ := u.start(t, t.TempDir(), "mesh-router", "--server="+p.url, "--nkey="+filepath.Join(p.dir, "keys", "node.nk"), "--gateway-listen=127.0.0.1:0")
	at := router.await(t, router.logs, `gateway=(http\S+)`)[1]
	stream, items := u.start(t, t.TempDir(), "curl", "-sN", at+"/v1/tools/lab.streams.countdown", "-H", "Accept: text/event-stream",
		"-H", "Authorization: Bearer "+readers.Token, "-d", `{"start":1000}`)
	stream.await(t, items, "data: 999")
	router.signal(t, syscall.SIGTERM)
	if said := stream.await(t, items, `event: problem\ndata: (.*)`)[1]; !strings.Contains(said, `"code":"unavailable"`) {
		t.Errorf("the stream of a router that stops ends with %s", said)
	}
}

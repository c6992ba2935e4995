package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/internal/connect"
)

const (
	gitToken   = "ghp_s3cr3t/T0ken+of=thirty~letters" // as it is
	wrongToken = "ghp_wr0ng/T0ken+of=thirty~letters"
)

// gitHost serves a repository below / for the token, at /moved redirects to another host and
// repeats the credentials, and at /echo answers with them.
func gitHost(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		t.Skip("git is not installed")
	}
	dir := t.TempDir()
	repo := filepath.Join(dir, "tools")
	for name, text := range map[string]string{"tools.toml": "[index]\ntools = [\"t.hi\"]\n", "t.py": "def hi() -> str:\n    return 'hi'\n"} {
		err := os.MkdirAll(repo, 0o755)
		if err == nil {
			err = os.WriteFile(filepath.Join(repo, name), []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"init", "-q", "-b", "main"}, {"add", "-A"}, {"-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-q", "-m", "x"}} {
		if out, err := exec.Command("git", append([]string{"-C", repo}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	handler := &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(out)), "git-http-backend"), Args: []string{"http-backend"}, Dir: dir, Stderr: io.Discard,
		Env: []string{"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		switch {
		case strings.HasPrefix(r.URL.Path, "/moved/"):
			to := url.URL{Scheme: "http", Host: "elsewhere.invalid", User: url.UserPassword(user, password), Path: r.URL.Path, RawQuery: url.Values{"t": {user + password}}.Encode()}
			http.Redirect(w, r, to.String(), http.StatusFound)
		case strings.HasPrefix(r.URL.Path, "/echo/"):
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			w.WriteHeader(http.StatusForbidden)
			_, _ = fmt.Fprintf(w, "%s %s %s may not\n", user, password, r.Header.Get("Authorization"))
		case user != gitToken && password != gitToken:
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		default:
			handler.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// TestATokenInASourceIsShownNowhere installs from repositories with a token in the URL, which
// succeed and fail in each way, and looks for it in what commands print, in the agent's log, in
// all files of the mesh, in all that it stores, in what travels, and on command lines.
func TestATokenInASourceIsShownNowhere(t *testing.T) {
	host := gitHost(t)
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("git is not installed")
	}
	bin := t.TempDir()
	lines := filepath.Join(bin, "lines")
	script := fmt.Sprintf("#!/bin/sh\necho \"$@\" >> %s\nexec %s \"$@\"\n", lines, git)
	if err := os.WriteFile(filepath.Join(bin, "git"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	home := t.TempDir()
	up, at, log := startUp(t, home, "--private-sources", "--log-level=debug")
	seen := map[string]string{}
	secrets := []string{"s3cr3t", "wr0ng"}
	for _, token := range []string{gitToken, wrongToken} {
		secrets = append(secrets, token, url.QueryEscape(token), url.PathEscape(token))
		for _, pair := range []string{"bob:" + token, token + ":", token + ":x-oauth-basic"} {
			secrets = append(secrets, base64.StdEncoding.EncodeToString([]byte(pair)))
		}
	}
	look := func(where, text string) {
		t.Helper()
		for _, one := range secrets {
			if i := strings.Index(text, one); i >= 0 {
				t.Errorf("%s has the token: %q", where, text[max(0, i-200):min(len(text), i+100)])
			}
		}
	}

	nc, _, err := connect.Connect(t.Context(), connect.Options{Settings: connect.Settings{URL: at}, Name: "test", Role: access.Admin, Env: meshCommand(t, home).Env})
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	var mu sync.Mutex
	sent := map[string]int{}
	if _, err := nc.Subscribe(">", func(m *nats.Msg) {
		for _, one := range secrets {
			if strings.Contains(string(m.Data), one) || strings.Contains(fmt.Sprint(m.Header), one) {
				mu.Lock()
				sent[m.Subject]++
				mu.Unlock()
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}

	// Over HTTP each step is an event, and the tools serve once the last one has come.
	seed, err := os.ReadFile(access.File(filepath.Join(home, "data", "toolmesh"), access.Admin))
	if err != nil {
		t.Fatal(err)
	}
	gate := gatewayOf(t, log)
	post := func(path, body string) string {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, gate+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+string(seed))
		r.Header.Set("Content-Type", "application/json")
		a, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Body.Close()
		text, err := io.ReadAll(a.Body)
		if err != nil {
			t.Fatal(err)
		}
		look("POST "+path, string(text))
		return fmt.Sprintf("%d %s %s", a.StatusCode, a.Header.Get("Content-Type"), text)
	}
	defer http.DefaultClient.CloseIdleConnections()
	const step = `event: step\ndata: \{"job":"[^"]+","step":"[^"]+","state":"[^"]+","percent":[0-9]+.*\}\n\n`
	for _, c := range []struct{ token, last string }{
		{wrongToken, `event: problem\ndata: \{.*"code":"install_failed".*\}\n\n$`},
		{gitToken, `event: complete\ndata: \{"index":"web","revision":"[^"]+","tools":\["web\.t\.hi"\].*\}\n\n$`},
	} {
		source := "http://bob:" + url.QueryEscape(c.token) + "@" + host + "/tools/.git"
		got := post("/v1/indexes", fmt.Sprintf(`{"source":%q,"name":"web"}`, source))
		if !regexp.MustCompile(`^200 text/event-stream (` + step + `)+` + c.last).MatchString(got) {
			t.Errorf("install over HTTP: %s", got)
		}
	}
	if got := post("/v1/tools/web.t.hi", ""); got != `200 application/json "hi"` {
		t.Errorf("call of what was installed over HTTP: %s", got)
	}

	login := func(token string) []string {
		return []string{"bob:" + url.QueryEscape(token), url.QueryEscape(token), url.QueryEscape(token) + ":x-oauth-basic"}
	}
	sources := map[string]int{}
	for i, right := range login(gitToken) {
		wrong := login(wrongToken)[i]
		for source, want := range map[string]int{
			right + "@" + host + "/tools/.git": 0, wrong + "@" + host + "/tools/.git": 1, right + "@nowhere.invalid/tools": 1,
			right + "@" + host + "/moved/tools": 1, right + "@" + host + "/echo/tools": 1, right + "@" + host + "/none": 1,
			right + "@" + host + "/tools/.git@no-such-rev": 1,
		} {
			sources["http://"+source] = want
		}
	}
	run := func(stdin string, args ...string) int {
		cmd := meshCommand(t, home, append(args, "--log-level=debug")...)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		look(fmt.Sprintf("mesh %q", args), string(out))
		seen[strings.Join(args, " ")] += string(out)
		return exitStatus(err)
	}
	number := 0
	for source, want := range sources {
		number++
		name := fmt.Sprintf("--name=n%d", number)
		if got := run("", "install", source, name, "--dry-run"); got != want {
			t.Errorf("dry run %s: status %d, want %d", connect.Redact(source), got, want)
		}
		if got := run(fmt.Sprintf(`{"source":%q}`, source), "install", "-", name, "--json"); got != want {
			t.Errorf("%s: status %d, want %d\n%s", connect.Redact(source), got, want, seen["install - "+name+" --json"])
		}
		if want == 0 {
			run("", "install", source, name)
			run("", "index", "show", fmt.Sprintf("n%d", number), "--json")
			run("", "info", fmt.Sprintf("n%d.t.hi", number), "--json")
		}
	}
	run("", "install", "http://bob:"+url.QueryEscape(gitToken)+"@"+host+"/tools/.git?x=1")
	run("", "install", "http:/bob:"+gitToken+"@"+host+"/tools")
	run("", "install", "ssh://bob:"+gitToken+"@"+host+"/tools")
	run("", "index", "ls", "--json")
	run("", "nodes", "--json")

	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stored := 0
	for stream := range js.ListStreams(t.Context()).Info() {
		stored += lookInStream(t, js, stream.Config.Name, look)
	}
	if stored == 0 {
		t.Error("the mesh stores nothing")
	}
	mu.Lock()
	for subject := range sent {
		if subject != "mesh.admin.install" {
			t.Errorf("the token travels by %s", subject)
		}
	}
	if len(sent) == 0 {
		t.Error("no message with the token was seen: the request has one")
	}
	mu.Unlock()
	if err := up.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := up.Wait(); err != nil {
		t.Errorf("mesh up: %v", err)
	}
	look("the agent's log", log.text())
	argv, err := os.ReadFile(lines)
	if err != nil || !strings.Contains(string(argv), "ls-remote") {
		t.Errorf("command lines of git: %v\n%s", err, argv)
	}
	look("a command line of git", string(argv))
	err = filepath.WalkDir(home, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		look("the file "+path, string(data))
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// lookInStream looks at all that a stream has: how many messages.
func lookInStream(t *testing.T, js jetstream.JetStream, name string, look func(where, text string)) int {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := js.Stream(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	state := stream.CachedInfo().State
	found := 0
	for seq := state.FirstSeq; seq <= state.LastSeq; seq++ {
		m, err := stream.GetMsg(ctx, seq)
		if err != nil {
			continue // it was deleted
		}
		found++
		look(fmt.Sprintf("%s at %s", name, m.Subject), fmt.Sprint(m.Header)+string(m.Data))
	}
	return found
}

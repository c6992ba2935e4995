package venv

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// moduleWheel is a wheel of one module that holds its own name.
func moduleWheel(t *testing.T, name string) string {
	t.Helper()
	return wheelNamed(t, name, "1.0", map[string]string{name + ".py": "NAME = \"" + name + "\""})
}

// privateIndex is a package index that needs credentials, and has a file of one package for
// each way in which a page may link to it.
func privateIndex(t *testing.T) (index *httptest.Server, elsewhere *httptest.Server) {
	t.Helper()
	elsewhere = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Errorf("%s of another host got credentials", r.URL)
		}
		_, _ = w.Write([]byte(moduleWheel(t, "away")))
	}))
	t.Cleanup(elsewhere.Close)
	index = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "bob" || password != "p@ss,word" {
			w.Header().Set("WWW-Authenticate", "Basic")
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		file := func(name string) string { return name + "-1.0-py3-none-any.whl" }
		html := func(text string) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			_, _ = io.WriteString(w, text)
		}
		switch path := r.URL.Path; {
		case path == "/team/simple/relative/":
			html("<!DOCTYPE html><html><body><a href='../../files/" + file("relative") + "'>" + file("relative") + "</a></body></html>")
		case path == "/team/simple/absolute/":
			html(`<html><a data-requires-python="&gt;=3.7" href="` + index.URL + "/team/files/" + file("absolute") + `">` + file("absolute") + "</a></html>")
		case path == "/team/simple/away/":
			html(`<html><a href="` + elsewhere.URL + "/" + file("away") + `">` + file("away") + "</a></html>")
		case path == "/team/simple/modern/":
			w.Header().Set("Content-Type", "application/vnd.pypi.simple.v1+json")
			_, _ = fmt.Fprintf(w, `{"meta":{"api-version":"1.1"},"name":"modern","files":[{"filename":%q,"url":%q,"hashes":{},"size":1}],"versions":["1.0"]}`,
				file("modern"), "/team/files/"+file("modern"))
		case path == "/team/simple/moved/":
			http.Redirect(w, r, "/team/simple/relative/", http.StatusFound)
		case path == "/team/simple/left/":
			http.Redirect(w, r, elsewhere.URL+"/left", http.StatusFound)
		case path == "/team/simple/endless/":
			html("<a href=x>" + strings.Repeat(" ", maxPage))
		case strings.HasPrefix(path, "/team/files/"):
			name, _, _ := strings.Cut(strings.TrimPrefix(path, "/team/files/"), "-")
			http.ServeContent(w, r, "", time.Time{}, strings.NewReader(moduleWheel(t, name)))
		case path == "/team/secret":
			t.Errorf("%s was asked for, which no page links to", path)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(index.Close)
	return index, elsewhere
}

// with is an environment whose indexes need the credentials of privateIndex.
func with(index *httptest.Server, name string) string {
	return name + strings.Replace(index.URL, "://", "://bob:p%40ss%2Cword@", 1) + "/team/simple"
}

func TestBuildsReachAPrivateIndexWithoutItsCredentials(t *testing.T) {
	if testing.Short() {
		t.Skip("installs uv")
	}
	uv, err := exec.LookPath("uv")
	if err != nil {
		folder := t.TempDir()
		if out, err := exec.Command("python3", "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check", "--target", folder, "uv").CombinedOutput(); err != nil {
			if os.Getenv("CI") != "" {
				t.Fatalf("uv cannot be installed: %v %s", err, out)
			}
			t.Skipf("uv cannot be installed: %v %s", err, out)
		}
		uv = filepath.Join(folder, "bin", "uv")
	}
	index, _ := privateIndex(t)
	for name, environ := range map[string][]string{
		"a URL":          {with(index, "UV_DEFAULT_INDEX=")},
		"a named one":    {with(index, "UV_DEFAULT_INDEX=team=")},
		"variables":      {"UV_DEFAULT_INDEX=my-team=" + index.URL + "/team/simple", "UV_INDEX_MY_TEAM_USERNAME=bob", "UV_INDEX_MY_TEAM_PASSWORD=p@ss,word"},
		"the older name": {with(index, "UV_INDEX_URL=")},
	} {
		t.Run(name, func(t *testing.T) {
			tmp := t.TempDir()
			environ = append(environ, "PATH="+os.Getenv("PATH"), "HOME="+tmp, "UV_CACHE_DIR="+tmp+"/cache", "HTTP_PROXY=http://127.0.0.1:1")
			t.Setenv("NO_PROXY", "127.0.0.1") // of this process
			env, stop, err := newIndexProxy(environ)
			if err != nil {
				t.Fatal(err)
			}
			defer stop()
			if all := strings.Join(env, "\n"); strings.Contains(all, "bob") || strings.Contains(all, "word") {
				t.Errorf("builds see credentials:\n%s", all)
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, uv, "pip", "install", "--no-config", "--target", filepath.Join(tmp, "to"), "--index-strategy=unsafe-best-match",
				"relative", "absolute", "away", "modern")
			cmd.Env = env
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for _, module := range []string{"relative", "absolute", "away", "modern"} {
				if _, err := os.Stat(filepath.Join(tmp, "to", module+".py")); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestIndexProxyServesItsIndexAlone(t *testing.T) {
	index, elsewhere := privateIndex(t)
	env, stop, err := newIndexProxy([]string{"A=1", "UV_EXTRA_INDEX_URL=https://example.org/simple " + with(index, ""), "UV_INDEX=./wheels", "UV_INDEX_A_PASSWORD=t", "UV_DEFAULT_INDEX=" + with(index, "") + "\n" + with(index, "") + "2"})
	if err != nil {
		t.Fatal(err)
	}
	stopped := false
	defer func() {
		if !stopped {
			stop()
		}
	}()
	if env[0] != "A=1" || !strings.HasPrefix(env[1], "UV_EXTRA_INDEX_URL=https://example.org/simple http://127.0.0.1:") || env[2] != "UV_INDEX=./wheels" || strings.Contains(strings.Join(env, " "), "PASSWORD") || !regexp.MustCompile(`^UV_DEFAULT_INDEX=http://127\.\S*/-/team/simple\shttp://127\.\S*/-/team/simple2$`).MatchString(env[3]) {
		t.Fatalf("environment %q", env)
	}
	at := strings.Fields(env[1])[1]
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, Transport: &http.Transport{DisableKeepAlives: true}}
	ask := func(method, url string) (status int, body, location string) {
		t.Helper()
		request, err := http.NewRequestWithContext(context.Background(), method, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Basic bW9uOmtleQ==")
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close() //nolint:errcheck // only read
		data, _ := io.ReadAll(response.Body)
		return response.StatusCode, string(data), response.Header.Get("Location")
	}
	status, body, _ := ask("GET", at+"/relative/")
	link := regexp.MustCompile(`href="([^"]*)"`).FindStringSubmatch(body)
	if status != 200 || link == nil {
		t.Fatalf("the page: %d %s", status, body)
	}
	if status, _, _ := ask("HEAD", link[1]); status != 200 {
		t.Errorf("a linked address: %d", status)
	}
	if _, _, to := ask("GET", at+"/moved/"); to != at+"/relative/" {
		t.Errorf("a redirect leads to %s", to)
	}
	if _, _, to := ask("GET", at+"/left/"); to != elsewhere.URL+"/left" {
		t.Errorf("a redirect to another host leads to %s", to)
	}
	root, _, _ := strings.Cut(at, "/-/")
	for _, one := range []struct {
		method, url string
		want        int
	}{
		{"POST", at + "/relative/", 404}, {"PUT", at + "/relative/", 404}, {"DELETE", link[1], 404}, {"GET", root + "/-/team/secret", 403}, {"GET", root + "/-/team/simple/../secret", 403},
		{"GET", root + "/-/team/simple/%2e%2e/secret", 403}, {"GET", root + "/-/team/simple/..%2fsecret", 403}, {"GET", root + "/-/team/simple/%252e%252e/secret", 403}, {"GET", root + "/-/team/simplest", 403},
		{"GET", strings.Replace(link[1], "relative-", "absolute-", 1), 403}, {"GET", link[1] + "?file=secret", 403}, {"GET", root[:len(root)-26] + strings.Repeat("A", 26) + "/-/team/simple/relative/", 404},
		{"GET", root[:len(root)-26], 404}, {"GET", at + "/endless/", 502}, {"GET", at + "/none/", 404},
	} {
		if status, _, _ := ask(one.method, one.url); status != one.want {
			t.Errorf("%s %s: %d, want %d", one.method, one.url, status, one.want)
		}
	}
	stop()
	stopped = true
	if _, err := client.Get(at); err == nil { //nolint:bodyclose // none
		t.Error("the proxy outlives its step")
	}
}

func TestAnIndexThatCannotBeReadIsNotShown(t *testing.T) {
	_, _, err := newIndexProxy([]string{"UV_INDEX_URL=https://bob:%zz@host/simple"})
	if err == nil || strings.Contains(err.Error(), "bob") || !strings.Contains(err.Error(), "UV_INDEX_URL") {
		t.Fatalf("error %v", err)
	}
}

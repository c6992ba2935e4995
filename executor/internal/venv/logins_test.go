package venv

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh"
)

// The values are in files that only their owner can read, before those of the agent.
func TestFilesOfLogins(t *testing.T) {
	t.Parallel()
	lock := Lock{Requirements: []byte("lib @ git+https://example.org/lab/lib.git@v1\na @ https://files.example.org:8443/a.whl\n" +
		"# login git+https://example.org/lab/lib.git: oauth2:${TOKEN}\n# login https://files.example.org:8443: ${TOKEN}\n")}
	if !lock.foreign() || (Lock{Requirements: []byte("a==1 \\\n    --hash=sha256:aa\n# b\n")}).foreign() {
		t.Error("the lock's logins are not seen")
	}
	all, err := lock.logins(map[string]string{"TOKEN": `hun"t\er 2`})
	if err != nil {
		t.Fatal(err)
	}
	dir, home := t.TempDir(), tree(t, map[string]string{".netrc": "machine agent.example.org login a password b\n"})
	env, err := all.files(dir, []string{"NETRC=" + filepath.Join(home, ".netrc")})
	if err != nil {
		t.Fatal(err)
	}
	git := filepath.Join(dir, "gitconfig")
	want := []string{"NETRC=" + filepath.Join(dir, "netrc"), "GIT_CONFIG_VALUE_0=" + git, "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=include.path"}
	if diff := cmp.Diff(want, env); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for file, want := range map[string]string{
		git: "[http \"https://example.org/lab/lib.git\"]\n\textraHeader = \"Authorization: Basic b2F1dGgyOmh1biJ0XGVyIDI=\"\n",
		filepath.Join(dir, "netrc"): "machine files.example.org login \"hun\\\"t\\\\er 2\" password \"\"\n" +
			"machine agent.example.org login a password b\n",
	} {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", file, info.Mode(), err)
		}
		if diff := cmp.Diff(want, string(data)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	if env, err := logins(nil).files(filepath.Join(dir, "none"), nil); env != nil || err != nil {
		t.Errorf("without logins: %v, %v", env, err)
	}
	if _, err := lock.logins(nil); toolmesh.AsError(err) == nil || !strings.Contains(err.Error(), "--env TOKEN") {
		t.Errorf("without a value: %v", err)
	}
	if _, err := lock.logins(map[string]string{"TOKEN": "a\nmachine x"}); err == nil {
		t.Error("a value of two lines is taken")
	}
}

func TestCredentialsAreRedacted(t *testing.T) {
	t.Parallel()
	l := logins{{user: "bob", password: "p w/1", secrets: []string{"p w/1"}}}
	for text, want := range map[string]string{
		"https://a:b@h/x":                                        "https://***@h/x",
		"'git+https://tok@h/x@v1' and http://h/@x":               "'git+https://***@h/x@v1' and http://h/@x",
		"http://a:b@c@h/":                                        "http://***@h/",
		"https://${NAME}@host":                                   "https://${NAME}@host",
		"https://h/x?a=b&token=zz&c=d":                           "https://h/x?a=b&token=***&c=d",
		"bob said p w/1, p%20w%2F1, p+w%2F1 and " + l[0].basic(): "bob said ***, ***, *** and ***",
	} {
		if got := l.redact(text); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}

// Requirements of a package itself, which uv reads, are checked by the same rules.
func TestPathsAndAddressesOfALock(t *testing.T) {
	t.Parallel()
	dir := tree(t, map[string]string{"lib/x": "", "lib/out": "-> /etc", "my lib/x": ""})
	lock := packages([]byte("a @ file:///copy/lib ; python_version > '3'\nfile:///copy/my%20lib\nb @ https://example.org/b.whl \\\n    --hash=sha256:aa\nc==1\n"))
	notes, err := placed(lock, "/copy", dir)
	if err != nil {
		t.Fatal(err)
	}
	text := textOf(lock) + notes
	if want := "a @ ./lib ; python_version > '3'\n./my lib\nb @ https://example.org/b.whl \\\n    --hash=sha256:aa\nc==1\n# content of ./lib: sha256:"; !strings.HasPrefix(text, want) {
		t.Errorf("got\n%s", text)
	}
	for _, line := range []string{
		"a @ file:///etc", "/etc", "a @ file:///copy/../etc", "a @ file:///copyother", "a @ git+file:///srv/a", "a @ https://bob:hunter2@example.org/a.whl", "a @ git+ext://x", "../a", "-e /etc", "a @ file:///copy/lib%0A--index-url%20x", "/copy/a;b",
		// uv takes a carriage return for the end of a line.
		"a==1\r--index-url https://author/${UV_INDEX_PASSWORD}", "a==1 ; python_version > '3'\r-r /etc/passwd", "a @ file:///copy/lib ; python_version > '3'\r-e /etc", "a @ https://example.org/a.whl\r-e /etc",
		"a==1 --index-url https://author", "a==1 @ https://author/a.whl",
	} {
		if _, err := placed(packages([]byte(line+"\n")), "/copy", dir); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %v", line, err)
		}
	}
}

// An index's hashes replace those of the package index.
func TestHashesOfALock(t *testing.T) {
	t.Parallel()
	lock := "bare==3 \\\n    --hash=sha256:11\n./here\nsix @ file:///t/six.whl \\\n    --hash=sha256:22\nb @ https://example.org/b.whl#subdirectory=x \\\n    --hash=sha256:33\n" +
		"some-package==1.0.0 ; python_version > '3' \\\n    --hash=sha256:55\n" + "early==1.0rc1 \\\n    --hash=sha256:66\nlater==1.0.post1 \\\n    --hash=sha256:77\n" +
		"long==1.0rc1 \\\n    --hash=sha256:88\nlocal==1.10+ubuntu.1 \\\n    --hash=sha256:99\nother==1.0.1 \\\n    --hash=sha256:00\n"
	all := []requirement{
		{name: "Some_Package", extras: "[x]", spec: "==1.0", hashes: []string{"sha256:aa", "sha512:bb"}},
		{path: "six.whl", hashes: []string{"sha256:cc"}}, {name: "b", url: "https://example.org/b.whl", hashes: []string{"sha256:dd"}},
		{name: "early", spec: "==1.0.0-RC.1", hashes: []string{"sha256:ee"}}, {name: "later", spec: "==v1-1", hashes: []string{"sha256:ff"}},
		{name: "long", spec: "==1.0.0.0rc1", hashes: []string{"sha256:ab"}}, {name: "local", spec: "==1.10.0+Ubuntu-1", hashes: []string{"sha256:ac"}},
		{name: "other", spec: "==1.1", hashes: []string{"sha256:ad"}},
	}
	got := packages([]byte(lock))
	err := hold(got, all, "/t", false)
	want := "bare==3 \\\n    --hash=sha256:11\n./here\nsix @ file:///t/six.whl \\\n    --hash=sha256:cc\nb @ https://example.org/b.whl#subdirectory=x \\\n    --hash=sha256:dd\n" +
		"some-package==1.0.0 ; python_version > '3' \\\n    --hash=sha256:aa \\\n    --hash=sha512:bb\n" +
		"early==1.0rc1 \\\n    --hash=sha256:ee\nlater==1.0.post1 \\\n    --hash=sha256:ff\n" +
		"long==1.0rc1 \\\n    --hash=sha256:ab\nlocal==1.10+ubuntu.1 \\\n    --hash=sha256:ac\nother==1.0.1 \\\n    --hash=sha256:00\n"
	if diff := cmp.Diff(want, textOf(got)); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if err := hold(packages([]byte(lock)), all, "/t", true); err == nil || !strings.Contains(err.Error(), "bare==3") {
		t.Errorf("got %v", err)
	}
	if got = packages([]byte(lock)); hold(got, nil, "/t", false) != nil || textOf(got) != lock {
		t.Error("a lock is changed without a reason")
	}
}

func TestGitSettingsOfTheAgentAreNoFiles(t *testing.T) {
	environ := []string{"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"}
	if env, err := logins(nil).files(t.TempDir(), environ); env != nil || err != nil {
		t.Errorf("got %q, %v; want nothing", env, err)
	}
}

package index

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	t.Parallel()
	abs := func(p string) string {
		a, err := filepath.Abs(p)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	for text, want := range map[string]Source{
		"./weather":                            {Kind: KindFolder, Location: abs("weather"), Name: "weather"},
		"../My Tools/":                         {Kind: KindFolder, Location: abs("../My Tools"), Name: "My-Tools"},
		"/srv/a@b":                             {Kind: KindFolder, Location: "/srv/a@b", Name: "a-b"},
		".":                                    {Kind: KindFolder, Location: abs("."), Name: "index"},
		"/":                                    {Kind: KindFolder, Location: "/", Name: ""},
		"./x--y":                               {Kind: KindFolder, Location: abs("x--y"), Name: "y"},
		"./t/sum.py":                           {Kind: KindFile, Location: abs("t/sum.py"), Name: "sum"},
		"owner/repo":                           {Kind: KindGit, Location: "https://github.com/owner/repo", Name: "repo"},
		"o/r.git@v1.2":                         {Kind: KindGit, Location: "https://github.com/o/r", Rev: "v1.2", Name: "r"},
		"o/r@feature/x":                        {Kind: KindGit, Location: "https://github.com/o/r", Rev: "feature/x", Name: "r"},
		"git@h.io:a/b":                         {Kind: KindGit, Location: "git@h.io:a/b", Name: "b"},
		"me@h:b.git@v1":                        {Kind: KindGit, Location: "me@h:b.git", Rev: "v1", Name: "b"},
		"ssh://h:22/a/b":                       {Kind: KindGit, Location: "ssh://h:22/a/b", Name: "b"},
		"https://h/a/b.c.git@main":             {Kind: KindGit, Location: "https://h/a/b.c.git", Rev: "main", Name: "b-c"},
		"https://h/a/b/":                       {Kind: KindGit, Location: "https://h/a/b/", Name: "b"},
		"file:///srv/x.git@0a1b2c":             {Kind: KindGit, Location: "file:///srv/x.git", Rev: "0a1b2c", Name: "x"},
		"http://127.0.0.1:8/x":                 {Kind: KindGit, Location: "http://127.0.0.1:8/x", Name: "x"},
		"ssh://git@h/a@b@v1":                   {Kind: KindGit, Location: "ssh://git@h/a@b", Rev: "v1", Name: "a-b"},
		"https://h/" + strings.Repeat("n", 80): {Kind: KindGit, Location: "https://h/" + strings.Repeat("n", 80), Name: "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn"},
	} {
		got, err := Parse(text)
		if err != nil {
			t.Errorf("Parse(%q): %v", text, err)
			continue
		}
		if got != want {
			t.Errorf("Parse(%q) = %+v %q, want %+v %q", text, got, got.Name, want, want.Name)
		}
	}
}

// A path is stored and shown with the working folder before it.
func TestParseInAFolderThatCannotBeShown(t *testing.T) {
	for _, name := range []string{"a\nb", "caf\xe9"} {
		dir := filepath.Join(t.TempDir(), name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Skip(err) // a system of UTF-8 alone
		}
		t.Chdir(dir)
		for _, text := range []string{".", "./x"} {
			if got, err := Parse(text); err == nil {
				t.Errorf("Parse(%q) in %q: %q, want an error", text, name, got.Location)
			}
		}
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for text, part := range map[string]string{
		"":                            "empty",
		"weather":                     "write ./weather",
		"tool.py":                     "write ./tool.py",
		"--upload-pack=touch /tmp/x":  "option",
		"ext::sh -c true":             "not a source",
		"ext://h/sh -c true":          "not supported",
		"git://h/x":                   "not supported",
		"https://h":                   "names no repository",
		"https:///x":                  "no host",
		"https://h/x?a=b":             "query",
		"https://h/x@":                "no usable revision",
		"https://h/x@-rf":             "no usable revision",
		"https://h/x@a..b":            "no usable revision",
		"o/r@--upload-pack=x":         "not a source",
		"ssh://-oProxyCommand=x/y":    "no usable host",
		"-oProxyCommand=x@h:y":        "option",
		"git@-oProxyCommand=x:y":      "not a source",
		"ssh://u:p@h/x":               "password",
		"file://host/x":               "three slashes",
		"https://h/a\nb":              "control characters",
		"https://user:secret@h":       "names no repository",
		"https://us er:secret@h/x%zz": "cannot be read as a URL",
	} {
		_, err := Parse(text)
		if err == nil {
			t.Errorf("Parse(%q) is accepted", text)
			continue
		}
		if !strings.Contains(err.Error(), part) {
			t.Errorf("Parse(%q): %v, want %q", text, err, part)
		}
		if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "u:p@") {
			t.Errorf("Parse(%q) shows a password: %v", text, err)
		}
	}
}

func TestSourceHidesCredentials(t *testing.T) {
	t.Parallel()
	src, err := Parse("https://bob:hunter2@example.com/a/b@v1")
	if err != nil {
		t.Fatal(err)
	}
	if src.login == nil || src.Rev != "v1" {
		t.Errorf("source is %v, login %v, want a login and v1", src, src.login != nil)
	}
	data, err := json.Marshal(src)
	if err != nil {
		t.Fatal(err)
	}
	type holder struct{ inner Source }
	all := fmt.Sprintf("%v %+v %#v %s %q %v %+v %#v %s", src, src, src, src, src, holder{src}, &holder{src}, holder{src}, data)
	if strings.Contains(all, "hunter2") || strings.Contains(all, "bob") {
		t.Errorf("a formatted source shows its credentials: %s", all)
	}
	if want := "https://example.com/a/b@v1"; src.String() != want {
		t.Errorf("String is %q, want %q", src, want)
	}
}

func TestIdentity(t *testing.T) {
	t.Parallel()
	identity := func(text string) string {
		src, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return src.Identity()
	}
	base := identity("owner/repo")
	for _, same := range []string{"owner/repo@v1", "https://github.com/owner/repo.git", "https://tok@github.com/owner/repo/"} {
		if identity(same) != base {
			t.Errorf("%s is %s, want %s", same, identity(same), base)
		}
	}
	for _, other := range []string{"owner/repo2", "./owner/repo", "https://example.com/owner/repo"} {
		if identity(other) == base {
			t.Errorf("%s has the identity of another source", other)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"./a", "o/r@v1", "https://u:p@h/x@v", "git@h:a/b@v", "ssh://git@h:22/x", "file:///x@y", "ext::sh", "a@b/c@d"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		src, err := Parse(text)
		if err != nil {
			wantFailed(t, err, wantReasonOf(err))
			return
		}
		if src.Location == "" || strings.HasPrefix(src.Location, "-") || strings.HasPrefix(src.Rev, "-") {
			t.Errorf("Parse(%q) = %v, which git could take for an option", text, src)
		}
		if src.Kind == KindGit && !strings.Contains(src.Location, "://") && !scpLike.MatchString(src.Location) {
			t.Errorf("Parse(%q) has the location %q, want an address", text, src.Location)
		}
		if src.Name != "" && token(string(src.Name)) != src.Name {
			t.Errorf("Parse(%q) has the name %q, which is no token", text, src.Name)
		}
		// The shown form can be typed again.
		if src.Kind == KindGit {
			again, err := Parse(src.String())
			if err != nil || again.Location != src.Location || again.Rev != src.Rev {
				t.Errorf("Parse(%q) = %v, but Parse of that is %v, %v", text, src, again, err)
			}
		}
	})
}

func wantReasonOf(err error) string {
	if asDetails(err) == reasonRevision {
		return reasonRevision
	}
	return reasonSource
}

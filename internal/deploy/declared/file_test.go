package declared

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/internal/index"
	"github.com/toolmesh/toolmesh/registry"
)

func TestFileOfIndexesIsParsed(t *testing.T) {
	t.Parallel()
	f := Parse([]byte(`
[[index]]
source = "owner/weather@v1"

[[index]]
source = "https://example.com/model.git"
rev = "v2"
name = "big"
env = ["API_KEY", "REGION=eu=x", "EMPTY="]
paths = ["/srv/documents:rw", "/srv/models"]
on = { gpu = "true", zone = "b" }
`), []string{"API_KEY=old", "API_KEYS=x", "API_KEY=s3"})
	if f.Err != nil || !f.whole() {
		t.Fatalf("the file is not whole: %v", f.Err)
	}
	var got []deploy.Request
	for _, e := range f.Entries {
		if e.Err != nil || e.Name != e.Request.Name || e.Source == "" || e.Request.Managed == "" {
			t.Errorf("%+v", e)
		}
		e.Request.Managed = ""
		got = append(got, e.Request)
	}
	want := []deploy.Request{
		{Source: "owner/weather@v1", Name: "weather", On: registry.Labels{}},
		{
			Source: "https://example.com/model.git", Rev: "v2", Name: "big", Literal: []string{"REGION", "EMPTY"},
			Env:   map[string]string{"API_KEY": "s3", "REGION": "eu=x", "EMPTY": ""},
			Paths: []index.Folder{{Path: "/srv/documents", Write: true}, {Path: "/srv/models"}}, On: registry.Labels{"gpu": "true", "zone": "b"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
}

// A broken entry has an error, and the others are read.
func TestWrongEntriesAreSkipped(t *testing.T) {
	t.Parallel()
	for text, parts := range map[string][]string{
		`name = "bad"`: {"entry 1 (bad)", "source is missing"},
		`source = "./dir"` + "\n" + `name = "bad"`:      {"entry 1 (bad)", "folder", "repository"},
		`source = "o/bad"` + "\n" + `revision = "v1"`:   {"entry 1 (bad)", `the key "revision" is unknown`},
		`source = "o/bad"` + "\n" + `pathes = ["/x"]`:   {`the key "pathes" is unknown; did you mean paths?`},
		`source = "o/bad"` + "\n" + `name = "a b"`:      {"cannot be an index's name"},
		`source = "o/bad"` + "\n" + `env = ["NOT"]`:     {"entry 1 (bad)", `the variable "NOT"`},
		`source = "o/bad"` + "\n" + `env = "K"`:         {"entry 1 (bad)", "line 3", "index.env"},
		`source = "o/bad"` + "\n" + `env = ["=x"]`:      {"names no variable"},
		`source = "o/bad"` + "\n" + `paths = ["x"]`:     {"must be an absolute path"},
		`source = "o/bad"` + "\n" + `on = {gpu = true}`: {"entry 1 (bad)", "line 3", "index.on.gpu"},
		`source = "o/bad"` + "\n" + `on = {gpu = ""}`:   {`"gpu" has no value`},
		`source = "o/bad"` + "\n" + `rev = 1`:           {"entry 1 (bad)", "line 3", "index.rev"},
		`source = "o/bad@a"` + "\n" + `rev = "b"`:       {"two revisions"},
		`source = "o/x"` + "\n" + `name = "good"`:       {"entry 1 (good)", `2 entries have the name "good"`},
	} {
		f := Parse([]byte("[[index]]\n"+text+"\n[[index]]\nsource = \"o/good\"\n[[index]]\nsource = \"o/fine\"\n"), nil)
		if f.Err != nil || len(f.Entries) != 3 || f.Entries[2].Err != nil {
			t.Fatalf("%s: %v %+v", text, f.Err, f.Entries)
		}
		e := toolmesh.AsError(f.Entries[0].Err)
		if e == nil || e.Code != toolmesh.CodeInvalidRequest {
			t.Errorf("%s: %v", text, e)
			continue
		}
		for _, part := range parts {
			if !strings.Contains(e.Message, part) {
				t.Errorf("%s: %q does not say %q", text, e.Message, part)
			}
		}
		if twice := strings.Contains(text, `"good"`); twice != (f.Entries[1].Err != nil) {
			t.Errorf("%s: the second entry is %v", text, f.Entries[1].Err)
		}
	}
}

// A file that may lack entries removes no index.
func TestIncompleteFileRemovesNoIndex(t *testing.T) {
	t.Parallel()
	for text, part := range map[string]string{
		"":                                   "index = []",
		"# nothing\n":                        "index = []",
		"[[index]\n":                         "line 2",
		"[index]\nsource = \"o/x\"\n":        "[[index]]",
		"[[indexes]]\nsource = \"o/x\"\n":    `unknown key "indexes"`,
		"index = 1\n":                        "[[index]]",
		"x = 1\n[[index]]\nsource=\"o/x\"\n": `unknown key "x"`,
	} {
		f := Parse([]byte(text), nil)
		if f.whole() || toolmesh.CodeOf(f.Err) != toolmesh.CodeInvalidRequest || !strings.Contains(f.Err.Error(), part) {
			t.Errorf("%q: %v, want it to say %q", text, f.Err, part)
		}
	}
	const source = "[[index]]\nsource = \"o/x\"\n"
	for _, text := range []string{
		"[[index]]\nrev = \"x\"\n", "index = [1]\n", "[[index]]\nname = 1\n",
		source + "name = 1\n", source + "name = \"pro d\"\n", source + "nmae = \"prod\"\n", source + "rev = 1\nnmae = \"prod\"\n",
	} {
		if f := Parse([]byte(text), nil); f.Err != nil || f.whole() || f.Entries[0].Err == nil {
			t.Errorf("%q, an entry that does not say its name: %+v", text, f)
		}
	}
	for _, text := range []string{source + "paths = [\"x\"]\n", source + "name = \"prod\"\nrev = 1\n", source + "name = \"prod\"\nName = \"other\"\n"} {
		if f := Parse([]byte(text), nil); !f.whole() || f.Entries[0].Err == nil || strings.Contains(text, "prod") != (f.Entries[0].Name == "prod") {
			t.Errorf("%q, a wrong entry that says its name: %+v", text, f)
		}
	}
	if f := Parse([]byte("index = []\n"), nil); !f.whole() || len(f.Entries) > 0 {
		t.Errorf("no entries: %+v", f)
	}
	if f := Read(filepath.Join(t.TempDir(), "none.toml"), nil); f.whole() || toolmesh.CodeOf(f.Err) != toolmesh.CodeUnavailable {
		t.Errorf("no file: %v", f.Err)
	}
}

// Different requests have different digests.
func TestDigests(t *testing.T) {
	t.Parallel()
	seen := make(map[string]string)
	for _, text := range []string{
		"", "rev = \"v2\"", "name = \"n\"", "env = [\"K\"]", "env = [\"K=w\"]", "paths = [\"/x\"]", "paths = [\"/x:rw\"]",
		"on = {a = \"b\"}", "on = {a = \"c\"}",
	} {
		f := Parse([]byte("[[index]]\nsource = \"o/x\"\n"+text), []string{"K=v"})
		if err := errors.Join(f.Err, f.Entries[0].Err); err != nil {
			t.Fatal(err)
		}
		d := f.Entries[0].Request.Managed
		if before, ok := seen[d]; ok {
			t.Errorf("%q and %q have one digest", before, text)
		}
		seen[d] = text
		again := Parse([]byte("[[index]]\nsource = \"o/x\"\n"+text), []string{"K=v"}).Entries[0].Request.Managed
		if again != d {
			t.Errorf("%q has the digests %s and %s", text, d, again)
		}
	}
}

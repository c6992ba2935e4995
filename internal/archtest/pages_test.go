package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The page "where does a change go" names files that exist, in at least ten tables,
// and README leads to it.
func TestChangesPage(t *testing.T) {
	t.Parallel()
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join("..", "..", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	if !strings.Contains(read("README.md"), "(docs/development/where-changes-go.md)") {
		t.Error("README.md does not link docs/development/where-changes-go.md")
	}
	page := read("docs/development/where-changes-go.md")
	changes := strings.Split(page, "\n## ")[1:]
	if len(changes) < 10 {
		t.Errorf("the page shows %d changes, want ten", len(changes))
	}
	file := regexp.MustCompile("`([a-z_0-9A-Z./-]+\\.(?:go|py|md|txtar))`")
	for _, change := range changes {
		title, body, _ := strings.Cut(change, "\n")
		found := file.FindAllStringSubmatch(body, -1)
		if len(found) < 3 {
			t.Errorf("%s: names %d files", title, len(found))
		}
		for _, match := range found {
			if _, err := os.Stat(filepath.Join("..", "..", filepath.FromSlash(match[1]))); err != nil {
				t.Errorf("%s: %s is not there", title, match[1])
			}
		}
	}
}

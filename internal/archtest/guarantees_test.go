package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The tests that docs/guarantees.md names are there, in the folders that it names.
func TestGuaranteesAreTested(t *testing.T) {
	t.Parallel()
	root := "../.."
	page, err := os.ReadFile(filepath.Join(root, "docs/guarantees.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("([a-z/0-9]+) ((?:`Test\\w+`(?:, )?)+)")
	n := 0
	for _, of := range named.FindAllStringSubmatch(string(page), -1) {
		var code strings.Builder
		files, err := filepath.Glob(filepath.Join(root, of[1], "*_test.go"))
		if err != nil || len(files) == 0 {
			t.Errorf("%s has no tests: %v", of[1], err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			code.Write(data)
		}
		for _, test := range regexp.MustCompile(`Test\w+`).FindAllString(of[2], -1) {
			n++
			if !strings.Contains(code.String(), "func "+test+"(") {
				t.Errorf("%s has no %s", of[1], test)
			}
		}
	}
	if all := strings.Count(string(page), "`Test"); n != all {
		t.Errorf("%d tests are named, %d with a folder", all, n)
	}
}

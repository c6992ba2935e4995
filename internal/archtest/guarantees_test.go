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
		code := tests(t, filepath.Join(root, of[1]))
		for _, test := range regexp.MustCompile(`Test\w+`).FindAllString(of[2], -1) {
			n++
			if !strings.Contains(code, "func "+test+"(") {
				t.Errorf("%s has no %s", of[1], test)
			}
		}
	}
	if all := strings.Count(string(page), "`Test"); n != all {
		t.Errorf("%d tests are named, %d with a folder", all, n)
	}
}

// Go passes a run whose pattern fits no test. The patterns of tiers that run rarely fit tests of their folders.
func TestPatternsOfSlowTiersFitTests(t *testing.T) {
	t.Parallel()
	for file, row := range map[string]string{
		"Makefile":         `(?m)^\t@(?:cd (?<in>\S+) &&)?.* -run '?(?<pattern>[\w|]+)'? (?<of>\.[\w./]*)`,
		"e2e/kernel/tests": `(?m)^\s*try (?<in>)\S+ \S+ (?<of>\S+) '(?<pattern>.+)'`,
	} {
		text, err := os.ReadFile(filepath.Join("../..", file))
		if err != nil {
			t.Fatal(err)
		}
		rows := regexp.MustCompile(row)
		found := rows.FindAllStringSubmatch(string(text), -1)
		if len(found) < 4 {
			t.Errorf("%s: %d patterns of tests are found, at least 4 are there", file, len(found))
		}
		for _, of := range found {
			folder := filepath.Join(of[rows.SubexpIndex("in")], strings.TrimSuffix(of[rows.SubexpIndex("of")], "..."))
			code := tests(t, filepath.Join("../..", folder))
			for word := range strings.SplitSeq(strings.Trim(of[rows.SubexpIndex("pattern")], "^()$"), "|") {
				if !regexp.MustCompile(`(?m)^func (Test\w*)?` + word).MatchString(code) {
					t.Errorf("%s: no test of %s has %s in its name", file, folder, word)
				}
			}
		}
	}
}

// tests returns the code of a folder's tests.
func tests(t *testing.T, folder string) string {
	t.Helper()
	var code strings.Builder
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Errorf("%s has no tests: %v", folder, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		code.Write(data)
	}
	return code.String()
}

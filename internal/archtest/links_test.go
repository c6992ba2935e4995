package archtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	link      = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading   = regexp.MustCompile(`(?m)^#+ (.*)$`)
	notAnchor = regexp.MustCompile(`[^\pL\pN_ -]`)
)

// pages returns every Markdown file of the repository by its path from the root.
func pages(t *testing.T) map[string]string {
	t.Helper()
	out, err := exec.Command("git", "-C", "../..", "ls-files", "-co", "--exclude-standard", "*.md").Output()
	if err != nil {
		t.Fatal(err)
	}
	read := map[string]string{}
	for name := range strings.Lines(string(out)) {
		name = strings.TrimSpace(name)
		data, err := os.ReadFile(filepath.Join("../..", name))
		if os.IsNotExist(err) {
			continue // removed, and not committed yet
		}
		if err != nil {
			t.Fatal(err)
		}
		read[name] = string(data)
	}
	return read
}

// anchors returns the anchors of a page's headings, as code hosts make them.
func anchors(page string) map[string]bool {
	found := map[string]bool{}
	for _, match := range heading.FindAllStringSubmatch(page, -1) {
		text := notAnchor.ReplaceAllString(strings.ToLower(match[1]), "")
		found[strings.ReplaceAll(text, " ", "-")] = true
	}
	return found
}

// Each relative link of a page leads to a file, and its fragment to a heading of that file.
func TestLinksOfPages(t *testing.T) {
	t.Parallel()
	all := pages(t)
	for name, page := range all {
		for _, match := range link.FindAllStringSubmatch(page, -1) {
			file, fragment, _ := strings.Cut(match[1], "#")
			if strings.Contains(file, ":") {
				continue // an address
			}
			target := name
			if file != "" {
				target = filepath.Join(filepath.Dir(name), filepath.FromSlash(file))
			}
			if _, err := os.Stat(filepath.Join("../..", target)); err != nil {
				t.Errorf("%s: %s is not there", name, match[1])
				continue
			}
			if fragment != "" && !anchors(all[target])[fragment] {
				t.Errorf("%s: %s has no heading for #%s", name, target, fragment)
			}
		}
	}
}

// The index of the decision records has each record once, in the order of their numbers.
func TestIndexOfDecisions(t *testing.T) {
	t.Parallel()
	all := pages(t)
	index := all["docs/decisions/README.md"]
	for name := range all {
		file, ok := strings.CutPrefix(name, "docs/decisions/")
		if !ok || file == "README.md" {
			continue
		}
		if n := strings.Count(index, "| ["+file[:3]+"]("+file+") |"); n != 1 {
			t.Errorf("docs/decisions/README.md has %d lines for %s, want 1", n, file)
		}
	}
	rows := regexp.MustCompile(`(?m)^\| \[.*`).FindAllString(index, -1)
	if !slices.IsSorted(rows) {
		t.Error("docs/decisions/README.md is not in the order of the numbers: sort its rows")
	}
}

var (
	notProse = regexp.MustCompile(`^(?:\s*$|\s*[#|<>]|\s*~~~|\s{4,}\S)`)
	bullet   = regexp.MustCompile(`^\s*(?:[-*+]|\d+\.)\s`)
)

// wrapped returns the first line of a page that goes on with the paragraph or the bullet above it.
func wrapped(page string) (line int) {
	fenced, prose := false, false
	for i, text := range strings.Split(page, "\n") {
		if strings.HasPrefix(strings.TrimSpace(text), "```") {
			fenced, prose = !fenced, false
			continue
		}
		switch {
		case fenced || notProse.MatchString(text):
			prose = false
		case bullet.MatchString(text):
			prose = true
		case prose:
			return i + 1
		default:
			prose = true
		}
	}
	return 0
}

// Pages do not wrap: a paragraph or a bullet is one line, so that a change shows its sentence alone.
func TestPagesDoNotWrap(t *testing.T) {
	t.Parallel()
	for name, page := range pages(t) {
		if line := wrapped(page); line > 0 {
			t.Errorf("%s:%d goes on with the paragraph above it: write that on one line", name, line)
		}
	}
	for page, line := range map[string]int{"a\nb": 2, "- a\n  b": 2, "a\n\nb": 0, "```\na\nb\n```": 0, "# a\nb\n- c\n- d": 0, "| a |\n| b |": 0} {
		if got := wrapped(page); got != line {
			t.Errorf("wrapped(%q) is %d, want %d", page, got, line)
		}
	}
}

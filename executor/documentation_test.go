package executor_test

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh/tool"
)

// docs/tools.md agrees with the code on limits and sandbox levels.
func TestTheDocumentedLimitsAreThoseOfTheCode(t *testing.T) {
	t.Parallel()
	_, page, found := strings.Cut(string(readFile(t, "../docs/tools.md")), "\n## Limits and the sandbox\n")
	if !found {
		t.Fatal("docs/tools.md has no section on limits")
	}
	page, _, _ = strings.Cut(page, "\n## ")
	confining := "../python/src/toolmesh/_worker/sandbox/"
	confine, filters := string(readFile(t, confining+"levels.py")), string(readFile(t, confining+"filters.py"))

	// Every limit has a row, and its code is the one that the suite of bad tools demands.
	text, err := json.Marshal(tool.Limits{CPUTime: 1, Memory: 1, Pids: 1, OpenFiles: 1, TempFiles: 1, Output: 1})
	if err != nil {
		t.Fatal(err)
	}
	declared := map[string]any{}
	if err := json.Unmarshal(text, &declared); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"timeout": "deadline_exceeded"}
	for _, bad := range badTools() {
		if bad.code == "" {
			continue
		}
		text, _ := json.Marshal(bad.policy.Limits)
		limits := map[string]any{}
		_ = json.Unmarshal(text, &limits)
		for name := range limits {
			if code, ok := want[name]; ok && code != string(bad.code) {
				t.Errorf("the suite gives %s both %s and %s", name, code, bad.code)
			}
			want[name] = string(bad.code)
		}
	}
	for name := range declared {
		if want[name] == "" {
			t.Errorf("no bad tool breaches %s", name)
		}
	}
	got := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\|.*\\| `(\\w+)` \\|$").FindAllStringSubmatch(page, -1) {
		got[row[1]] = row[2]
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("limits and their codes (-code +page):\n%s", diff)
	}

	var levels []string
	_, section, _ := strings.Cut(page, "### Sandbox levels")
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| [^|]+ \\|$").FindAllStringSubmatch(section, -1) {
		levels = append(levels, row[1])
	}
	all := []tool.Sandbox{tool.SandboxNone, tool.SandboxGuard, tool.SandboxStrict, tool.SandboxOffline}
	if diff := cmp.Diff(fmt.Sprint(all), fmt.Sprint(levels)); diff != "" {
		t.Errorf("levels (-code +page):\n%s", diff)
	}

	_, list, _ := strings.Cut(page, "<!-- calls -->")
	list, _, _ = strings.Cut(list, "<!-- end -->")
	_, denied, _ := strings.Cut(filters, "DENIED = {")
	denied, _, _ = strings.Cut(denied, "}")
	if diff := cmp.Diff(names("\"(\\w+)\": \\(", denied), names("`(\\w+)`", list)); diff != "" {
		t.Errorf("refused system calls (-code +page):\n%s", diff)
	}
	_, devices, _ := strings.Cut(confine, "_DEVICES = (")
	devices, _, _ = strings.Cut(devices, ")")
	_, documented, _ := strings.Cut(page, "the devices ")
	documented, _, _ = strings.Cut(documented, ";")
	if diff := cmp.Diff(names("\"(\\w+)\"", devices), names("`(\\w+)`", documented)); diff != "" {
		t.Errorf("devices (-code +page):\n%s", diff)
	}
}

func names(pattern, text string) []string {
	var found []string
	for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		found = append(found, match[1])
	}
	slices.Sort(found)
	return found
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

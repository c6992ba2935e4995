package executor_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
)

const globalTools = `
calls = 0
def count() -> int:
    global calls
    calls += 1
    return calls
`

// The page for authors agrees with the code on the state that calls share in each isolation.
func TestTheToolsPageIsRightAboutIsolation(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/tools.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(page), "| isolation | what runs a call |")
	table, _, ended := strings.Cut(table, "\n\n")
	if !found || !ended {
		t.Fatal("the page has no table of isolations")
	}
	var said, is []string
	for line := range strings.Lines(table) {
		if cells := strings.Split(line, "|"); strings.HasPrefix(line, "| `") {
			said = append(said, strings.Join([]string{
				strings.Trim(cells[1], " `"), strings.TrimSpace(cells[3]), strings.TrimSpace(cells[4]),
			}, " "))
		}
	}
	yes := map[bool]string{true: "yes", false: "no"}
	for _, isolation := range []toolmesh.Isolation{toolmesh.IsolationWarm, toolmesh.IsolationSession, toolmesh.IsolationFork, toolmesh.IsolationFresh} {
		x := sharedExecutor(t)
		spec := specOf(t, x, writeFiles(t, map[string]string{"t.py": globalTools}), "t.count")
		spec.Policies = map[string]executor.Policy{"t.count": {Isolation: isolation}}
		ix := open(t, x, spec)
		finds := func(session string) bool {
			body, err := ix.Call(t.Context(), executor.Call{Tool: "t.count", Session: session}, nil)
			if err != nil {
				t.Fatal(err)
			}
			return string(body) != "1"
		}
		if finds("a") {
			t.Errorf("%s: the first call found something", isolation)
		}
		same := finds("a")
		is = append(is, fmt.Sprintf("%s %s %s", isolation, yes[same], yes[finds("b")]))
	}
	if diff := cmp.Diff(said, is); diff != "" {
		t.Errorf("the page and the executor differ (-said +is):\n%s", diff)
	}
}

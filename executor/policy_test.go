package executor_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/tool"
)

const policyTools = `
import os

SEEN = dict(os.environ)

def one():
    return [os.readlink("/proc/self/ns/pid") + f":{os.getpid()}", SEEN.get("SHARED"), SEEN.get("TOKEN"), os.environ.get("TOKEN")]

two = three = four = one
`

// seen is a report of a tool of policyTools.
type seen struct {
	process               string // also between PID namespaces
	shared, import_, call string
}

func mustSee(t *testing.T, ix *executor.Index, name string) (s seen) {
	t.Helper()
	body, err := call(t, ix, name, `{}`)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(body), &[]any{&s.process, &s.shared, &s.import_, &s.call}); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestToolsShareAWorkerOnlyIfTheirPoliciesAgree(t *testing.T) {
	t.Parallel()
	x := sharedExecutor(t)
	spec := specOf(t, x, writeFiles(t, map[string]string{"t.py": policyTools}), "t.two", "t.one", "t.none", "t.three", "t.four")
	spec.Vars = map[string]string{"SHARED": "yes"}
	spec.Policies = map[string]executor.Policy{
		"t.two":  {Vars: map[string]string{"TOKEN": "secret"}, Limits: tool.Limits{OpenFiles: 100}}, // less than the node's, alone in its zygote
		"t.four": {Limits: tool.Limits{OpenFiles: 200}},
	}
	ix := open(t, x, spec)
	var names []string
	for _, tool := range ix.Tools() {
		names = append(names, tool.Name)
	}
	if want := []string{"t.four", "t.one", "t.three", "t.two"}; !slices.Equal(names, want) {
		t.Errorf("got %v, want %v", names, want)
	}
	if len(ix.Unavailable()) != 1 || ix.Unavailable()[0].Name != "t.none" {
		t.Errorf("got %v as unavailable", ix.Unavailable())
	}
	one, two, three, four := mustSee(t, ix, "t.one"), mustSee(t, ix, "t.two"), mustSee(t, ix, "t.three"), mustSee(t, ix, "t.four")
	if two.import_ != "secret" || two.call != "secret" || two.shared != "yes" {
		t.Errorf("the tool with a variable of its own sees %+v", two)
	}
	for _, other := range []seen{one, three, four} {
		if other.import_ != "" || other.call != "" || other.shared != "yes" {
			t.Errorf("a tool sees another's variable: %+v", other)
		}
	}
	if one.process != three.process || one.process == two.process || one.process == four.process || two.process == four.process {
		t.Errorf("workers %s %s %s %s: want one for the first and third alone", one.process, two.process, three.process, four.process)
	}
}

func TestAnUnknownPolicyIsRefused(t *testing.T) {
	t.Parallel()
	x := sharedExecutor(t)
	spec := specOf(t, x, writeFiles(t, map[string]string{"t.py": policyTools}), "t.one")
	spec.Policies = map[string]executor.Policy{"t.one": {Isolation: "tight"}}
	if _, err := x.Open(t.Context(), spec); err == nil {
		t.Error("an isolation that does not exist was taken")
	}
}

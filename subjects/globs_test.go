package subjects_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh/subjects"
)

func TestGlobs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		globs, id string
		want      bool
	}{
		{"", "weather.now", true}, {" , ", "weather.now", true},
		{"weather.*", "weather.now", true}, {"weather.*", "weather.of.now", false}, {"weather.**", "weather.of.now", true},
		{"weather.*, lab.bank.*", "lab.bank.pay", true}, {"weather.*", "weather", false}, {"*", "echo", true}, {"*", "lab.echo", false},
		{"**", "lab.echo", true}, {"**.now", "weather.of.now", true}, {"*.no*", "weather.now", true}, {"weather.now", "weather.nowhere", false},
		{"a**b*c", "a.x.bc", true}, {"a**b*c", "a.x.b.c", false}, {"***", "lab.echo", true},
	} {
		globs, err := subjects.ParseGlobs(c.globs)
		if got := globs.Match(subjects.ToolID(c.id)); err != nil || got != c.want {
			t.Errorf("%q of %q: %v, %v", c.globs, c.id, got, err)
		}
	}
	if _, err := subjects.ParseGlobs(strings.Repeat("*", 4097)); !errors.Is(err, subjects.ErrInvalid) {
		t.Errorf("a long one: %v", err)
	}
}

// A narrowed caller may publish to its tools' subjects, and to none on which a server makes calls.
func TestNarrowedRights(t *testing.T) {
	t.Parallel()
	exact, others := subjects.Globs{"lab.*", "lab.**", "*", "**", "a.fore*", "a.**.b", "héllo.*", "a..b"}.Exact()
	if len(exact) != 4 || len(others) != 4 {
		t.Errorf("%q have a pattern, %q have none", exact, others)
	}
	r, err := subjects.NarrowedRights("ann", exact[:2], []subjects.ToolID{"weather.now", "héllo.wörld"})
	if err != nil {
		t.Fatal(err)
	}
	may := func(subject string) bool {
		return slices.ContainsFunc(r.Publish, func(p string) bool { return subjects.Overlap(p, subject) })
	}
	odd, err := subjects.Tool("ann", "héllo.wörld")
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range []string{"tools.ann.lab.x", "tools.ann.lab.x.y", "tools.ann.weather.now", odd, "mesh.node.n1.tools.ann.weather.now", "mesh.registry.ann.list", "mesh.ctl.ann.r1"} {
		if !may(one) {
			t.Errorf("%s is refused", one)
		}
	}
	for _, one := range []string{
		"tools.ann.weather.then", "tools.ann.lab", "tools.bob.lab.x", "mesh.node.n1.tools.ann.weather.then", "mesh.batch.ann", "mesh.node.n1.batch.ann",
		"mesh.task.ann.submit", "mesh.registry.bob.list", "mesh.admin.install", "$JS.API.INFO", "$KV.MESH_SESSIONS.ann", "$SRV.PING",
	} {
		if may(one) {
			t.Errorf("%s is allowed", one)
		}
	}
	if _, err := subjects.NarrowedRights("ann", subjects.Globs{"a.fore*"}, nil); err == nil {
		t.Error("a glob without a pattern is taken")
	}
}

// A key of a session reads no inbox of nodes and administrators, whatever the session's name.
func TestNoSessionHasTheInboxOfAMember(t *testing.T) {
	t.Parallel()
	for _, session := range []subjects.SessionID{"mesh_node", "mesh_admin", "mesh_x"} {
		if r, err := subjects.CallerRights(session, false); err == nil {
			t.Errorf("a key of %s subscribes %v", session, r.Subscribe)
		}
		if r, err := subjects.NarrowedRights(session, nil, nil); err == nil {
			t.Errorf("a token of %s subscribes %v", session, r.Subscribe)
		}
	}
	if _, err := subjects.CallerRights("mesh", false); err != nil {
		t.Error(err)
	}
}

package subjects_test

import (
	"errors"
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

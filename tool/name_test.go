package tool_test

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// everyProvider is what all providers take: OpenAI and Anthropic
// ^[a-zA-Z0-9_-]{1,64}$, Gemini no digit and no dash first.
var everyProvider = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]{0,63}$`)

func TestProviderName(t *testing.T) {
	t.Parallel()
	long := subjects.ToolID("index." + strings.Repeat("module.", 12) + "function")
	for id, want := range map[subjects.ToolID]string{
		"weather.forecast.today": "weather-forecast-today",
		"search":                 "search",
		"a-b.c_d":                "a-b-c_d",
		"3d.render.x":            "_3d-render-x",
		"-x":                     "_-x",
		"météo.x.y":              "m_t_o-x-y-6a15930c",
		"":                       "_",
		long:                     "index-module-module-module-module-module-module-module--2ca359ba",
	} {
		if got := tool.ProviderName(id); got != want {
			t.Errorf("ProviderName(%q) = %q, want %q", id, got, want)
		}
	}
}

func TestNamesThatCollideAreHashedWhateverTheirOrder(t *testing.T) {
	t.Parallel()
	ids := []subjects.ToolID{"a.b-c", "a.b.c", "a-b.c", "other.tool.x", "a.b.c"}
	names := tool.NewNames(ids)
	reversed := slices.Clone(ids)
	slices.Reverse(reversed)
	again := tool.NewNames(reversed)
	seen := map[string]bool{}
	for name, id := range names.All() {
		if again.Name(id) != name {
			t.Errorf("%s is %q in one order and %q in the other", id, name, again.Name(id))
		}
		if got, err := names.Resolve(name); err != nil || got != id {
			t.Errorf("Resolve(%q) = %q, %v; want %q", name, got, err, id)
		}
		seen[name] = true
	}
	if len(seen) != 4 {
		t.Fatalf("%d names for 4 tools: %v", len(seen), seen)
	}
	if names.Name("other.tool.x") != "other-tool-x" {
		t.Errorf("a tool that collides with nothing is called %q", names.Name("other.tool.x"))
	}
	for _, id := range ids[:3] {
		if name := names.Name(id); !regexp.MustCompile(`^a-b-c-[0-9a-f]{8}$`).MatchString(name) {
			t.Errorf("%s is called %q, want a-b-c- and a hash", id, name)
		}
	}
	var e *toolmesh.Error
	if _, err := names.Resolve("a-b-c"); !errors.As(err, &e) || e.Code != toolmesh.CodeToolNotFound ||
		!strings.Contains(e.Message, "a.b-c") || !strings.Contains(e.Message, "a.b.c") {
		t.Errorf("a name that three tools would have: %v", err)
	}
	if id, err := names.Resolve("a.b-c"); err != nil || id != "a.b-c" {
		t.Errorf("a full id: %q, %v", id, err)
	}
}

// A tool may be named so that it looks like another one with its hash.
func TestNamesSurviveAnIDThatForgesAHash(t *testing.T) {
	t.Parallel()
	set := []subjects.ToolID{"a.b-c", "a.b.c"}
	forged := subjects.ToolID(tool.NewNames(set).Name("a.b.c")) // the name, as a session's own tool
	names := tool.NewNames(append(set, forged))
	got := map[subjects.ToolID]bool{}
	for name, id := range names.All() {
		if found, err := names.Resolve(name); err != nil || found != id {
			t.Errorf("Resolve(%q) = %q, %v; want %q", name, found, err, id)
		}
		got[id] = true
	}
	if diff := cmp.Diff(map[subjects.ToolID]bool{"a.b-c": true, "a.b.c": true, forged: true}, got); diff != "" {
		t.Error(diff)
	}
}

func TestAnUnknownNameSaysTheNearest(t *testing.T) {
	t.Parallel()
	names := tool.NewNames([]subjects.ToolID{"weather.forecast.today", "weather.climate.month"})
	_, err := names.Resolve("weather-forcast-today")
	var e *toolmesh.Error
	if !errors.As(err, &e) || e.Code != toolmesh.CodeToolNotFound {
		t.Fatalf("got %v", err)
	}
	if diff := cmp.Diff([]string{"weather-forecast-today"}, e.Details["nearest"]); diff != "" {
		t.Error(diff)
	}
	if names.Name("not.in.it") != "not-in-it" {
		t.Errorf("a tool outside the set is called %q", names.Name("not.in.it"))
	}
}

func FuzzNames(f *testing.F) {
	f.Add("a.b.c\na.b-c\na-b.c\n.\n-\n\nmétéo.x")
	f.Add(strings.Repeat("x", 70) + "\n" + strings.Repeat("x", 71) + "\n\xff\n\xfe")
	f.Add("a.b-c\na.b.c\na-b-c-b2f3a5c1\n1\n_1")
	f.Fuzz(func(t *testing.T, text string) {
		var ids []subjects.ToolID
		for line := range strings.SplitSeq(text, "\n") {
			ids = append(ids, subjects.ToolID(line))
		}
		names := tool.NewNames(ids)
		given := map[string]subjects.ToolID{}
		for _, id := range ids {
			name := names.Name(id)
			if !everyProvider.MatchString(name) {
				t.Fatalf("the name of %q is %q", id, name)
			}
			if other, taken := given[name]; taken && other != id {
				t.Fatalf("%q and %q are both %q", id, other, name)
			}
			given[name] = id
			if got, err := names.Resolve(name); err != nil || got != id {
				t.Fatalf("Resolve(%q) = %q, %v; want %q", name, got, err, id)
			}
			if plain := tool.ProviderName(id); !everyProvider.MatchString(plain) || plain != tool.ProviderName(id) {
				t.Fatalf("the plain name of %q is %q", id, plain)
			}
		}
	})
}

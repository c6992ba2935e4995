package tool_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// everyProvider matches names that all providers accept: OpenAI and Anthropic
// ^[a-zA-Z0-9_-]{1,64}$, Gemini no digit and no dash first.
var everyProvider = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]{0,63}$`)

func TestProviderName(t *testing.T) {
	t.Parallel()
	long := subjects.ToolID("index." + strings.Repeat("module.", 12) + "function")
	for id, want := range map[subjects.ToolID]string{
		"weather.forecast.today": "weather-forecast-today",
		"search":                 "search",
		"b.c.pay":                "b-c-pay",
		"b-c.pay":                "b--c-pay",
		"a-b.c_d":                "a--b-c_d",
		"a.-b":                   "a---b---cf3cd0bc6dbd0a87",
		"a-.b":                   "a---b---e3774d95d8ba9857",
		"3d.render.x":            "_3d-render-x---9e679304eab1d5bf",
		"météo.x.y":              "m_t_o-x-y---6a15930cc8a9bf12",
		"":                       "_---e3b0c44298fc1c14",
		long:                     "index-module-module-module-module-module-modu---2ca359ba6b8eb159",
	} {
		if got := tool.ProviderName(id); got != want {
			t.Errorf("ProviderName(%q) = %q, want %q", id, got, want)
		}
	}
}

// Names are unique among tools that are rendered together, and lead back to their tool.
func FuzzProviderNames(f *testing.F) {
	f.Add("a.b.c\na.b-c\na-b.c\n.\n-\n\nmétéo.x")
	f.Add(strings.Repeat("x", 70) + "\n" + strings.Repeat("x", 71) + "\n\xff\n\xfe")
	f.Add("a.b-c\na.b.c\na--b-c\na---b\na.-b\na-.b\n1\n_1\n" + tool.ProviderName("é"))
	f.Fuzz(func(t *testing.T, text string) {
		given := map[string]subjects.ToolID{}
		for line := range strings.SplitSeq(text, "\n") {
			id := subjects.ToolID(line)
			name := tool.ProviderName(id)
			if !everyProvider.MatchString(name) {
				t.Fatalf("the name of %q is %q", id, name)
			}
			if other, taken := given[name]; taken && other != id {
				t.Fatalf("%q and %q are both %q", id, other, name)
			}
			given[name] = id
			if found, hashed, ok := tool.FromProviderName(name); !ok || !hashed && found != id {
				t.Fatalf("%q of %q leads to %q (%t)", name, id, found, ok)
			}
		}
	})
}

package search_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh/internal/search"
)

// described is a line of tools.jsonl: a tool of a public MCP server, and where it was read.
type described struct {
	ID, Description, Source string
	Parameters              [][2]string
}

func (d described) document() search.Document {
	doc := search.Document{ID: d.ID, Description: d.Description}
	for _, p := range d.Parameters {
		doc.Parameters = append(doc.Parameters, search.Parameter{Name: p[0], Description: p[1]})
	}
	return doc
}

// question is a line of questions.jsonl.
type question struct {
	Ask  string
	Want []string // any of these answers it
	Half string   // tune or held
}

func lines[T any](t testing.TB, file string) (all []T) {
	t.Helper()
	f, err := os.Open("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	in := bufio.NewScanner(f)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var one T
		if err := json.Unmarshal(in.Bytes(), &one); err != nil {
			t.Fatalf("%s: %v: %s", file, err, in.Text())
		}
		all = append(all, one)
	}
	if in.Err() != nil {
		t.Fatal(in.Err())
	}
	return all
}

func indexed(tools []described) *search.Index {
	x := search.NewIndex()
	for _, d := range tools {
		x.Put(d.ID, d.document())
	}
	return x
}

// first are the first keys that a question finds.
func first(n int, ask string, indexes ...*search.Index) (keys []string) {
	for key := range search.Rank(search.Parse(ask), indexes...) {
		if keys = append(keys, key); len(keys) == n {
			break
		}
	}
	return keys
}

// Of questions in a person's words about a thousand tools of public servers, nine of ten find a
// right one among the first ten, also of those that were not used for tuning.
func TestQuestionsFindTheirTools(t *testing.T) {
	t.Parallel()
	tools, questions := lines[described](t, "tools.jsonl"), lines[question](t, "questions.jsonl")
	if len(tools) < 1000 || len(questions) < 200 {
		t.Fatalf("%d tools and %d questions", len(tools), len(questions))
	}
	x := indexed(tools)
	asked, found := make(map[string]int), make(map[string]int)
	for _, q := range questions {
		if slices.ContainsFunc(q.Want, func(id string) bool { return !x.Has(id) }) {
			t.Errorf("%q is answered by a tool that does not exist: %v", q.Ask, q.Want)
		}
		got := first(10, q.Ask, x)
		asked[q.Half]++
		if slices.ContainsFunc(got, func(id string) bool { return slices.Contains(q.Want, id) }) {
			found[q.Half]++
		} else if q.Half == "tune" {
			t.Logf("%q finds %q, not %q", q.Ask, got, q.Want)
		}
	}
	for half, n := range asked {
		share := float64(found[half]) / float64(n)
		t.Logf("%s: %d of %d", half, found[half], n)
		if share < 0.9 {
			t.Errorf("%d of %d questions (%s) find their tool among ten", found[half], n, half)
		}
	}
}

// Tools that fit equally are in order of id, in any order of arrival, and in one index or two.
func TestOrderIsStable(t *testing.T) {
	t.Parallel()
	tools := lines[described](t, "tools.jsonl")[:120]
	for i := range 20 {
		tools = append(tools, described{ID: fmt.Sprintf("same.t%02d", 19-i), Description: "Does the same."})
	}
	x := indexed(tools)
	asks := []string{"same", "create a list of files", "who has access?", "同じ"}
	for range 2 {
		rand.Shuffle(len(tools), func(i, j int) { tools[i], tools[j] = tools[j], tools[i] })
		other := indexed(tools)
		one, two := indexed(tools[:50]), indexed(tools[50:])
		for _, ask := range asks {
			want := first(50, ask, x)
			if got := first(50, ask, other); !slices.Equal(got, want) {
				t.Errorf("%q: %q, want %q", ask, got, want)
			}
			if got := first(50, ask, one, two); !slices.Equal(got, want) {
				t.Errorf("%q in two indexes: %q, want %q", ask, got, want)
			}
		}
	}
}

// An index that tools came to and went from is as one that never had them.
func TestRemovedToolsLeaveNothing(t *testing.T) {
	t.Parallel()
	tools := lines[described](t, "tools.jsonl")[:200]
	want, x := indexed(tools[:100]), indexed(tools)
	x.Remove(func(key string) bool {
		return slices.ContainsFunc(tools[100:], func(d described) bool { return d.ID == key })
	})
	for range 2 {
		if x.Len() != 100 {
			t.Fatalf("%d documents", x.Len())
		}
		for _, ask := range []string{"list the files", "remove a project", "weather"} {
			if got, want := first(50, ask, x), first(50, ask, want); !slices.Equal(got, want) {
				t.Errorf("%q: %q, want %q", ask, got, want)
			}
		}
		x.Remove(func(key string) bool { return key == tools[0].ID })
		x.Put(tools[0].ID, tools[0].document())
	}
}

// Any text is read, in time that its length bounds.
func TestAnyTextIsReadInBoundedTime(t *testing.T) {
	t.Parallel()
	x := search.NewIndex()
	x.Put("lab.forecast", search.Document{ID: "lab.forecast", Description: "Prévisions météo für morgen. 明日の天気予報"})
	x.Put("lab.GetHTTPHeaders2", search.Document{ID: "lab.GetHTTPHeaders2"})
	for what, text := range map[string]string{
		"one word": strings.Repeat("a", 1<<20), "one word again": strings.Repeat("mail ", 1<<18), "no UTF-8": strings.Repeat("\xff\xc3", 1<<19),
		"marks": "e" + strings.Repeat("\u0301", 1<<19), "nothing": "", "capitals": strings.Repeat("aB", 1<<19), "Chinese": strings.Repeat("天気", 1<<18),
	} {
		x.Put(what, search.Document{ID: what, Description: text, Parameters: []search.Parameter{{Name: text, Description: text}}})
		_ = first(10, text, x)
	}
	for ask, want := range map[string]string{
		"previsions METEO": "lab.forecast", "明日": "lab.forecast", "http header": "lab.GetHTTPHeaders2", "headers2": "lab.GetHTTPHeaders2", "the MORGEN": "lab.forecast",
	} {
		if got := first(1, ask, x); !slices.Equal(got, []string{want}) {
			t.Errorf("%q finds %q, want %s", ask, got, want)
		}
	}
}

// BenchmarkRank is the time of one question about ten thousand tools.
func BenchmarkRank(b *testing.B) {
	tools, questions := lines[described](b, "tools.jsonl"), lines[question](b, "questions.jsonl")
	x := search.NewIndex()
	start := time.Now()
	for i := range 10_000 {
		d := tools[i%len(tools)]
		x.Put(fmt.Sprintf("%s%d", d.ID, i), d.document())
	}
	b.ReportMetric(float64(time.Since(start).Milliseconds()), "ms/index")
	i := 0
	for b.Loop() {
		first(10, questions[i%len(questions)].Ask, x)
		i++
	}
}

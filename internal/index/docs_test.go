package index

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// pageBlocks returns the fenced blocks of a language below each heading of a page.
func pageBlocks(t *testing.T, file, language string) map[string][]string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]string{}
	heading, begun := "", -1
	lines := strings.Split(string(data), "\n")
	for i, line := range lines {
		switch {
		case begun >= 0 && line == "```":
			found[heading] = append(found[heading], strings.Join(lines[begun:i], "\n")+"\n")
			begun = -1
		case begun < 0 && line == "```"+language:
			begun = i + 1
		case begun < 0 && strings.HasPrefix(line, "#"):
			heading = strings.TrimSpace(strings.TrimLeft(line, "#"))
		}
	}
	return found
}

// The examples of each convention in docs/indexes.md are read without a warning, as
// the page promises.
func TestThePageOfIndexes(t *testing.T) {
	t.Parallel()
	const page = "../../docs/indexes.md"
	toml, python, yaml := pageBlocks(t, page, "toml"), pageBlocks(t, page, "python"), pageBlocks(t, page, "yaml")
	for _, one := range []struct {
		name, file string
		blocks     []string
		tools      []string
	}{
		{"tools.toml", "tools.toml", toml["Writing an index"], []string{"forecast.today", "forecast.hours"}},
		{"single file", "words.py", python["A single file"], []string{"words.shout"}},
		{"entry points", "pyproject.toml", toml["Entry points"], []string{"maps.radar", "today"}},
		{"TOOLS.yml", "TOOLS.yml", yaml["TOOLS.yml"], []string{"mail.send"}},
		{"programs", "tools.toml", toml["Programs"], []string{"resize"}},
	} {
		if len(one.blocks) == 0 {
			t.Errorf("%s: the page shows no example", one.name)
			continue
		}
		m, err := LoadFS(files(one.file, one.blocks[0]))
		if err != nil {
			t.Errorf("%s: %v", one.name, err)
			continue
		}
		if diff := cmp.Diff(one.tools, m.Tools); diff != "" || len(m.Warnings) > 0 {
			t.Errorf("%s: warnings %q, tools (-want +got):\n%s", one.name, m.Warnings, diff)
		}
	}
	m, err := LoadFS(files("tools.toml", toml["Programs"][0]))
	if err != nil {
		t.Fatal(err)
	}
	c := m.Tool("resize").Command
	for args, want := range map[string]string{
		`{"file":"a.png","width":80,"to":"-b.png"}`:              "convert a.png -resize 80x80 -- -b.png",
		`{"file":"a.png","width":80,"quality":7,"to":"b c.png"}`: "convert a.png -resize 80x80 -quality 7 -- b c.png",
	} {
		argv, err := c.Argv([]byte(args))
		if err != nil || strings.Join(argv, " ") != want {
			t.Errorf("%s: %q, %v; want %s", args, argv, err, want)
		}
	}
	if _, err := c.Argv([]byte(`{"file":"-a.png","width":80,"to":"b"}`)); err == nil {
		t.Error("a value that begins with - is taken where it could be an option")
	}
}

// The page has a row for every key that an author may write, and for no other.
func TestThePageOfIndexesHasEveryKey(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../../docs/indexes.md")
	if err != nil {
		t.Fatal(err)
	}
	_, more, _ := strings.Cut(string(data), "\n## More about a tool\n")
	more, _, _ = strings.Cut(more, "\n## ")
	ofTool, ofIndex, found := strings.Cut(more, "Keys of `[index]` alone:")
	if !found {
		t.Fatal("the page does not tell the keys of an index from those of a tool")
	}
	rows := func(text string) []string {
		var keys []string
		for _, row := range regexp.MustCompile("(?m)^\\| (`.*?) \\|").FindAllStringSubmatch(text, -1) {
			for _, key := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(row[1], -1) {
				keys = append(keys, key[1])
			}
		}
		return slices.Sorted(slices.Values(keys))
	}
	r := new(reader)
	one := &section{reader: r, values: map[string]any{}, known: []string{"description"}}
	r.declared(one, new(Tool))
	if diff := cmp.Diff(slices.Sorted(slices.Values(one.known)), rows(ofTool)); diff != "" {
		t.Errorf("keys of a tool (-code +page):\n%s", diff)
	}
	all := &section{reader: r, values: map[string]any{}, known: []string{"tools", "python"}}
	r.index(new(Manifest), all)
	alone := slices.DeleteFunc(slices.Clone(all.known), func(key string) bool { return slices.Contains(one.known, key) || key == "tools" || key == "env" })
	if diff := cmp.Diff(slices.Sorted(slices.Values(alone)), rows(ofIndex)); diff != "" {
		t.Errorf("keys of an index alone (-code +page):\n%s", diff)
	}
	blocks := pageBlocks(t, "../../docs/indexes.md", "toml")
	m, err := LoadFS(files("tools.toml", blocks["Writing an index"][0]+blocks["What a worker sees of the machine"][0]+blocks["More about a tool"][0]))
	if err != nil || len(m.Warnings) > 0 || len(m.Env) != 1 {
		t.Errorf("the page's index with all that it adds is read as %v with %q, %v", m, m.Warnings, err)
	}
}

package index

import (
	"os"
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

// What docs/indexes.md shows of each convention is read without a warning, as
// the page says.
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
	c := m.Command("resize")
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

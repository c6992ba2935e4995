package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// printed are the lines that help and pages have people type, and the words in code of their
// text, by where they are.
func printed(t *testing.T, root *cobra.Command) map[string][]string {
	t.Helper()
	all := make(map[string][]string)
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		all["help of "+c.CommandPath()] = strings.Split(c.Long+"\n"+c.Example, "\n")
		for _, one := range c.Commands() {
			walk(one)
		}
	}
	walk(root)
	repo := filepath.Join("..", "..")
	err := filepath.WalkDir(repo, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := filepath.ToSlash(strings.TrimPrefix(path, repo+string(filepath.Separator)))
		if d.IsDir() && (name == "docs/decisions" || strings.HasPrefix(d.Name(), ".") && path != repo || name == "bin" || name == "dist") {
			return filepath.SkipDir
		}
		if name != "README.md" && !(strings.HasPrefix(name, "docs/") && strings.HasSuffix(name, ".md")) {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for i, block := range strings.Split(string(data), "```") {
			if i%2 == 1 { // between fences
				all[name] = append(all[name], strings.Split(block, "\n")...)
				continue
			}
			for line := range strings.Lines(block) {
				if strings.HasPrefix(line, "Not built yet:") {
					continue
				}
				for _, span := range codeSpan.FindAllStringSubmatch(line, -1) {
					all[name] = append(all[name], span[1])
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

var (
	codeSpan    = regexp.MustCompile("`([^`]+)`")
	examplePath = regexp.MustCompile(`(?:^|[\s"'=(])(?:\./)?((?:examples|k8s)/[\w./-]*\w)`)
	ends        = regexp.MustCompile(`\s(#|\||&&|;|>|<|\s{2,})|\s*$`)
)

// Every command that help and pages print is one, with the flags that it has, and every path
// of this repository that they name is there.
func TestPrintedCommandsAndPaths(t *testing.T) {
	t.Parallel()
	root := (&app{}).root()
	commands, paths, of := 0, 0, make(map[string]int)
	for where, lines := range printed(t, root) {
		for _, line := range lines {
			for _, found := range examplePath.FindAllStringSubmatch(line, -1) {
				paths++
				// Generated files that are not kept: keys and images.
				if path := found[1]; !strings.HasPrefix(path, "k8s/credentials") && !strings.HasPrefix(path, "k8s/images") {
					if _, err := os.Stat(filepath.Join("..", "..", path)); err != nil {
						t.Errorf("%s: %s does not exist: %s", where, path, strings.TrimSpace(line))
					}
				}
			}
			text := strings.TrimPrefix(strings.TrimSpace(line), "$ ")
			prose := strings.HasPrefix(where, "help") && !strings.HasPrefix(line, "  ")
			if !strings.HasPrefix(text, "mesh ") || strings.HasPrefix(text, "mesh = ") || prose { // = is Python's
				continue
			}
			words := strings.Fields(text[:ends.FindStringIndex(text + " ")[0]])[1:]
			cmd, rest, err := root.Find(words)
			if err != nil || cmd == root && len(words) > 0 && !strings.HasPrefix(words[0], "-") {
				t.Errorf("%s: there is no such command: %s", where, text)
				continue
			}
			commands++
			of[where]++
			for _, word := range rest {
				name, isFlag := strings.CutPrefix(word, "--")
				name, _, _ = strings.Cut(name, "=")
				if isFlag && name != "" && name != "help" && cmd.Flags().Lookup(name) == nil && cmd.InheritedFlags().Lookup(name) == nil {
					t.Errorf("%s: mesh %s has no --%s: %s", where, wordsOf(cmd), name, text)
				}
			}
		}
	}
	if commands < 200 || paths < 30 || of["docs/gateway.md"] == 0 || of["docs/mcp.md"] == 0 {
		t.Errorf("%d commands and %d paths were looked at: %v", commands, paths, of)
	}
}

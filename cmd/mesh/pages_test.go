package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/toolmesh/toolmesh/cmd/internal/settings"
)

// printed returns the lines of code in help and pages, and the code spans of their text, by place.
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
		if d.IsDir() && (name == "docs/decisions" || strings.HasPrefix(d.Name(), ".") && path != repo || slices.Contains([]string{"bin", "dist", "testdata", "node_modules"}, d.Name())) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(name, ".md") || name == "CHANGELOG.md" { // which names removed commands, too
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
	between     = regexp.MustCompile(`\s(?:&&|\|\|?)\s+|;\s+|^\(`)
	ends        = regexp.MustCompile(`\s(#|>|<|\s{2,})|\s*$`)
	variable    = regexp.MustCompile(`\bMESH_[A-Z0-9_]*[A-Z0-9]\b`)
	target      = regexp.MustCompile(`(?m)^([a-z0-9-]+):`)
	bucket      = regexp.MustCompile(`"(MESH_[A-Z]+)"`)
)

// programs returns the flags of the programs beside mesh, and the targets of make.
func programs(t *testing.T) (flags map[string]*pflag.FlagSet, targets []string) {
	t.Helper()
	flags = make(map[string]*pflag.FlagSet)
	for name, spec := range map[string]any{"mesh-agent": new(settings.Agent), "mesh-router": new(settings.Router)} {
		flags[name] = pflag.NewFlagSet(name, pflag.ContinueOnError)
		settings.Bind(flags[name], spec)
	}
	for _, found := range target.FindAllStringSubmatch(read(t, "Makefile"), -1) {
		targets = append(targets, found[1])
	}
	return flags, targets
}

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// flagOf returns the name of the long flag that a word is, if any.
func flagOf(word string) string {
	name, isFlag := strings.CutPrefix(word, "--")
	name, _, _ = strings.Cut(name, "=")
	if !isFlag || name == "help" || name == "version" {
		return ""
	}
	return name
}

// Help and pages print only commands, flags, targets of make, variables and paths of this repository
// that exist.
func TestPrintedCommandsAndPaths(t *testing.T) {
	t.Parallel()
	root := (&app{}).root()
	flags, targets := programs(t)
	// Names of streams and buckets, of tests, and a variable of an example's nats-server.
	known := append(settings.Names(), "MESH_TEST_LOG", "MESH_SOAK", "MESH_LEAF_KEY")
	for _, found := range bucket.FindAllStringSubmatch(read(t, filepath.Join("subjects", "bucket.go")), -1) {
		known = append(known, found[1])
	}
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
			for _, name := range variable.FindAllString(line, -1) {
				if !slices.Contains(known, name) {
					t.Errorf("%s: %s is neither a setting nor a stream: %s", where, name, strings.TrimSpace(line))
				}
			}
			if strings.HasPrefix(where, "help") && !strings.HasPrefix(line, "  ") { // prose
				continue
			}
			for _, text := range between.Split(strings.TrimPrefix(strings.TrimSpace(line), "$ "), -1) {
				words := strings.Fields(text[:ends.FindStringIndex(text + " ")[0]])
				if len(words) < 2 || words[1] == "=" { // mesh = is Python's
					continue
				}
				wrong := ""
				switch name := strings.TrimPrefix(words[0], "bin/"); name {
				case "mesh":
					wrong = unknownWord(root, words[1:])
				case "mesh-agent", "mesh-router":
					for _, word := range words[1:] {
						if flag := flagOf(word); flag != "" && flags[name].Lookup(flag) == nil {
							wrong = name + " has no --" + flag
						}
					}
				case "make":
					for _, word := range words[1:] {
						if !strings.ContainsAny(word, "=\"") && !slices.Contains(targets, word) {
							wrong = "make has no target " + word
						}
						if strings.Contains(word, "=") {
							break // a value may have spaces
						}
					}
				default:
					continue
				}
				commands++
				of[where]++
				if wrong != "" {
					t.Errorf("%s: %s: %s", where, wrong, text)
				}
			}
		}
	}
	if commands < 250 || paths < 30 || of["docs/gateway.md"] == 0 || of["docs/mcp.md"] == 0 || of["python/README.md"] == 0 {
		t.Errorf("%d commands and %d paths were looked at: %v", commands, paths, of)
	}
}

// unknownWord returns what is wrong with a command of mesh, or nothing.
func unknownWord(root *cobra.Command, words []string) string {
	cmd, rest, err := root.Find(words)
	if err != nil || cmd == root && !strings.HasPrefix(words[0], "-") {
		return "there is no such command"
	}
	for _, word := range rest {
		if flag := flagOf(word); flag != "" && cmd.Flags().Lookup(flag) == nil && cmd.InheritedFlags().Lookup(flag) == nil {
			return "mesh " + wordsOf(cmd) + " has no --" + flag
		}
	}
	return ""
}

package index

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

// neverTaken are folders that no index brings along, ignored or not.
var neverTaken = map[string]bool{".git": true, "__pycache__": true, ".venv": true}

// skipped says whether a name has a folder that is never taken.
func skipped(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if neverTaken[part] {
			return true
		}
	}
	return false
}

// walk lists the files of a folder that is no git work tree, or where there is
// no git: nested .gitignore files count as they do for git.
func walk(ctx context.Context, dir string, limits Limits) ([]string, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, failed(reasonFolder, "the folder %s cannot be read: %w", dir, err)
	}
	defer root.Close()
	w := walker{fsys: root.FS(), limits: limits}
	if err := w.folder(ctx, ".", nil); err != nil {
		return nil, err
	}
	return w.names, nil
}

type walker struct {
	fsys   fs.FS
	names  []string
	limits Limits
}

func (w *walker) folder(ctx context.Context, dir string, rules []ignoreRule) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	rules = append(rules[:len(rules):len(rules)], w.ignoreFile(dir)...)
	entries, err := fs.ReadDir(w.fsys, dir)
	if err != nil {
		return failed(reasonFolder, "the folder %s cannot be read: %w", dir, err)
	}
	for _, entry := range entries {
		name := path.Join(dir, entry.Name())
		if neverTaken[entry.Name()] || ignored(rules, name, entry.IsDir()) {
			continue
		}
		if entry.IsDir() {
			if err := w.folder(ctx, name, rules); err != nil {
				return err
			}
			continue
		}
		if w.names = append(w.names, name); len(w.names) > w.limits.Files {
			return tooMany(w.limits)
		}
	}
	return nil
}

// ignoreFile reads the rules of a folder; one that cannot be read has none.
func (w *walker) ignoreFile(dir string) []ignoreRule {
	name := path.Join(dir, ".gitignore")
	if firstFile(w.fsys, name) == "" {
		return nil
	}
	text, err := readBounded(w.fsys, name)
	if err != nil {
		return nil
	}
	return parseIgnore(dir, string(text))
}

// ignoreRule is one line of a .gitignore.
type ignoreRule struct {
	base    string   // folder of the file, "" at the top
	pattern []string // the parts of a path, each as [path.Match] has it, or "**"
	negated bool
	folders bool // only folders
}

// ignored applies the rules in order: the last that matches decides.
func ignored(rules []ignoreRule, name string, folder bool) bool {
	result := false
	for _, r := range rules {
		rel, below := name, true
		if r.base != "" {
			rel, below = strings.CutPrefix(name, r.base+"/")
		}
		if below && (folder || !r.folders) && matchParts(r.pattern, strings.Split(rel, "/")) {
			result = !r.negated
		}
	}
	return result
}

// matchParts matches a path against a pattern, part by part.
func matchParts(pattern, parts []string) bool {
	if len(pattern) == 0 || len(parts) == 0 {
		return len(pattern) == len(parts)
	}
	if pattern[0] == "**" {
		return len(pattern) == 1 || matchParts(pattern[1:], parts) || matchParts(pattern, parts[1:])
	}
	ok, err := path.Match(pattern[0], parts[0])
	return err == nil && ok && matchParts(pattern[1:], parts[1:])
}

// asPathMatch writes the classes of a .gitignore as [path.Match] has them.
var asPathMatch = strings.NewReplacer("[!]", `[^\]`, "[^]", `[^\]`, "[]", `[\]`, "[!", "[^")

func parseIgnore(dir, text string) []ignoreRule {
	if dir == "." {
		dir = ""
	}
	var rules []ignoreRule
	for line := range strings.SplitSeq(strings.TrimPrefix(text, "\ufeff"), "\n") {
		line = strings.TrimSuffix(line, "\r")
		for strings.HasSuffix(line, " ") && !strings.HasSuffix(line, `\ `) {
			line = line[:len(line)-1]
		}
		if line == "" || line[0] == '#' {
			continue
		}
		r := ignoreRule{base: dir}
		line, r.negated = strings.CutPrefix(line, "!")
		if r.folders = strings.HasSuffix(line, "/"); r.folders {
			line = strings.TrimRight(line, "/")
		}
		if !strings.Contains(line, "/") {
			line = "**/" + line
		}
		if line = strings.TrimPrefix(line, "/"); line != "" {
			r.pattern = slices.CompactFunc(strings.Split(asPathMatch.Replace(line), "/"), func(a, b string) bool { return a == "**" && b == "**" })
			rules = append(rules, r)
		}
	}
	return rules
}

// regularFiles returns those of the named files of a folder that are files or
// symbolic links, and warns of others. What is gone by now is left out.
func regularFiles(dir *os.Root, names []string) (files, warnings []string, err error) {
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		if err := checkName(name); err != nil {
			return nil, nil, err
		}
		if skipped(name) {
			continue
		}
		info, err := dir.Lstat(name)
		switch {
		case errors.Is(err, fs.ErrNotExist): // tracked, but deleted on disk
		case err != nil:
			return nil, nil, failed(reasonFolder, "%s cannot be read: %w", name, err)
		case info.Mode().IsRegular(), info.Mode()&fs.ModeSymlink != 0:
			files = append(files, name)
		case info.IsDir():
			warnings = append(warnings, name+" is a repository of its own and was left out")
		default:
			warnings = append(warnings, name+" is neither a file nor a folder and was left out")
		}
	}
	return files, warnings, nil
}

func tooMany(l Limits) error {
	return failed(reasonTooLarge, "the source has more than %d files; ignore what the index does not need (.gitignore)", l.Files)
}

func tooLarge(l Limits) error {
	return failed(reasonTooLarge, "the source is larger than %d MB; ignore what the index does not need (.gitignore)", l.Bytes/1e6)
}

// fileMode keeps of a mode what a bundle keeps: whether it can be run.
func fileMode(mode fs.FileMode) fs.FileMode {
	if mode&0o100 != 0 {
		return 0o755
	}
	return 0o644
}

package index

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
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

// maxIgnoreFile bounds one .gitignore.
const maxIgnoreFile = 1 << 20

// walk lists the files of a folder that is no git work tree, or where there is
// no git: nested .gitignore files count as they do for git.
func walk(ctx context.Context, dir string, most int) ([]string, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, failed(reasonFolder, "the folder %s cannot be read: %w", dir, err)
	}
	defer root.Close()
	w := walker{fsys: root.FS(), most: most}
	if err := w.folder(ctx, ".", nil); err != nil {
		return nil, err
	}
	return w.names, nil
}

type walker struct {
	fsys  fs.FS
	names []string
	most  int
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
		if w.names = append(w.names, name); len(w.names) > w.most {
			return failed(reasonTooLarge, "the folder has more than %d files; ignore what the index does not need (.gitignore)", w.most)
		}
	}
	return nil
}

func (w *walker) ignoreFile(dir string) []ignoreRule {
	f, err := w.fsys.Open(path.Join(dir, ".gitignore"))
	if err != nil {
		return nil
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(f, maxIgnoreFile))
	if err != nil {
		return nil
	}
	return parseIgnore(dir, string(text))
}

// ignoreRule is one line of a .gitignore.
type ignoreRule struct {
	base    string // folder of the file, "" at the top
	pattern *regexp.Regexp
	negated bool
	folders bool // only folders
}

// ignored applies the rules in order: the last that matches decides.
func ignored(rules []ignoreRule, name string, folder bool) bool {
	result := false
	for _, r := range rules {
		if r.folders && !folder {
			continue
		}
		rel := name
		if r.base != "" {
			var ok bool
			if rel, ok = strings.CutPrefix(name, r.base+"/"); !ok {
				continue
			}
		}
		if r.pattern.MatchString(rel) {
			result = !r.negated
		}
	}
	return result
}

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
		if line[0] == '!' {
			r.negated, line = true, line[1:]
		}
		if strings.HasSuffix(line, "/") {
			r.folders, line = true, strings.TrimRight(line, "/")
		}
		anchored := strings.Contains(line, "/")
		line = strings.TrimPrefix(line, "/")
		if line == "" {
			continue
		}
		expr := ignoreExpr(line)
		if !anchored {
			expr = "(?:.*/)?" + expr
		}
		re, err := regexp.Compile("(?s)^" + expr + "$")
		if err != nil { // git ignores what it cannot read, too
			continue
		}
		r.pattern = re
		rules = append(rules, r)
	}
	return rules
}

// ignoreExpr translates a gitignore pattern to a regular expression.
func ignoreExpr(p string) string {
	var b strings.Builder
	for i := 0; i < len(p); {
		rest := p[i:]
		switch {
		case strings.HasPrefix(rest, "**/") && (i == 0 || p[i-1] == '/'):
			b.WriteString("(?:.*/)?")
			i += 3
		case rest == "**" && i > 0 && p[i-1] == '/':
			b.WriteString(".+")
			i += 2
		case rest[0] == '*':
			b.WriteString("[^/]*")
			i++
			for i < len(p) && p[i] == '*' {
				i++
			}
		case rest[0] == '?':
			b.WriteString("[^/]")
			i++
		case rest[0] == '[':
			class, length := ignoreClass(rest)
			b.WriteString(class)
			i += length
		case rest[0] == '\\' && len(rest) > 1:
			b.WriteString(regexp.QuoteMeta(rest[1:2]))
			i += 2
		default:
			b.WriteString(regexp.QuoteMeta(rest[:1]))
			i++
		}
	}
	return b.String()
}

// ignoreClass translates the class that p begins with, and returns its length. A
// bracket that is never closed stands for itself.
func ignoreClass(p string) (expr string, length int) {
	var b strings.Builder
	i := 1
	if i < len(p) && (p[i] == '!' || p[i] == '^') {
		b.WriteString("[^/")
		i++
	} else {
		b.WriteByte('[')
	}
	for first := true; i < len(p); first = false {
		switch rest := p[i:]; {
		case rest[0] == ']' && !first:
			return b.String() + "]", i + 1
		case strings.HasPrefix(rest, "[:") && strings.Contains(rest, ":]"):
			end := strings.Index(rest, ":]") + 2
			b.WriteString(rest[:end])
			i += end
		case rest[0] == '\\' && len(rest) > 1:
			b.WriteString(`\` + rest[1:2])
			i += 2
		case rest[0] == '[' || rest[0] == ']' || rest[0] == '^' || rest[0] == '\\':
			b.WriteString(`\` + rest[:1])
			i++
		default:
			b.WriteByte(rest[0])
			i++
		}
	}
	return `\[`, 1
}

// copier copies files from one root to another.
type copier struct {
	from, to *os.Root
	left     int64
	limits   Limits
}

func (c *copier) tooMany() error {
	return failed(reasonTooLarge, "the source has more than %d files; ignore what the index does not need (.gitignore)", c.limits.Files)
}

// copy copies one file or symbolic link. What is neither, or is gone by now, is
// left out.
func (c *copier) copy(name string) (copied bool, warning string, err error) {
	if err := checkName(name); err != nil {
		return false, "", err
	}
	if skipped(name) {
		return false, "", nil
	}
	info, err := c.from.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, "", nil // tracked, but deleted on disk
	}
	if err != nil {
		return false, "", failed(reasonFolder, "%s cannot be read: %w", name, err)
	}
	if dir := path.Dir(name); dir != "." {
		if err := c.to.MkdirAll(dir, 0o755); err != nil {
			return false, "", failed(reasonFolder, "%s cannot be written: %w", dir, err)
		}
	}
	switch {
	case info.Mode().IsRegular():
		return true, "", c.file(name, info)
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := c.from.Readlink(name)
		if err != nil {
			return false, "", failed(reasonFolder, "%s cannot be read: %w", name, err)
		}
		if target, err = checkLink(name, target); err != nil {
			return false, "", err
		}
		if err := c.to.Symlink(target, name); err != nil {
			return false, "", failed(reasonFolder, "%s cannot be written: %w", name, err)
		}
		return true, "", nil
	case info.IsDir():
		return false, fmt.Sprintf("%s is a repository of its own and was left out", name), nil
	default:
		return false, fmt.Sprintf("%s is neither a file nor a folder and was left out", name), nil
	}
}

func (c *copier) file(name string, info fs.FileInfo) error {
	in, err := c.from.Open(name)
	if err != nil {
		return failed(reasonFolder, "%s cannot be read: %w", name, err)
	}
	defer in.Close()
	out, err := c.to.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, fileMode(info.Mode()))
	if err != nil {
		return failed(reasonFolder, "%s cannot be written: %w", name, err)
	}
	n, err := io.Copy(out, io.LimitReader(in, c.left+1))
	if closeErr := out.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return failed(reasonFolder, "%s cannot be copied: %w", name, err)
	}
	if c.left -= n; c.left < 0 {
		return tooLarge(c.limits)
	}
	return nil
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

package archtest

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const maxLines = 800

// folderOf returns the package folder of a file, as the table writes it.
func folderOf(name string) string {
	if folder := path.Dir(name); folder != "." {
		return folder
	}
	return ""
}

// outside reports whether a file belongs to a folder that uses the product the
// way its users do, and so may write subjects and read the environment.
func outside(name string) bool {
	_, floor, ok := floorOf(folderOf(name))
	return ok && floor == top
}

// envReads returns a line for each place that reads the environment in a file
// below floor 9.
func envReads(name string, file *ast.File, fset *token.FileSet) []string {
	if _, floor, ok := floorOf(folderOf(name)); ok && floor >= 9 {
		return nil
	}
	return calls(file, fset, func(pkg, fun string) string {
		if (pkg == "os" || pkg == "syscall") && (fun == "Getenv" || fun == "LookupEnv") {
			return "libraries never read the environment: take an option instead of " + pkg + "." + fun
		}
		return ""
	})
}

// calls returns a line for each package.function that rule has a text for.
func calls(file *ast.File, fset *token.FileSet, rule func(pkg, fun string) string) []string {
	var broken []string
	ast.Inspect(file, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if pkg, ok := sel.X.(*ast.Ident); ok {
				if text := rule(pkg.Name, sel.Sel.Name); text != "" {
					broken = append(broken, fmt.Sprintf("%s: %s", fset.Position(n.Pos()), text))
				}
			}
		}
		return true
	})
	return broken
}

var subjectHeads = []string{"tools.", "mesh.", "$KV.", "$JS.", "$O."}

// subjectLiterals returns a line for each text that looks like a subject.
// Prose has spaces, and the file of an index is no subject.
func subjectLiterals(file *ast.File, fset *token.FileSet) []string {
	var broken []string
	ast.Inspect(file, func(n ast.Node) bool {
		lit, ok := n.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return true
		}
		text, err := strconv.Unquote(lit.Value)
		if err != nil || strings.ContainsAny(text, " \n") || strings.HasPrefix(text, "tools.toml") {
			return true
		}
		for _, head := range subjectHeads {
			if strings.HasPrefix(text, head) {
				broken = append(broken, fmt.Sprintf("%s: subject %s is written here: subjects/ owns every subject, build it there", fset.Position(lit.Pos()), lit.Value))
			}
		}
		return true
	})
	return broken
}

// goroutine returns where a file starts one, if it does: a go statement, or the
// Go method of a group.
func goroutine(file *ast.File) (at token.Pos, found bool) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			at, found = n.Pos(), true
		case *ast.CallExpr:
			if sel, ok := n.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "Go" && len(n.Args) == 1 {
				at, found = n.Pos(), true
			}
		}
		return !found
	})
	return at, found
}

// checksLeaks reports whether a test file lets goleak look at the whole test
// binary: goleak.VerifyTestMain, or meshtest.Main, which is made of it.
func checksLeaks(file *ast.File) bool {
	found := false
	ast.Inspect(file, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if pkg, ok := sel.X.(*ast.Ident); ok {
				found = found || pkg.Name == "goleak" && strings.HasPrefix(sel.Sel.Name, "Verify") || pkg.Name == "meshtest" && sel.Sel.Name == "Main"
			}
		}
		return !found
	})
	return found
}

func TestEnvironmentIsReadAtTheEdge(t *testing.T) {
	t.Parallel()
	m := house(t)
	for name, file := range m.parsed {
		if !strings.HasSuffix(name, "_test.go") && !outside(name) {
			report(t, envReads(name, file, m.fset))
		}
	}
}

// The error of a log line is its text, under one key: docs/operations/logs.md.
func TestErrorsAreLoggedOneWay(t *testing.T) {
	t.Parallel()
	other := regexp.MustCompile(`slog\.(Any\("error"|\w+\("err")`)
	m := house(t)
	for name := range m.parsed {
		data, err := os.ReadFile(filepath.Join(m.root, filepath.FromSlash(name)))
		if err != nil {
			t.Fatal(err)
		}
		if found := other.Find(data); found != nil && !strings.HasSuffix(name, "_test.go") {
			t.Errorf("%s: log an error as slog.String(\"error\", err.Error()), not with %s", name, found)
		}
	}
}

func TestSubjectsAreWrittenOnce(t *testing.T) {
	t.Parallel()
	m := house(t)
	own := 0
	for name, file := range m.parsed {
		if strings.HasSuffix(name, "_test.go") || outside(name) {
			continue
		}
		found := subjectLiterals(file, m.fset)
		if path.Dir(name) == "subjects" {
			own += len(found)
			continue
		}
		report(t, found)
	}
	if own == 0 {
		t.Error("no subject was found in subjects/ either: this test looks for the wrong thing")
	}
}

func TestGoroutinesAreWatched(t *testing.T) {
	t.Parallel()
	m := house(t)
	starts, watched := make(map[string]token.Pos), make(map[string]bool)
	for name, file := range m.parsed {
		folder := path.Dir(name)
		if strings.HasSuffix(name, "_test.go") {
			watched[folder] = watched[folder] || checksLeaks(file)
		} else if at, ok := goroutine(file); ok && !outside(name) {
			starts[folder] = at
		}
	}
	for folder, at := range starts {
		if !watched[folder] {
			t.Errorf("%s: package %s starts goroutines, and its tests have no TestMain with goleak.VerifyTestMain (or meshtest.Main)", m.fset.Position(at), folder)
		}
	}
}

func TestDocComments(t *testing.T) {
	t.Parallel()
	for name, file := range house(t).parsed {
		if path.Base(name) != "doc.go" {
			continue
		}
		text := file.Doc.Text()
		if !strings.HasPrefix(text, "Package "+file.Name.Name+" ") && !(file.Name.Name == "main" && strings.HasPrefix(text, "Command ")) {
			t.Errorf("%s: its comment begins with %q, want \"Package %s …\"", name, strings.SplitN(text, "\n", 2)[0], file.Name.Name)
		}
	}
}

func TestFilesAreShort(t *testing.T) {
	t.Parallel()
	m := house(t)
	for _, name := range m.committed(t) {
		switch path.Ext(name) {
		case ".go", ".py", ".js", ".ts":
		default:
			continue
		}
		data, err := os.ReadFile(filepath.Join(m.root, filepath.FromSlash(name)))
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(data, []byte("\n")); n > maxLines {
			t.Errorf("%s has %d lines, more than %d: split it along a seam", name, n, maxLines)
		}
	}
}

// foreign finds the path of a developer's machine, or the host of a package
// registry. The hosts are put together here, or this file would be refused.
func foreign(extra ...string) *regexp.Regexp {
	hosts := slices.Clone(extra)
	for host, domain := range map[string]string{
		"proxy": "golang.org", "sum": "golang.org", "pypi": "org", "files": "pythonhosted.org", "registry": "npmjs.org",
	} {
		hosts = append(hosts, regexp.QuoteMeta(host+"."+domain))
	}
	return regexp.MustCompile(`(^|[^A-Za-z0-9_.-])/(work|root|farm)/|` + strings.Join(hosts, "|"))
}

// registryHosts are those that this machine's clients are set up with.
func registryHosts() []string {
	var hosts []string
	host := regexp.MustCompile(`[a-z]+://(?:[^/@,|]*@)?([A-Za-z0-9.-]+)`)
	for _, command := range [][]string{
		{"go", "env", "GOPROXY"},
		{"python3", "-m", "pip", "config", "get", "global.index-url"},
		{"npm", "config", "get", "registry"},
	} {
		out, err := run("", command[0], command[1:]...)
		if err != nil {
			continue // that client is not here, or has no registry of its own
		}
		for _, found := range host.FindAllStringSubmatch(string(out), -1) {
			hosts = append(hosts, regexp.QuoteMeta(found[1]))
		}
	}
	return hosts
}

func TestNoPathsAndHostsOfThisMachine(t *testing.T) {
	t.Parallel()
	m := house(t)
	found := foreign(registryHosts()...)
	for _, name := range m.committed(t) {
		if base := path.Base(name); strings.HasSuffix(base, ".sum") || strings.HasSuffix(base, ".lock") || strings.HasSuffix(base, "lock.json") {
			continue
		}
		data, err := os.ReadFile(filepath.Join(m.root, filepath.FromSlash(name)))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.IndexByte(data, 0) >= 0 {
			continue
		}
		for i, line := range bytes.Split(data, []byte("\n")) {
			if at := found.Find(line); at != nil {
				t.Errorf("%s:%d: %q is a path of a developer's machine or the host of a registry", name, i+1, at)
			}
		}
	}
}

// The rules over text refuse their own examples.
func TestTextRulesRefuse(t *testing.T) {
	t.Parallel()
	fset := token.NewFileSet()
	parse := func(code string) *ast.File {
		t.Helper()
		file, err := parser.ParseFile(fset, "a.go", "package a\n"+code, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		return file
	}
	for code, want := range map[string]bool{
		`var _ = os.Getenv("X")`:             true,
		`var _, _ = os.LookupEnv("X")`:       true,
		`var _ = os.Getpid()`:                false,
		`var _ = "// os.Getenv"`:             false,
		`func f() { g := os.Getenv; g("") }`: true,
	} {
		if got := len(envReads("client/a.go", parse(code), fset)) > 0; got != want {
			t.Errorf("%s in client: refused is %t, want %t", code, got, want)
		}
		if got := envReads("cmd/mesh/a.go", parse(code), fset); len(got) > 0 {
			t.Errorf("%s in cmd/mesh was refused: %v", code, got)
		}
	}
	for code, want := range map[string]bool{
		`var _ = "tools.s.a"`:                   true,
		"var _ = `mesh.hb.`":                    true,
		`var _ = "$KV." + bucket`:               true,
		`var _ = "$JS.API.INFO"`:                true,
		`var _ = "tools.toml"`:                  false,
		`var _ = "mesh.call wants a tool's id"`: false,
		`// "tools.s.a"`:                        false,
		`var _ = "x.tools.a"`:                   false,
	} {
		if got := len(subjectLiterals(parse(code), fset)) > 0; got != want {
			t.Errorf("%s: refused is %t, want %t", code, got, want)
		}
	}
	for code, want := range map[string]bool{
		`func f() { go f() }`:                                 true,
		`func f(g errgroup.Group) { g.Go(h) }`:                true,
		`func f() { f() }`:                                    false,
		`func f() { func() { defer func() { go f() }() }() }`: true,
	} {
		if _, got := goroutine(parse(code)); got != want {
			t.Errorf("%s: starts a goroutine is %t, want %t", code, got, want)
		}
	}
	for code, want := range map[string]bool{
		`func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }`: true,
		`func TestMain(m *testing.M) { meshtest.Main(m) }`:         true,
		`func TestMain(m *testing.M) { m.Run() }`:                  false,
	} {
		if got := checksLeaks(parse(code)); got != want {
			t.Errorf("%s: checks leaks is %t, want %t", code, got, want)
		}
	}
	found := foreign(`registry\.example`)
	for line, want := range map[string]bool{
		"cd /" + "work/toolmesh":          true,
		`dir = "/` + `root/x"`:            true,
		"https://registry.example/simple": true,
		"see pypi" + ".org for it":        true,
		"https://example.com/work/index":  false,
		"the worker's /workspace":         false,
		"the root/ of it":                 false,
	} {
		if got := found.MatchString(line); got != want {
			t.Errorf("%q: refused is %t, want %t", line, got, want)
		}
	}
}

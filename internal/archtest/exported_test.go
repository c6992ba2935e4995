package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// internalTypes are the exported names of public packages whose signatures have a type of an
// internal package, which no other module can write. The list may only shrink.
var internalTypes = map[string]string{
	"client.NewOn":              onOneBus,
	"host.NewOn":                onOneBus,
	"registry.Acquire":          onOneBus,
	"registry.NewAwaiting":      onOneBus,
	"registry.NewResponder":     onOneBus,
	"registry.NewStore":         onOneBus,
	"registry.OpenView":         onOneBus,
	"standby.New":               onOneBus,
	"executor.Given":            "agents read it from a bundle",
	"executor.Index.Call":       "the type has an alias, executor.Sink",
	"executor.Options.Levels":   "only tests set levels",
	"executor.Stats.(embedded)": "its fields are numbers",
	"meshtest.Keyed.As":         "roles are constants of text",
	"meshtest.Option":           "options are made by functions of meshtest",
}

const onOneBus = "packages of this module share one connection and its inbox"

// public reports whether programs of other modules can use a package.
func public(folder string) bool {
	return !outside(path.Join(folder, "x.go")) && !slices.Contains(strings.Split(folder, "/"), "internal") && !within(folder, "cmd") &&
		!within(folder, "bench") && !within(folder, "e2e") && !within(folder, "examples") && !within(folder, "k8s")
}

// exportsInternal returns the exported names of a file whose declarations have a type of an
// internal package: "folder.Name", or "folder.Type.Member".
func exportsInternal(folder string, file *ast.File) (names []string) {
	internal := make(map[string]bool) // names of imported packages
	for _, imported := range file.Imports {
		at, err := strconv.Unquote(imported.Path.Value)
		if err != nil || !slices.Contains(strings.Split(at, "/"), "internal") {
			continue
		}
		name := path.Base(at)
		if imported.Name != nil {
			name = imported.Name.Name
		}
		internal[name] = true
	}
	has := func(n ast.Node) (found bool) {
		ast.Inspect(n, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				if pkg, ok := sel.X.(*ast.Ident); ok {
					found = found || internal[pkg.Name]
				}
			}
			return !found
		})
		return found
	}
	add := func(n ast.Node, name ...string) {
		if has(n) {
			names = append(names, path.Base("/"+folder)+"."+strings.Join(name, "."))
		}
	}
	fields := func(of string, list *ast.FieldList) {
		for _, f := range list.List {
			for _, name := range f.Names {
				if name.IsExported() {
					add(f.Type, of, name.Name)
				}
			}
			if len(f.Names) == 0 { // embedded
				add(f.Type, of, "(embedded)")
			}
		}
	}
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			name := []string{d.Name.Name}
			if d.Recv != nil {
				of := receiver(d.Recv.List[0].Type)
				if !ast.IsExported(of) {
					continue
				}
				name = []string{of, d.Name.Name}
			}
			if d.Name.IsExported() {
				add(d.Type, name...)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.ValueSpec:
					if s.Type != nil && slices.ContainsFunc(s.Names, (*ast.Ident).IsExported) {
						add(s.Type, s.Names[0].Name)
					}
				case *ast.TypeSpec:
					if !s.Name.IsExported() || s.Assign.IsValid() { // an alias is a name that others can write
						continue
					}
					switch of := s.Type.(type) {
					case *ast.StructType:
						fields(s.Name.Name, of.Fields)
					case *ast.InterfaceType:
						fields(s.Name.Name, of.Methods)
					default:
						add(of, s.Name.Name)
					}
				}
			}
		}
	}
	return names
}

// receiver is the name of a method's type.
func receiver(of ast.Expr) string {
	switch t := of.(type) {
	case *ast.StarExpr:
		return receiver(t.X)
	case *ast.IndexExpr:
		return receiver(t.X)
	case *ast.IndexListExpr:
		return receiver(t.X)
	case *ast.Ident:
		return t.Name
	}
	return ""
}

func TestNoInternalTypesAreExported(t *testing.T) {
	t.Parallel()
	left := maps.Clone(internalTypes)
	for name, file := range house(t).parsed {
		folder := folderOf(name)
		if strings.HasSuffix(name, "_test.go") || !public(folder) {
			continue
		}
		for _, name := range exportsInternal(folder, file) {
			if _, known := internalTypes[name]; !known {
				t.Errorf("%s has a type of an internal package in its signature: no other module can write it. Do not export it, or take a type of a public package", name)
			}
			delete(left, name)
		}
	}
	for name := range left {
		t.Errorf("%s exports no internal type: take it off the list", name)
	}
}

// The rule finds an internal type wherever an exported signature can have one.
func TestExportedRuleRefuses(t *testing.T) {
	t.Parallel()
	fset := token.NewFileSet()
	for code, want := range map[string]bool{
		`func New(b *bus.Bus) {}`:                 true,
		`func make(b *bus.Bus) {}`:                false,
		`func (t *T) Do() bus.Bus { return b }`:   true,
		`func (t *t) Do() bus.Bus { return b }`:   false,
		`func (t G[X]) Do(...bus.Bus) {}`:         true,
		`type T struct { B map[string]*bus.Bus }`: true,
		`type T struct { b *bus.Bus }`:            false,
		`type T struct { *bus.Bus }`:              true,
		`type T interface { Do(bus.Bus) }`:        true,
		`type T func(bus.Bus)`:                    true,
		`type T = bus.Bus`:                        false,
		`var B bus.Bus`:                           true,
		`func New() { _ = bus.New() }`:            false,
		`func New(m nats.Msg) {}`:                 false,
	} {
		file, err := parser.ParseFile(fset, "a.go", "package a\nimport (\n\"x/internal/bus\"\n\"x/nats\"\n)\n"+code, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(exportsInternal("client", file)) > 0; got != want {
			t.Errorf("%s: refused is %t, want %t", code, got, want)
		}
	}
}

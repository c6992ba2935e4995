package archtest

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
)

// public reports whether programs of other modules can use a package.
func public(folder string) bool {
	return !outside(path.Join(folder, "x.go")) && !slices.Contains(strings.Split(folder, "/"), "internal") && !within(folder, "cmd") &&
		!within(folder, "bench") && !within(folder, "e2e") && !within(folder, "examples") && !within(folder, "k8s")
}

// compiled are the public packages as the compiler sees them.
var compiled = sync.OnceValues(compile)

func compile() (all []*types.Package, err error) {
	m := read()
	if m.err != nil {
		return nil, m.err
	}
	args := []string{"list", "-export", "-deps", "-json=ImportPath,Export"}
	for _, p := range m.packages {
		if public(p.folder) {
			args = append(args, "./"+p.folder)
		}
	}
	out, err := run(m.root, "go", args...)
	if err != nil {
		return nil, err
	}
	exports := make(map[string]string)
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var l struct{ ImportPath, Export string }
		if err := dec.Decode(&l); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		exports[l.ImportPath] = l.Export
	}
	from := importer.ForCompiler(token.NewFileSet(), "gc", func(name string) (io.ReadCloser, error) { return os.Open(exports[name]) })
	for _, s := range m.packages {
		if !public(s.folder) {
			continue
		}
		p, err := from.Import(path.Join(module, s.folder))
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

// surface looks for types of internal packages in the exported API of public packages.
type surface struct {
	named map[*types.TypeName]bool // types of internal packages that have an exported alias in a public one
	bad   []string
}

// exposed returns a line for each exported name with a type in it that no other module can write:
// one of an internal package without an exported alias in a public one. It follows such aliases as
// well.
func exposed(packages []*types.Package) []string {
	s := &surface{named: make(map[*types.TypeName]bool)}
	var exported []types.Object
	for _, p := range packages {
		for _, name := range p.Scope().Names() {
			if o := p.Scope().Lookup(name); o.Exported() {
				exported = append(exported, o)
				if of, ok := o.(*types.TypeName); ok && of.IsAlias() {
					if to, ok := types.Unalias(o.Type()).(*types.Named); ok {
						s.named[to.Obj()] = true
					}
				}
			}
		}
	}
	for _, o := range exported {
		name := strings.TrimPrefix(o.Pkg().Path(), module+"/") + "." + o.Name()
		if of, ok := types.Unalias(o.Type()).(*types.Named); ok && isType(o) {
			s.declaration(name, of)
		} else {
			s.look(name, o.Type())
		}
	}
	return s.bad
}

func isType(o types.Object) bool {
	_, ok := o.(*types.TypeName)
	return ok
}

// declaration checks a type: its methods, and its underlying type.
func (s *surface) declaration(name string, t *types.Named) {
	for m := range types.NewMethodSet(types.NewPointer(t)).Methods() { // those of embedded types, too
		if m.Obj().Exported() {
			s.look(name+"."+m.Obj().Name(), m.Type())
		}
	}
	s.look(name, t.Underlying())
}

// look looks into a type where a name has it.
func (s *surface) look(name string, t types.Type) {
	switch t := types.Unalias(t).(type) {
	case *types.Named:
		if o := t.Obj(); o.Pkg() != nil && slices.Contains(strings.Split(o.Pkg().Path(), "/"), "internal") && !s.named[o] {
			s.bad = append(s.bad, name+" has the type "+o.Pkg().Path()+"."+o.Name())
		}
		for of := range t.TypeArgs().Types() {
			s.look(name, of)
		}
	case interface{ Elem() types.Type }: // pointers, slices, arrays, channels, maps
		s.look(name, t.Elem())
		if m, ok := t.(*types.Map); ok {
			s.look(name, m.Key())
		}
	case *types.Signature:
		for v := range t.Params().Variables() {
			s.look(name, v.Type())
		}
		for v := range t.Results().Variables() {
			s.look(name, v.Type())
		}
	case *types.Struct:
		for f := range t.Fields() {
			if f.Exported() {
				s.look(name+"."+f.Name(), f.Type())
			}
		}
	case *types.Interface:
		for m := range t.Methods() {
			if m.Exported() {
				s.look(name+"."+m.Name(), m.Type())
			}
		}
	}
}

func TestNoInternalTypesAreExported(t *testing.T) {
	t.Parallel()
	packages, err := compiled()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range exposed(packages) {
		t.Errorf("%s, which no other module can write: do not export it, or take a type of a public package", line)
	}
}

// namesakes are the exported type names of more than one public package, and why no reader
// meets two of them unexpectedly. The list may only shrink.
var namesakes = map[string]string{
	"BatchResult": "codec has the wire form of client's",
	"Call":        "what codec encodes, executor runs and host hands to a handler: one call in three floors",
	"Chunk":       "codec has the wire form of client's",
	"Options":     "each package has its own",
	"Request":     "codec has that of a call, registry that of a question",
	"Server":      "meshtest's is a broker, and only tests import it",
	"Task":        "codec has the wire form of client's",
}

func TestExportedTypesHaveOneHome(t *testing.T) {
	t.Parallel()
	packages, err := compiled()
	if err != nil {
		t.Fatal(err)
	}
	homes := make(map[string][]string)
	for _, p := range packages {
		for _, name := range p.Scope().Names() {
			if o := p.Scope().Lookup(name); o.Exported() && isType(o) {
				homes[name] = append(homes[name], p.Path())
			}
		}
	}
	for name, in := range homes {
		if _, known := namesakes[name]; len(in) > 1 && !known {
			t.Errorf("the type %s is exported by %v: rename the lesser one, so that a reader meets one of that name", name, in)
		}
	}
	for name := range namesakes {
		if len(homes[name]) < 2 {
			t.Errorf("the type %s has one home: take it off the list", name)
		}
	}
}

// The rule finds an internal type wherever an exported name can have one.
func TestExportedRuleRefuses(t *testing.T) {
	t.Parallel()
	fset := token.NewFileSet()
	check := func(at, code string, imported ...*types.Package) *types.Package {
		file, err := parser.ParseFile(fset, "a.go", code, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		config := types.Config{Importer: imports(imported)}
		p, err := config.Check(at, fset, []*ast.File{file}, nil)
		if err != nil {
			t.Fatalf("%s: %v", code, err)
		}
		return p
	}
	bus := check("x/internal/bus", "package bus; type Bus struct{ n int }; func New() *Bus { return nil }; type Keeper struct{ Bus *Bus }")
	for code, want := range map[string]bool{
		`func New(b *bus.Bus) {}`:                                                      true,
		`func make(b *bus.Bus) {}`:                                                     false,
		`type T int; func (t *T) Do() (b bus.Bus) { return b }`:                        true,
		`type t int; func (t *t) Do() (b bus.Bus) { return b }`:                        false,
		`type G[X any] int; func (t G[X]) Do(...bus.Bus) {}`:                           true,
		`type G[X any] int; func Do(G[bus.Bus]) {}`:                                    true,
		`type T struct { B map[string]*bus.Bus }`:                                      true,
		`type T struct { B map[bus.Bus]int }`:                                          true,
		`type T struct { b *bus.Bus }`:                                                 false,
		`type T struct { *bus.Bus }`:                                                   true,
		`type T struct { keeper }; type keeper struct{}; func (keeper) Do(bus.Bus) {}`: true,
		`type T interface { Do(bus.Bus) }`:                                             true,
		`type T func(bus.Bus)`:                                                         true,
		`type T chan []bus.Bus`:                                                        true,
		`type T = bus.Bus; func New(b *bus.Bus) {}`:                                    false,
		`type T = bus.Keeper`:                                                          true,
		`type t = bus.Bus; func New(b *t) {}`:                                          true,
		`var B = bus.New()`:                                                            true,
		`func New() { _ = bus.New() }`:                                                 false,
	} {
		if got := len(exposed([]*types.Package{check("x/client", `package client; import "x/internal/bus"; var _ bus.Bus; `+code, bus)})) > 0; got != want {
			t.Errorf("%s: refused is %t, want %t", code, got, want)
		}
	}
}

// imports imports packages that are at hand.
type imports []*types.Package

func (all imports) Import(name string) (*types.Package, error) {
	for _, p := range all {
		if p.Path() == name {
			return p, nil
		}
	}
	return nil, errors.New("no package " + name)
}

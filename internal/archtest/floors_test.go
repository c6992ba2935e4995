package archtest

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/toolmesh/toolmesh"

// top is the floor of packages that only use others: none may import them.
const top = 99

// floors is the table of the module's doc.go: folder of a package (or of a package and
// its sub-folders, which count as one) to its floor. "" is the module's root.
var floors = map[string]int{
	"":                0,
	"python":          0,
	"internal/fair":   0,
	"internal/search": 0,
	"internal/wake":   0,
	"subjects":        0,

	"codec":               1,
	"internal/access":     1,
	"internal/cache":      1,
	"internal/deep":       1,
	"internal/transcript": 1,
	"tool":                1,

	"executor":       2,
	"internal/bus":   2,
	"internal/index": 2,

	"internal/store": 3,

	"internal/chunks": 4, "internal/connect": 4, "internal/payloads": 4,
	"registry": 4,

	"client":            5,
	"internal/awaiting": 5,

	"host":               6,
	"internal/deploy":    6,
	"internal/inventory": 6,
	"internal/task":      6,

	"internal/member": 7,

	"internal/bridge": 8,
	"router":          8,

	"agent":            9,
	"gateway":          9,
	"internal/broker":  9,
	"internal/callout": 9,
	"internal/monitor": 9,

	"cmd":      10, // the three binaries, and cmd/internal, which they share
	"meshtest": 10,

	"bench":             top,
	"e2e":               top,
	"examples":          0, // embeds examples/indexes
	"examples/call":     top,
	"examples/react":    top,
	"examples/serve":    top,
	"internal/archtest": top,
	"internal/testmesh": top,
	"k8s":               top,
}

const (
	natsGo     = "github.com/nats-io/nats.go"
	natsServer = "github.com/nats-io/nats-server/v2"
	cobra      = "github.com/spf13/cobra"
	prometheus = "github.com/prometheus"
)

// onlyIn says which folders may import a package or module themselves.
var onlyIn = []struct {
	imported string // a package with all below it
	folders  []string
	why      string
}{
	{cobra, []string{"cmd"}, "commands are the edge's"},
	{prometheus, []string{"internal/monitor"}, "what others count they say in figures of their own"},
	{natsServer, []string{"internal/broker", "meshtest"}, "only what starts a broker links one"},
	{module + "/internal/broker", []string{"cmd/mesh", "meshtest", "bench"}, "only what starts a broker links one"},
	{module + "/internal/testmesh", nil, "it is for tests"},
	{module + "/internal/transcript", nil, "it is for tests"},
	{module + "/meshtest", []string{"bench", "e2e", "examples", "internal/testmesh"}, "it is for tests"},
}

// never lists the forbidden dependencies of a folder, direct or through others.
var never = []struct {
	folder string
	banned []string
	why    string
}{
	{"client", []string{module + "/executor", natsServer}, "services embed it"},
	{"host", []string{module + "/executor", natsServer}, "services embed it"},
	{"router", []string{module + "/executor", natsServer}, "services embed it"},
	{"internal/bridge", []string{module + "/executor", natsServer}, "it runs nothing and only hands on"},
	{"agent", []string{natsServer}, "an agent runs no broker"},
	{"cmd/mesh-agent", []string{natsServer}, "an agent runs no broker"},
	{"cmd/mesh-router", []string{natsServer}, "a router runs no broker"},
	{"gateway", []string{module + "/executor", natsServer}, "it is handlers over a router"},
	{"codec", []string{natsGo, natsServer}, "it knows bytes and headers, not NATS"},
	{"tool", []string{natsGo, natsServer}, "it knows nothing of NATS"},
	{"executor", []string{natsGo, natsServer}, "it knows nothing of NATS"},
	{"executor/internal/pool", []string{module + "/executor/internal/zygote"}, "it is handed a function that starts a process"},
	{"executor/internal/zygote", []string{module + "/executor/internal/pool"}, "it knows nothing of calls"},
	{"internal/index", []string{natsGo, natsServer}, "it knows nothing of NATS"},
}

// rooms are the packages whose sub-folders each own their state and never see the
// package that wires them together.
var rooms = []string{"executor", "host"}

// stdOnly are the packages that import the standard library alone.
var stdOnly = []string{"", "python", "subjects"}

// badNames are the package names that say nothing.
var badNames = []string{"util", "utils", "common", "helper", "helpers", "types", "misc", "shared"}

// source is one package of the module, as far as the rules look at it.
type source struct {
	folder  string   // relative to the module's root; "" is the root
	name    string   // of the package
	imports []string // of non-test files, with any build constraints
	deps    []string // everything that its build pulls in
	files   []string // non-test Go files
}

// within reports whether name is folder or below it.
func within(name, folder string) bool {
	return name == folder || strings.HasPrefix(name, folder+"/")
}

// floorOf returns the unit of the table that a folder belongs to, and its floor.
func floorOf(folder string) (unit string, floor int, ok bool) {
	for f := folder; f != "." && f != ""; f = path.Dir(f) {
		if n, ok := floors[f]; ok {
			return f, n, true
		}
	}
	return "", floors[""], folder == ""
}

// brokenFloors returns a line for each import that goes sideways or upwards, and
// for each package that is not in the table.
func brokenFloors(packages []source) []string {
	var broken []string
	for _, p := range packages {
		unit, floor, ok := floorOf(p.folder)
		if !ok {
			broken = append(broken, fmt.Sprintf("%s: the package is not in the table: give it a floor in internal/archtest/floors_test.go and in the module's doc.go, or put it below its owner", p.folder))
			continue
		}
		for _, imported := range p.imports {
			if !within(imported, module) {
				if slices.Contains(stdOnly, unit) && strings.Contains(strings.SplitN(imported, "/", 2)[0], ".") {
					broken = append(broken, fmt.Sprintf("%q imports %s: it may import only the standard library", p.folder, imported))
				}
				continue
			}
			other := strings.TrimPrefix(strings.TrimPrefix(imported, module), "/")
			otherUnit, otherFloor, ok := floorOf(other)
			if ok && otherUnit != unit && otherFloor >= floor {
				broken = append(broken, fmt.Sprintf("%q (floor %d) imports %q (floor %d): only lower floors may be imported", p.folder, floor, other, otherFloor))
			}
		}
	}
	return broken
}

// brokenLinks returns a line for each import or dependency that onlyIn or never
// forbids.
func brokenLinks(packages []source) []string {
	var broken []string
	for _, p := range packages {
		for _, rule := range onlyIn {
			if slices.ContainsFunc(rule.folders, func(f string) bool { return within(p.folder, f) }) || within(module+"/"+p.folder, rule.imported) {
				continue
			}
			for _, imported := range p.imports {
				if within(imported, rule.imported) {
					broken = append(broken, fmt.Sprintf("%q imports %s, which only %v may: %s", p.folder, imported, rule.folders, rule.why))
				}
			}
		}
		for _, rule := range never {
			if !within(p.folder, rule.folder) {
				continue
			}
			for _, dep := range p.deps {
				for _, banned := range rule.banned {
					if within(dep, banned) {
						broken = append(broken, fmt.Sprintf("%q pulls in %s, which it must never: %s (go mod why -m and go list -deps show the way)", p.folder, dep, rule.why))
					}
				}
			}
		}
	}
	return broken
}

// brokenRooms returns a line for each package in a room that imports the package
// above it.
func brokenRooms(packages []source) []string {
	var broken []string
	for _, p := range packages {
		for _, room := range rooms {
			if p.folder != room && within(p.folder, room) && slices.Contains(p.imports, module+"/"+room) {
				broken = append(broken, fmt.Sprintf("%q imports %q: a room never sees what wires it", p.folder, room))
			}
		}
	}
	return broken
}

// brokenNames returns a line for each package with a meaningless name, or without a doc.go.
// Examples show one file to read and need none.
func brokenNames(packages []source) []string {
	var broken []string
	for _, p := range packages {
		if slices.Contains(badNames, p.name) || slices.Contains(badNames, path.Base(p.folder)) {
			broken = append(broken, fmt.Sprintf("%q: a package is named for what it is responsible for, not %s", p.folder, p.name))
		}
		if !slices.Contains(p.files, "doc.go") && !within(p.folder, "examples") {
			broken = append(broken, fmt.Sprintf("%q has no doc.go, which says what it is for and what it must never do", p.folder))
		}
	}
	return broken
}

func report(t *testing.T, broken []string) {
	t.Helper()
	for _, line := range broken {
		t.Error(line)
	}
}

func TestFloors(t *testing.T) {
	t.Parallel()
	report(t, brokenFloors(house(t).packages))
}

// The module's doc.go has a line for each package of the table.
func TestFloorsAreDocumented(t *testing.T) {
	t.Parallel()
	page := house(t).parsed["doc.go"].Doc.Text()
	for folder, floor := range floors {
		if floor != top && !strings.Contains(page, folder) {
			t.Errorf("doc.go does not name %s", folder)
		}
	}
}

func TestLinks(t *testing.T) {
	t.Parallel()
	report(t, brokenLinks(house(t).packages))
}

func TestRooms(t *testing.T) {
	t.Parallel()
	report(t, brokenRooms(house(t).packages))
}

func TestNames(t *testing.T) {
	t.Parallel()
	report(t, brokenNames(house(t).packages))
}

// Each rule refuses its own example.
func TestRulesRefuse(t *testing.T) {
	t.Parallel()
	in := func(folder string, imports ...string) source {
		return source{folder: folder, name: path.Base(folder), imports: imports, deps: imports, files: []string{"doc.go"}}
	}
	for name, c := range map[string]struct {
		check func([]source) []string
		bad   source
		good  source
	}{
		"upwards":             {brokenFloors, in("client", module+"/host"), in("host", module+"/client")},
		"sideways":            {brokenFloors, in("codec", module+"/tool"), in("codec", module+"/subjects", module)},
		"from a sub-folder":   {brokenFloors, in("registry/part", module+"/client"), in("registry/part", module+"/registry")},
		"into a sub-folder":   {brokenFloors, in("registry", module+"/host/internal/lane"), in("agent", module+"/host/internal/lane")},
		"of the top":          {brokenFloors, in("cmd/mesh", module+"/bench"), in("bench", module+"/cmd/mesh")},
		"not in the table":    {brokenFloors, in("internal/stuff"), in("internal/bus/inner")},
		"a root sub-folder":   {brokenFloors, in("stuff"), in("")},
		"not std":             {brokenFloors, in("subjects", "github.com/google/uuid"), in("subjects", "encoding/base32")},
		"out of a room":       {brokenRooms, in("executor/internal/venv/lock", module+"/executor"), in("executor/internal/pool", module+"/executor/internal/frame")},
		"root imports a part": {brokenFloors, in("", module+"/subjects"), in("", "errors")},
		"cobra":               {brokenLinks, in("gateway", cobra), in("cmd/mesh", cobra)},
		"prometheus":          {brokenLinks, in("host", prometheus+"/client_golang/prometheus"), in("internal/monitor", prometheus+"/client_golang/prometheus")},
		"nats-server":         {brokenLinks, in("cmd/mesh", natsServer+"/server"), in("internal/broker", natsServer+"/server")},
		"the broker":          {brokenLinks, in("router", module+"/internal/broker"), in("meshtest", module+"/internal/broker")},
		"meshtest":            {brokenLinks, in("cmd/mesh", module+"/meshtest"), in("bench", module+"/meshtest")},
		"client and executor": {brokenLinks, in("client", module+"/executor/internal/frame"), in("agent", module+"/executor/internal/frame")},
		"executor and NATS":   {brokenLinks, in("executor/internal/pool", natsGo), in("internal/bus", natsGo)},
		"a name":              {brokenNames, in("internal/util"), in("internal/utility")},
		"no doc.go":           {brokenNames, source{folder: "codec", name: "codec", files: []string{"codec.go"}}, in("codec")},
	} {
		if got := c.check([]source{c.bad}); len(got) == 0 {
			t.Errorf("%s: %+v was accepted", name, c.bad)
		}
		if got := c.check([]source{c.good}); len(got) != 0 {
			t.Errorf("%s: %+v was refused: %v", name, c.good, got)
		}
	}
}

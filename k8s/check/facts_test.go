package check

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Facts are what the manifests have to agree with, as the product's sources and pages
// say it.
type Facts struct {
	Settings map[string]map[string]bool // program -> variables that it reads
	Defaults map[string]string          // of the variables that have one
	Paths    map[string]bool            // paths served over HTTP, from docs/operations/metrics.md
	Demand   map[int]int                // wanted_slots -> nodes, of nodes with DemandSlots slots
	Routes   map[string]int             // ports of nats.conf: client, routes, monitor; and leafnodes, of the component
	LameDuck time.Duration              // how long a NATS server takes to send its clients away
}

// The example of docs/operations/metrics.md.
const (
	DemandSlots = 8
	DemandShare = 0.7
)

// ReadFacts reads them from the repository at root.
func ReadFacts(root string) (*Facts, error) {
	f := &Facts{}
	var errs [3]error
	f.Settings, f.Defaults, errs[0] = settings(filepath.Join(root, "cmd", "internal", "settings", "settings.go"))
	errs[1] = f.readPage(filepath.Join(root, "docs", "operations", "metrics.md"))
	errs[2] = f.readNATS(filepath.Join(root, "k8s", "nats", "nats.conf"), filepath.Join(root, "k8s", "components", "leafnodes", "leafnodes.conf"))
	return f, errors.Join(errs[:]...)
}

// settings reads which variables the binaries know, by the rule of package settings: MESH_
// and the tag env, else MESH_ and the flag in capitals. A variable of NATS is known
// by the tag env alone, too.
func settings(file string) (known map[string]map[string]bool, defaults map[string]string, err error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, nil, err
	}
	defaults = make(map[string]string)
	structs := make(map[string]*ast.StructType)
	ast.Inspect(parsed, func(n ast.Node) bool {
		if spec, ok := n.(*ast.TypeSpec); ok {
			if s, ok := spec.Type.(*ast.StructType); ok {
				structs[spec.Name.Name] = s
			}
		}
		return true
	})
	var collect func(name string, into map[string]bool)
	collect = func(name string, into map[string]bool) {
		for _, field := range structs[name].Fields.List {
			if len(field.Names) == 0 {
				if embedded, ok := field.Type.(*ast.Ident); ok && structs[embedded.Name] != nil {
					collect(embedded.Name, into)
				}
				continue
			}
			if field.Tag == nil {
				continue
			}
			raw, _ := strconv.Unquote(field.Tag.Value)
			tag := reflect.StructTag(raw)
			if env := tag.Get("env"); env != "" {
				into["MESH_"+env], into[env] = true, true
			} else if flag := tag.Get("flag"); flag != "" {
				name := "MESH_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
				into[name] = true
				if text := tag.Get("default"); text != "" {
					defaults[name] = text
				}
			}
		}
	}
	known = make(map[string]map[string]bool)
	for program, of := range map[string]string{"mesh-agent": "Agent", "mesh-router": "Router"} {
		if structs[of] == nil {
			return nil, nil, fmt.Errorf("%s has no struct %s", file, of)
		}
		known[program] = make(map[string]bool)
		collect(of, known[program])
	}
	return known, defaults, nil
}

// duration returns a setting in the variables of a container.
func (f *Facts) duration(values map[string]string, name string) (time.Duration, error) {
	text := cmp.Or(values[name], f.Defaults[name])
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%s is %q: it is a duration", name, text)
	}
	return d, nil
}

// readPage reads the paths that are served, and the table of demand.
func (f *Facts) readPage(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	f.Paths = make(map[string]bool)
	for _, path := range regexp.MustCompile("(?m)^\\| `(/[a-z]+)").FindAllStringSubmatch(string(data), -1) {
		f.Paths[path[1]] = true
	}
	f.Demand = make(map[int]int)
	row := func(head string) []string { // of numbers
		found := regexp.MustCompile(`(?m)^\| ` + head + ` \|([ 0-9|]+)\|$`).FindStringSubmatch(string(data))
		if found == nil {
			return nil
		}
		return strings.Split(found[1], "|")
	}
	wanted, nodes := row("`wanted_slots`"), row("nodes")
	if len(wanted) < 5 || len(wanted) != len(nodes) || !f.Paths["/readyz"] {
		return fmt.Errorf("%s has no table of paths, or none of wanted_slots and nodes", file)
	}
	for i := range wanted {
		w, err1 := strconv.Atoi(strings.TrimSpace(wanted[i]))
		n, err2 := strconv.Atoi(strings.TrimSpace(nodes[i]))
		if err := errors.Join(err1, err2); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		f.Demand[w] = n
	}
	return nil
}

// readNATS reads ports and times of the server's configuration, and the port that the component adds to it.
func (f *Facts) readNATS(file, leafnodes string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	added, err := os.ReadFile(leafnodes)
	if err != nil {
		return err
	}
	data = append(data, added...)
	f.Routes = make(map[string]int)
	for name, line := range map[string]string{"client": `(?m)^listen: [0-9.]+:(\d+)`, "routes": `(?m)^cluster {\n(?:  .*\n)*?  listen: [0-9.]+:(\d+)`,
		"monitor": `(?m)^http: [0-9.]+:(\d+)`, "leafnodes": `(?m)^leafnodes {\n(?:  .*\n)*?  listen: [0-9.]+:(\d+)`} {
		found := regexp.MustCompile(line).FindSubmatch(data)
		if found == nil {
			return fmt.Errorf("%s does not say the port %s", file, name)
		}
		f.Routes[name], _ = strconv.Atoi(string(found[1]))
	}
	for _, found := range regexp.MustCompile(`(?m)^lame_duck_\w+: (\w+)`).FindAllSubmatch(data, -1) {
		d, err := time.ParseDuration(string(found[1]))
		if err != nil {
			return err
		}
		f.LameDuck += d
	}
	return nil
}

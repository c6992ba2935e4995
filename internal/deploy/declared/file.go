package declared

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/connect"
	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/internal/index"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// Entry is an index that a file lists.
type Entry struct {
	// Name of the index; empty only if the entry is too broken to have one. Guessed tells that the
	// entry is broken and may be meant for another index.
	Name    subjects.IndexName
	Guessed bool
	Source  string // as it may be shown
	// Request is sent to the agents.
	Request deploy.Request
	// Err is the fault of the entry; nil if it can be installed.
	Err error
}

// File is the parsed content of a file of indexes.
type File struct {
	Entries []Entry
	// Err is the fault of the file; Entries are then those that could be read, perhaps not all.
	Err error
}

// whole reports whether each entry has a name for certain, so that an index that is not listed may
// be removed.
func (f File) whole() bool {
	return f.Err == nil && !slices.ContainsFunc(f.Entries, func(e Entry) bool { return e.Name == "" || e.Guessed })
}

// Read reads a file of indexes. env are the variables that entries may name, each K=V.
func Read(path string, env []string) File {
	data, err := os.ReadFile(path) //nolint:gosec // the operator's own
	if err != nil {
		return File{Err: toolmesh.Errorf(toolmesh.CodeUnavailable, "the file of indexes cannot be read: %w", err)}
	}
	return Parse(data, env)
}

// Parse parses the content of a file of indexes; see [Read].
func Parse(data []byte, env []string) (f File) {
	var top struct {
		Index []toml.Primitive `toml:"index"`
	}
	meta, err := toml.Decode(string(data), &top)
	if bad, ok := errors.AsType[toml.ParseError](err); ok {
		return File{Err: invalid("the file of indexes is not TOML: line %d: %s", bad.Position.Line, cmp.Or(bad.Message, bad.Error()))}
	} else if err != nil {
		return File{Err: invalid("index is not a list of tables: write [[index]] above each: %w", err)}
	}
	if !meta.IsDefined("index") {
		f.Err = invalid("the file of indexes lists none: write index = [] to have none")
	}
	for _, key := range meta.Keys() {
		if key[0] != "index" {
			f.Err = invalid("the file of indexes has the unknown key %q: each index is a table [[index]]", key[0])
		}
	}
	for n, table := range top.Index {
		f.Entries = append(f.Entries, entry(n+1, meta, table, env))
	}
	by := make(map[subjects.IndexName]int)
	for _, e := range f.Entries {
		by[e.Name]++
	}
	for n := range f.Entries {
		if e := &f.Entries[n]; e.Name != "" && by[e.Name] > 1 && e.Err == nil {
			e.Err = invalid("entry %d (%s): %d entries have the name %q: give each its own name", n+1, e.Name, by[e.Name], e.Name)
		}
	}
	return f
}

func invalid(format string, args ...any) error {
	return toolmesh.Errorf(toolmesh.CodeInvalidRequest, format, args...).WithStarted(toolmesh.StartedNo)
}

var keys = []string{"env", "name", "on", "paths", "rev", "source"}

func entry(n int, meta toml.MetaData, table toml.Primitive, env []string) (e Entry) {
	var wrong []string
	sure := true // of the name
	bad := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	defer func() {
		if len(wrong) > 0 {
			what := fmt.Sprintf("entry %d", n)
			if e.Name != "" {
				what += fmt.Sprintf(" (%s)", e.Name)
			}
			e.Err = invalid("%s: %s", what, strings.Join(wrong, "; "))
			e.Guessed = !sure
			return
		}
		e.Request.Managed = digest(e.Request)
	}()
	var written map[string]any
	if meta.PrimitiveDecode(table, &written) != nil {
		bad("it is not a table: write [[index]] above it")
		return e
	}
	var said struct {
		Name, Source, Rev string
		Env, Paths        []string
		On                map[string]string
	}
	for _, key := range slices.Sorted(maps.Keys(written)) {
		if !slices.Contains(keys, key) {
			hint := "an entry has " + strings.Join(keys, ", ")
			if near := tool.Nearest(key, keys, 1); len(near) > 0 {
				hint = "did you mean " + near[0] + "?"
			}
			bad("the key %q is unknown; %s", key, hint)
			sure = false
		}
	}
	if err := meta.PrimitiveDecode(table, &said); err != nil {
		bad("%s", err.Error())
		sure = false
	}
	said.Name, _ = written["name"].(string) // the decoder may not have come to these, and takes Name for name
	said.Source, _ = written["source"].(string)
	r := &e.Request
	e.Name, r.Rev = subjects.IndexName(said.Name), said.Rev
	if token, err := subjects.EncodeToken(string(e.Name)); e.Name != "" {
		if sure = err == nil && token == string(e.Name); !sure {
			bad("%q cannot be an index's name: 1 to 64 of A-Z a-z 0-9 _ -", e.Name)
			e.Name = ""
		}
	}
	if r.Source = said.Source; r.Source == "" {
		bad("source is missing: give a repository (owner/repo) or a URL")
	} else if src, err := index.Parse(r.Source); err != nil {
		bad("%s", toolmesh.AsError(err).Message)
	} else {
		e.Source, e.Name = src.String(), cmp.Or(e.Name, src.Name)
		if src.Kind != index.KindGit {
			bad("source %q is a folder or a file, which agents cannot fetch: give a repository (owner/repo) or a URL", r.Source)
		}
		if src.Rev != "" && r.Rev != "" && src.Rev != r.Rev {
			bad("source and rev name two revisions, %q and %q", src.Rev, r.Rev)
		}
	}
	r.Name = e.Name
	for _, path := range said.Paths {
		p, err := index.ParseFolder(path)
		if err != nil {
			bad("paths: %s", err.Error())
		}
		r.Paths = append(r.Paths, p)
	}
	r.On = registry.Labels{}
	maps.Copy(r.On, said.On)
	if err := r.On.Check(); err != nil {
		bad("on: %s", err.Error())
	}
	for _, variable := range said.Env {
		name, value, literal := strings.Cut(variable, "=")
		if literal {
			r.Literal = append(r.Literal, name)
		} else if value, literal = connect.LookupEnv(env, name); !literal {
			bad("env: the variable %q is not in the environment of the process that reads the file", name)
		}
		if name == "" {
			bad(`env: %q names no variable: write "K", or "K=V"`, variable)
		}
		if r.Env == nil {
			r.Env = make(map[string]string)
		}
		r.Env[name] = value
	}
	return e
}

// digest identifies the content of a request, the values of variables included. It is stored in the
// index's record.
func digest(r deploy.Request) string {
	data, _ := json.Marshal(r) // texts
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16])
}

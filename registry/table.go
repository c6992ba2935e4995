package registry

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/toolmesh/toolmesh/subjects"
)

// table is the routes of all records: which node's record names which tool. It
// knows nothing of leases and heartbeats, and is not safe for concurrent use.
type table struct {
	records map[string]*toolsEntry        // by key in MESH_TOOLS
	scopes  map[subjects.SessionID]*scope // "" = tools for every session
}

// toolsEntry is one record with its revision.
type toolsEntry struct {
	key      subjects.ToolsKey // its names as in the key: long ones hashed
	revision uint64
	record   ToolsRecord
}

// scope is the tools of one session, or those for every session.
type scope struct {
	tools  map[subjects.ToolID][]route         // by node, then revision
	hashed map[subjects.ToolID]subjects.ToolID // ids as they travel, where that is not as they are: names too long for a token
	sorted []subjects.ToolID                   // nil when it has to be made anew
}

// route is one tool of one record.
type route struct {
	entry *toolsEntry
	tool  *ToolRoute
}

func newTable() *table {
	return &table{records: make(map[string]*toolsEntry), scopes: make(map[subjects.SessionID]*scope)}
}

// set replaces the record of a key, whose text is name.
func (t *table) set(key subjects.ToolsKey, name string, revision uint64, r ToolsRecord) {
	t.remove(name)
	e := &toolsEntry{key: key, revision: revision, record: r}
	t.records[name] = e
	s := t.scopes[key.Session]
	if s == nil {
		s = &scope{tools: make(map[subjects.ToolID][]route), hashed: make(map[subjects.ToolID]subjects.ToolID)}
		t.scopes[key.Session] = s
	}
	for i := range e.record.Tools {
		tool := &e.record.Tools[i]
		if len(s.tools[tool.ID]) == 0 {
			s.sorted = nil
			if wire, err := subjects.WireTool(tool.ID); err == nil && wire != tool.ID {
				s.hashed[wire] = tool.ID
			}
		}
		at, _ := slices.BinarySearchFunc(s.tools[tool.ID], e, func(r route, e *toolsEntry) int {
			return cmp.Or(cmp.Compare(r.entry.key.Node, e.key.Node), cmp.Compare(r.entry.revision, e.revision))
		})
		s.tools[tool.ID] = slices.Insert(s.tools[tool.ID], at, route{e, tool})
	}
}

// remove forgets the record of a key's text.
func (t *table) remove(name string) {
	e := t.records[name]
	if e == nil {
		return
	}
	delete(t.records, name)
	s := t.scopes[e.key.Session]
	for i := range e.record.Tools {
		id := e.record.Tools[i].ID
		left := slices.DeleteFunc(s.tools[id], func(r route) bool { return r.entry == e })
		if len(left) > 0 {
			s.tools[id] = left
			continue
		}
		delete(s.tools, id)
		s.sorted = nil
		if wire, err := subjects.WireTool(id); err == nil {
			delete(s.hashed, wire)
		}
	}
	if len(s.tools) == 0 {
		delete(t.scopes, e.key.Session)
	}
}

// routes returns the routes of a tool, by its id or by the one that it travels
// under: a reader of the subject can call it by that.
func (s *scope) routes(id subjects.ToolID) []route {
	if s == nil {
		return nil
	}
	if name, ok := s.hashed[id]; ok {
		id = name
	}
	return s.tools[id]
}

// ids returns the scope's ids in order. It caches: the table's lock must be held
// for writing.
func (s *scope) ids() []subjects.ToolID {
	if s == nil {
		return nil
	}
	if s.sorted == nil {
		s.sorted = slices.Sorted(maps.Keys(s.tools))
	}
	return s.sorted
}

// shared returns the routes of a tool for every session.
func (t *table) shared(id subjects.ToolID) []route { return t.scopes[""].routes(id) }

// bySuffix returns the ids that end with a name at a dot, as a session sees them,
// sorted.
func (t *table) bySuffix(session subjects.SessionID, name string) []subjects.ToolID {
	var found []subjects.ToolID
	for _, s := range []*scope{t.scopes[session], t.scopes[""]} {
		if s == nil {
			continue
		}
		for id := range s.tools {
			if strings.HasSuffix(string(id), "."+name) {
				found = append(found, id)
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// visible returns the ids that a session sees, in order. See [scope.ids].
func (t *table) visible(session subjects.SessionID) []subjects.ToolID {
	own, shared := t.scopes[session].ids(), t.scopes[""].ids()
	if len(own) == 0 || session == "" {
		return shared
	}
	all := slices.Concat(own, shared)
	slices.Sort(all)
	return slices.Compact(all)
}

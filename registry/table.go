package registry

import (
	"cmp"
	"slices"
	"strings"

	"github.com/toolmesh/toolmesh/subjects"
)

// table is the routes of all records: which node's record names which tool. It
// knows nothing of leases and heartbeats, and is not safe for concurrent use.
type table struct {
	records map[string]*toolsEntry              // by key in MESH_TOOLS
	scopes  map[subjects.SessionID]*scope       // "" = tools for every session
	byNode  map[subjects.NodeID]map[string]bool // keys of one node
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
	suffix map[string][]subjects.ToolID        // ids by each of their proper suffixes, sorted
	hashed map[subjects.ToolID]subjects.ToolID // ids as they travel, where that is not as they are: names too long for a token
	sorted []subjects.ToolID                   // nil when it has to be made anew
}

// route is one tool of one record.
type route struct {
	entry *toolsEntry
	tool  *ToolRoute
}

func newTable() *table {
	return &table{
		records: make(map[string]*toolsEntry), scopes: make(map[subjects.SessionID]*scope),
		byNode: make(map[subjects.NodeID]map[string]bool),
	}
}

// set replaces the record of a key, whose text is name.
func (t *table) set(key subjects.ToolsKey, name string, revision uint64, r ToolsRecord) {
	t.remove(name)
	e := &toolsEntry{key: key, revision: revision, record: r}
	t.records[name] = e
	if t.byNode[key.Node] == nil {
		t.byNode[key.Node] = make(map[string]bool)
	}
	t.byNode[key.Node][name] = true
	s := t.scopes[key.Session]
	if s == nil {
		s = &scope{
			tools: make(map[subjects.ToolID][]route), suffix: make(map[string][]subjects.ToolID),
			hashed: make(map[subjects.ToolID]subjects.ToolID),
		}
		t.scopes[key.Session] = s
	}
	for i := range e.record.Tools {
		tool := &e.record.Tools[i]
		if len(s.tools[tool.ID]) == 0 {
			s.name(tool.ID)
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
	if keys := t.byNode[e.key.Node]; keys != nil {
		delete(keys, name)
		if len(keys) == 0 {
			delete(t.byNode, e.key.Node)
		}
	}
	s := t.scopes[e.key.Session]
	for i := range e.record.Tools {
		id := e.record.Tools[i].ID
		left := slices.DeleteFunc(s.tools[id], func(r route) bool { return r.entry == e })
		if len(left) > 0 {
			s.tools[id] = left
			continue
		}
		delete(s.tools, id)
		s.unname(id)
	}
	if len(s.tools) == 0 {
		delete(t.scopes, e.key.Session)
	}
}

// suffixes calls each with every proper suffix of an id, at the dots.
func suffixes(id subjects.ToolID, each func(suffix string)) {
	rest := string(id)
	for {
		_, after, ok := strings.Cut(rest, ".")
		if !ok {
			return
		}
		each(after)
		rest = after
	}
}

func (s *scope) name(id subjects.ToolID) {
	s.sorted = nil
	if wire, err := subjects.WireTool(id); err == nil && wire != id {
		s.hashed[wire] = id
	}
	suffixes(id, func(suffix string) {
		ids := s.suffix[suffix]
		if i, found := slices.BinarySearch(ids, id); !found {
			s.suffix[suffix] = slices.Insert(ids, i, id)
		}
	})
}

func (s *scope) unname(id subjects.ToolID) {
	s.sorted = nil
	if wire, err := subjects.WireTool(id); err == nil {
		delete(s.hashed, wire)
	}
	suffixes(id, func(suffix string) {
		ids := s.suffix[suffix]
		if i, found := slices.BinarySearch(ids, id); found {
			ids = slices.Delete(ids, i, i+1)
		}
		if len(ids) == 0 {
			delete(s.suffix, suffix)
		} else {
			s.suffix[suffix] = ids
		}
	})
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
// for writing, or the cache be warm.
func (s *scope) ids() []subjects.ToolID {
	if s == nil {
		return nil
	}
	if s.sorted == nil {
		s.sorted = make([]subjects.ToolID, 0, len(s.tools))
		for id := range s.tools {
			s.sorted = append(s.sorted, id)
		}
		slices.Sort(s.sorted)
	}
	return s.sorted
}

// shared returns the routes of a tool for every session.
func (t *table) shared(id subjects.ToolID) []route { return t.scopes[""].routes(id) }

// bySuffix returns the ids that end with a name, as a session sees them, sorted.
func (t *table) bySuffix(session subjects.SessionID, name string) []subjects.ToolID {
	var own, shared []subjects.ToolID
	if s := t.scopes[session]; s != nil && session != "" {
		own = s.suffix[name]
	}
	if s := t.scopes[""]; s != nil {
		shared = s.suffix[name]
	}
	switch {
	case len(own) == 0:
		return shared
	case len(shared) == 0:
		return own
	}
	all := append(slices.Clone(own), shared...)
	slices.Sort(all)
	return slices.Compact(all)
}

// visible returns up to limit ids behind after that a session sees, in order.
// limit 0 returns all.
func (t *table) visible(session subjects.SessionID, after subjects.ToolID, limit int) []subjects.ToolID {
	shared := t.scopes[""].ids()
	var own []subjects.ToolID
	if session != "" {
		own = t.scopes[session].ids()
	}
	from := func(ids []subjects.ToolID) []subjects.ToolID {
		i, found := slices.BinarySearch(ids, after)
		if found {
			i++
		}
		return ids[i:]
	}
	own, shared = from(own), from(shared)
	out := make([]subjects.ToolID, 0, min(len(own)+len(shared), max(limit, 16)))
	for (len(own) > 0 || len(shared) > 0) && (limit == 0 || len(out) < limit) {
		var id subjects.ToolID
		switch {
		case len(own) == 0:
			id, shared = shared[0], shared[1:]
		case len(shared) == 0 || own[0] < shared[0]:
			id, own = own[0], own[1:]
		case own[0] == shared[0]:
			id, own, shared = own[0], own[1:], shared[1:]
		default:
			id, shared = shared[0], shared[1:]
		}
		out = append(out, id)
	}
	return out
}

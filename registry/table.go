package registry

import (
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/toolmesh/toolmesh/subjects"
)

// table is the routes of all records: which node's record names which tool. Records with
// equal lists of tools share one list, so that its memory grows with the sum of tools and
// records, not with their product. It knows nothing of leases and heartbeats, and is not
// safe for concurrent use.
type table struct {
	records map[string]*toolsEntry // by key in MESH_TOOLS
	scopes  map[scopeKey]*scope
	lists   map[listKey]*toolList
	version uint64 // grows with each change of a scope
}

// toolsEntry is one record with its revision. Its list has its tools.
type toolsEntry struct {
	key      subjects.ToolsKey // its names as in the key: long ones hashed
	revision uint64
	record   ToolsRecord
	list     *toolList
}

// scopeKey names a scope: a session in its epoch, as in keys, so that no other session of its name
// has its tools. The zero value has those for every session.
type scopeKey struct {
	session subjects.SessionID
	epoch   string
}

// listKey names a list.
type listKey struct {
	scope scopeKey
	sum   listSum
}

// toolList is the tools of one or more records, with these records.
type toolList struct {
	key     listKey
	tools   []ToolRoute
	users   []string // users of the tools, sorted
	entries map[*toolsEntry]struct{}
}

// scope is the tools of one session, or those for every session. A nil one has none.
type scope struct {
	tools  map[subjects.ToolID][]listedAs
	hashed map[subjects.ToolID]subjects.ToolID // ids as they travel, where that is not as they are: names too long for a token
	sorted []subjects.ToolID                   // nil when it has to be made anew
	// version is the table's when the scope's lists last changed: not that of an earlier scope of the session.
	version uint64
}

// listedAs is a tool as one list has it.
type listedAs struct {
	list *toolList
	tool *ToolRoute
}

// servedAs is a tool as one record of a node has it.
type servedAs struct {
	entry *toolsEntry
	tool  *ToolRoute
}

// errNoList is returned by [table.set] for an unknown list.
var errNoList = errors.New("the list of tools is not known")

// set replaces the record of a key, whose text is name. The record's tools are the list
// sum: tools, as JSON, or the list that other records have, if tools is nil.
func (t *table) set(key subjects.ToolsKey, name string, revision uint64, r ToolsRecord, sum listSum, tools []byte) error {
	at := listKey{scopeKey{key.Session, r.Epoch}, sum}
	if key.Session == "" {
		at.scope.epoch = "" // that of no session
	}
	l := t.lists[at]
	if l == nil && tools == nil {
		return errNoList
	}
	if l == nil {
		l = &toolList{key: at, entries: make(map[*toolsEntry]struct{})}
		if err := json.Unmarshal(tools, &l.tools); err != nil {
			return err
		}
		t.add(l)
	}
	r.Tools = l.tools
	e := &toolsEntry{key: key, revision: revision, record: r, list: l}
	l.entries[e] = struct{}{} // before the earlier one goes: it may be the list's last
	t.remove(name)
	t.records[name] = e
	return nil
}

// add makes a list's tools known.
func (t *table) add(l *toolList) {
	t.lists[l.key] = l
	s := t.scopes[l.key.scope]
	if s == nil {
		s = &scope{tools: make(map[subjects.ToolID][]listedAs), hashed: make(map[subjects.ToolID]subjects.ToolID)}
		t.scopes[l.key.scope] = s
	}
	t.touch(s)
	for i := range l.tools {
		tool := &l.tools[i]
		if len(s.tools[tool.ID]) == 0 {
			s.sorted = nil
			if wire, err := subjects.WireTool(tool.ID); err == nil && wire != tool.ID {
				s.hashed[wire] = tool.ID
			}
		}
		s.tools[tool.ID] = append(s.tools[tool.ID], listedAs{l, tool})
		if tool.User != "" && !slices.Contains(l.users, tool.User) {
			l.users = append(l.users, tool.User)
		}
	}
	slices.Sort(l.users)
}

// touch notes that a scope's lists have changed.
func (t *table) touch(s *scope) {
	t.version++
	s.version = t.version
}

// remove forgets the record of a key's text.
func (t *table) remove(name string) {
	e := t.records[name]
	if e == nil {
		return
	}
	delete(t.records, name)
	delete(e.list.entries, e)
	if len(e.list.entries) == 0 {
		t.drop(e.list)
	}
}

// drop forgets a list that no record has any more.
func (t *table) drop(l *toolList) {
	delete(t.lists, l.key)
	s := t.scopes[l.key.scope]
	if s == nil {
		return // it went with the last tool
	}
	t.touch(s)
	for i := range l.tools {
		id := l.tools[i].ID
		left := slices.DeleteFunc(s.tools[id], func(p listedAs) bool { return p.list == l })
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
		delete(t.scopes, l.key.scope)
	}
}

// places returns the lists that name a tool, by its id or by the one on the wire, which a
// reader of the subject may call it by.
func (s *scope) places(id subjects.ToolID) []listedAs {
	if s == nil {
		return nil
	}
	if name, ok := s.hashed[id]; ok {
		id = name
	}
	return s.tools[id]
}

// routes returns the routes of a tool, by node, then revision. The caller owns the result.
func (s *scope) routes(id subjects.ToolID) []servedAs {
	var all []servedAs
	for _, p := range s.places(id) {
		for e := range p.list.entries {
			all = append(all, servedAs{e, p.tool})
		}
	}
	slices.SortFunc(all, func(a, b servedAs) int {
		return cmp.Or(cmp.Compare(a.entry.key.Node, b.entry.key.Node), cmp.Compare(a.entry.revision, b.entry.revision))
	})
	return all
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

// bySuffix returns the ids of scopes that end with a name at a dot, sorted.
func bySuffix(name string, scopes ...*scope) []subjects.ToolID {
	var found []subjects.ToolID
	for _, s := range scopes {
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

// visible returns the ids of a session's own scope and of the shared one, in order. See [scope.ids].
func visible(own, shared *scope) []subjects.ToolID {
	if len(own.ids()) == 0 || own == shared {
		return shared.ids()
	}
	all := slices.Concat(own.ids(), shared.ids())
	slices.Sort(all)
	return slices.Compact(all)
}

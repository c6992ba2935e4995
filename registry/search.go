package registry

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/search"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

const (
	searchDefault = 10
	searchMax     = 1000
	// foundText is how many bytes of a description an answer has.
	foundText = 2 << 10
	// missingAgain is after how long a descriptor that the store lacked is looked for again.
	missingAgain = 5 * time.Second
	// indexesKept is the max number of documents in the kept indexes of sessions, without
	// that of the session that asked last.
	indexesKept = 20_000
)

// SearchAnswer is the tools that fit a question, the best first.
type SearchAnswer struct {
	Tools []FoundTool `json:"tools"`
}

// FoundTool is one tool that fits a question.
type FoundTool struct {
	ID subjects.ToolID `json:"id"`
	// Description is the tool's own, its beginning where it is long.
	Description string `json:"description"`
	// Score compares the tools of one answer. More is better.
	Score float64 `json:"score"`
}

// searcher has the indexes that answer questions: one of the tools that all sessions see, and
// one for each session that has tools of its own and asks.
type searcher struct {
	view  *View
	store *Store
	keep  int // how many documents the indexes of sessions may have

	mu     sync.Mutex
	scopes map[subjects.SessionID]*searched
}

// searched is the index of a scope of the view's table.
type searched struct {
	docs int // of searcher.mu

	mu      sync.RWMutex
	index   *search.Index
	built   uint64              // the scope's version that it is of
	lacking map[string]struct{} // the documents whose descriptors the store lacked
	again   time.Time           // when these are looked for again; zero: not
}

// document names a tool in one revision. Documents are in the order of ids.
func document(id subjects.ToolID, digest string) string { return string(id) + "\x00" + digest }

// documents returns the version of a scope and, unless it is the one that is known, the keys
// of its documents.
func (v *View) documents(session subjects.SessionID, known uint64) (version uint64, keys map[string]struct{}) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	s, _ := v.scopes(session)
	if s == nil {
		return 0, nil
	}
	if s.version == known {
		return known, nil
	}
	keys = make(map[string]struct{}, len(s.tools))
	for id, places := range s.tools {
		for _, p := range places {
			keys[document(id, p.tool.Digest)] = struct{}{}
		}
	}
	return s.version, keys
}

// scope returns the index of a scope, which is up to date and may be read until release.
// It is nil where the scope has no tools.
func (s *searcher) scope(ctx context.Context, session subjects.SessionID) (x *search.Index, release func(), err error) {
	s.mu.Lock()
	one := s.scopes[session]
	if one == nil {
		if version, _ := s.view.documents(session, 0); version == 0 {
			s.mu.Unlock()
			return nil, func() {}, nil
		}
		one = &searched{index: search.NewIndex()}
		s.scopes[session] = one
	}
	s.mu.Unlock()

	one.mu.Lock()
	err = s.update(ctx, session, one)
	docs := one.index.Len()
	one.mu.Unlock()
	s.mu.Lock()
	one.docs = docs
	s.evict(one)
	s.mu.Unlock()
	if err != nil {
		return nil, nil, err
	}
	one.mu.RLock()
	return one.index, one.mu.RUnlock, nil
}

// evict drops the indexes of all sessions but one once they have too many documents together.
// An index without documents counts as one.
func (s *searcher) evict(but *searched) {
	total := 0
	for session, one := range s.scopes {
		if session != "" && one != but {
			total += max(one.docs, 1)
		}
	}
	if total > s.keep {
		maps.DeleteFunc(s.scopes, func(session subjects.SessionID, one *searched) bool { return session != "" && one != but })
	}
}

// update makes an index match the view. After an error the documents that it has read stay.
func (s *searcher) update(ctx context.Context, session subjects.SessionID, one *searched) error {
	if !one.again.IsZero() && time.Now().After(one.again) {
		one.built, one.again = 0, time.Time{}
	}
	version, keys := s.view.documents(session, one.built)
	if version == one.built {
		return nil
	}
	one.index.Remove(func(key string) bool {
		_, there := keys[key]
		_, lacking := one.lacking[key]
		return !there || lacking
	})
	one.built, one.lacking = 0, make(map[string]struct{})
	var added []string
	for key := range keys {
		if !one.index.Has(key) {
			added = append(added, key)
		}
	}
	for part := range slices.Chunk(added, schemasAtOnce) {
		digests := make([]string, len(part))
		for i, key := range part {
			_, digests[i], _ = strings.Cut(key, "\x00")
		}
		found, err := s.store.Descriptors(ctx, digests)
		if err != nil {
			return err
		}
		for i, key := range part {
			id, _, _ := strings.Cut(key, "\x00")
			d := search.Document{ID: id}
			if known := found[digests[i]]; known != nil {
				d.Description, d.Parameters = known.Description, parameters(known.InputSchema)
			} else if digests[i] != "" {
				one.lacking[key], one.again = struct{}{}, time.Now().Add(missingAgain)
			}
			one.index.Put(key, d)
		}
	}
	one.built = version
	return nil
}

// parameters are those of a schema, in no order.
func parameters(schema json.RawMessage) []search.Parameter {
	var said struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	if json.Unmarshal(schema, &said) != nil {
		return nil
	}
	all := make([]search.Parameter, 0, len(said.Properties))
	for name, property := range said.Properties {
		var about struct {
			Description string `json:"description"`
		}
		_ = json.Unmarshal(property, &about) // true and false are schemas, too
		all = append(all, search.Parameter{Name: name, Description: about.Description})
	}
	return all
}

// search answers which tools fit a question, of those that the session sees and that a node serves.
func (r *Responder) search(ctx context.Context, q *query) (any, error) {
	switch {
	case len(q.Query) > search.QueryMax:
		return nil, toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "query has %d bytes, and may have %d: ask in a few words", len(q.Query), search.QueryMax).
			WithDetail("max", search.QueryMax)
	case strings.TrimSpace(q.Query) == "":
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, `query is missing or empty: the request is {"query":"<what the tool should do>","limit":10}`)
	case q.Limit < 0 || q.Limit > searchMax:
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "limit is %d: it is a whole number from 1 to %d", q.Limit, searchMax)
	}
	globs, err := q.globs()
	if err != nil {
		return nil, err
	}
	session := canonical(q.session)
	var indexes []*search.Index
	for _, scope := range []subjects.SessionID{"", session} {
		x, release, err := r.searcher.scope(ctx, scope)
		if err != nil {
			return nil, err
		}
		defer release()
		if x != nil {
			indexes = append(indexes, x)
		}
	}
	limit := cmp.Or(q.Limit, searchDefault)
	answer := SearchAnswer{Tools: []FoundTool{}}
	left := int(r.bus.MaxPayload()) - headroom
	add := func(found []FoundTool, digests []string) (more bool, err error) {
		known, err := r.store.Descriptors(ctx, digests)
		if err != nil {
			return false, err
		}
		for i, one := range found {
			d := known[digests[i]]
			if q.ReadOnly && (d == nil || !d.Annotations.ReadOnly) {
				continue
			}
			if d != nil {
				one.Description = beginning(d.Description, foundText)
			}
			text, err := tool.MarshalPlain(one)
			if left -= len(text) + 1; err != nil || left < 0 { // less good ones are left out
				return false, err
			}
			if answer.Tools = append(answer.Tools, one); len(answer.Tools) == limit {
				return false, nil
			}
		}
		return true, nil
	}
	var found []FoundTool
	var digests []string
	for key, score := range search.Rank(search.Parse(q.Query), indexes...) {
		id, digest, _ := strings.Cut(key, "\x00")
		if !globs.Match(subjects.ToolID(id)) {
			continue
		}
		// Of several revisions the session's list has one, of its own tool and one of all sessions its own.
		route, ok := r.view.Route(session, subjects.ToolID(id))
		if !ok || route.Digest != digest || len(route.Nodes) == 0 {
			continue
		}
		found = append(found, FoundTool{ID: route.ID, Score: math.Round(score*1000) / 1000})
		if digests = append(digests, digest); len(found) < limit && len(found) < schemasAtOnce {
			continue
		}
		if more, err := add(found, digests); err != nil || !more {
			return answer, err
		}
		found, digests = found[:0], digests[:0]
	}
	_, err = add(found, digests)
	return answer, err
}

// globs are those of which a tool must match one.
func (q *query) globs() (subjects.Globs, error) {
	globs := subjects.Globs(q.Tools)
	if err := globs.Check(); err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "tools: %w", err)
	}
	return globs, nil
}

// beginning returns the first bytes of a text, whole characters of it.
func beginning(text string, size int) string {
	if len(text) <= size {
		return text
	}
	return strings.ToValidUTF8(text[:size], "") + "…"
}

package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool/render"
)

const (
	// staleMost is how old a list may be that serves a call while a new one is read.
	staleMost = time.Minute
	// renderPage is how many declarations are asked for at once: a busy registry answers so many in time.
	renderPage = 100
)

// catalog is the tools of one session, which all views of a token select from. One goroutine at a time asks the mesh.
type catalog struct {
	m     *mcpLink
	c     *client.Client
	known map[subjects.ToolID]*catalogTool // as they were rendered last; of the goroutine that reads

	mu      sync.Mutex
	tools   *catalogTools // as they were read last
	at      time.Time     // the start of that reading
	reading *reading      // nil while no goroutine reads
}

// reading is one time that the tools are read.
type reading struct {
	begun time.Time
	done  chan struct{} // closed when err is set
	err   error
}

// catalogTools are tools in the order of their ids. The list is immutable.
type catalogTools struct {
	all  []*catalogTool
	etag string // of the registry's list; empty until two readings in a row agree, as two members may answer them
}

// catalogTool is a tool as MCP clients take it.
type catalogTool struct {
	id        subjects.ToolID
	streaming bool
	readOnly  bool
	tool      *mcp.Tool // nil: no client could read it
	raw       json.RawMessage
	shape     atomic.Pointer[resultShape] // nil until a call needs it

	// Of the goroutine that reads.
	digest string // of the descriptor
	sure   bool   // rendered two times with this digest: the list and the rendering come by two messages
}

// catalog returns that of a session.
func (m *mcpLink) catalog(c *client.Client) *catalog {
	k := m.catalogs[c.Session()]
	if k == nil {
		k = &catalog{m: m, c: c, known: make(map[subjects.ToolID]*catalogTool)}
		m.catalogs[c.Session()] = k
	}
	return k
}

// start begins to read, unless a goroutine does; k.mu is held.
func (k *catalog) start() *reading {
	if k.reading != nil {
		return k.reading
	}
	r := &reading{begun: time.Now(), done: make(chan struct{})}
	k.m.mu.Lock()
	defer k.m.mu.Unlock()
	if k.m.closed {
		r.err = errStopping
		close(r.done)
		return r
	}
	k.reading = r
	before := k.tools
	k.m.looking.Go(func() {
		tools, err := k.load(k.m.ctx, before)
		k.mu.Lock()
		defer k.mu.Unlock()
		if err == nil {
			k.tools, k.at = tools, r.begun
		}
		k.reading, r.err = nil, err
		close(r.done)
	})
	return r
}

// get returns the tools of a reading that began at most age ago; 0: of one that begins now.
func (k *catalog) get(ctx context.Context, age time.Duration) (*catalogTools, error) {
	asked := time.Now()
	for {
		k.mu.Lock()
		if k.tools != nil && k.at.After(asked.Add(-age)) {
			defer k.mu.Unlock()
			return k.tools, nil
		}
		r := k.start()
		k.mu.Unlock()
		select {
		case <-r.done:
		case <-ctx.Done():
			return nil, toolmesh.AsError(context.Cause(ctx))
		}
		if r.err != nil && !r.begun.Before(asked) {
			return nil, r.err
		}
	}
}

// atHand returns tools for a call, which waits for no newer ones: the mesh itself refuses what was removed.
func (k *catalog) atHand(ctx context.Context) (*catalogTools, error) {
	k.mu.Lock()
	tools := k.tools
	age := time.Since(k.at)
	if tools != nil && age > viewFresh {
		k.start()
	}
	k.mu.Unlock()
	if tools != nil && age < staleMost {
		return tools, nil
	}
	now, err := k.get(ctx, staleMost)
	if err != nil && tools != nil {
		return tools, nil
	}
	return now, err
}

// load returns the tools as they are now: those before, if they have not changed.
func (k *catalog) load(ctx context.Context, before *catalogTools) (*catalogTools, error) {
	var state registry.ListAnswer
	if err := k.c.Ask(ctx, registry.VerbList, registry.Request{Limit: 1, ETag: true}, &state); err != nil {
		return nil, err
	}
	if before != nil && state.ETag != "" && state.ETag == before.etag {
		return before, nil
	}
	var serving, changed []registry.ListedTool
	for q := (registry.Request{Limit: askPage, Digests: true}); ; {
		var page registry.ListAnswer
		if err := k.c.Ask(ctx, registry.VerbList, q, &page); err != nil {
			return nil, err
		}
		for _, t := range page.Tools {
			if t.State != registry.ToolServing {
				continue
			}
			serving = append(serving, t)
			if old := k.known[t.ID]; old == nil || !old.sure || t.Digest == "" || old.digest != t.Digest || old.streaming != t.Streaming {
				changed = append(changed, t)
			}
		}
		if page.Next == "" || page.Next == q.After {
			break
		}
		q.After = page.Next
	}
	for part := range slices.Chunk(changed, renderPage) {
		if err := k.render(ctx, part); err != nil {
			return nil, err // what was rendered is known when the tools are read again
		}
	}
	tools, known := new(catalogTools), make(map[subjects.ToolID]*catalogTool, len(serving))
	for _, t := range serving {
		if one := k.known[t.ID]; one != nil { // else it was removed meanwhile
			tools.all, known[t.ID] = append(tools.all, one), one
		}
	}
	k.known = known
	if before != nil && slices.Equal(before.all, tools.all) {
		before.etag = state.ETag
		return before, nil
	}
	return tools, nil
}

// render reads the declarations of tools. One that stays the same stays the same in memory.
func (k *catalog) render(ctx context.Context, part []registry.ListedTool) error {
	shown, err := rendered(ctx, k.c, render.MCP, part)
	if err != nil {
		return err
	}
	listed := make(map[subjects.ToolID]*registry.ListedTool, len(part))
	for i := range part {
		listed[part[i].ID] = &part[i]
	}
	for _, raw := range shown {
		id := titleOf(raw)
		t, old := listed[id], k.known[id]
		switch {
		case t == nil:
			continue
		case old != nil && old.digest == t.Digest && old.streaming == t.Streaming && bytes.Equal(old.raw, raw):
			old.sure = true
			continue
		}
		one := &catalogTool{id: id, streaming: t.Streaming, raw: raw, digest: t.Digest}
		if one.tool, err = decodeTool(raw); err != nil {
			k.m.log().Warn("a tool is left out for MCP clients: its metadata.mcp cannot be read", slog.String("tool", string(id)), slog.String("error", err.Error()))
		} else {
			one.readOnly = one.tool.Annotations != nil && one.tool.Annotations.ReadOnlyHint
		}
		k.known[id] = one
	}
	return nil
}

// decodeTool reads a tool as render writes it, with the schemas as their author did.
func decodeTool(raw json.RawMessage) (*mcp.Tool, error) {
	t := new(mcp.Tool)
	in := struct {
		*mcp.Tool
		InputSchema  json.RawMessage `json:"inputSchema"`
		OutputSchema json.RawMessage `json:"outputSchema"`
	}{Tool: t}
	if err := json.Unmarshal(raw, &in); err != nil {
		return nil, err
	}
	t.InputSchema = in.InputSchema
	if len(in.OutputSchema) > 0 {
		t.OutputSchema = in.OutputSchema
	}
	return t, nil
}

// titleOf is the id of a rendered tool that cannot be read otherwise.
func titleOf(raw json.RawMessage) subjects.ToolID {
	var t struct {
		Title subjects.ToolID `json:"title"`
	}
	_ = json.Unmarshal(raw, &t)
	return t.Title
}

// alone returns the tool that a name means by itself, for the time when no list can be read; nil for none.
func (v *view) alone(ctx context.Context, name string) *catalogTool {
	id, _, _, err := fit(ctx, v.c, v.of, subjects.ToolID(name), nil)
	if err != nil || !v.globs.Match(id) || !v.of.may(id) {
		return nil
	}
	d, err := describe(ctx, v.c, id)
	if err != nil || (v.key.readOnly || v.of.readOnly()) && !d.Annotations.ReadOnly {
		return nil
	}
	shown, err := render.Tool(render.MCP, d)
	if err != nil {
		return nil
	}
	t := &catalogTool{id: id, streaming: d.Annotations.Streaming}
	t.shape.Store(&resultShape{d.OutputSchema, d.Annotations.Collect, shown})
	if t.tool, err = decodeTool(shown.JSON); err != nil {
		return nil
	}
	return t
}

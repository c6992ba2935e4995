package gateway

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool/render"
)

// staleMost is how old a list may be that serves a call while a new one is read.
const staleMost = time.Minute

// catalog is the tools of one session, which all views of a token select from. One at a time asks the mesh.
type catalog struct {
	m *mcpLink
	c *client.Client

	mu      sync.Mutex
	tools   *catalogTools // as they were read last
	at      time.Time     // when they were so at the latest
	reading *reading      // nil while nobody reads
}

// reading is one time that the tools are read.
type reading struct {
	begun time.Time
	done  chan struct{} // closed when err is set
	err   error
}

// catalogTools are tools as MCP clients take them, in the order of their ids. They are immutable.
type catalogTools struct {
	all     []catalogTool
	etag    string // of the registry's list; empty until two readings in a row agree, as two members may answer them
	digest  [sha256.Size]byte
	left    map[subjects.ToolID]bool // left out: no client could read them
	results sync.Map                 // of ToolID: its *resultShape
}

type catalogTool struct {
	id        subjects.ToolID
	streaming bool
	readOnly  bool
	tool      *mcp.Tool
	raw       json.RawMessage
}

// catalog returns that of a session.
func (m *mcpLink) catalog(c *client.Client) *catalog {
	k := m.catalogs[c.Session()]
	if k == nil {
		k = &catalog{m: m, c: c}
		m.catalogs[c.Session()] = k
	}
	return k
}

// start begins to read, unless somebody does; k.mu is held.
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
	k.m.looking.Go(func() { k.read(r) })
	return r
}

// read reads the tools if they have changed.
func (k *catalog) read(r *reading) {
	k.mu.Lock()
	before := k.tools
	k.mu.Unlock()
	tools, err := k.load(k.m.ctx, before)
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil {
		k.tools, k.at = tools, r.begun
	}
	k.reading, r.err = nil, err
	close(r.done)
}

// get returns the tools as they were at the most so long ago; 0: as they are now.
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

// atHand returns tools for a call, which waits for no newer ones: the mesh itself says what is gone.
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
	listed, err := k.c.List(ctx)
	if err != nil {
		return nil, err
	}
	listed = slices.DeleteFunc(listed, func(t registry.ListedTool) bool { return t.State != registry.ToolServing })
	streaming := make(map[subjects.ToolID]bool)
	for _, t := range listed {
		streaming[t.ID] = t.Streaming
	}
	shown, err := rendered(ctx, k.c, render.MCP, listed)
	if err != nil {
		return nil, err
	}
	tools := &catalogTools{left: make(map[subjects.ToolID]bool)}
	sum := sha256.New()
	for _, raw := range shown {
		_, _ = sum.Write(raw)
		_, _ = fmt.Fprint(sum, streaming[titleOf(raw)])
		t, err := decodeTool(raw)
		if err != nil {
			id := titleOf(raw)
			if tools.left[id] = true; before == nil || !before.left[id] {
				k.m.log().Warn("a tool is left out for MCP clients: its metadata.mcp cannot be read", slog.String("tool", string(id)), slog.String("error", err.Error()))
			}
			continue
		}
		id := subjects.ToolID(t.Title) // the declaration's title is the full id
		tools.all = append(tools.all, catalogTool{id, streaming[id], t.Annotations != nil && t.Annotations.ReadOnlyHint, t, raw})
	}
	sum.Sum(tools.digest[:0])
	if before != nil && before.digest == tools.digest {
		before.etag = state.ETag
		before.results.Clear()
		return before, nil
	}
	slices.SortFunc(tools.all, func(a, b catalogTool) int { return cmp.Compare(a.id, b.id) })
	return tools, nil
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

// alone returns a list of the one tool that a name means by itself, for the time when no list can be read.
func (v *view) alone(ctx context.Context, name string) (subjects.ToolID, *toolList) {
	id, _, _, err := fit(ctx, v.c, v.of, subjects.ToolID(name), nil)
	if err != nil || !v.globs.Match(id) || !v.of.may(id) {
		return "", nil
	}
	d, err := describe(ctx, v.c, id)
	if err != nil || (v.key.readOnly || v.of.readOnly()) && !d.Annotations.ReadOnly {
		return "", nil
	}
	shown, err := render.Tool(render.MCP, d)
	if err != nil {
		return "", nil
	}
	t, err := decodeTool(shown.JSON)
	if err != nil {
		return "", nil
	}
	return id, v.list(&catalogTools{all: []catalogTool{{id, d.Annotations.Streaming, d.Annotations.ReadOnly, t, shown.JSON}}})
}

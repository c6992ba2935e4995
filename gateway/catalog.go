package gateway

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
	"github.com/toolmesh/toolmesh/tool/render"
)

const (
	// staleMost is how old a list may be that serves a call while a new one is read.
	staleMost = time.Minute
	// describePage is how many descriptions are asked for at once: a busy registry answers so many in time.
	describePage = 100
)

// catalog is the tools of one session, which all views of a token select from. One goroutine at a time asks the mesh.
type catalog struct {
	m     *mcpLink
	c     *client.Client
	known map[subjects.ToolID]*catalogTool // as they were described last; of the goroutine that reads

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

// catalogTool is a tool as MCP clients take it. It is immutable.
type catalogTool struct {
	id     subjects.ToolID
	digest string // of the descriptor
	is     tool.Annotations
	output json.RawMessage // the schema of its results, as the author wrote it
	shown  render.Rendered
	tool   *mcp.Tool // nil: no client could read it
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
			if old := k.known[t.ID]; old == nil || t.Digest == "" || old.digest != t.Digest {
				changed = append(changed, t)
			}
		}
		if page.Next == "" || page.Next == q.After {
			break
		}
		q.After = page.Next
	}
	for part := range slices.Chunk(changed, describePage) {
		if err := described(ctx, k.c, part, k.read); err != nil {
			return nil, err // the parts before are known when the tools are read again
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

// read takes what the registry tells of one tool.
func (k *catalog) read(listed registry.ListedTool, raw json.RawMessage) {
	var told registry.DescribeAnswer
	one := &catalogTool{id: listed.ID}
	err := json.Unmarshal(raw, &told)
	if err == nil {
		d := told.Descriptor
		one.digest, one.is, one.output = told.Digest, d.Annotations, d.OutputSchema
		one.shown, err = render.Tool(render.MCP, d)
	}
	if err == nil {
		one.tool, err = decodeTool(one.shown.JSON)
	}
	if err != nil {
		k.m.log().Warn("a tool is left out for MCP clients: its declaration cannot be read", slog.String("tool", string(one.id)), slog.String("error", err.Error()))
	}
	one.shown.JSON = nil // the tool has all of it
	k.known[one.id] = one
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

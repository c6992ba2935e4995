package gateway

import (
	"context"
	"encoding/json"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/sync/singleflight"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/internal/inventory"
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

// catalog is the tools of one session, which all views of a token select from.
type catalog struct {
	m       *mcpLink
	c       *client.Client
	reading singleflight.Group               // of one key: one goroutine at a time asks the mesh
	known   map[subjects.ToolID]*catalogTool // as they were described last; of the goroutine that reads

	mu    sync.Mutex
	tools *catalogTools // as they were read last
	at    time.Time     // the start of that reading
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

// catalog returns that of the views of a session; m.mu is held.
func (m *mcpLink) catalog(c *client.Client) *catalog {
	for key, v := range m.views {
		if key.session == c.Session() {
			return v.catalog
		}
	}
	return &catalog{m: m, c: c, known: make(map[subjects.ToolID]*catalogTool)}
}

// read begins to read the tools, unless a goroutine reads them, and returns the start of that reading.
func (k *catalog) read() <-chan singleflight.Result {
	return k.reading.DoChan("", func() (any, error) {
		begun := time.Now()
		before, _ := k.last()
		tools, err := k.load(k.m.ctx, before)
		if err == nil {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.tools, k.at = tools, begun
		}
		return begun, err
	})
}

// last returns the tools as they were read last, nil for none, and their age.
func (k *catalog) last() (*catalogTools, time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.tools, time.Since(k.at)
}

// get returns the tools of a reading that began at most age ago; 0: of one that begins now.
func (k *catalog) get(ctx context.Context, age time.Duration) (*catalogTools, error) {
	for asked := time.Now(); ; {
		if tools, old := k.last(); tools != nil && old < age+time.Since(asked) {
			return tools, nil
		}
		select {
		case r := <-k.read():
			if begun, _ := r.Val.(time.Time); r.Err != nil && !begun.Before(asked) {
				return nil, r.Err
			}
		case <-ctx.Done():
			return nil, toolmesh.AsError(context.Cause(ctx))
		}
	}
}

// atHand returns tools for a call, which waits for no newer ones: the mesh itself refuses what was removed.
func (k *catalog) atHand(ctx context.Context) (*catalogTools, error) {
	tools, old := k.last()
	if tools != nil && old > viewFresh {
		k.read()
	}
	if tools != nil && old < staleMost {
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
	serving, _, err := listSome(ctx, k.c, registry.Request{Digests: true}, math.MaxInt, func(t *registry.ListedTool) bool { return t.State == registry.ToolServing })
	if err != nil {
		return nil, err
	}
	var changed []registry.ListedTool
	for _, t := range serving {
		if old := k.known[t.ID]; old == nil || t.Digest == "" || old.digest != t.Digest {
			changed = append(changed, t)
		}
	}
	for part := range slices.Chunk(changed, describePage) {
		if err := inventory.Described(ctx, k.c, part, k.take); err != nil {
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

// take takes what the registry tells of one tool.
func (k *catalog) take(listed registry.ListedTool, raw json.RawMessage) {
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
		k.m.opts.Logger.Warn("a tool is left out for MCP clients: its declaration cannot be read", slog.String("tool", string(one.id)), slog.String("error", err.Error()))
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

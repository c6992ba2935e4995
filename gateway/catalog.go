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
	// staleMost is the max age of a list that serves a call while a newer list is read.
	staleMost = time.Minute
	// describePage is how many descriptions one request asks for: a busy registry answers that many in time.
	describePage = 100
)

// catalog is the tools of one session. Each view of a token selects from it.
type catalog struct {
	m       *mcpLink
	c       *client.Client
	reading singleflight.Group               // of one key: one goroutine at a time asks the mesh
	known   map[subjects.ToolID]*catalogTool // as last described; only the reading goroutine uses it

	mu    sync.Mutex
	tools *catalogTools // of the last reading
	at    time.Time     // start of the last reading
}

// catalogTools are tools in the order of their ids. The list is immutable.
type catalogTools struct {
	all  []*catalogTool
	etag string // of the registry's list; empty until two successive readings agree, as two members may have answered them
}

// catalogTool is a tool as MCP clients take it. It is immutable.
type catalogTool struct {
	id     subjects.ToolID
	digest string // of the descriptor
	is     tool.Annotations
	output json.RawMessage // the schema of its results, as the author wrote it
	shown  render.Rendered
	tool   *mcp.Tool // nil if no client could read the tool
}

// catalog returns the catalog of a session's views; m.mu is held.
func (m *mcpLink) catalog(c *client.Client) *catalog {
	for key, v := range m.views {
		if key.session == c.Session() {
			return v.catalog
		}
	}
	return &catalog{m: m, c: c, known: make(map[subjects.ToolID]*catalogTool)}
}

// read starts to read the tools, or joins the reading that runs.
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

// last returns the tools of the last reading, nil before the first, and their age.
func (k *catalog) last() (*catalogTools, time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.tools, time.Since(k.at)
}

// get returns the tools of a reading that began at most age ago; age 0 starts a new reading.
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

// atHand returns the tools for a call. It does not wait for a newer list: the mesh itself refuses removed tools.
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

// load reads the tools. It returns before if nothing has changed.
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
			return nil, err // parts read so far stay in known for the next reading
		}
	}
	tools, known := new(catalogTools), make(map[subjects.ToolID]*catalogTool, len(serving))
	for _, t := range serving {
		if one := k.known[t.ID]; one != nil { // nil if it was removed meanwhile
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

// take records the registry's description of one tool.
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

// decodeTool reads a tool as render writes it, with its author's schemas.
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

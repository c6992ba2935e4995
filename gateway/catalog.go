package gateway

import (
	"context"
	"encoding/json"
	"log/slog"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/internal/inventory"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
	"github.com/toolmesh/toolmesh/tool/render"
)

const (
	// staleMost is the max age of a list that serves calls.
	staleMost = time.Minute
	// describePage is how many descriptions one request asks for: a busy registry answers that many in time.
	describePage = 100
)

// catalog is the tools of one session. Each view of a token selects from it.
type catalog struct {
	m    *mcpLink
	c    *client.Client
	last atomic.Pointer[reading] // that succeeded; nil before the first

	turn  chan struct{}                    // capacity 1: held by the one that reads, and guards the rest
	known map[subjects.ToolID]*catalogTool // as last described
	begun time.Time                        // when the newest reading began
	err   error                            // of the newest reading
}

// reading is the result of one reading.
type reading struct {
	tools *catalogTools
	begun time.Time
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
	return &catalog{m: m, c: c, turn: make(chan struct{}, 1), known: make(map[subjects.ToolID]*catalogTool)}
}

// get returns the tools of a reading that began at most age ago; age 0 reads them anew. Concurrent callers share a
// reading, and its error, unless the one that reads leaves: then the next one reads.
func (k *catalog) get(ctx context.Context, age time.Duration) (*catalogTools, error) {
	asked := time.Now()
	young := func() bool {
		last := k.last.Load()
		return last != nil && asked.Sub(last.begun) < age
	}
	if !young() {
		select {
		case k.turn <- struct{}{}:
			defer func() { <-k.turn }()
		case <-ctx.Done():
			return nil, toolmesh.AsError(context.Cause(ctx))
		}
		if !young() && k.begun.Before(asked) {
			now := &reading{begun: time.Now()}
			mine, end := context.WithCancel(ctx)
			defer end()
			defer context.AfterFunc(k.m.of.ctx, end)()
			tools, err := k.load(mine)
			if ctx.Err() != nil { // others read by themselves, from what has been described
				return nil, toolmesh.AsError(context.Cause(ctx))
			}
			now.tools, k.begun, k.err = tools, now.begun, err
			if err == nil {
				k.last.Store(now)
			}
		}
		if !young() && k.err != nil {
			return nil, k.err
		}
	}
	return k.last.Load().tools, nil
}

// atHand returns the tools for a call. It waits for no reading while the last one is younger than staleMost: the mesh
// itself refuses removed tools.
func (k *catalog) atHand(ctx context.Context) (*catalogTools, error) {
	last := k.last.Load()
	if last != nil && time.Since(last.begun) < staleMost {
		return last.tools, nil
	}
	tools, err := k.get(ctx, viewFresh)
	if err != nil && last != nil {
		return last.tools, nil
	}
	return tools, err
}

// load reads the tools. It returns those of the last reading if nothing has changed.
func (k *catalog) load(ctx context.Context) (*catalogTools, error) {
	var before *catalogTools
	if last := k.last.Load(); last != nil {
		before = last.tools
	}
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
		k.m.of.g.log.Warn("a tool is left out for MCP clients: its declaration cannot be read", slog.String("tool", string(one.id)), slog.String("error", err.Error()))
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

package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
	"github.com/toolmesh/toolmesh/tool/render"
)

const (
	pageDefault = 100
	pageMost    = 1000
	// askPage is how many tools the registry lists or renders at once.
	askPage = 500
	// describes is how many tools are asked about at once for one request.
	describes = 8
)

// listTools answers GET /v1/tools.
func (g *Gateway) listTools(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	limit := pageDefault
	var format render.Format
	var err error
	if text := q.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > pageMost {
			fail(w, refused(toolmesh.CodeInvalidRequest, "limit is %q: it is a whole number from 1 to %d", text, pageMost), "")
			return
		}
	}
	if text := q.Get("format"); text != "" {
		if format, err = render.ParseFormat(text); err != nil {
			fail(w, err, "")
			return
		}
	}
	_, c, done, err := g.open(r)
	if err != nil {
		fail(w, err, "")
		return
	}
	defer done()
	page, next, err := listPage(r.Context(), c, subjects.ToolID(q.Get("cursor")), limit, subjects.IndexName(q.Get("index")), format != "")
	if err != nil {
		fail(w, err, "")
		return
	}
	answer := struct {
		Tools []json.RawMessage `json:"tools"`
		Next  subjects.ToolID   `json:"next,omitempty"`
	}{Tools: []json.RawMessage{}, Next: next}
	switch {
	case format != "":
		answer.Tools, err = rendered(r.Context(), c, format, page)
	case q.Get("full") == "1":
		answer.Tools, err = described(r.Context(), c, page)
	default:
		for i := range page {
			one, _ := tool.MarshalPlain(page[i])
			answer.Tools = append(answer.Tools, one)
		}
	}
	if err != nil {
		fail(w, err, "")
		return
	}
	body, err := tool.MarshalPlain(answer)
	if err != nil {
		fail(w, err, "")
		return
	}
	writeTagged(w, r, body)
}

// listPage returns tools behind the cursor, in the order of their ids, and the next cursor.
func listPage(ctx context.Context, c *client.Client, after subjects.ToolID, limit int, index subjects.IndexName, serving bool) (page []registry.ListedTool, next subjects.ToolID, err error) {
	for {
		var answer registry.ListAnswer
		err := c.Ask(ctx, registry.VerbList, registry.Request{After: after, Limit: min(limit, askPage)}, &answer)
		if err != nil {
			return nil, "", err
		}
		for i, t := range answer.Tools {
			if index != "" && t.Index != index || serving && t.State != registry.ToolServing {
				continue
			}
			if page = append(page, t); len(page) == limit {
				if i+1 < len(answer.Tools) || answer.Next != "" {
					return page, t.ID, nil
				}
				return page, "", nil
			}
		}
		if answer.Next == "" || answer.Next == after {
			return page, "", nil
		}
		after = answer.Next
	}
}

// rendered are tools as a provider takes them.
func rendered(ctx context.Context, c *client.Client, format render.Format, page []registry.ListedTool) ([]json.RawMessage, error) {
	out := []json.RawMessage{}
	for part := range slices.Chunk(page, askPage) {
		q := registry.Request{Provider: string(format)}
		for _, t := range part {
			q.Tools = append(q.Tools, string(t.ID))
		}
		for {
			var answer registry.RenderAnswer
			if err := c.Ask(ctx, registry.VerbRender, q, &answer); err != nil {
				return nil, err
			}
			out = append(out, answer.Tools...)
			if answer.Next == "" || answer.Next == q.After {
				break
			}
			q.After = answer.Next
		}
	}
	return out, nil
}

// described are tools as `mesh info --json` prints them. One of which nothing is known stays as
// the list has it.
func described(ctx context.Context, c *client.Client, page []registry.ListedTool) ([]json.RawMessage, error) {
	out := make([]json.RawMessage, len(page))
	ask, ctx := errgroup.WithContext(ctx)
	ask.SetLimit(describes)
	for i := range page {
		ask.Go(func() error {
			one, err := c.Describe(ctx, page[i].ID)
			if err != nil && toolmesh.CodeOf(err) == toolmesh.CodeUnavailable && page[i].State != registry.ToolServing {
				one, err = tool.MarshalPlain(page[i])
			}
			out[i] = one
			return err
		})
	}
	return out, ask.Wait()
}

// showTool answers GET /v1/tools/{id}.
func (g *Gateway) showTool(w http.ResponseWriter, r *http.Request) {
	_, c, done, err := g.open(r)
	if err != nil {
		fail(w, err, "")
		return
	}
	defer done()
	body, err := c.Describe(r.Context(), subjects.ToolID(r.PathValue("id")))
	if err != nil {
		fail(w, err, "")
		return
	}
	writeTagged(w, r, body)
}

// writeTagged answers with JSON that a client may hold: 304 where it has it.
func writeTagged(w http.ResponseWriter, r *http.Request, body []byte) {
	sum := sha256.Sum256(body)
	tag := `"` + base64.RawURLEncoding.EncodeToString(sum[:16]) + `"`
	h := w.Header()
	h.Set("ETag", tag)
	h.Set("Cache-Control", "private, no-cache")
	h.Add("Vary", "Authorization, Mesh-Session")
	for one := range strings.SplitSeq(r.Header.Get("If-None-Match"), ",") {
		if one = strings.TrimPrefix(strings.TrimSpace(one), "W/"); one == tag || one == "*" {
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	h.Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(append(body, '\n'))
}

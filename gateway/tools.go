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
func (q *request) listTools() error {
	query := q.r.URL.Query()
	limit := pageDefault
	var format render.Format
	var err error
	if text := query.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > pageMost {
			return refused(toolmesh.CodeInvalidRequest, "limit is %q: it is a whole number from 1 to %d", text, pageMost)
		}
	}
	if text := query.Get("format"); text != "" {
		if format, err = render.ParseFormat(text); err != nil {
			return err
		}
	}
	page, next, err := listPage(q.ctx, q.c, subjects.ToolID(query.Get("cursor")), limit, subjects.IndexName(query.Get("index")), format != "")
	if err != nil {
		return err
	}
	answer := struct {
		Tools []json.RawMessage `json:"tools"`
		Next  subjects.ToolID   `json:"next,omitempty"`
	}{Tools: []json.RawMessage{}, Next: next}
	switch {
	case format != "":
		answer.Tools, err = rendered(q.ctx, q.c, format, page)
	case query.Get("full") == "1":
		answer.Tools, err = described(q.ctx, q.c, page)
	default:
		for i := range page {
			one, _ := tool.MarshalPlain(page[i])
			answer.Tools = append(answer.Tools, one)
		}
	}
	if err != nil {
		return err
	}
	body, err := tool.MarshalPlain(answer)
	if err != nil {
		return err
	}
	q.answerTagged(body)
	return nil
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
func (q *request) showTool() error {
	body, err := q.c.Describe(q.ctx, subjects.ToolID(q.r.PathValue("id")))
	if err != nil {
		return err
	}
	q.answerTagged(body)
	return nil
}

// answerTagged answers with JSON that a client may hold: 304 where it has it.
func (q *request) answerTagged(body []byte) {
	sum := sha256.Sum256(body)
	tag := `"` + base64.RawURLEncoding.EncodeToString(sum[:16]) + `"`
	h := q.w.Header()
	h.Set("ETag", tag)
	h.Set("Cache-Control", "private, no-cache")
	h.Add("Vary", "Authorization, Mesh-Session")
	for one := range strings.SplitSeq(q.r.Header.Get("If-None-Match"), ",") {
		if one = strings.TrimPrefix(strings.TrimSpace(one), "W/"); one == tag || one == "*" {
			q.w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	h.Set("Content-Type", "application/json")
	q.w.WriteHeader(http.StatusOK)
	_, _ = q.w.Write(append(body, '\n'))
}

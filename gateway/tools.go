package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/internal/inventory"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
	"github.com/toolmesh/toolmesh/tool/render"
)

const (
	pageDefault = 100
	pageMost    = 1000
	// askPage is how many tools one request to the registry lists or describes.
	askPage       = 500
	searchDefault = 10
)

// listTools answers GET /v1/tools.
func (q *request) listTools() (any, error) {
	query := q.r.URL.Query()
	limit, err := limitOf(query, pageDefault)
	if err != nil {
		return nil, err
	}
	var format render.Format
	if text := query.Get("format"); text != "" {
		if format, err = render.ParseFormat(text); err != nil {
			return nil, err
		}
	}
	page, next, err := q.page(query, limit, format != "")
	if err != nil {
		return nil, err
	}
	full := query.Get("full") == "1"
	if text := query.Get("full"); text != "" && text != "0" && !full {
		return nil, refused(toolmesh.CodeInvalidRequest, "full is %q: it is 1 or 0", text)
	}
	var about []json.RawMessage
	if full || format != "" || q.l.key.ReadOnly {
		release, err := q.l.wait(q.ctx, documents, 1)
		if err != nil {
			return nil, err
		}
		defer release()
		if page, about, err = q.about(page); err != nil {
			return nil, err
		}
	}
	if format != "" {
		for i := range about {
			d, err := inventory.DescriptorOf(about[i])
			if err != nil {
				return nil, err
			}
			shown, err := render.Tool(format, d)
			if err != nil {
				return nil, err
			}
			about[i] = shown.JSON
		}
	}
	answer := object{"tools": append([]registry.ListedTool{}, page...)}
	if full || format != "" {
		answer["tools"] = about
	}
	if next != "" {
		answer["next"] = next
	}
	return tagged(answer)
}

// limitOf returns the limit that a request asks for.
func limitOf(query url.Values, otherwise int) (int, error) {
	text := query.Get("limit")
	if text == "" {
		return otherwise, nil
	}
	limit, err := strconv.Atoi(text)
	if err != nil || limit < 1 || limit > pageMost {
		return 0, refused(toolmesh.CodeInvalidRequest, "limit is %q: it is a whole number from 1 to %d", text, pageMost)
	}
	return limit, nil
}

// search answers GET /v1/search.
func (q *request) search() (any, error) {
	query := q.r.URL.Query()
	limit, err := limitOf(query, searchDefault)
	if err != nil {
		return nil, err
	}
	found, err := q.found(query.Get("q"), limit, "")
	return object{"tools": found}, err
}

// found searches the tools that the token may use.
func (q *request) found(words string, limit int, index subjects.IndexName) ([]registry.FoundTool, error) {
	if strings.TrimSpace(words) == "" {
		return nil, refused(toolmesh.CodeInvalidRequest, "q is missing or empty: write what the tool should do, as in /v1/search?q=WORDS")
	}
	ask := registry.Request{Query: words, Limit: limit, Tools: q.l.key.Tools, ReadOnly: q.l.key.ReadOnly}
	if index != "" {
		ask.Limit = pageMost // some of them are left out
	}
	var answer registry.SearchAnswer
	if err := q.c.Ask(q.ctx, registry.VerbSearch, ask, &answer); err != nil {
		return nil, err
	}
	all := slices.DeleteFunc(append([]registry.FoundTool{}, answer.Tools...), func(t registry.FoundTool) bool {
		return index != "" && !strings.HasPrefix(string(t.ID), string(index)+".")
	})
	return all[:min(len(all), limit)], nil
}

// page returns the tools that a request lists: those that match its words, the best first, or a page of all.
func (q *request) page(query url.Values, limit int, serving bool) (page []registry.ListedTool, next subjects.ToolID, err error) {
	index := subjects.IndexName(query.Get("index"))
	if query.Get("q") == "" {
		return listSome(q.ctx, q.c, registry.Request{After: subjects.ToolID(query.Get("cursor"))}, limit, func(t *registry.ListedTool) bool {
			return (index == "" || t.Index == index) && (!serving || t.State == registry.ToolServing) && q.l.key.Tools.Match(t.ID)
		})
	}
	found, err := q.found(query.Get("q"), limit, index)
	if err != nil || len(found) == 0 {
		return nil, "", err
	}
	all, err := q.c.List(q.ctx)
	if err != nil {
		return nil, "", err
	}
	listed := make(map[subjects.ToolID]registry.ListedTool, len(all))
	for _, t := range all {
		listed[t.ID] = t
	}
	for _, t := range found {
		if one, ok := listed[t.ID]; ok { // it may have been removed
			page = append(page, one)
		}
	}
	return page, "", nil
}

// listSome returns the tools after ask.After in the order of their ids, and the next cursor.
func listSome(ctx context.Context, c *client.Client, ask registry.Request, limit int, keep func(*registry.ListedTool) bool) (page []registry.ListedTool, next subjects.ToolID, err error) {
	for ask.Limit = min(limit, askPage); ; {
		var answer registry.ListAnswer
		err := c.Ask(ctx, registry.VerbList, ask, &answer)
		if err != nil {
			return nil, "", err
		}
		for i, t := range answer.Tools {
			if !keep(&t) {
				continue
			}
			if page = append(page, t); len(page) == limit {
				if i+1 < len(answer.Tools) || answer.Next != "" {
					return page, t.ID, nil
				}
				return page, "", nil
			}
		}
		if answer.Next == "" || answer.Next == ask.After {
			return page, "", nil
		}
		ask.After = answer.Next
	}
}

// about returns the tools of a page that the token may use, and the [inventory.Described] of each. Only
// descriptions say which tools a read-only token may call.
func (q *request) about(page []registry.ListedTool) (kept []registry.ListedTool, about []json.RawMessage, err error) {
	about = []json.RawMessage{}
	err = inventory.Described(q.ctx, q.c, page, func(t registry.ListedTool, one json.RawMessage) {
		if q.l.key.ReadOnly {
			if d, err := inventory.DescriptorOf(one); err != nil || !d.Annotations.ReadOnly {
				return
			}
		}
		kept, about = append(kept, t), append(about, one)
	})
	return kept, about, err
}

// showTool answers GET /v1/tools/{id}.
func (q *request) showTool() (any, error) {
	name := subjects.ToolID(q.r.PathValue("id"))
	body, err := q.c.Describe(q.ctx, name)
	if err != nil {
		return nil, err
	}
	d, err := inventory.DescriptorOf(body)
	if err != nil || !q.l.key.Tools.Match(d.ID) || q.l.key.ReadOnly && !d.Annotations.ReadOnly {
		return nil, refused(toolmesh.CodeToolNotFound, "the token has no tool %q", name)
	}
	return held(body), nil
}

// held is JSON that a client may cache.
type held []byte

func tagged(v any) (held, error) { return tool.MarshalPlain(v) }

// answerHeld answers with cacheable JSON: 304 if the client has it. The error is that of send.
func (q *request) answerHeld(body held) error {
	sum := sha256.Sum256(body)
	tag := `"` + base64.RawURLEncoding.EncodeToString(sum[:16]) + `"`
	h := q.w.Header()
	h.Set("ETag", tag)
	h.Set("Cache-Control", "private, no-cache")
	h.Add("Vary", "Authorization, Mesh-Session")
	if lists(q.r.Header, "If-None-Match", func(one string) bool { return strings.TrimPrefix(one, "W/") == tag || one == "*" }) {
		q.w.WriteHeader(http.StatusNotModified)
		return nil
	}
	h.Set("Content-Type", "application/json")
	return q.send(http.StatusOK, append(body, '\n'))
}

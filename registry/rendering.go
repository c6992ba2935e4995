package registry

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
	"github.com/toolmesh/toolmesh/tool/render"
)

// renderMost is how many tools one render may name. Providers take fewer.
const renderMost = 500

// RenderAnswer is tools as a provider takes them, in the order in which they were
// asked for; a tool that was named twice is there once.
type RenderAnswer struct {
	// Tools are the declarations.
	Tools []json.RawMessage `json:"tools"`
	// Names has the full id of each of Tools by the name that it is declared under,
	// its [tool.ProviderName].
	Names map[string]subjects.ToolID `json:"names"`
	// Next is the After of the next page, if not all fit into a message: the same
	// request again with it gives the rest.
	Next subjects.ToolID `json:"next,omitempty"`
}

// ArgumentsAnswer is the meaning of a model's call: the tool's full id and its arguments.
type ArgumentsAnswer struct {
	Tool      subjects.ToolID `json:"tool"`
	Arguments json.RawMessage `json:"arguments"`
	// Changed describes the changes to the model's arguments, as texts for people: see
	// [tool.Validator.Fit].
	Changed []string `json:"changed,omitempty"`
}

// described returns the descriptors of tools, in the order of their names and each once. own
// are tools of the caller's own. An error names the tool that it is about.
func (r *Responder) described(ctx context.Context, session subjects.SessionID, names []string, own []*tool.Descriptor) ([]*tool.Descriptor, error) {
	if len(own) > renderMost {
		return nil, toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "declared has more than %d tools: declare those that the request is about", renderMost).WithDetail("max", renderMost)
	}
	var all []*tool.Descriptor
	var digests []string // of those of all that are in the store
	seen := make(map[subjects.ToolID]bool, len(names))
	for _, name := range names {
		id, digest, declared := subjects.ToolID(name), "", (*tool.Descriptor)(nil)
		if i := slices.IndexFunc(own, func(d *tool.Descriptor) bool { return d != nil && d.ID != "" && string(d.ID) == name }); i >= 0 {
			declared = own[i]
		} else {
			_, route, err := r.view.find(session, name)
			if err != nil {
				return nil, err
			}
			if route.Digest == "" {
				_, err := descriptorOf(ctx, r.store, route)
				return nil, err
			}
			id, digest = route.ID, route.Digest
		}
		if seen[id] {
			continue
		}
		seen[id] = true
		all, digests = append(all, declared), append(digests, digest)
	}
	found, err := r.store.Descriptors(ctx, digests)
	if err != nil {
		return nil, err
	}
	for i, digest := range digests {
		if all[i] = cmp.Or(all[i], found[digest]); all[i] == nil {
			return nil, toolmesh.Errorf(toolmesh.CodeUnavailable, "the descriptor of a tool is not readable now: try again").
				WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo)
		}
	}
	return all, nil
}

// render answers the declarations of tools for a provider.
func (r *Responder) render(ctx context.Context, q *query) (any, error) {
	if q.Provider == "" {
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "provider is missing or empty: it is one of %v", render.Formats())
	}
	format, err := render.ParseFormat(q.Provider)
	switch {
	case err != nil:
		return nil, err
	case q.Tools == nil:
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, `tools is missing: the request is {"provider":%q,"tools":["<a tool's id>", …]}`, q.Provider)
	case len(q.Tools) > renderMost:
		return nil, toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "%d tools are asked for, and one request may ask for %d: choose those that the model needs", len(q.Tools), renderMost).
			WithDetail("max", renderMost)
	}
	all, err := r.described(ctx, q.session, q.Tools, q.Declared)
	if err != nil {
		return nil, err
	}
	from := 0
	if q.After != "" {
		if from = slices.IndexFunc(all, func(d *tool.Descriptor) bool { return d.ID == q.After }) + 1; from == 0 {
			return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "after is %q, which is not one of the tools: it is the next of the previous answer to the same request", q.After)
		}
	}
	answer := RenderAnswer{Tools: []json.RawMessage{}, Names: map[string]subjects.ToolID{}}
	left := int(r.bus.MaxPayload()) - headroom
	for i, d := range all[from:] {
		shown, err := render.Tool(format, d)
		if err != nil {
			return nil, err
		}
		// A name is in the answer twice, and the id may be again as next.
		left -= len(shown.JSON) + len(shown.Name) + len(d.ID) + len(`,"":"",`)
		if left < len(d.ID) {
			if i == 0 {
				return nil, toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "the declaration of tool %q takes %d bytes, more than a message holds: leave it out", d.ID, len(shown.JSON))
			}
			answer.Next = all[from+i-1].ID
			break
		}
		answer.Tools, answer.Names[shown.Name] = append(answer.Tools, shown.JSON), d.ID
	}
	return answer, nil
}

// meant returns the id of the name in a model's call: that of the tool declared under it, else
// the one that [View.Resolve] finds. A name with a dash can only be a declared one.
func (v *View) meant(session subjects.SessionID, name string) (subjects.ToolID, error) {
	id, hashed, ok := tool.FromProviderName(name)
	if hashed {
		visible := v.seen(session)
		if i := slices.IndexFunc(visible, func(one subjects.ToolID) bool { return tool.ProviderName(one) == name }); i >= 0 {
			return visible[i], nil
		}
	} else if _, known := v.Route(session, id); ok && known {
		return id, nil
	}
	if !ok || !strings.Contains(name, "-") {
		return v.Resolve(session, name)
	}
	near, err := v.Resolve(session, string(id))
	if err == nil { // it ends so, and is called otherwise
		err = notFound(name, texts([]subjects.ToolID{near}))
	}
	return "", err
}

// alike returns the one tool whose id differs from a name in case and in . - _ alone, of those that match the globs;
// empty for none, or several.
func (v *View) alike(session subjects.SessionID, name string, globs subjects.Globs) (found subjects.ToolID) {
	name = tool.PlainName(name)
	for _, id := range v.seen(session) {
		if tool.PlainName(string(id)) == name && globs.Match(id) {
			if found != "" {
				return ""
			}
			found = id
		}
	}
	return found
}

// arguments answers the tool and the arguments that a model's call means.
func (r *Responder) arguments(ctx context.Context, q *query) (any, error) {
	if q.Tool == "" {
		return nil, missing("tool")
	}
	globs, err := q.globs()
	if err != nil {
		return nil, err
	}
	text := q.Arguments
	var inner *string // as some providers write them: JSON in a text; null is nothing
	if json.Unmarshal(text, &inner) == nil {
		text = nil
		if inner != nil {
			text = json.RawMessage(*inner)
		}
	}
	name := q.Tool
	if !slices.ContainsFunc(q.Declared, func(d *tool.Descriptor) bool { return d != nil && string(d.ID) == name }) {
		id, err := r.view.meant(q.session, name)
		if toolmesh.CodeOf(err) == toolmesh.CodeToolNotFound { // only then: it compares all ids
			if id = r.view.alike(q.session, name, globs); id != "" {
				err = nil
			}
		}
		if err != nil {
			return nil, err
		}
		name = string(id)
	}
	all, err := r.described(ctx, q.session, []string{name}, q.Declared)
	if err != nil {
		return nil, err
	}
	arguments, changed, err := render.Arguments(all[0], text)
	if err != nil {
		return nil, err
	}
	return ArgumentsAnswer{Tool: all[0].ID, Arguments: arguments, Changed: changed}, nil
}

package deploy

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// Shorten makes a line that no message carries smaller: lists keep so many items, texts a few
// bytes for each of these. What the lists had more is counted in omitted.
func (l Line) Shorten(items int) Line {
	if l.Plan != nil {
		l.Plan = l.Plan.first(items)
	}
	return shortened(l, items)
}

// ShortenError is [Line.Shorten] for an error, whose details have the lists.
func ShortenError(e *toolmesh.Error, items int) *toolmesh.Error {
	short := *e
	if plan, ok := e.Details["plan"].(Plan); ok {
		short = *e.WithDetail("plan", plan.first(items))
	}
	short.Details = shortened(short.Details, items)
	short.Message, short.Stacktrace = shortText(e.Message, items), shortText(e.Stacktrace, items)
	return &short
}

// first is the plan with the tools that are confined least first, and the levels of the first items
// of these only: a plan that is shortened must not hide what it allows.
func (p *Plan) first(items int) *Plan {
	level := func(id subjects.ToolID) tool.Sandbox { return cmp.Or(p.Sandboxes[id], p.Sandbox) }
	short := *p
	short.Tools, short.Sandboxes = slices.Clone(p.Tools), maps.Clone(p.Sandboxes)
	slices.SortStableFunc(short.Tools, func(a, b subjects.ToolID) int {
		return cmp.Compare(slices.Index(tool.Sandboxes(), level(a)), slices.Index(tool.Sandboxes(), level(b)))
	})
	for _, id := range short.Tools[min(items, len(short.Tools)):] {
		delete(short.Sandboxes, id)
		if !level(id).AtLeast(p.Sandbox) {
			short.Looser++
		}
	}
	return &short
}

func shortened[T any](v T, items int) (short T) {
	var plain any
	data, err := json.Marshal(v)
	if err == nil && json.Unmarshal(data, &plain) == nil {
		data, err = json.Marshal(shorten(plain, items))
	}
	if err != nil || json.Unmarshal(data, &short) != nil {
		return v
	}
	return short
}

// maxFields is more fields than an object of an answer has. Objects with more are lists by name.
const maxFields = 20

func shorten(v any, items int) any {
	switch v := v.(type) {
	case string:
		return shortText(v, items)
	case []any:
		v = v[:min(len(v), items)]
		for i, one := range v {
			v[i] = shorten(one, items)
		}
		return v
	case map[string]any:
		short, omitted := map[string]any{}, map[string]int{}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if len(v) > maxFields && len(short) == items {
				break
			}
			if list, ok := v[key].([]any); ok && len(list) > items {
				omitted[key] = len(list) - items
			}
			short[key] = shorten(v[key], items)
		}
		if len(omitted) > 0 {
			short["omitted"] = omitted
		}
		return short
	}
	return v
}

func shortText(text string, items int) string {
	if most := 16 + 64*items; len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

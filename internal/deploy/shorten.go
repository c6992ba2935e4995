package deploy

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/toolmesh/toolmesh"
)

// Shorten makes a line that no message carries smaller: lists keep so many items, texts a few
// bytes for each of these. What the lists had more is counted in omitted.
func (l Line) Shorten(items int) Line { return shortened(l, items) }

// ShortenError is [Line.Shorten] for an error, whose details have the lists.
func ShortenError(e *toolmesh.Error, items int) *toolmesh.Error {
	short := *e
	short.Details = shortened(e.Details, items)
	short.Message, short.Stacktrace = shortText(e.Message, items), shortText(e.Stacktrace, items)
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

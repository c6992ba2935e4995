package render

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/tool"
)

// back turns a value of a rendered schema into one of the author's. at is the
// JSON Pointer of the value. keep is false for a value that only says that
// there is none. A nil back changes nothing.
type back func(v any, at string) (out any, keep bool, err error)

// apply is b(v, at), also of a nil b.
func (b back) apply(v any, at string) (any, bool, error) {
	if b == nil {
		return v, true, nil
	}
	return b(v, at)
}

func invalid(at, expected, got, message string) error {
	return toolmesh.Errorf(toolmesh.CodeInvalidArguments, "%s", message).
		WithOrigin(toolmesh.OriginCaller).WithStarted(toolmesh.StartedNo).
		WithDetail("errors", []tool.Problem{{Pointer: at, Expected: expected, Got: got, Message: message}})
}

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

func below(at, key string) string { return at + "/" + pointerEscapes.Replace(key) }

// member is what becomes of one member of an object.
type member struct {
	name     string // in the author's schema
	back     back
	dropNull bool // null stands for an absent value
}

// objectBack maps members by their rendered names; unknown ones stay as they are.
func objectBack(members map[string]member) back {
	same := true
	for name, m := range members {
		same = same && m.name == name && m.back == nil && !m.dropNull
	}
	if same {
		return nil
	}
	return func(v any, at string) (any, bool, error) {
		given, ok := v.(*object)
		if !ok {
			return v, true, nil
		}
		out := newObject()
		for _, key := range given.keys {
			value := given.get(key)
			m, known := members[key]
			if !known {
				m = member{name: key}
			}
			if value == nil && m.dropNull {
				continue
			}
			value, keep, err := m.back.apply(value, below(at, m.name))
			if err != nil {
				return nil, false, err
			}
			if !keep {
				continue
			}
			if out.has(m.name) {
				return nil, false, invalid(below(at, m.name), "one value", "several", fmt.Sprintf("%s is given more than once", below(at, m.name)))
			}
			out.set(m.name, value)
		}
		return out, true, nil
	}
}

// listBack maps each item of an array.
func listBack(item back) back {
	if item == nil {
		return nil
	}
	return func(v any, at string) (any, bool, error) {
		given, ok := v.([]any)
		if !ok {
			return v, true, nil
		}
		out := make([]any, 0, len(given))
		for i, one := range given {
			one, keep, err := item(one, fmt.Sprintf("%s/%d", at, i))
			if err != nil {
				return nil, false, err
			}
			if keep {
				out = append(out, one)
			}
		}
		return out, true, nil
	}
}

// lookupBack maps the texts of a string enum to the values they stand for.
func lookupBack(values map[string]any) back {
	same := true
	for text, value := range values {
		same = same && value == text
	}
	if same {
		return nil
	}
	return func(v any, _ string) (any, bool, error) {
		text, ok := v.(string)
		if !ok {
			return v, true, nil
		}
		if value, known := values[text]; known {
			return value, true, nil
		}
		return v, true, nil
	}
}

// parseBack reads JSON that a model wrote as text. Text that is no JSON is
// itself: a schema that takes text takes it.
func parseBack(v any, _ string) (any, bool, error) {
	text, ok := v.(string)
	if !ok {
		return v, true, nil
	}
	if value, err := decode([]byte(text)); err == nil {
		return value, true, nil
	}
	return v, true, nil
}

// scalarBack reads text that stands for one of several scalar types.
func scalarBack(takes map[string]bool) back {
	return func(v any, _ string) (any, bool, error) {
		text, ok := v.(string)
		if !ok {
			return v, true, nil
		}
		value, err := decode([]byte(text))
		if err != nil {
			return v, true, nil
		}
		switch kind := kindOf(value); {
		case kind == "object" || kind == "array" || kind == "null" && !takes["null"]:
			return v, true, nil
		case takes[kind], kind == "integer" && takes["number"]:
			return value, true, nil
		}
		return v, true, nil
	}
}

// entriesBack turns a list of {key, value} into an object.
func entriesBack(value back) back {
	return func(v any, at string) (any, bool, error) {
		given, ok := v.([]any)
		if !ok {
			return v, true, nil
		}
		out := newObject()
		if err := addEntries(out, given, value, at); err != nil {
			return nil, false, err
		}
		return out, true, nil
	}
}

func addEntries(out *object, entries []any, value back, at string) error {
	for _, one := range entries {
		entry, ok := one.(*object)
		if !ok {
			return invalid(at, "an entry with key and value", kindOf(one), fmt.Sprintf("%s: each entry is an object with key and value", place(at)))
		}
		key, ok := entry.get("key").(string)
		if !ok || !entry.has("value") {
			return invalid(at, "an entry with key and value", "something else", fmt.Sprintf("%s: each entry has a key, which is text, and a value", place(at)))
		}
		if out.has(key) {
			return invalid(below(at, key), "one value", "several", fmt.Sprintf("%s is given more than once", below(at, key)))
		}
		mapped, keep, err := value.apply(entry.get("value"), below(at, key))
		if err != nil {
			return err
		}
		if keep {
			out.set(key, mapped)
		}
	}
	return nil
}

func place(at string) string {
	if at == "" {
		return "the arguments"
	}
	return at
}

// choiceBack turns an object with exactly one of several members into that
// member's value.
func choiceBack(members map[string]back, names []string) back {
	return func(v any, at string) (any, bool, error) {
		given, ok := v.(*object)
		if !ok {
			return v, true, nil
		}
		var chosen []string
		for _, key := range given.keys {
			if _, known := members[key]; known && given.get(key) != nil {
				chosen = append(chosen, key)
			}
		}
		if len(chosen) == 0 { // null may be what is meant
			for _, key := range given.keys {
				if _, known := members[key]; known {
					chosen = append(chosen, key)
				}
			}
		}
		if len(chosen) != 1 {
			want := "exactly one of " + strings.Join(names, ", ")
			return nil, false, invalid(at, want, fmt.Sprintf("%d of them", len(chosen)), fmt.Sprintf("%s must have %s, but has %d", place(at), want, len(chosen)))
		}
		return members[chosen[0]].apply(given.get(chosen[0]), at)
	}
}

// tupleBack turns an object with one member per position into an array. A null
// at an optional position says that the array ends before it.
func tupleBack(names []string, items []back, optional []bool) back {
	return func(v any, at string) (any, bool, error) {
		given, ok := v.(*object)
		if !ok {
			return v, true, nil
		}
		out := make([]any, 0, len(names))
		for i, name := range names {
			value := given.get(name)
			if !given.has(name) || value == nil && optional[i] {
				continue
			}
			if missing := len(out); missing < i { // what follows a gap would move
				return nil, false, invalid(at, names[missing], "nothing", fmt.Sprintf("%s has %s, but not %s before it", place(at), name, names[missing]))
			}
			value, _, err := items[i].apply(value, fmt.Sprintf("%s/%d", at, i))
			if err != nil {
				return nil, false, err
			}
			out = append(out, value)
		}
		return out, true, nil
	}
}

// nullable lets null through unmapped.
func nullable(b back) back {
	if b == nil {
		return nil
	}
	return func(v any, at string) (any, bool, error) {
		if v == nil {
			return nil, true, nil
		}
		return b(v, at)
	}
}

// renameBack gives the members of the arguments object their own names back.
func renameBack(names map[string]string) back {
	if len(names) == 0 {
		return nil
	}
	members := make(map[string]member, len(names))
	for safe, own := range names {
		members[safe] = member{name: own}
	}
	return objectBack(members)
}

// number makes a json.Number.
func number(n int) json.Number { return json.Number(fmt.Sprint(n)) }

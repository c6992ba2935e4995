package render

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/tool"
)

// back turns a value of a rendered schema into one of the author's. at is the
// JSON Pointer of the value. A nil back changes nothing, and none changes what is
// of another kind than it is about: null stays null.
type back func(v any, at string) (any, error)

// apply is b(v, at), also of a nil b.
func (b back) apply(v any, at string) (any, error) {
	if b == nil {
		return v, nil
	}
	return b(v, at)
}

// of makes a back of what it does to values of its kind.
func of[T any](change func(given T, at string) (any, error)) back {
	return func(v any, at string) (any, error) {
		if given, ok := v.(T); ok {
			return change(given, at)
		}
		return v, nil
	}
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

// put maps a member's value and puts it into out.
func put(out *object, name string, value any, b back, at string) error {
	at = below(at, name)
	if out.has(name) {
		return invalid(at, "one value", "several", at+" is given more than once")
	}
	value, err := b.apply(value, at)
	out.set(name, value)
	return err
}

// objectBack maps members by their rendered names; unknown ones stay as they
// are. further, if there is one, is the rendered name of the member that lists
// further members as entries, whose values are mapped by value.
func objectBack(members map[string]member, further string, value back) back {
	same := further == ""
	for name, m := range members {
		same = same && m.name == name && m.back == nil && !m.dropNull
	}
	if same {
		return nil
	}
	return of(func(given *object, at string) (any, error) {
		out := newObject()
		for _, key := range given.keys {
			one := given.get(key)
			m, known := members[key]
			if !known {
				m.name = key
			}
			if one == nil && m.dropNull || further != "" && key == further {
				continue
			}
			if err := put(out, m.name, one, m.back, at); err != nil {
				return nil, err
			}
		}
		if further == "" {
			return out, nil
		}
		return out, addEntries(out, given.list(further), value, at)
	})
}

// listBack maps each item of an array.
func listBack(item back) back {
	if item == nil {
		return nil
	}
	return of(func(given []any, at string) (out any, err error) {
		items := make([]any, len(given))
		for i, one := range given {
			if items[i], err = item(one, fmt.Sprintf("%s/%d", at, i)); err != nil {
				return nil, err
			}
		}
		return items, nil
	})
}

// lookupBack maps the texts of a string enum to the values they stand for.
func lookupBack(values map[string]any) back {
	return of(func(text string, _ string) (any, error) {
		if value, known := values[text]; known {
			return value, nil
		}
		return text, nil
	})
}

// parseBack reads JSON that a model wrote as text. Text that is no JSON is
// itself: a schema that takes text takes it.
func parseBack(v any, at string) (any, error) {
	return of(func(text string, _ string) (any, error) {
		if value, err := decode([]byte(text)); err == nil {
			return value, nil
		}
		return text, nil
	})(v, at)
}

// scalarBack reads text that stands for one of several scalar types.
func scalarBack(takes map[string]bool) back {
	return of(func(text string, at string) (any, error) {
		value, err := parseBack(text, at)
		if kind := kindOf(value); takes[kind] || kind == "integer" && takes["number"] {
			return value, err
		}
		return text, err
	})
}

// entriesBack turns a list of {key, value} into an object.
func entriesBack(value back) back {
	return of(func(given []any, at string) (any, error) {
		out := newObject()
		return out, addEntries(out, given, value, at)
	})
}

func addEntries(out *object, entries []any, value back, at string) error {
	for _, one := range entries {
		entry, _ := one.(*object)
		if entry == nil {
			entry = newObject()
		}
		key, ok := entry.get("key").(string)
		if !ok || !entry.has("value") {
			return invalid(at, "an entry with key and value", kindOf(one), place(at)+": each entry is an object with a key, which is text, and a value")
		}
		if err := put(out, key, entry.get("value"), value, at); err != nil {
			return err
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
// member's value. A null is a choice only where nothing else is given.
func choiceBack(members map[string]back, names []string) back {
	return of(func(given *object, at string) (any, error) {
		var chosen, null []string
		for _, key := range given.keys {
			switch _, known := members[key]; {
			case known && given.get(key) == nil:
				null = append(null, key)
			case known:
				chosen = append(chosen, key)
			}
		}
		if len(chosen) == 0 {
			chosen = null
		}
		if len(chosen) != 1 {
			want := "exactly one of " + strings.Join(names, ", ")
			return nil, invalid(at, want, fmt.Sprintf("%d of them", len(chosen)), fmt.Sprintf("%s must have %s, but has %d", place(at), want, len(chosen)))
		}
		return members[chosen[0]].apply(given.get(chosen[0]), at)
	})
}

// tupleBack turns an object with one member per position into an array. A null
// at an optional position says that the array ends before it.
func tupleBack(names []string, items []back, optional []bool) back {
	return of(func(given *object, at string) (any, error) {
		out := make([]any, 0, len(names))
		for i, name := range names {
			value := given.get(name)
			if !given.has(name) || value == nil && optional[i] {
				continue
			}
			if missing := len(out); missing < i { // what follows a gap would move
				return nil, invalid(at, names[missing], "nothing", fmt.Sprintf("%s has %s, but not %s before it", place(at), name, names[missing]))
			}
			value, err := items[i].apply(value, fmt.Sprintf("%s/%d", at, i))
			if err != nil {
				return nil, err
			}
			out = append(out, value)
		}
		return out, nil
	})
}

// number makes a json.Number.
func number(n int) json.Number { return json.Number(fmt.Sprint(n)) }

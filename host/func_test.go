package host

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"
)

type leaf struct {
	Names []string          `json:"names"`
	Tags  map[string]string `json:"tags"`
}

type Base struct {
	Inner []int `json:"inner"`
}

type tree struct {
	leaf
	*Base
	Data     []byte           `json:"data"`
	Left     []int            `json:"left,omitempty"`
	Zero     []int            `json:"zero,omitzero"`
	Raw      json.RawMessage  `json:"raw"`
	Any      any              `json:"any"`
	At       time.Time        `json:"at,omitzero"`
	Address  netip.Addr       `json:"address"`
	Pointer  *leaf            `json:"pointer"`
	Leaves   []leaf           `json:"leaves"`
	Array    [2][]int         `json:"array"`
	ByName   map[string][]int `json:"by_name"`
	Children []*tree          `json:"children,omitempty"`
	hidden   []int
	Not      []int `json:"-"`
}

func TestNilSlicesAndMapsAreEmpty(t *testing.T) {
	t.Parallel()
	const nothing = `"names":[],"tags":{},"data":"","raw":null,"any":null,"address":"","pointer":null,"leaves":[],"array":[[],[]],"by_name":{}`
	for name, c := range map[string]struct {
		in   any
		want string
	}{
		"a slice":          {[]string(nil), `[]`},
		"a map":            {map[string]int(nil), `{}`},
		"bytes":            {[]byte(nil), `""`},
		"slices in slices": {[][]int{nil, {1}, {}}, `[[],[1],[]]`},
		"a pointer":        {(*[]int)(nil), `null`},
		"to a slice":       {new([]int), `[]`},
		"a struct":         {tree{}, `{` + nothing + `}`},
		"deep": {
			tree{
				Pointer: &leaf{}, Leaves: []leaf{{}}, ByName: map[string][]int{"a": nil, "b": {1}}, Base: &Base{},
				Children: []*tree{{Any: []int(nil)}}, Left: []int{1}, Zero: []int{}, hidden: nil,
			},
			`{"names":[],"tags":{},"inner":[],"data":"","left":[1],"zero":[],"raw":null,"any":null,"address":"","pointer":{"names":[],"tags":{}},` +
				`"leaves":[{"names":[],"tags":{}}],"array":[[],[]],"by_name":{"a":[],"b":[1]},"children":[{` + strings.Replace(nothing, `"any":null`, `"any":[]`, 1) + `}]}`,
		},
		"full": {leaf{Names: []string{"a"}, Tags: map[string]string{"b": "c"}}, `{"names":["a"],"tags":{"b":"c"}}`},
		"no slice": {struct {
			A int `json:"a"`
		}{1}, `{"a":1}`},
		"its own JSON": {json.RawMessage(nil), `null`},
	} {
		before, err := json.Marshal(c.in)
		if err != nil {
			t.Fatal(err)
		}
		in := reflect.New(reflect.TypeOf(c.in))
		in.Elem().Set(reflect.ValueOf(c.in))
		got, err := encodeItem(in.Interface())
		if err != nil || string(got) != c.want {
			t.Errorf("%s:\ngot  %s, %v\nwant %s", name, got, err, c.want)
		}
		if after, _ := json.Marshal(c.in); string(after) != string(before) {
			t.Errorf("%s: the function's own value has changed from %s to %s", name, before, after)
		}
	}
}

// A value that is nested in itself is an error as before, and soon.
func TestEmptyOfACycle(t *testing.T) {
	t.Parallel()
	type ring struct {
		A, B  *ring
		Names []string
	}
	var r ring
	r.A, r.B = &r, &r
	if data, err := encodeItem(&r); err == nil {
		t.Errorf("a ring was written as %s", data)
	}
}

package tool_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/toolmesh/toolmesh/tool"
)

type place struct {
	Name string  `json:"name" jsonschema:"where it is"`
	Lat  float64 `json:"lat"`
}

type tree struct {
	Label string           `json:"label"`
	Left  *tree            `json:"left,omitempty"`
	Kids  []tree           `json:"kids"`
	ByKey map[string]*tree `json:"by_key,omitzero"`
}

type base struct {
	ID     int64 `json:"id"`
	Hidden int   `json:"shadowed"`
}

type wide struct {
	base
	*place
	Shadowed string `json:"shadowed"`
	Skip     string `json:"-"`
	//lint:ignore SA5008 encoding/json does read this as the name "-"
	Dash    bool            `json:"-,"`
	When    time.Time       `json:"when"`
	Until   *time.Time      `json:"until"`
	Blob    []byte          `json:"blob"`
	Any     any             `json:"any,omitempty"`
	Raw     json.RawMessage `json:"raw,omitempty"`
	Small   int8            `json:"small"`
	Port    uint16          `json:"port"`
	Text    int             `json:"text,string"`
	Pair    [2]string       `json:"pair"`
	Counts  map[int]uint    `json:"counts"`
	Took    time.Duration   `json:"took"`
	Key     uuid.UUID       `json:"key"`
	From    place           `json:"from" jsonschema:"the start"`
	To      *place          `json:"to"`
	private int
}

type list []list

type clashA struct{ X int }
type clashB struct{ X string }
type clash struct {
	clashA
	clashB
	Y int
}

func TestSchemaFor(t *testing.T) {
	t.Parallel()
	_ = wide{private: 1}.private
	for _, tt := range []struct {
		typ  reflect.Type
		want string
	}{
		{reflect.TypeFor[place](), `{"type":"object","properties":{"name":{"type":"string","description":"where it is"},"lat":{"type":"number"}},"required":["name","lat"],"additionalProperties":false}`},
		{reflect.TypeFor[struct{}](), `{"type":"object","properties":{},"additionalProperties":false}`},
		{reflect.TypeFor[any](), `{}`},
		{reflect.TypeFor[[]string](), `{"type":"array","items":{"type":"string"}}`},
		{reflect.TypeFor[*int](), `{"type":["integer","null"]}`},
		{reflect.TypeFor[clash](), `{"type":"object","properties":{"Y":{"type":"integer"}},"required":["Y"],"additionalProperties":false}`},
		{reflect.TypeFor[list](), `{"$ref":"#/$defs/list","$defs":{"list":{"type":"array","items":{"$ref":"#/$defs/list"}}}}`},
		{reflect.TypeFor[tree](), `{"type":"object","properties":{"label":{"type":"string"},` +
			`"left":{"anyOf":[{"$ref":"#/$defs/tree"},{"type":"null"}]},"kids":{"type":"array","items":{"$ref":"#/$defs/tree"}},` +
			`"by_key":{"type":"object","additionalProperties":{"anyOf":[{"$ref":"#/$defs/tree"},{"type":"null"}]}}},` +
			`"required":["label","kids"],"additionalProperties":false,"$defs":{"tree":{"type":"object","properties":{"label":{"type":"string"},` +
			`"left":{"anyOf":[{"$ref":"#/$defs/tree"},{"type":"null"}]},"kids":{"type":"array","items":{"$ref":"#/$defs/tree"}},` +
			`"by_key":{"type":"object","additionalProperties":{"anyOf":[{"$ref":"#/$defs/tree"},{"type":"null"}]}}},` +
			`"required":["label","kids"],"additionalProperties":false}}}`},
		{reflect.TypeFor[wide](), `{"type":"object","properties":{"id":{"type":"integer"},"name":{"type":"string","description":"where it is"},"lat":{"type":"number"},` +
			`"shadowed":{"type":"string"},"-":{"type":"boolean"},"when":{"type":"string","format":"date-time"},"until":{"type":["string","null"],"format":"date-time"},` +
			`"blob":{"type":"string","contentEncoding":"base64"},"any":{},"raw":{},"small":{"type":"integer","minimum":-128,"maximum":127},` +
			`"port":{"type":"integer","minimum":0,"maximum":65535},"text":{"type":"string"},` +
			`"pair":{"type":"array","items":{"type":"string"},"minItems":2,"maxItems":2},"counts":{"type":"object","additionalProperties":{"type":"integer","minimum":0}},` +
			`"took":{"type":"integer"},"key":{"type":"string","format":"uuid"},"from":{"$ref":"#/$defs/place","description":"the start"},` +
			`"to":{"anyOf":[{"$ref":"#/$defs/place"},{"type":"null"}]}},` +
			`"required":["id","shadowed","-","when","until","blob","small","port","text","pair","counts","took","key","from","to"],"additionalProperties":false,` +
			`"$defs":{"place":{"type":"object","properties":{"name":{"type":"string","description":"where it is"},"lat":{"type":"number"}},"required":["name","lat"],"additionalProperties":false}}}`},
	} {
		got, err := tool.SchemaFor(tt.typ)
		if err != nil {
			t.Errorf("SchemaFor(%s): %v", tt.typ, err)
			continue
		}
		if string(got) != tt.want {
			t.Errorf("SchemaFor(%s) is\n%s, want\n%s", tt.typ, got, tt.want)
		}
		if _, err := tool.Compile(got); err != nil {
			t.Errorf("the schema of %s does not compile: %v", tt.typ, err)
		}
	}
}

type quoted struct {
	Count *int64  `json:"count,string"`
	Name  *string `json:"name,string"`
	Fit   int     `json:"a b/c"`
}

// A nil pointer is null also where the value would be text.
func TestSchemaForOddTags(t *testing.T) {
	t.Parallel()
	schema, err := tool.For[quoted]()
	if err != nil {
		t.Fatal(err)
	}
	v, err := tool.Compile(schema)
	if err != nil {
		t.Fatal(err)
	}
	count, name := int64(3), "x"
	for _, value := range []quoted{{}, {Count: &count, Name: &name}} {
		data, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		if err := v.Validate(data); err != nil {
			t.Errorf("%s does not fit %s: %v", data, schema, err)
		}
	}
}

func TestSchemaForRefuses(t *testing.T) {
	t.Parallel()
	type withFunc struct {
		In struct{ F func() } `json:"in"`
	}
	type withMarshal struct {
		M marshaler `json:"m"`
	}
	type withQuoted struct {
		N number `json:"n,string"`
	}
	for want, typ := range map[string]reflect.Type{
		"withQuoted.n":        reflect.TypeFor[withQuoted](),
		"withFunc.in.F":       reflect.TypeFor[withFunc](),
		"chan int":            reflect.TypeFor[chan int](),
		"keys of type bool":   reflect.TypeFor[map[bool]int](),
		"withMarshal.m":       reflect.TypeFor[withMarshal](),
		"complex128":          reflect.TypeFor[[]complex128](),
		"schema of a nil typ": nil,
	} {
		if _, err := tool.SchemaFor(typ); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("SchemaFor(%v): %v, want an error with %q", typ, err, want)
		}
	}
}

type marshaler struct{}

func (marshaler) MarshalJSON() ([]byte, error) { return []byte(`1`), nil }

type number int

func (number) MarshalJSON() ([]byte, error) { return []byte(`1`), nil }

// TestSchemaForAgreesWithJSON: the JSON that encoding/json writes for a value fits the
// schema of its type.
func TestSchemaForAgreesWithJSON(t *testing.T) {
	t.Parallel()
	schema, err := tool.For[wide]()
	if err != nil {
		t.Fatal(err)
	}
	v, err := tool.Compile(schema)
	if err != nil {
		t.Fatal(err)
	}
	full := wide{place: &place{Name: "x"}, When: time.Unix(0, 0), Blob: []byte("hi"), Counts: map[int]uint{3: 4}, To: &place{}, Any: []int{1}, Raw: json.RawMessage(`{}`)}
	data, err := json.Marshal(full)
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Validate(data); err != nil {
		t.Errorf("%s: %v", data, err)
	}
	full.place, full.To, full.Any, full.Raw = nil, nil, nil, nil
	if data, err = json.Marshal(full); err != nil {
		t.Fatal(err)
	}
	if err := v.Validate(data); err != nil {
		t.Errorf("%s: %v", data, err)
	}
	bad := bytes.Replace(data, []byte(`"small":0`), []byte(`"small":128`), 1)
	if got := pointers(t, v.Validate(bad)); len(got) != 1 || got[0] != "/small" {
		t.Errorf("128 in an int8: %v, want /small", got)
	}
}

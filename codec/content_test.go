package codec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"github.com/tinylib/msgp/msgp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
)

// anyValue is a random value of JSON.
func anyValue(r *rand.Rand, depth int) any {
	kinds := 8
	if depth == 0 {
		kinds = 6
	}
	switch r.IntN(kinds) {
	case 0:
		return nil
	case 1:
		return r.IntN(2) == 0
	case 2:
		n := r.Uint64() >> r.IntN(64)
		if r.IntN(2) == 0 {
			return json.Number(fmt.Sprint(n))
		}
		return json.Number(fmt.Sprint(-int64(n >> 1))) //nolint:gosec // of 63 bits
	case 3:
		return json.Number(fmt.Sprintf("%.17g", math.Float64frombits(r.Uint64()&^(0x7ff<<52)|uint64(512+r.IntN(1024))<<52))) //nolint:gosec // an exponent
	case 4:
		return map[string]any{"$bytes": "AP8="}
	case 5:
		var text strings.Builder
		for range r.IntN(20) {
			text.WriteRune([]rune("aZ \x00\n\"\\é\u2028漢😀")[r.IntN(11)])
		}
		return text.String()
	case 6:
		list := make([]any, r.IntN(5))
		for i := range list {
			list[i] = anyValue(r, depth-1)
		}
		return list
	}
	object := make(map[string]any)
	for range r.IntN(5) {
		object[fmt.Sprint("k", r.IntN(100))] = anyValue(r, depth-1)
	}
	return object
}

// read reads JSON with numbers by value.
func read(t *testing.T, data []byte) any {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("%v: %q", err, data)
	}
	return byValue(v)
}

func byValue(v any) any {
	switch v := v.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		var u uint64
		if _, err := fmt.Sscan(v.String(), &u); err == nil && fmt.Sprint(u) == v.String() {
			return u
		}
		f, _ := v.Float64()
		if math.IsInf(f, 0) {
			f = math.Copysign(math.MaxFloat64, f)
		}
		return f
	case []any:
		for i := range v {
			v[i] = byValue(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = byValue(v[k])
		}
	}
	return v
}

// JSON and MessagePack hold the same values.
func TestValuesSurviveMessagePack(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		body, err := json.Marshal(anyValue(r, 4))
		if err != nil {
			t.Fatal(err)
		}
		packed := Pack(nil, body)
		plain, err := Unpack(packed, 0)
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		if diff := cmp.Diff(read(t, body), read(t, plain)); diff != "" {
			t.Fatalf("%s\n%s", body, diff)
		}
	}
	// Written by another library.
	packed, err := msgp.AppendIntf(nil, map[string]any{
		"bytes": []byte{0, 255}, "large": uint64(math.MaxUint64), "small": int64(math.MinInt64), "single": float32(1.5), "whole": 3.0, "list": []any{nil, true},
	})
	if err != nil {
		t.Fatal(err)
	}
	plain, err := Unpack(packed, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"bytes":"AP8=","large":18446744073709551615,"small":-9223372036854775808,"single":1.5,"whole":3.0,"list":[null,true]}`
	if diff := cmp.Diff(read(t, []byte(want)), read(t, plain)); diff != "" {
		t.Error(diff)
	}
}

// A timestamp becomes text, at any length and in any position.
func TestTimestampsOfMessagePack(t *testing.T) {
	t.Parallel()
	for want, stamp := range map[string][]byte{
		"1970-01-01T00:00:01Z":           {0xd6, 0xff, 0, 0, 0, 1},                                             // 32 bits
		"2106-02-07T06:28:15Z":           {0xd6, 0xff, 0xff, 0xff, 0xff, 0xff},                                 // 32 bits
		"1970-01-01T00:00:02.5Z":         {0xd7, 0xff, 0x77, 0x35, 0x94, 0, 0, 0, 0, 2},                        // 64 bits
		"1969-12-31T23:59:59.000000001Z": {0xc7, 12, 0xff, 0, 0, 0, 1, 255, 255, 255, 255, 255, 255, 255, 255}, // 96 bits
	} {
		for form, c := range map[string]struct {
			body []byte
			want string
		}{
			"alone":         {stamp, `"` + want + `"`},
			"last in a map": {append([]byte{0x81, 0xa1, 'a'}, stamp...), `{"a":"` + want + `"}`},
			"within a list": {append(append([]byte{0x92}, stamp...), 0xc0), `["` + want + `",null]`},
		} {
			if plain, err := Unpack(c.body, 0); err != nil || string(plain) != c.want {
				t.Errorf("%s, %s: %s, %v", want, form, plain, err)
			}
		}
	}
}

var badPacks = map[string][]byte{
	"nothing":             {},
	"half a value":        {0x92, 0x01},
	"an extension type":   {0xd4, 0x07, 0x00},
	"msgp's own time":     {0xc7, 12, 5, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0},
	"half a timestamp":    {0xd6, 0xff, 0, 0},
	"a year of 12 digits": {0xc7, 12, 0xff, 0, 0, 0, 0, 127, 255, 255, 255, 255, 255, 255, 255},
	"too many ns":         {0xd7, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0},
	"a key twice":         {0x82, 0xa1, 'a', 0x01, 0xa1, 'a', 0x02},
	"a key that is none":  {0x81, 0x01, 0x02},
	"NaN":                 msgp.AppendFloat64(nil, math.NaN()),
	"infinity":            msgp.AppendFloat32(nil, float32(math.Inf(-1))),
	"no UTF-8":            {0xa1, 0xff},
	"a list of 4 billion": {0xdd, 0xff, 0xff, 0xff, 0xff},
	"a map of 4 billion":  {0xdf, 0xff, 0xff, 0xff, 0xff},
	"too deep":            append(bytes.Repeat([]byte{0x91}, 10_000), 0xc0),
	"more than a value":   {0xc0, 0xc0},
	"what is reserved":    {0xc1},
}

func TestInvalidMessagePackIsRefused(t *testing.T) {
	t.Parallel()
	for name, body := range badPacks {
		if plain, err := Unpack(body, 0); err == nil {
			t.Errorf("%s is %q", name, plain)
		}
	}
}

// MessagePack holds each value of JSON.
func FuzzPack(f *testing.F) {
	for _, body := range []string{`{"a":[1,1.0,-0.0,1e6,1e400,-1e-400,18446744073709551615,18446744073709551616,"\ud83d\ude00","",{}],"":null}`, `""`, `[[]]`, `1e-7`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		// A repeated key, half a surrogate and text that is not UTF-8 are ambiguous in JSON.
		if !jsontext.Value(body).IsValid() {
			return
		}
		plain, err := Unpack(Pack(nil, body), 0)
		if err != nil {
			if strings.Contains(err.Error(), "nested") {
				return
			}
			t.Fatalf("%s: %v", body, err)
		}
		if !reflect.DeepEqual(read(t, body), read(t, plain)) {
			t.Fatalf("%s became %s", body, plain)
		}
		// 1.0 is none of the integers.
		if dotted := regexp.MustCompile(`^-?[0-9]{1,15}[.]0$`); dotted.Match(body) && !bytes.Contains(plain, []byte(".0")) {
			t.Fatalf("%s became %s", body, plain)
		}
	})
}

func FuzzUnpack(f *testing.F) {
	for _, body := range badPacks {
		f.Add(body)
	}
	f.Add(Pack(nil, []byte(`{"a":[1,-2.5,"x",null,true,{"b":18446744073709551615}]}`)))
	f.Fuzz(func(t *testing.T, body []byte) {
		plain, err := Unpack(body, 0)
		if err != nil {
			return
		}
		if !json.Valid(plain) {
			t.Fatalf("%q", plain)
		}
		again, err := Unpack(Pack(nil, plain), 0)
		if err != nil || !reflect.DeepEqual(read(t, plain), read(t, again)) {
			t.Fatalf("%v: %s is %s", err, plain, again)
		}
	})
}

func squeezed(t *testing.T, body []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	return w.EncodeAll(body, nil)
}

// A compressed body is read up to a bound, and the answer is compressed if the caller accepts that.
func TestCompressed(t *testing.T) {
	t.Parallel()
	s, err := subjects.Parse("tools.s1.weather.forecast")
	if err != nil {
		t.Fatal(err)
	}
	parse := func(body []byte, pairs ...string) (*Request, *toolmesh.Error) {
		h := Header{"Mesh-Rpc-Id": {"r"}}
		for i := 0; i < len(pairs); i += 2 {
			h[pairs[i]] = []string{pairs[i+1]}
		}
		return ParseRequest(s, h, body)
	}
	long := `{"text":"` + strings.Repeat("word ", 10_000) + `"}`
	r, bad := parse(squeezed(t, []byte(long)), "Content-Encoding", "zstd", "Accept-Encoding", "gzip, ZSTD;q=0.5")
	if bad != nil || string(r.Args) != long {
		t.Fatalf("%v, %d bytes", bad, len(r.Args))
	}
	id := NewIdentity("n", "b", "")
	h, body := r.Result(id, json.RawMessage(long), Load{})
	if plain, err := inflate(body); h.Get("Content-Encoding") != "zstd" || err != nil || string(plain) != long || len(body) > len(long)/10 {
		t.Errorf("the answer: %v, %d bytes, %v", h, len(body), err)
	}
	if h, body := r.Result(id, json.RawMessage(`"short"`), Load{}); h.Get("Content-Encoding") != "" || string(body) != `"short"` {
		t.Errorf("a short answer: %v %s", h, body)
	}
	noise := make([]byte, 30_000)
	for i := range noise {
		noise[i] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"[rand.IntN(64)]
	}
	packed, bad := parse(Pack(nil, []byte(`{"a":1}`)), "Content-Type", "application/msgpack", "Accept-Encoding", "zstd")
	if bad != nil || string(packed.Args) != `{"a":1}` {
		t.Fatalf("%v %s", bad, packed.Args)
	}
	h, body = packed.Result(id, json.RawMessage(`"`+string(noise)+`"`), Load{})
	if h.Get("Content-Encoding") == "zstd" {
		if len(body) >= len(noise) {
			t.Errorf("what does not become smaller is compressed: %d of %d", len(body), len(noise))
		}
		if body, err = inflate(body); err != nil {
			t.Fatal(err)
		}
	}
	if plain, err := Unpack(body, 0); h.Get("Content-Type") != "application/msgpack" || err != nil || string(plain) != `"`+string(noise)+`"` {
		t.Errorf("packed and compressed: %v %v", h, err)
	}
	// Without a word of it nothing is.
	if r, _ = parse([]byte(`{}`), "Accept-Encoding", "zstd;q=0, gzip"); r != nil {
		if h, _ := r.Result(id, json.RawMessage(long), Load{}); h.Get("Content-Encoding") != "" {
			t.Error("compressed for who does not take it")
		}
	}
	for name, c := range map[string]struct {
		body []byte
		enc  string
		code toolmesh.Code
	}{
		"a bomb":           {squeezed(t, make([]byte, 200<<20)), "zstd", toolmesh.CodePayloadTooLarge},
		"no zstd":          {[]byte("{}"), "zstd", toolmesh.CodeInvalidRequest},
		"half of it":       {squeezed(t, []byte(long))[:50], "zstd", toolmesh.CodeInvalidRequest},
		"another encoding": {[]byte("{}"), "gzip", toolmesh.CodeInvalidRequest},
	} {
		if _, bad := parse(c.body, "Content-Encoding", c.enc); bad == nil || bad.Code != c.code || bad.Started != toolmesh.StartedNo {
			t.Errorf("%s: %v", name, bad)
		}
	}
}

package bridge

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/tinylib/msgp/msgp"
)

// Any input is read as the JSON that it is, or refused; JSON survives MessagePack.
func FuzzFrames(f *testing.F) {
	for _, body := range []string{
		`{"type":"rpc_tool_call","rpc_id":"1","tool_id":"a.b","args":[1,"x",null],"kwargs":{"k":{"deep":[true,1.5e300]}}}`,
		`{"type":"rpc_tool_response","rpc_id":7,"status":"ok","result":NaN}`,
		`{"type":"\u0072pc","t\u0079pe":"x","rpc_id":"\ud800"}`, `{} {}`, `[]`, `{"a":`, ``, "\xff", `{"n":18446744073709551616,"m":-9223372036854775808}`,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if _, err := parseFrame(body); err != nil {
			return
		}
		if !json.Valid(body) {
			t.Fatalf("%q is taken, and is not JSON", body)
		}
		packed := appendFrame(nil, body, true)
		plain, err := (&reader{from: bytes.NewReader(packed), packed: true}).next()
		if err != nil && strings.Contains(err.Error(), "there twice") {
			return // MessagePack has each key once
		}
		if err != nil || !json.Valid(plain) {
			t.Fatalf("%q as MessagePack is %q, %v", body, plain, err)
		}
	})
}

// Languages without integers write 7.0 where a frame has a whole number.
func TestWholeNumbersAsDoubles(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{"7": 7, "7.0": 7, "1000000.0": 1_000_000} {
		if n, err := whole([]byte(text), "seq"); err != nil || n != want {
			t.Errorf("%s is %d, %v", text, n, err)
		}
		if name, ok := nameOf([]byte(text)); !ok || name != strings.TrimSuffix(text, ".0") {
			t.Errorf("%s names %q", text, name)
		}
	}
	if n, err := whole([]byte("7.5"), "seq"); err == nil {
		t.Errorf("7.5 is %d", n)
	}
}

// Input in MessagePack is read as the JSON of docs/bridge.md.
func TestPackedFrames(t *testing.T) {
	t.Parallel()
	pack := func(value any) []byte {
		body, err := msgp.AppendIntf(nil, value)
		if err != nil {
			t.Fatal(err)
		}
		return append([]byte{0, 0, 0, byte(len(body))}, body...)
	}
	for name, c := range map[string]struct {
		frame []byte
		want  string
	}{
		"bytes":           {pack(map[string]any{"b": []byte("\x00\xff")}), `{"b":"AP8="}`},
		"numbers":         {pack([]any{int8(-1), uint64(1<<64 - 1), 0.5}), `[-1,18446744073709551615,0.5]`},
		"text":            {pack("ü\"\n"), `"ü\"\n"`},
		"doubles":         {pack([]any{1.0, 1e6}), `[1.0,1000000.0]`},
		"a timestamp":     {[]byte{0, 0, 0, 6, 0xd6, 0xff, 0, 0, 0, 1}, `"1970-01-01T00:00:01Z"`},
		"an extension":    {[]byte{0, 0, 0, 3, 0xd4, 0x07, 0}, ""},
		"NaN":             {pack(math.NaN()), ""},
		"a number as key": {[]byte{0, 0, 0, 3, 0x81, 0x01, 0x02}, ""},
		"no MessagePack":  {[]byte{0, 0, 0, 1, 0xc1}, ""},
		"half a frame":    {[]byte{0, 0, 0, 2, 0x92, 0x01}, ""},
	} {
		got, err := (&reader{from: bytes.NewReader(c.frame), packed: true}).next()
		if c.want == "" {
			if err == nil {
				t.Errorf("%s: read as %s", name, got)
			}
		} else if err != nil || string(got) != c.want {
			t.Errorf("%s: %s, %v; want %s", name, got, err, c.want)
		}
	}
}

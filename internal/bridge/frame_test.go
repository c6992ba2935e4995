package bridge

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/tinylib/msgp/msgp"
)

// Whatever a program writes is read as JSON that it is, or refused; and what is JSON
// survives MessagePack.
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
		if err != nil || !json.Valid(plain) {
			t.Fatalf("%q as MessagePack is %q, %v", body, plain, err)
		}
	})
}

// What a program writes in MessagePack is read as the JSON that docs/bridge.md says.
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
		"a number as key": {[]byte{0, 0, 0, 3, 0x81, 0x01, 0x02}, `{"1":2}`},
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

package tool

import (
	"encoding/json"
	"testing"
)

// A function of Go and one of Python that take a file have one schema.
func TestFileInASchema(t *testing.T) {
	t.Parallel()
	type in struct {
		Document File `json:"document"`
	}
	got, err := For[in]()
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"type":"object","properties":{"document":{"type":"object","format":"mesh-file",` +
		`"properties":{"$file":{"type":"string"},"digest":{"type":"string"},"size":{"type":"integer"},"name":{"type":"string"},"type":{"type":"string"}},` +
		`"required":["$file","digest"],"additionalProperties":false}},"required":["document"],"additionalProperties":false}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestAsFile(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]bool{
		`{"$file":"s.x","digest":"SHA-256=","size":3,"name":"a","type":"b"}`: true,
		`{"$file":"s.x"}`: false, `{"digest":"x"}`: false, `{}`: false, `"s.x"`: false, `null`: false, ``: false, `[`: false,
		`{"$file":7,"digest":"x"}`: false,
	} {
		if f, ok := AsFile(json.RawMessage(value)); ok != want {
			t.Errorf("%s: %+v, %v", value, f, ok)
		}
	}
}

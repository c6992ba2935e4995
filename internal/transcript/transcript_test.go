package transcript

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const small = `A call and its answer.

-- tool --
{"result":1}
-- client call tools.s.a reply $INBOX --
Mesh-Rpc-Id: r
X-Two: 1
X-Two: 2

{"a":"$HOME"}
-- read --
{"form":"plain"}
-- host end $INBOX --

-- host silence --
`

func TestParse(t *testing.T) {
	t.Parallel()
	c, err := Parse("small", []byte(small), map[string]string{"INBOX": "_INBOX.x"})
	if err != nil {
		t.Fatal(err)
	}
	call := "Mesh-Rpc-Id: r\nX-Two: 1\nX-Two: 2\n\n{\"a\":\"$HOME\"}\n"
	want := &Transcript{
		Name: "small", Prose: "A call and its answer.\n\n", Tool: []byte(`{"result":1}`),
		Steps: []Step{
			{
				Name: "client call tools.s.a reply _INBOX.x", Speaker: Client, Kind: "call", Subject: "tools.s.a", Reply: "_INBOX.x",
				Header: map[string][]string{"Mesh-Rpc-Id": {"r"}, "X-Two": {"1", "2"}}, Body: []byte(`{"a":"$HOME"}`),
				Raw: call, Read: []byte(`{"form":"plain"}`),
			},
			{Name: "host end _INBOX.x", Speaker: Host, Kind: "end", Subject: "_INBOX.x", Body: []byte{}, Raw: "\n"},
			{Name: "host silence", Speaker: Host, Kind: "silence"},
		},
	}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, s := range c.Steps[:2] {
		if got := Text(s.Header, s.Body); got != s.Raw {
			t.Errorf("Text: got %q, want %q", got, s.Raw)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"no prose":              "-- client call a --\n\n",
		"no messages":           "prose\n",
		"no kind":               "prose\n-- client --\n\n",
		"a kind of another":     "prose\n-- client chunk a --\n\n",
		"an unknown speaker":    "prose\n-- router call a --\n\n",
		"no subject":            "prose\n-- client call --\n\n",
		"a host with a reply":   "prose\n-- host result a reply b --\n\n",
		"no empty line":         "prose\n-- client call a --\nMesh-Rpc-Id: r\n",
		"a body without one":    "prose\n-- client call a --\n{}\n\n",
		"read without a client": "prose\n-- host end a --\n\n-- read --\n{}\n",
		"read at the beginning": "prose\n-- read --\n{}\n",
		"read twice":            "prose\n-- client call a --\n\n-- read --\n{}\n-- read --\n{}\n",
	} {
		if c, err := Parse(name, []byte(text), nil); err == nil {
			t.Errorf("%s: it was accepted as %+v", name, c)
		} else if !strings.Contains(err.Error(), name) {
			t.Errorf("%s: the error %q does not name the file", name, err)
		}
	}
}

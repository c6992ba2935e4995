package host_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh/subjects"
)

// An older nats-py drops all headers of a message if one is not ASCII, and reads an error as a
// result. So no header of an answer, a keepalive or a chunk has other text, whatever name the
// caller gives its call, and the token in place of the name means the same call.
func TestHeadersAreASCII(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	check := func(what string, a answer, id string) {
		t.Helper()
		for name, values := range a.Header {
			if strings.ContainsFunc(name+strings.Join(values, ""), func(c rune) bool { return c < ' ' || c > '~' }) {
				t.Errorf("%s: the header %s is %q", what, name, values)
			}
		}
		if token, _ := subjects.EncodeToken(id); a.Header.Get("Mesh-Rpc-Id") != token {
			t.Errorf("%s: the call is %q, want %q", what, a.Header.Get("Mesh-Rpc-Id"), token)
		}
	}
	for i, id := range []string{"größe 漢字", "größe " + strings.Repeat("漢", 60)} {
		token, err := subjects.EncodeToken(id)
		if err != nil {
			t.Fatal(err)
		}
		body := fmt.Sprintf(`{"key":"ascii%d"}`, i)
		first := r.call("note", body, "Mesh-Rpc-Id", id)
		check("a result", first, id)
		if again := r.call("note", body, "Mesh-Rpc-Id", token, "Mesh-Again", "1"); string(again.Data) != string(first.Data) {
			t.Errorf("%q by its token: %s, want %s", id, again.Data, first.Data)
		}
		check("an error", r.call("add", `{"a":"ü"}`, "Mesh-Rpc-Id", id+"e"), id+"e")
		for form, at := range map[string]string{"inbox": "s", "1": "l"} {
			in := r.inbox()
			if form == "1" {
				live, err := subjects.Live("default", subjects.RPCID(id+at))
				if err != nil {
					t.Fatal(err)
				}
				in = openInbox(t, r.nc, live)
				check("an acknowledgement", r.call("gen", `{"key":"`+at+`","n":1}`, "Mesh-Rpc-Id", id+at, "Mesh-Stream", form), id+at)
			} else {
				r.send(in, "tools.default.desk.gen", `{"key":"`+at+`","n":1}`, "Mesh-Rpc-Id", id+at, "Mesh-Stream", form)
			}
			check("an item", in.next(), id+at)
			check("the end", in.next(), id+at)
		}
	}
}

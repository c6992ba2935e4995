package host_test

import (
	"fmt"
	"testing"
)

// TestProgressAtOnce: a caller that asks for it gets progress in a message of its own, which no keepalive's
// reply subject is in, and does not wait for the next second.
func TestProgressAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for i, want := range []string{"", "1"} {
		in, key := r.inbox(), fmt.Sprint("name at once ", i)
		pairs := []string{"Mesh-Rpc-Id", fmt.Sprint("p", i), "Mesh-Keepalive", "1"}
		if want != "" {
			pairs = append(pairs, "Mesh-Want-Progress", want)
		}
		r.send(in, "tools.default.desk.hold", fmt.Sprintf(`{"key":%q}`, key), pairs...)
		wait(t, "start", r.gate(key).started)
		a := in.next()
		for a.Header.Get("Mesh-Progress") == "" || want != "" && a.Reply != "" {
			a = in.next()
		}
		if got := a.Header.Get("Mesh-Progress"); got != fmt.Sprintf(`{"fraction":0.5,"text":"h\u00f6ld %s"}`, key) || want == "" && a.Reply == "" {
			t.Errorf("asked %q: %s with the reply subject %q", want, got, a.Reply)
		}
		r.gate(key).release <- struct{}{}
	}
}

package chunks_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/chunks"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

func TestMain(m *testing.M) { meshtest.Main(m) }

// written is a chunk store that the test writes without a Writer, and its responder.
type written struct {
	t  *testing.T
	nc *nats.Conn
	js jetstream.JetStream
}

func newStore(t *testing.T, broker *meshtest.Server) *written {
	t.Helper()
	b := newBus(t, broker.Connect(t))
	if err := store.Of(b).Ensure(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	s := &written{t: t, nc: broker.Connect(t)}
	var err error
	if s.js, err = jetstream.New(s.nc); err != nil {
		t.Fatal(err)
	}
	replayer := chunks.NewReplayer(b, slog.New(slog.DiscardHandler))
	sub, err := b.Conn().Subscribe("mesh.replay.>", func(m *nats.Msg) {
		parsed, err := subjects.Parse(m.Subject)
		if err != nil {
			t.Error(err)
			return
		}
		epoch := ""
		if parsed.Session == "lived" {
			epoch = "2"
		}
		replayer.Answer(context.Background(), parsed, epoch, m)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Unsubscribe() })
	if err := b.Conn().Flush(); err != nil {
		t.Fatal(err)
	}
	return s
}

func newBus(t *testing.T, nc *nats.Conn) *bus.Bus {
	t.Helper()
	b := testmesh.Bus(t, nc, nil)
	return b
}

// write stores chunks of a call: "7" is item 7, "T7" the terminal of seven
// items, "E7" an error's, "x" a message that is no chunk.
func (s *written) write(rpc string, all ...string) {
	s.t.Helper()
	for _, text := range all {
		s.put("s", rpc, text, item(text))
	}
}

func item(text string) string { return `"item ` + text + `"` }

func (s *written) put(session, rpc, text, body string, more ...string) uint64 {
	s.t.Helper()
	ack, err := s.js.PublishMsg(s.t.Context(), chunkMsg(session, rpc, text, body, more...))
	if err != nil {
		s.t.Fatalf("store %s: %v", text, err)
	}
	return ack.Sequence
}

// chunkMsg is a chunk in the words of write, with more headers.
func chunkMsg(session, rpc, text, body string, more ...string) *nats.Msg {
	m := &nats.Msg{Subject: "mesh.chunks." + session + "." + rpc, Header: nats.Header{"Mesh-Rpc-Id": {rpc}}}
	kind, number := "data", text
	switch text[0] {
	case 'T':
		kind, number = "complete", text[1:]
	case 'E':
		kind, number = "error", text[1:]
		body = `{"code":"tool_error","message":"no"}`
	case 'x':
		number = "rubbish"
	}
	if n, err := strconv.Atoi(number); err == nil && kind != "data" {
		m.Header["Mesh-Count"] = []string{number}
		number = strconv.Itoa(n + 1)
	}
	if kind != "complete" {
		m.Data = []byte(body)
	}
	m.Header["Mesh-Seq"], m.Header["Mesh-Chunk"] = []string{number}, []string{kind}
	for i := 0; i < len(more); i += 2 {
		m.Header[more[i]] = []string{more[i+1]}
	}
	return m
}

// replay asks and returns the chunks in write's notation with Mesh-High, or the error's code.
func (s *written) replay(session, rpc, request string) (got []string, high, code string, details map[string]any) {
	s.t.Helper()
	in := s.nc.NewInbox()
	sub, err := s.nc.SubscribeSync(in)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := s.nc.PublishRequest("mesh.replay."+session+"."+rpc, in, []byte(request)); err != nil {
		s.t.Fatal(err)
	}
	for {
		m, err := sub.NextMsg(30 * time.Second)
		if err != nil {
			s.t.Fatalf("replay of %s: after %v: %v", rpc, got, err)
		}
		switch {
		case m.Header.Get("Mesh-Error-Code") != "":
			var body struct {
				Error struct{ Details map[string]any }
			}
			if err := json.Unmarshal(m.Data, &body); err != nil {
				s.t.Fatal(err)
			}
			return got, "", m.Header.Get("Mesh-Error-Code"), body.Error.Details
		case m.Header.Get("Mesh-Chunk") == "":
			if len(m.Data) > 0 || len(m.Header) != 1 {
				s.t.Errorf("the end of a replay = %v %q", m.Header, m.Data)
			}
			return got, m.Header.Get("Mesh-High"), "", nil
		}
		text := m.Header.Get("Mesh-Seq")
		switch m.Header.Get("Mesh-Chunk") {
		case "complete":
			text = "T" + m.Header.Get("Mesh-Count")
		case "error":
			text = "E" + m.Header.Get("Mesh-Count")
		default:
			if len(m.Data) < 100 && string(m.Data) != item(text) {
				s.t.Errorf("item %s = %s", text, m.Data)
			}
		}
		if id := m.Header.Get("Mesh-Rpc-Id"); id != rpc {
			s.t.Errorf("chunk %s has the id %q", text, id)
		}
		for name := range m.Header {
			if !strings.HasPrefix(name, "Mesh-") {
				s.t.Errorf("chunk %s carries the store's header %s", text, name)
			}
		}
		got = append(got, text)
	}
}

func numbers(from, to int) []string {
	var all []string
	for i := from; i <= to; i++ {
		all = append(all, strconv.Itoa(i))
	}
	return all
}

func TestReplay(t *testing.T) {
	t.Parallel()
	s := newStore(t, meshtest.Broker(t))
	s.write("running", numbers(1, 5)...)
	s.write("over", append(numbers(1, 3), "T3")...)
	s.write("failed", "1", "E1")
	s.write("none", "T0")
	s.write("rubbish", "1", "x", "2", "x")
	s.put("lived", "old", "1", item("1"), "Mesh-Epoch", "1")
	s.put("lived", "new", "1", item("1"), "Mesh-Epoch", "2")
	s.put("lived", "never", "1", item("1"))
	for _, c := range []struct {
		name, rpc, request string
		want               []string
		high               string
		code               string
	}{
		{"from the first", "running", `{"from_seq":1}`, numbers(1, 5), "5", ""},
		{"from the middle", "running", `{"from_seq":4}`, numbers(4, 5), "5", ""},
		{"from the last", "running", `{"from_seq":5}`, []string{"5"}, "5", ""},
		{"from beyond the end", "running", `{"from_seq":6}`, nil, "5", ""},
		{"from far beyond", "running", `{"from_seq":600}`, nil, "5", ""},
		{"with the terminal", "over", `{"from_seq":1}`, []string{"1", "2", "3", "T3"}, "3;terminal", ""},
		{"the terminal alone", "over", `{"from_seq":4}`, []string{"T3"}, "3;terminal", ""},
		{"beyond the terminal", "over", `{"from_seq":5}`, nil, "3;terminal", ""},
		{"no room for the terminal", "over", `{"from_seq":3,"max_bytes":1}`, []string{"3"}, "3;terminal", ""},
		{"one chunk passes the limit", "running", `{"from_seq":2,"max_bytes":1}`, []string{"2"}, "5", ""},
		{"only one", "running", `{"from_seq":2,"max_bytes":9}`, []string{"2", "3"}, "5", ""},
		{"a limit of none is the default", "running", `{"from_seq":2,"max_bytes":0}`, numbers(2, 5), "5", ""},
		{"an error at the end", "failed", `{"from_seq":1}`, []string{"1", "E1"}, "1;terminal", ""},
		{"an empty stream", "none", `{"from_seq":1}`, []string{"T0"}, "0;terminal", ""},
		{"an unknown call", "unknown", `{"from_seq":1}`, nil, "0", ""},
		{"an unknown call from later on", "unknown", `{"from_seq":10}`, nil, "0", ""},
		{"what is no chunk is left out", "rubbish", `{"from_seq":1}`, numbers(1, 2), "2", ""},
		{"from 0", "over", `{"from_seq":0}`, nil, "", "invalid_request"},
		{"from below", "over", `{"from_seq":-1}`, nil, "", "invalid_request"},
		{"from nowhere", "over", `{}`, nil, "", "invalid_request"},
		{"from what is no number", "over", `{"from_seq":"one"}`, nil, "", "invalid_request"},
		{"from a half", "over", `{"from_seq":1.5}`, nil, "", "invalid_request"},
		{"a negative limit", "over", `{"from_seq":1,"max_bytes":-1}`, nil, "", "invalid_request"},
		{"nothing asked", "over", ``, nil, "", "invalid_request"},
		{"not JSON", "over", `from 1`, nil, "", "invalid_request"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, high, code, _ := s.replay("s", c.rpc, c.request)
			if diff := cmp.Diff(c.want, got); diff != "" || high != c.high || code != c.code {
				t.Errorf("high %q, code %q, want %q, %q; chunks (-want +got):\n%s", high, code, c.high, c.code, diff)
			}
		})
	}
	// The chunks of another life of a session are not there.
	for rpc, want := range map[string]string{"old": "0", "never": "0", "new": "1"} {
		if _, high, _, _ := s.replay("lived", rpc, `{"from_seq":1}`); high != want {
			t.Errorf("call %s of a session that was created again: high %q, want %q", rpc, high, want)
		}
	}
}

// Measured: asynchronous publishing with retries stored a stream as 26…100, 1…25.
func TestReplayOfDisorder(t *testing.T) {
	t.Parallel()
	s := newStore(t, meshtest.Broker(t))
	stores := map[string][]string{
		"turned":         slices.Concat(numbers(26, 100), numbers(1, 25)),
		"turned, ended":  slices.Concat(numbers(26, 100), []string{"T100"}, numbers(1, 25)),
		"repeated":       slices.Concat(numbers(1, 60), numbers(40, 100), []string{"T100"}, numbers(90, 95)),
		"twice":          slices.Concat(numbers(1, 100), []string{"T100"}, numbers(1, 100), []string{"T100"}),
		"twice, open":    slices.Concat(numbers(1, 100), numbers(1, 100)),
		"terminal first": slices.Concat([]string{"1", "T100"}, numbers(2, 100)),
	}
	backwards := numbers(1, 100)
	slices.Reverse(backwards)
	stores["backwards"] = backwards
	shuffled := slices.Concat(numbers(1, 100), numbers(1, 100), []string{"T100", "T100"})
	rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	stores["shuffled"] = shuffled
	for name, stored := range stores {
		rpc := strings.NewReplacer(" ", "-", ",", "").Replace(name)
		s.write(rpc, stored...)
		want, high := numbers(1, 100), "100"
		if slices.Contains(stored, "T100") {
			want, high = append(want, "T100"), "100;terminal"
		}
		for _, limit := range []int{1 << 20, 200, 1} {
			var got []string
			for page := 0; ; page++ {
				more, h, code, _ := s.replay("s", rpc, fmt.Sprintf(`{"from_seq":%d,"max_bytes":%d}`, len(got)+1, limit))
				if code != "" || h != high {
					t.Fatalf("%s, page %d of %d bytes: high %q, code %q, want %q", name, page, limit, h, code, high)
				}
				got = append(got, more...)
				if len(more) == 0 || len(got) >= len(want) {
					break
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s as stored (%v), read by %d bytes (-want +got):\n%s", name, stored, limit, diff)
			}
		}
	}
}

func TestReplayOfAnExpiredStream(t *testing.T) {
	t.Parallel()
	s := newStore(t, meshtest.Broker(t))
	stream, err := s.js.Stream(t.Context(), "MESH_CHUNKS")
	if err != nil {
		t.Fatal(err)
	}
	var sequences []uint64
	for _, text := range append(numbers(1, 10), "T10") {
		sequences = append(sequences, s.put("s", "old", text, item(text)))
	}
	// As the store's age limit does it: the oldest first.
	for _, sequence := range sequences[:6] {
		if err := stream.DeleteMsg(t.Context(), sequence); err != nil {
			t.Fatal(err)
		}
	}
	for from := 1; from <= 6; from++ {
		got, _, code, details := s.replay("s", "old", fmt.Sprintf(`{"from_seq":%d}`, from))
		if code != "stream_expired" || len(got) > 0 || fmt.Sprint(details["first_seq"]) != "7" {
			t.Errorf("from %d: %v, code %q, details %v, want stream_expired with first_seq 7", from, got, code, details)
		}
	}
	if got, high, code, _ := s.replay("s", "old", `{"from_seq":7}`); code != "" || high != "10;terminal" || len(got) != 5 {
		t.Errorf("from the first that is kept: %v, high %q, code %q", got, high, code)
	}
	for _, sequence := range sequences[6:] {
		if err := stream.DeleteMsg(t.Context(), sequence); err != nil {
			t.Fatal(err)
		}
	}
	if got, high, code, _ := s.replay("s", "old", `{"from_seq":7}`); len(got) > 0 || high != "0" || code != "" {
		t.Errorf("when nothing is left: %v, high %q, code %q", got, high, code)
	}
}

// A page holds a bounded number of chunks behind a gap; the others come with a later page.
func TestReplayOfMuchBehindAGap(t *testing.T) {
	t.Parallel()
	s := newStore(t, meshtest.Broker(t))
	const last = 45
	big := strings.Repeat("x", 512<<10)
	for _, text := range slices.Concat(numbers(6, last), []string{"T45"}) { // 20 MB behind the first five
		s.put("s", "big", text, big)
	}
	for _, text := range numbers(1, 5) {
		s.put("s", "big", text, big)
	}
	var got []string
	for page := 0; len(got) < last+1; page++ {
		more, _, code, _ := s.replay("s", "big", fmt.Sprintf(`{"from_seq":%d}`, len(got)+1))
		if code != "" || len(more) == 0 || page > last {
			t.Fatalf("page %d: %v, code %q", page, more, code)
		}
		if len(more) > 2 && !strings.HasPrefix(more[len(more)-1], "T") {
			t.Errorf("page %d has %d chunks of half a megabyte: its limit is one", page, len(more))
		}
		got = append(got, more...)
	}
	if diff := cmp.Diff(append(numbers(1, last), "T45"), got); diff != "" {
		t.Errorf("chunks (-want +got):\n%s", diff)
	}
}

func TestReplayWithoutAStore(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	s := newStore(t, broker)
	if err := s.js.DeleteStream(t.Context(), "MESH_CHUNKS"); err != nil {
		t.Fatal(err)
	}
	if _, _, code, _ := s.replay("s", "gone", `{"from_seq":1}`); code != "unavailable" {
		t.Errorf("code = %q, want unavailable", code)
	}
}

// A store that was made anew counts from 1: summaries of the old one are dropped.
func TestReplayOfAStoreThatWasMadeAnew(t *testing.T) {
	t.Parallel()
	s := newStore(t, meshtest.Broker(t))
	s.load("another", numbers(1, 50))
	s.write("paged", "1", "2", "3")
	s.write("mixed", "9", "1", "2")
	if got, high, _, _ := s.replay("s", "paged", `{"from_seq":1,"max_bytes":1}`); !slices.Equal(got, []string{"1"}) || high != "3" {
		t.Fatalf("%v, high %s", got, high)
	}
	if _, high, _, _ := s.replay("s", "mixed", `{"from_seq":1}`); high != "9" {
		t.Fatalf("high %s", high)
	}
	stream, err := s.js.Stream(t.Context(), subjects.StreamChunks)
	if err == nil {
		err = s.js.DeleteStream(t.Context(), subjects.StreamChunks)
	}
	if err == nil {
		_, err = s.js.CreateStream(t.Context(), stream.CachedInfo().Config)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.write("paged", "2", "3")
	s.write("mixed", "2", "1")
	if got, high, _, _ := s.replay("s", "paged", `{"from_seq":2}`); !slices.Equal(got, []string{"2", "3"}) || high != "3" {
		t.Errorf("from the next page on: %v, high %s", got, high)
	}
	if got, high, _, _ := s.replay("s", "mixed", `{"from_seq":1}`); !slices.Equal(got, []string{"1", "2"}) || high != "2" {
		t.Errorf("out of order: %v, high %s", got, high)
	}
}

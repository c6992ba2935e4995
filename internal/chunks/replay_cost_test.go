package chunks_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/meshtest"
)

// load stores chunks of a call in this order, as write does, and waits for the
// last of them only.
func (s *written) load(rpc string, all []string, more ...string) {
	s.t.Helper()
	last := len(all) - 1
	for _, text := range all[:last] {
		if err := s.nc.PublishMsg(chunkMsg("s", rpc, text, item(text), more...)); err != nil {
			s.t.Fatal(err)
		}
	}
	if _, err := s.js.PublishMsg(soon(s.t), chunkMsg("s", rpc, all[last], item(all[last]), more...)); err != nil {
		s.t.Fatalf("store %s: %v", all[last], err)
	}
}

// gets counts the reads of stored chunks.
type gets struct {
	t   *testing.T
	sub *nats.Subscription
}

func (s *written) gets() *gets {
	s.t.Helper()
	sub, err := s.nc.SubscribeSync("$JS.API.DIRECT.GET.MESH_CHUNKS")
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.nc.Flush(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = sub.Unsubscribe() })
	return &gets{t: s.t, sub: sub}
}

// since returns the number of reads since the last call, and the max number of messages they asked
// for. It is complete once the replay has answered.
func (g *gets) since() (questions, messages int) {
	g.t.Helper()
	waiting, _, err := g.sub.Pending()
	if err != nil {
		g.t.Fatal(err)
	}
	for range waiting {
		m, err := g.sub.NextMsgWithContext(soon(g.t))
		if err != nil {
			g.t.Fatal(err)
		}
		var q struct{ Batch int }
		if err := json.Unmarshal(m.Data, &q); err != nil {
			g.t.Fatal(err)
		}
		questions++
		messages += max(q.Batch, 1)
	}
	return questions, messages
}

// The cost of a replay depends on its page, not on the length of the stream: the last five of
// 108,000 items once took seconds.
func TestReplayReadsOnlyReturnedChunks(t *testing.T) {
	t.Parallel()
	s := newStore(t, meshtest.Broker(t))
	const n = 20_000
	all := numbers(1, n)
	s.load("running", all)
	s.load("over", append(slices.Clone(all), "T"+strconv.Itoa(n)))
	// Two calls that share the store unevenly: where an item lies cannot be
	// computed from its number.
	for i, text := range all {
		for _, m := range []*nats.Msg{chunkMsg("s", "mixed", text, item(text)), chunkMsg("s", "other", text, item(text))} {
			if strings.HasSuffix(m.Subject, "other") && (i/1000)%3 == 0 {
				continue
			}
			if err := s.nc.PublishMsg(m); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.load("mixed", []string{"T" + strconv.Itoa(n)})
	// A writer went back and repeated some; the stream has ended, so its end has the highest Seq.
	s.load("repeated", slices.Concat(numbers(1, n/2), numbers(n/2-25, n), []string{"T" + strconv.Itoa(n)}))
	s.load("turned", slices.Concat(numbers(26, 100), numbers(1, 25), numbers(101, n), []string{"T" + strconv.Itoa(n)}))
	s.load("foreign", slices.Concat(numbers(1, 15_000), []string{"x", "x"}, numbers(15_001, n), []string{"T" + strconv.Itoa(n)}))
	s.load("expired", numbers(501, n))

	g := s.gets()
	ended := strconv.Itoa(n) + ";terminal"
	terminal := "T" + strconv.Itoa(n)
	for _, c := range []struct {
		rpc       string
		from      int
		limit     int
		want      []string
		high      string
		questions int // at most
		messages  int
	}{
		{"running", n - 4, 1 << 20, numbers(n-4, n), "20000", 12, 100},
		{"running", n, 1 << 20, numbers(n, n), "20000", 3, 3},
		{"running", n + 1, 1 << 20, nil, "20000", 3, 3},
		{"running", n + 100_000, 1 << 20, nil, "20000", 3, 3},
		{"running", n / 2, 100, numbers(n/2, n/2+7), "20000", 12, 100},
		{"over", n - 4, 1 << 20, append(numbers(n-4, n), terminal), ended, 12, 100},
		{"over", n, 1 << 20, []string{strconv.Itoa(n), terminal}, ended, 12, 100},
		{"over", n + 1, 1 << 20, []string{terminal}, ended, 3, 3},
		{"over", n + 2, 1 << 20, nil, ended, 3, 3},
		{"over", n / 2, 100, numbers(n/2, n/2+7), ended, 12, 100},
		{"mixed", n - 4, 1 << 20, append(numbers(n-4, n), terminal), ended, 30, 150},
		{"mixed", n / 2, 100, numbers(n/2, n/2+7), ended, 30, 150},
		{"mixed", 3210, 100, numbers(3210, 3217), ended, 30, 150},
		{"repeated", n - 4, 1 << 20, append(numbers(n-4, n), terminal), ended, 30, 150},
		{"repeated", n/2 - 3, 100, numbers(n/2-3, n/2+4), ended, 40, 200},
		{"repeated", 77, 100, numbers(77, 80), ended, 40, 200},
		{"turned", n - 4, 1 << 20, append(numbers(n-4, n), terminal), ended, 30, 150},
		{"foreign", n - 4, 1 << 20, append(numbers(n-4, n), terminal), ended, 30, 150},
		{"foreign", 14_998, 100, numbers(14_998, 15_005), ended, 40, 200},
		{"expired", n - 4, 1 << 20, numbers(n-4, n), "20000", 12, 100},
	} {
		t.Run(fmt.Sprintf("%s from %d", c.rpc, c.from), func(t *testing.T) {
			g.since()
			got, high, code, _ := s.replay("s", c.rpc, fmt.Sprintf(`{"from_seq":%d,"max_bytes":%d}`, c.from, c.limit))
			if c.limit < 1000 && len(got) > len(c.want) {
				c.want = numbers(c.from, c.from+len(got)-1) // as many as the limit lets through
			}
			if diff := cmp.Diff(c.want, got); diff != "" || high != c.high || code != "" {
				t.Errorf("high %q, code %q, want %q; chunks (-want +got):\n%s", high, code, c.high, diff)
			}
			if questions, messages := g.since(); questions > c.questions || messages > c.messages {
				t.Errorf("%d questions for up to %d messages, want at most %d and %d", questions, messages, c.questions, c.messages)
			}
		})
	}
	t.Run("expired from 1", func(t *testing.T) {
		g.since()
		got, _, code, details := s.replay("s", "expired", `{"from_seq":1}`)
		if code != "stream_expired" || len(got) > 0 || fmt.Sprint(details["first_seq"]) != "501" {
			t.Errorf("%v, code %q, details %v, want stream_expired with first_seq 501", got, code, details)
		}
		if questions, messages := g.since(); questions > 3 || messages > 3 {
			t.Errorf("%d questions for up to %d messages, want 3 and 3", questions, messages)
		}
	})
}

// A store that is out of order is read whole once to find the highest Seq, not for each page.
func TestReplayOfALongDisorder(t *testing.T) {
	t.Parallel()
	s := newStore(t, meshtest.Broker(t))
	const n = 2000
	s.load("turned", slices.Concat(numbers(26, 100), numbers(1, 25), numbers(101, n)))
	s.load("repeated", slices.Concat(numbers(1, n/2), numbers(n/2-25, n)))
	s.load("foreign", slices.Concat(numbers(1, n/2), []string{"x"}, numbers(n/2+1, n)))
	s.load("lived-before", numbers(1, 100), "Mesh-Epoch", "1")
	s.load("lived-before", numbers(1, n))
	s.load("lacking", slices.Concat(numbers(1, n/2), numbers(n/2+2, n)))
	s.load("backwards", slices.Concat(numbers(1601, n), numbers(1201, 1600), numbers(801, 1200), numbers(401, 800), numbers(1, 400)))
	g := s.gets()
	for _, rpc := range []string{"turned", "repeated", "foreign", "lived-before", "backwards"} {
		t.Run(rpc, func(t *testing.T) {
			got, high, code, _ := s.replay("s", rpc, fmt.Sprintf(`{"from_seq":%d}`, n-4))
			if diff := cmp.Diff(numbers(n-4, n), got); diff != "" || high != "2000" || code != "" {
				t.Errorf("high %q, code %q; chunks (-want +got):\n%s", high, code, diff)
			}
			got = nil
			g.since()
			pages := 0
			for ; len(got) < n; pages++ {
				more, high, code, _ := s.replay("s", rpc, fmt.Sprintf(`{"from_seq":%d,"max_bytes":5000}`, len(got)+1))
				if len(more) == 0 || high != "2000" || code != "" {
					t.Fatalf("page %d: %d chunks, high %q, code %q", pages, len(more), high, code)
				}
				got = append(got, more...)
			}
			if diff := cmp.Diff(numbers(1, n), got); diff != "" {
				t.Errorf("chunks (-want +got):\n%s", diff)
			}
			if _, messages := g.since(); rpc != "backwards" && messages > 4*n {
				t.Errorf("%d pages asked for %d messages of %d", pages, messages, n)
			}
		})
	}
	t.Run("lacking", func(t *testing.T) {
		for from, want := range map[int][]string{
			n/2 + 1: numbers(n/2+2, n),
			n/2 - 1: slices.Concat(numbers(n/2-1, n/2), numbers(n/2+2, n)),
			n - 4:   numbers(n-4, n),
		} {
			got, high, code, _ := s.replay("s", "lacking", fmt.Sprintf(`{"from_seq":%d}`, from))
			if diff := cmp.Diff(want, got); diff != "" || high != "2000" || code != "" {
				t.Errorf("from %d: high %q, code %q; chunks (-want +got):\n%s", from, high, code, diff)
			}
		}
	})
}

// A stream that goes on while it is read is read up to where it was.
func TestReplayWhileItIsWritten(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	s := newStore(t, broker)
	const n = 5000
	s.load("r", numbers(1, n))
	g := s.gets()
	nc := broker.Connect(t)
	acks, err := nc.SubscribeSync(nc.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		for i := n + 1; ; i++ {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			text := strconv.Itoa(i)
			m := chunkMsg("s", "r", text, item(text))
			if i%64 == 0 {
				m.Reply = acks.Subject
			}
			err := nc.PublishMsg(m)
			if err == nil && i%64 == 0 {
				_, err = acks.NextMsg(time.Minute) // no faster than the broker stores
			}
			if err != nil {
				stopped <- err
				return
			}
		}
	}()
	for round := range 20 {
		_, high, code, _ := s.replay("s", "r", `{"from_seq":1000000000}`)
		if seen, err := strconv.Atoi(high); err != nil || seen < n || code != "" {
			t.Fatalf("round %d, beyond the end: high %q, code %q", round, high, code)
		}
		seen, _ := strconv.Atoi(high)
		from := seen - 9
		got, high, code, _ := s.replay("s", "r", fmt.Sprintf(`{"from_seq":%d}`, from))
		last, _ := strconv.Atoi(high)
		if code != "" || last < seen {
			t.Fatalf("round %d, the last ten of %d: high %q, code %q", round, seen, high, code)
		}
		if diff := cmp.Diff(numbers(from, last), got); diff != "" {
			t.Fatalf("round %d, the last ten (-want +got):\n%s", round, diff)
		}
		if questions, messages := g.since(); questions > 30+(last-from)/100 || messages > 2*(last-from)+300 {
			t.Errorf("round %d: %d questions for up to %d messages, for %d chunks", round, questions, messages, len(got))
		}
		if got, high, code, _ := s.replay("s", "r", `{"from_seq":100,"max_bytes":50}`); code != "" || len(got) == 0 || got[0] != "100" || high == "" {
			t.Fatalf("round %d, from 100: %v, high %q, code %q", round, got, high, code)
		}
		g.since()
	}
	close(stop)
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
}

package output

import (
	"encoding/base64"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/toolmesh/toolmesh/executor/internal/frame"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A redacted secret in base64 looks the same for every secret of its length, next to any text.
func TestSecretsInBase64LeaveNothing(t *testing.T) {
	t.Parallel()
	secrets := []string{"tok-5f3a9c0e", "~~~???>>>~~~"}
	for ahead := range 5 {
		for behind := range 5 {
			for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
				var left []string
				for _, secret := range secrets {
					text := strings.Repeat("u", ahead) + secret + strings.Repeat(":", behind)
					left = append(left, NewRedactor([]string{secret}).Text("Basic "+encoding.EncodeToString([]byte(text))+"."))
				}
				if !strings.Contains(left[0], "***") || left[0] != left[1] {
					t.Errorf("%d characters ahead and %d behind: left %q", ahead, behind, left)
				}
			}
		}
	}
}

// No part of a secret is shown if it arrives in pieces, at the edge of a line that is too long, or
// begins before the start of a tail.
func TestSecretsAtEdges(t *testing.T) {
	t.Parallel()
	for _, secret := range []string{"the-secret-of-the-index", "first-half\xe4\xf6second-half"} {
		redact := NewRedactor([]string{secret, secret[:10]}) // of two that begin alike the longer one is replaced
		for shift := range 130 {                             // more than a piece: where a line is cut depends on where the pieces end
			var got []string
			lines, tail := NewLines(redact, func(text string) { got = append(got, text) }), NewTail(redact)
			text := strings.Repeat("x", longestLine+100-shift) + secret + strings.Repeat("y", tailSize-shift%(len(secret)+2))
			for len(text) > 0 {
				n := min(len(text), 100)
				lines.Add([]byte(text[:n]))
				tail.Add([]byte(text[:n]), "")
				text = text[n:]
			}
			lines.Settle()
			all := strings.Join(got, "") + tail.String()
			if left := strings.Trim(all, "xy*"); left != "" || !strings.Contains(all, mark) {
				t.Errorf("%q, %d bytes before the edge: left %q", secret, shift, left)
			}
		}
	}
}

func TestATailOfSecretsAlone(t *testing.T) {
	t.Parallel()
	const secret = "the-secret-of-the-index"
	for shift := range len(secret) {
		tail := NewTail(NewRedactor([]string{secret}))
		tail.Add([]byte(strings.Repeat(secret+"\n", 1000)+strings.Repeat("y", shift)), "")
		if left := strings.Trim(tail.String(), "y*\n"); left != "" {
			t.Errorf("left %q", left)
		}
	}
}

func TestATailIsOneSessions(t *testing.T) {
	t.Parallel()
	tail := NewTail(nil)
	tail.Add([]byte("of a "), "a")
	tail.Add([]byte("and more\n"), "a")
	if got := tail.Of("a"); got != "of a and more" {
		t.Errorf("a sees %q", got)
	}
	if got := tail.Of("b"); got != "" {
		t.Errorf("b sees %q", got)
	}
	tail.Add([]byte("of b"), "b")
	if got := tail.String(); got != "of b" {
		t.Errorf("b's call left %q", got)
	}
	tail.Forget()
	if got := tail.Of("b"); got != "" {
		t.Errorf("after the call: %q", got)
	}
}

// At the end of its call a pipe delivers all its data, an incomplete line included; data above the
// rate is dropped.
func TestAPipeHandsOverBeforeTheEndOfACall(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var lock sync.Mutex
	var got []string
	saw := 0
	pipe, err := NewPipe(r, &lock, func(data []byte) { saw += len(data) }, NewLines(nil, func(text string) { got = append(got, text) }))
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(pipe.Run)
	lock.Lock() // Run cannot read now
	if _, err := w.WriteString("one\ntwo\nthree"); err != nil {
		t.Fatal(err)
	}
	pipe.Settle(true)
	if diff := cmp.Diff([]string{"one\ntwo", "three"}, got); diff != "" {
		t.Error(diff)
	}
	lock.Unlock()
	flood := []byte(strings.Repeat(strings.Repeat("z", 999)+"\n", 1000))
	if _, err := w.Write(flood); err != nil {
		t.Fatal(err)
	}
	pipe.Close()
	running.Wait()
	size := 0
	for _, text := range got {
		size += len(text)
	}
	if want := len("one\ntwo\nthree") + len(flood); saw != want {
		t.Errorf("%d bytes were read, %d written", saw, want)
	}
	if size < burst/2 || size > 2*burst {
		t.Errorf("%d bytes of %d were handed over", size, len(flood))
	}
}

func TestRecordOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		flags uint8
		body  string
		want  Record
	}{
		{frame.LogStdout, "text\n", Record{Stream: StreamStdout, Message: "text"}},
		{frame.LogStderr, "text", Record{Stream: StreamStderr, Message: "text"}},
		{frame.LogRecord, `{"level":"warning","logger":"a.b","message":"m","fields":{"n": 1}}`,
			Record{Stream: StreamLog, Level: 4, Logger: "a.b", Message: "m", Fields: []byte(`{"n": 1}`)}},
		{frame.LogProgress, `{"message":"half","fields":{"fraction":0.5}}`,
			Record{Stream: StreamProgress, Message: "half", Fields: []byte(`{"fraction":0.5}`)}},
		{frame.LogRecord, `{"level":"critical"}`, Record{Stream: StreamLog, Level: slog.LevelError}},
		{frame.LogRecord, `{"level":"error+1000"}`, Record{Stream: StreamLog}},
		{frame.LogRecord, `{"level":"level 25"}`, Record{Stream: StreamLog}},
		{frame.LogRecord, `broken`, Record{Stream: StreamLog, Message: "broken"}},
	} {
		got := RecordOf(c.flags, []byte(c.body))
		got.Time = time.Time{}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", c.body, diff)
		}
	}
}

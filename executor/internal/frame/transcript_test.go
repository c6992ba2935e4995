package frame_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh/executor/internal/frame"
)

// transcript reads a file of testdata, as python/tests/test_transcripts.py says that it is written: the frames by
// their sender, and the names of their types.
func transcript(t *testing.T, path string) (sent map[string][]byte, types map[string][]string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sent, types = map[string][]byte{}, map[string][]string{}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		parts := strings.SplitN(line, " ", 4)
		header, err := hex.DecodeString(parts[2])
		var body string
		if err := errors.Join(err, json.Unmarshal([]byte(parts[3]), &body)); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		sent[parts[0]] = append(sent[parts[0]], header...)
		for _, char := range body { // one for each byte
			sent[parts[0]] = append(sent[parts[0]], byte(char))
		}
		types[parts[0]] = append(types[parts[0]], parts[1])
	}
	return sent, types
}

// A recorded conversation of agent and worker is cut into its frames, and each is written back byte
// for byte.
func TestRecordedFrames(t *testing.T) {
	t.Parallel()
	numbers := pythonNumbers(t)
	paths, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(paths) < 3 {
		t.Fatalf("transcripts: %q, %v", paths, err)
	}
	for _, path := range paths {
		sent, types := transcript(t, path)
		for side, stream := range sent {
			frames, err := readAll(iotest.OneByteReader(bytes.NewReader(stream)), 1<<20)
			if !errors.Is(err, io.EOF) {
				t.Errorf("%s: %v", path, err)
			}
			var want, got []int
			var again []byte
			for i, name := range types[side] {
				want = append(want, numbers[name])
				if i < len(frames) {
					got = append(got, int(frames[i].Header.Type))
					again = frame.Append(again, frames[i].Header, []byte(frames[i].Body))
				}
			}
			if diff := cmp.Diff(want, got); diff != "" || !bytes.Equal(again, stream) {
				t.Errorf("%s: frames of %s (-recorded +read):\n%s", path, side, diff)
			}
		}
	}
}

func TestGreeting(t *testing.T) {
	t.Parallel()
	sent, _ := transcript(t, "testdata/zygote.txt")
	frames, _ := readAll(bytes.NewReader(sent["<"]), 1<<20)
	if err := frame.Greeted(frames[0].Header, []byte(frames[0].Body)); err != nil {
		t.Errorf("the recorded greeting: %v", err)
	}
	for _, other := range []one{
		{frame.Header{Type: frame.Hello}, "\x01\x00\x00\x00"}, {frame.Header{Type: frame.Hello}, ""}, frames[1],
	} {
		var version *frame.VersionError
		err := frame.Greeted(other.Header, []byte(other.Body))
		if !errors.As(err, &version) || version.Agent != frame.Version || version.Worker == frame.Version {
			t.Errorf("%+v: %v", other, err)
		}
	}
}

// docs/worker-protocol.md names every type and flag with its number, and the version.
func TestThePageHasTheNumbers(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/worker-protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, m := range regexp.MustCompile("`([A-Z][A-Z_]*)` \\(?(\\d+)\\b").FindAllStringSubmatch(string(page), -1) {
		number, _ := strconv.Atoi(m[2])
		if before, ok := got[m[1]]; ok && before != number {
			t.Errorf("%s is both %d and %d", m[1], before, number)
		}
		got[m[1]] = number
	}
	want := pythonNumbers(t)
	delete(want, "HEADER_SIZE")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("frames.py and the page differ (-python +page):\n%s", diff)
	}
}

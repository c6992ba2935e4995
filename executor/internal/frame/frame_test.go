package frame_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"regexp"
	"strconv"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh/executor/internal/frame"
)

type one struct {
	Header frame.Header
	Body   string
}

func readAll(r io.Reader, limit uint32) ([]one, error) {
	fr := frame.NewReader(r, limit)
	var got []one
	for {
		h, body, err := fr.Next()
		if err != nil {
			return got, err
		}
		got = append(got, one{h, string(body)})
	}
}

func TestReaderReturnsAppendedFrames(t *testing.T) {
	t.Parallel()
	large := bytes.Repeat([]byte("x"), 300<<10)
	var stream []byte
	var want []one
	for i, body := range [][]byte{[]byte(`{"a":1}`), nil, large, []byte("tail")} {
		h := frame.Header{Type: frame.Call, Flags: frame.FlagStream, Slot: uint16(i), ID: uint64(1)<<40 + uint64(i)}
		stream = frame.Append(stream, h, body)
		h.Length = uint32(len(body))
		want = append(want, one{h, string(body)})
	}
	for name, r := range map[string]io.Reader{
		"whole":        bytes.NewReader(stream),
		"byte by byte": iotest.OneByteReader(bytes.NewReader(stream)),
		"with EOF":     iotest.DataErrReader(bytes.NewReader(stream)),
	} {
		got, err := readAll(r, 1<<20)
		if !errors.Is(err, io.EOF) {
			t.Errorf("%s: got error %v, want io.EOF", name, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: frames differ (-want +got):\n%.400s", name, diff)
		}
	}
}

func TestReaderRefusesFramesOverTheLimit(t *testing.T) {
	t.Parallel()
	stream := frame.Append(nil, frame.Header{Type: frame.Result}, make([]byte, 101))
	if _, err := readAll(bytes.NewReader(stream), 100); !errors.Is(err, frame.ErrTooLarge) {
		t.Errorf("got %v, want ErrTooLarge", err)
	}
}

func TestReaderTellsACutFrameFromACleanEnd(t *testing.T) {
	t.Parallel()
	stream := frame.Append(nil, frame.Header{Type: frame.Result}, []byte("0123456789"))
	for _, cut := range []int{1, 15, 16, 20} {
		if _, err := readAll(bytes.NewReader(stream[:cut]), 100); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut at %d: got %v, want io.ErrUnexpectedEOF", cut, err)
		}
	}
}

// The numbers are the same in both languages.
func TestNumbersAgreeWithPython(t *testing.T) {
	t.Parallel()
	want := map[string]int{
		"CALL": int(frame.Call), "CANCEL": int(frame.Cancel), "CREDIT": int(frame.Credit), "EXIT": int(frame.Exit),
		"PING": int(frame.Ping), "READY": int(frame.Ready), "RESULT": int(frame.Result), "ERROR": int(frame.Error),
		"YIELD": int(frame.Yield), "END": int(frame.End), "LOG": int(frame.Log), "PONG": int(frame.Pong),
		"SETUP": int(frame.Setup), "FORK": int(frame.Fork), "BECOME": int(frame.Become),
		"HELLO": int(frame.Hello), "VERSION": frame.Version,
		"IMPORTING": int(frame.Importing), "DESCRIBED": int(frame.Described), "FORKED": int(frame.Forked),
		"EXITED": int(frame.Exited), "CONFINED": int(frame.Confined), "STREAM": int(frame.FlagStream), "BATCH": int(frame.FlagBatch), "DESCRIBE": int(frame.FlagDescribe), "TASK": int(frame.FlagTask), "FILE": int(frame.FlagFile), "COLLECT": int(frame.FlagCollect),
		"META": int(frame.FlagMeta), "UNTIL": int(frame.FlagUntil), "HANDLE": int(frame.FlagHandle), "FAILED": int(frame.FlagFailed), "RAW": int(frame.FlagRaw), "SPENT": int(frame.FlagSpent), "LOG_STDOUT": int(frame.LogStdout),
		"LOG_STDERR": int(frame.LogStderr), "LOG_RECORD": int(frame.LogRecord), "HEADER_SIZE": frame.HeaderSize,
		"LOG_PROGRESS": int(frame.LogProgress), "NESTED_RESULT": int(frame.NestedResult), "NESTED_ERROR": int(frame.NestedError),
		"NESTED_ITEM": int(frame.NestedItem), "NESTED_END": int(frame.NestedEnd), "NESTED_CALL": int(frame.NestedCall),
		"NESTED_CANCEL": int(frame.NestedCancel), "NESTED_CREDIT": int(frame.NestedCredit),
	}
	if diff := cmp.Diff(want, pythonNumbers(t)); diff != "" {
		t.Errorf("frame.go and frames.py differ (-go +python):\n%s", diff)
	}
}

// pythonNumbers are the constants of frames.py.
func pythonNumbers(t *testing.T) map[string]int {
	t.Helper()
	source, err := os.ReadFile("../../../python/src/toolmesh/_worker/wire/frames.py")
	if err != nil {
		t.Fatal(err)
	}
	numbers := map[string]int{}
	for _, m := range regexp.MustCompile(`(?m)^([A-Z][A-Z_]*) = (\d+)`).FindAllStringSubmatch(string(source), -1) {
		numbers[m[1]], _ = strconv.Atoi(m[2])
	}
	return numbers
}

func FuzzFrame(f *testing.F) {
	f.Add(frame.Append(nil, frame.Header{Type: frame.Call, ID: 7}, []byte(`{}`)))
	f.Add([]byte{255, 255, 255, 255, 1})
	f.Fuzz(func(t *testing.T, stream []byte) {
		const limit = 1 << 16
		got, err := readAll(bytes.NewReader(stream), limit)
		if err == nil {
			t.Fatal("a stream without an end")
		}
		slow, slowErr := readAll(iotest.OneByteReader(bytes.NewReader(stream)), limit)
		if diff := cmp.Diff(got, slow); diff != "" || err.Error() != slowErr.Error() {
			t.Fatalf("the way it was cut matters: %v, %v\n%s", err, slowErr, diff)
		}
		var again []byte
		for _, one := range got {
			again = frame.Append(again, one.Header, []byte(one.Body))
		}
		if !bytes.HasPrefix(stream, again) {
			t.Fatal("frames do not append to what they were read from")
		}
	})
}

package frame

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Version is that of the protocol between the agent and its processes, see
// docs/worker-protocol.md. Each change of it is another one.
const Version = 5

// HeaderSize is the number of bytes before a body.
const HeaderSize = 16

// Type is the kind of a frame. frames.py holds the same numbers.
type Type uint8

// The types of frames.
const (
	Call   Type = 1 // agent to worker; body: arguments, see FlagMeta
	Cancel Type = 2
	Credit Type = 3 // body: u32, bytes that a stream may send on top
	Exit   Type = 4
	Ping   Type = 5

	NestedResult Type = 8 // agent to worker; terminal of a nested call, whose id it has
	NestedError  Type = 9
	NestedItem   Type = 10
	NestedEnd    Type = 11

	Ready  Type = 16 // worker to agent; body: JSON
	Result Type = 17 // terminal; body: the result's JSON
	Error  Type = 18 // terminal; body: JSON
	Yield  Type = 19 // body: an item's JSON
	End    Type = 20 // terminal of a stream
	Log    Type = 21 // body: text, or JSON with LogRecord
	Pong   Type = 22

	NestedCall   Type = 24 // worker to agent; body: u32 length, a JSON object, the arguments
	NestedCancel Type = 25
	NestedCredit Type = 26 // body: u32

	Setup     Type = 64 // agent to zygote
	Fork      Type = 65 // the id is the worker's; body: JSON, with the worker's descriptors
	Become    Type = 66 // likewise
	Hello     Type = 79 // the zygote's first; body: i32 version
	Importing Type = 80 // zygote to agent
	Described Type = 81
	Forked    Type = 82 // the worker's id; body: i32 process id, or with FlagFailed the reason
	Exited    Type = 83 // the worker's id; body: i32 exit code, i32 signal; the code is -1 with a signal
	Confined  Type = 84 // zygote to agent: code of the index may run from here on
)

// Flags of Call; NestedCall has FlagStream, and three of its own.
const (
	FlagStream  uint8 = 1 // items are wanted one by one
	FlagCollect uint8 = 2 // a generator's result is the list of its items
	FlagMeta    uint8 = 4 // body: u32 length, a JSON object, then the arguments
	FlagUntil   uint8 = 8 // before all that the end of the call's time: u64, as sandbox.Boottime
)

// Flags of NestedCall.
const (
	FlagBatch    uint8 = 2  // no tool: the arguments are a list of calls
	FlagDescribe uint8 = 4  // the result describes the tool
	FlagTask     uint8 = 8  // the tool is a verb of durable tasks, the arguments its request
	FlagFile     uint8 = 16 // no tool: bytes of a file, to the agent or with FlagStream from there
)

// Flags of a terminal.
const (
	FlagRaw   uint8 = 1 // output waits in the pipes of descriptors 1 and 2
	FlagSpent uint8 = 2 // the worker is not fit for another call
)

// Flags of Forked.
const (
	FlagHandle uint8 = 1 // a pidfd comes with it
	FlagFailed uint8 = 2
)

// Flags of Log.
const (
	LogStdout uint8 = 1
	LogStderr uint8 = 2
	LogRecord uint8 = 3
	// LogProgress is how far a call says that it is; body: JSON.
	LogProgress uint8 = 4
)

// Header precedes a body.
type Header struct {
	Length uint32
	Type   Type
	Flags  uint8
	Slot   uint16
	ID     uint64
}

// Append adds h to b.
func (h Header) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, h.Length)
	b = append(b, byte(h.Type), h.Flags)
	b = binary.LittleEndian.AppendUint16(b, h.Slot)
	return binary.LittleEndian.AppendUint64(b, h.ID)
}

// Parse reads a header; b holds at least [HeaderSize] bytes.
func Parse(b []byte) Header {
	_ = b[HeaderSize-1]
	return Header{
		Length: binary.LittleEndian.Uint32(b),
		Type:   Type(b[4]),
		Flags:  b[5],
		Slot:   binary.LittleEndian.Uint16(b[6:]),
		ID:     binary.LittleEndian.Uint64(b[8:]),
	}
}

// Append adds a whole frame to b. Its length is set from the parts of its body.
func Append(b []byte, h Header, body ...[]byte) []byte {
	h.Length = 0
	for _, part := range body {
		h.Length += uint32(len(part)) //nolint:gosec // callers bound bodies by a limit far below
	}
	b = h.Append(b)
	for _, part := range body {
		b = append(b, part...)
	}
	return b
}

// VersionError says that the files of the worker are of another version than this agent.
type VersionError struct {
	Agent  int
	Worker int // 0: it did not say
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("the worker speaks version %d of the worker protocol, this agent version %d: "+
		"its files were changed; delete the folder executor/worker of the agent and start the agent again", e.Worker, e.Agent)
}

// Greeted checks the first frame of a zygote. The error is a [*VersionError].
func Greeted(h Header, body []byte) error {
	said := 0
	if h.Type == Hello && len(body) == 4 {
		said = int(int32(binary.LittleEndian.Uint32(body))) //nolint:gosec // it was one
	}
	if said != Version {
		return &VersionError{Agent: Version, Worker: said}
	}
	return nil
}

// ErrTooLarge is returned by [Reader.Next] for a frame above the limit. The
// stream cannot be read on.
var ErrTooLarge = errors.New("frame: body over the limit")

// Reader cuts a byte stream into frames. Not for concurrent use.
type Reader struct {
	r      *bufio.Reader
	limit  uint32
	header [HeaderSize]byte
}

// NewReader reads frames whose bodies are at most limit bytes.
func NewReader(r io.Reader, limit uint32) *Reader {
	return &Reader{r: bufio.NewReaderSize(r, 64<<10), limit: limit}
}

// Next returns the next frame, whose body is the caller's.
// Errors: io.EOF at a clean end, io.ErrUnexpectedEOF inside a frame,
// [ErrTooLarge], and what the underlying reader returns.
func (r *Reader) Next() (Header, []byte, error) {
	if _, err := io.ReadFull(r.r, r.header[:]); err != nil {
		return Header{}, nil, err
	}
	h := Parse(r.header[:])
	if h.Length > r.limit {
		return h, nil, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, h.Length, r.limit)
	}
	body := make([]byte, h.Length)
	_, err := io.ReadFull(r.r, body)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return h, body, err
}

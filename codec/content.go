package codec

import (
	"bytes"
	"encoding/json"
	"errors"
	"mime"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/toolmesh/toolmesh"
)

const (
	typeJSON = "application/json"
	typePack = "application/msgpack"
	encZstd  = "zstd"

	// MaxDecoded is the max size of a decompressed body, in bytes.
	MaxDecoded = 8 << 20
	// leastCompressed is the min size of a body worth compressing, in bytes.
	leastCompressed = 10_000
)

// Values of headers that many answers share.
var (
	packValue = []string{typePack}
	zstdValue = []string{encZstd}
)

// Both are for concurrent use, and hold no goroutine.
var (
	decompress = sync.OnceValue(func() *zstd.Decoder {
		d, _ := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(MaxDecoded)) // the options are valid
		return d
	})
	compress = sync.OnceValue(func() *zstd.Encoder {
		c, _ := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest))
		return c
	})
)

// content notes how the body is written, as its headers say, and in which type the answer
// is to be.
func (r *Request) content(contentType, encoding string) error {
	if contentType != "" && contentType != typeJSON {
		media, _, err := mime.ParseMediaType(contentType)
		switch {
		case err == nil && media == typeJSON:
		case err == nil && (media == typePack || media == "application/x-msgpack" || media == "application/vnd.msgpack"):
			r.packed = true
		default:
			return invalid("content type %q is not understood: send %s or %s", contentType, typeJSON, typePack)
		}
	}
	switch strings.ToLower(encoding) {
	case "", "identity":
	case encZstd:
		r.zipped = true
	default:
		return invalid("content encoding %q is not understood: send the body as it is, or %s", encoding, encZstd)
	}
	return nil
}

// decode returns the body as JSON.
func (r *Request) decode() (body []byte, err error) {
	body = r.body
	if r.zipped {
		if body, err = inflate(body); err != nil {
			return nil, err
		}
	}
	if !r.packed || len(body) == 0 {
		return body, nil
	}
	most := 0
	if r.zipped {
		most = MaxDecoded
	}
	plain, err := Unpack(body, most)
	if err != nil && toolmesh.CodeOf(err) != toolmesh.CodePayloadTooLarge {
		err = invalid("the body is not MessagePack that could be JSON: %w", err)
	}
	return plain, err
}

// Encoded reports whether the arguments are yet to be decoded, which takes more memory
// than they do.
func (r *Request) Encoded() bool { return r.Args == nil && r.Ref == nil }

// Decode reads the arguments that [ReadRequest] has left as they came. The error is
// invalid_request or payload_too_large, with started:false.
func (r *Request) Decode() *toolmesh.Error {
	if !r.Encoded() {
		if r.Form != FormPlain {
			r.body = nil // the arguments are a copy of a part of it
		}
		return nil
	}
	plain, err := r.decode()
	switch {
	case err != nil:
	case r.Form != FormPlain:
		r.parseEnvelope(plain, &err)
	case len(bytes.TrimSpace(plain)) > 0:
		r.Args = plain
	default:
		r.Args = json.RawMessage("{}")
	}
	if err != nil {
		return refused(err)
	}
	return nil
}

// Size is how many bytes of memory the decoded arguments take.
func (r *Request) Size() int64 { return sizeOf(r.Args, r.Positional) }

func sizeOf(args json.RawMessage, positional []json.RawMessage) int64 {
	const slice = 32 // and the little that each is rounded up by
	n := int64(len(args))
	for _, v := range positional {
		n += int64(len(v)) + slice
	}
	return n
}

// Drop forgets the arguments, in any form, and the other fields that an execution needs: the call
// is not executed.
func (r *Request) Drop() {
	r.Args, r.Positional, r.body = nil, nil, nil
	r.Parent, r.Lanes, r.Revision, r.Trace = "", "", "", Trace{}
}

// errInflated refuses a body that becomes too much.
var errInflated = toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "the body has more than %d bytes once it is decompressed", MaxDecoded).WithDetail("limit", MaxDecoded)

func inflate(body []byte) ([]byte, error) {
	plain, err := decompress().DecodeAll(body, nil)
	switch {
	case errors.Is(err, zstd.ErrDecoderSizeExceeded), errors.Is(err, zstd.ErrWindowSizeExceeded):
		return nil, errInflated
	case err != nil:
		return nil, invalid("the body is not zstd: %w", err)
	}
	return plain, nil
}

// acceptsZstd reports whether a value of Accept-Encoding names zstd.
func acceptsZstd(accept string) bool {
	for part := range strings.SplitSeq(accept, ",") {
		name, q, _ := strings.Cut(part, ";")
		if strings.EqualFold(strings.TrimSpace(name), encZstd) {
			q = strings.ReplaceAll(q, " ", "")
			return !strings.HasPrefix(q, "q=0") || strings.Trim(q[3:], ".0") != ""
		}
	}
	return false
}

// Encode writes an answer to the request, which is JSON, in the request's type and,
// where the caller takes that and it is smaller, compressed.
func (r *Request) Encode(h Header, body []byte) (Header, []byte) {
	if len(body) == 0 || !r.packed && (!r.zstd || len(body) <= leastCompressed) {
		return h, body
	}
	if h == nil {
		h = make(Header, 2)
	}
	if r.packed {
		body = Pack(make([]byte, 0, len(body)), body)
		h[HeaderContentType] = packValue
	}
	if r.zstd && len(body) > leastCompressed {
		if small := compress().EncodeAll(body, make([]byte, 0, len(body)/2)); len(small) < len(body) {
			body = small
			h[HeaderContentEncoding] = zstdValue
		}
	}
	return h, body
}

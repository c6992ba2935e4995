package codec

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/tinylib/msgp/msgp"
)

// maxPackDepth is how deep a value in MessagePack may be nested.
const maxPackDepth = 1000

// Pack appends valid JSON in MessagePack. Integers of 64 bits stay integers, others, and
// numbers with a fraction or an exponent, are the nearest double.
func Pack(to, body []byte) []byte {
	return appendPacked(to, jsontext.NewDecoder(bytes.NewBuffer(body), anyText))
}

// appendPacked appends the next value of valid JSON.
func appendPacked(to []byte, dec *jsontext.Decoder) []byte {
	token, err := dec.ReadToken()
	if err != nil {
		return msgp.AppendNil(to)
	}
	switch token.Kind() {
	case '{', '[':
		// How many there are shows at the end: the forms of four bytes have room for it.
		at, end := len(to), token.Kind()+2
		if end == '}' {
			to = msgp.AppendMapHeader(to, math.MaxUint32)
		} else {
			to = msgp.AppendArrayHeader(to, math.MaxUint32)
		}
		values := uint32(0)
		for ; dec.PeekKind() != end && dec.PeekKind() != 0; values++ {
			to = appendPacked(to, dec)
		}
		_, _ = dec.ReadToken()
		if end == '}' {
			values /= 2
		}
		binary.BigEndian.PutUint32(to[at+1:], values)
		return to
	case '"':
		return msgp.AppendString(to, token.String())
	case '0':
		number := token.String()
		if n, err := strconv.ParseInt(number, 10, 64); err == nil {
			return msgp.AppendInt64(to, n)
		}
		if n, err := strconv.ParseUint(number, 10, 64); err == nil {
			return msgp.AppendUint64(to, n)
		}
		n, _ := strconv.ParseFloat(number, 64)
		if math.IsInf(n, 0) { // 1e400: the nearest double that JSON has
			n = math.Copysign(math.MaxFloat64, n)
		}
		return msgp.AppendFloat64(to, n)
	case 't', 'f':
		return msgp.AppendBool(to, token.Bool())
	}
	return msgp.AppendNil(to)
}

// Unpack converts one value of MessagePack to JSON: bin becomes base64 text, a timestamp of any
// length text (RFC 3339), keys text. Values without a form in JSON are errors: other extension
// types, NaN and infinities, keys of another type, repeated keys, text that is not UTF-8, years
// beyond 9999; so are bytes after the value. With an error it returns the part that was read. most
// bounds the result, in bytes; 0 does not. Beyond it the error is payload_too_large.
func Unpack(body []byte, most int) ([]byte, error) {
	u := unpacker{to: make([]byte, 0, len(body)+len(body)/2), rest: body, most: most}
	if err := u.value(0); err != nil {
		return u.to, err
	}
	if len(u.rest) > 0 {
		return u.to, fmt.Errorf("%d bytes follow the value", len(u.rest))
	}
	return u.to, nil
}

type unpacker struct {
	to, rest []byte
	most     int // of to; 0: as it comes
}

func (u *unpacker) value(depth int) (err error) {
	if depth > maxPackDepth {
		return fmt.Errorf("it is nested more than %d deep", maxPackDepth)
	}
	if u.most > 0 && len(u.to) > u.most {
		return errInflated
	}
	switch kind := msgp.NextType(u.rest); kind {
	case msgp.StrType:
		return u.text()
	case msgp.BinType:
		var raw []byte
		if raw, u.rest, err = msgp.ReadBytesZC(u.rest); err == nil {
			u.to = append(base64.StdEncoding.AppendEncode(append(u.to, '"'), raw), '"')
		}
	case msgp.MapType:
		return u.object(depth)
	case msgp.ArrayType:
		var n uint32
		if n, u.rest, err = msgp.ReadArrayHeaderBytes(u.rest); err != nil {
			return err
		}
		u.to = append(u.to, '[')
		for i := range n {
			if i > 0 {
				u.to = append(u.to, ',')
			}
			if err := u.value(depth + 1); err != nil {
				return err
			}
		}
		u.to = append(u.to, ']')
	case msgp.IntType:
		var n int64
		n, u.rest, err = msgp.ReadInt64Bytes(u.rest)
		u.to = strconv.AppendInt(u.to, n, 10)
	case msgp.UintType:
		var n uint64
		n, u.rest, err = msgp.ReadUint64Bytes(u.rest)
		u.to = strconv.AppendUint(u.to, n, 10)
	case msgp.Float32Type, msgp.Float64Type:
		return u.float(kind)
	case msgp.BoolType:
		var is bool
		is, u.rest, err = msgp.ReadBoolBytes(u.rest)
		u.to = strconv.AppendBool(u.to, is)
	case msgp.NilType:
		u.rest, err = msgp.ReadNilBytes(u.rest)
		u.to = append(u.to, "null"...)
	case msgp.InvalidType:
		return fmt.Errorf("%d bytes before the end there is no value", len(u.rest))
	default:
		return u.timestamp()
	}
	return err
}

// timestamp reads the one extension type that JSON has a form for. NextType does not tell it
// from others: it misses one that ends the body, and takes type 5 for one.
func (u *unpacker) timestamp() error {
	if _, err := msgp.ReadExtensionBytes(u.rest, &msgp.RawExtension{Type: msgp.MsgTimeExtension}); err != nil {
		return fmt.Errorf("it holds an extension type that is not a timestamp: %w", err)
	}
	at, rest, err := msgp.ReadTimeBytes(u.rest)
	if err != nil {
		return err
	}
	text, err := at.UTC().MarshalText()
	if err != nil {
		return err
	}
	u.rest = rest
	u.to = append(append(append(u.to, '"'), text...), '"')
	return nil
}

func (u *unpacker) float(kind msgp.Type) (err error) {
	n, bits := 0.0, 64
	if n, u.rest, err = msgp.ReadFloat64Bytes(u.rest); kind == msgp.Float32Type {
		bits = 32
	}
	if err == nil && (math.IsNaN(n) || math.IsInf(n, 0)) {
		err = fmt.Errorf("it holds %v, which JSON has not", n)
	}
	if err != nil {
		return err
	}
	from, form := len(u.to), byte('f')
	if size := math.Abs(n); size != 0 && (size < 1e-6 || size >= 1e21) {
		form = 'e'
	}
	u.to = strconv.AppendFloat(u.to, n, form, -1, bits)
	if !bytes.ContainsAny(u.to[from:], ".e") {
		u.to = append(u.to, ".0"...) // a double stays one
	}
	return nil
}

func (u *unpacker) text() error {
	text, rest, err := msgp.ReadStringZC(u.rest)
	if err != nil {
		return err
	}
	if !utf8.Valid(text) {
		return fmt.Errorf("it holds text that is not UTF-8")
	}
	u.rest = rest
	u.to, err = jsontext.AppendQuote(u.to, text)
	return err
}

func (u *unpacker) object(depth int) error {
	n, rest, err := msgp.ReadMapHeaderBytes(u.rest)
	if err != nil {
		return err
	}
	u.rest = rest
	u.to = append(u.to, '{')
	seen := make(map[string]bool)
	for i := range n {
		if i > 0 {
			u.to = append(u.to, ',')
		}
		if msgp.NextType(u.rest) != msgp.StrType {
			return fmt.Errorf("a key of an object is not text")
		}
		from := len(u.to)
		if err := u.text(); err != nil {
			return err
		}
		key := string(u.to[from:])
		if seen[key] {
			return fmt.Errorf("the key %.100s is there twice", key)
		}
		seen[key] = true
		u.to = append(u.to, ':')
		if err := u.value(depth + 1); err != nil {
			return err
		}
	}
	u.to = append(u.to, '}')
	return nil
}

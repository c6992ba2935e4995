package codec

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"sync"

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
	to := bytes.NewBuffer(make([]byte, 0, len(body)+len(body)/2))
	u := unpacker{to: encoders.Get().(*jsontext.Encoder), rest: body, most: int64(most)} //nolint:forcetypeassert // it holds nothing else
	u.to.Reset(to)
	defer encoders.Put(u.to)
	err := u.value()
	if err == nil && len(u.rest) > 0 {
		err = fmt.Errorf("%d bytes follow the value", len(u.rest))
	}
	for u.to.StackDepth() > 0 { // the part that was read
		kind, n := u.to.StackIndex(u.to.StackDepth())
		end := jsontext.EndArray
		if kind == '{' {
			end = jsontext.EndObject
		}
		if kind == '{' && n%2 == 1 {
			_ = u.to.WriteToken(jsontext.Null)
		}
		_ = u.to.WriteToken(end)
	}
	return bytes.TrimSuffix(to.Bytes(), []byte("\n")), err
}

var encoders = sync.Pool{New: func() any { return new(jsontext.Encoder) }}

type unpacker struct {
	to   *jsontext.Encoder // which refuses repeated keys and text that is not UTF-8
	rest []byte
	most int64 // bytes of the result; 0: as many as it has
}

func (u *unpacker) value() (err error) {
	switch {
	case u.to.StackDepth() > maxPackDepth:
		return fmt.Errorf("it is nested more than %d deep", maxPackDepth)
	case u.most > 0 && u.to.OutputOffset() > u.most:
		return errInflated
	}
	token := jsontext.Null
	switch kind := msgp.NextType(u.rest); kind {
	case msgp.StrType:
		var text []byte
		if text, u.rest, err = msgp.ReadStringZC(u.rest); err == nil {
			text, err = jsontext.AppendQuote(u.to.AvailableBuffer(), text)
		}
		if err != nil {
			return err
		}
		return u.to.WriteValue(text)
	case msgp.BinType:
		var raw []byte
		raw, u.rest, err = msgp.ReadBytesZC(u.rest)
		token = jsontext.String(base64.StdEncoding.EncodeToString(raw))
	case msgp.MapType, msgp.ArrayType:
		return u.values(kind == msgp.MapType)
	case msgp.IntType:
		var n int64
		n, u.rest, err = msgp.ReadInt64Bytes(u.rest)
		token = jsontext.Int(n)
	case msgp.UintType:
		var n uint64
		n, u.rest, err = msgp.ReadUint64Bytes(u.rest)
		token = jsontext.Uint(n)
	case msgp.Float32Type, msgp.Float64Type:
		return u.float(kind)
	case msgp.BoolType:
		var is bool
		is, u.rest, err = msgp.ReadBoolBytes(u.rest)
		token = jsontext.Bool(is)
	case msgp.NilType:
		u.rest, err = msgp.ReadNilBytes(u.rest)
	case msgp.InvalidType:
		return fmt.Errorf("%d bytes before the end there is no value", len(u.rest))
	default:
		return u.timestamp()
	}
	if err != nil {
		return err
	}
	return u.to.WriteToken(token)
}

// values reads a list, or the keys and values of an object.
func (u *unpacker) values(object bool) error {
	begin, end, read, each := jsontext.BeginArray, jsontext.EndArray, msgp.ReadArrayHeaderBytes, 1
	if object {
		begin, end, read, each = jsontext.BeginObject, jsontext.EndObject, msgp.ReadMapHeaderBytes, 2
	}
	n, rest, err := read(u.rest)
	if err != nil {
		return err
	}
	u.rest = rest
	if err := u.to.WriteToken(begin); err != nil {
		return err
	}
	for i := range each * int(n) {
		if object && i%2 == 0 && msgp.NextType(u.rest) != msgp.StrType {
			return fmt.Errorf("a key of an object is not text")
		}
		if err := u.value(); err != nil {
			return err
		}
	}
	return u.to.WriteToken(end)
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
	return u.to.WriteToken(jsontext.String(string(text)))
}

func (u *unpacker) float(kind msgp.Type) (err error) {
	n, bits, form := 0.0, 64, byte('f')
	if n, u.rest, err = msgp.ReadFloat64Bytes(u.rest); kind == msgp.Float32Type {
		bits = 32
	}
	if err == nil && (math.IsNaN(n) || math.IsInf(n, 0)) {
		err = fmt.Errorf("it holds %v, which JSON has not", n)
	}
	if err != nil {
		return err
	}
	if size := math.Abs(n); size != 0 && (size < 1e-6 || size >= 1e21) {
		form = 'e'
	}
	text := strconv.AppendFloat(nil, n, form, -1, bits)
	if !bytes.ContainsAny(text, ".e") {
		text = append(text, ".0"...) // a double stays one
	}
	return u.to.WriteValue(text)
}
